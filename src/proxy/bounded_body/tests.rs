use std::convert::Infallible;

use futures_util::StreamExt as _;
use http_body::Frame;
use http_body_util::StreamBody;

use super::*;
use crate::clock::Clock;
use crate::memory::BufferBudget;

fn budget(max: usize) -> BufferBudget {
    BufferBudget::new(max, Clock::start())
}

type Frames = Vec<Result<Frame<Bytes>, Infallible>>;

fn frames(parts: &[&'static str]) -> Frames {
    parts.iter().map(|part| Ok(Frame::data(Bytes::from_static(part.as_bytes())))).collect()
}

const LIMITS: ReadLimits = ReadLimits::new(100, Duration::from_secs(300));

async fn read(parts: &[&'static str], max: usize, budget: &BufferBudget) -> ReadResult {
    let mut body = StreamBody::new(futures_util::stream::iter(frames(parts)));
    read_bounded(&mut body, ReadLimits { max, ..LIMITS }, budget.empty()).await
}

#[tokio::test]
async fn pieces_are_joined_in_order_and_counted() {
    let budget = budget(100);
    for parts in [&["abc"][..], &["a", "b", "c"], &["", "abc", ""]] {
        let ReadResult::Whole { bytes, held, .. } = read(parts, 10, &budget).await else { panic!("it fits") };
        assert_eq!((&bytes[..], budget.held()), (&b"abc"[..], 3));
        drop(held);
    }
    assert_eq!(budget.held(), 0);
}

#[tokio::test]
async fn a_body_that_will_be_copied_is_charged_twice() {
    let budget = budget(100);
    let limits = ReadLimits { is_copied: true, ..LIMITS };
    let mut body = StreamBody::new(futures_util::stream::iter(frames(&["ab", "c"])));
    let ReadResult::Whole { held, .. } = read_bounded(&mut body, limits, budget.empty()).await else {
        panic!("it fits")
    };
    assert_eq!(held.bytes(), 6);
}

#[tokio::test]
async fn a_body_over_the_limit_is_returned_with_the_bytes_read_so_far() {
    let budget = budget(100);
    let ReadResult::Stopped { reason, read, .. } = read(&["abc", "def", "ghi"], 5, &budget).await else {
        panic!("too large")
    };
    assert_eq!((reason, &read[..]), (StopReason::TooLarge, &b"abcdef"[..]));
}

#[tokio::test]
async fn a_body_that_stalls_below_its_floor_is_stopped() {
    let floor = Some(MinRate { bytes: 2, window: Duration::from_millis(1) });
    let bounds = ReadLimits { floor, ..LIMITS };
    for parts in [&["a"][..], &["ab", "c"]] {
        let stalled = futures_util::stream::iter(frames(parts)).chain(futures_util::stream::pending());
        let gathered = read_bounded(&mut StreamBody::new(stalled), bounds, budget(100).empty()).await;
        assert!(matches!(gathered, ReadResult::Stopped { reason: StopReason::BelowFloor, .. }));
    }
}

#[tokio::test]
async fn a_window_with_enough_bytes_is_followed_by_another_window() {
    let mut window = RateWindow::new(MinRate { bytes: 2, window: Duration::from_millis(1) });
    window.missed(4).await;
    assert_eq!(window.at_start, 4, "the first window had its bytes, the second none");
}

#[tokio::test]
async fn a_full_process_stops_reading() {
    let budget = budget(4);
    let ReadResult::Stopped { reason, .. } = read(&["abc", "def"], 100, &budget).await else { panic!("full") };
    assert_eq!(reason, StopReason::BuffersFull);
}

#[test]
fn a_response_below_its_floor_is_a_broken_one_and_a_silent_one_a_timeout() {
    assert_eq!(StopReason::BelowFloor.response_failure(), FailureKind::UpstreamBroken);
    assert_eq!(StopReason::Slow.response_failure(), FailureKind::UpstreamTimeout);
}
