use super::*;
use crate::Http2Limits;
use std::time::Duration;

pub(crate) fn limits() -> ClientLimits {
    let second = Duration::from_secs(1);
    ClientLimits {
        head_bytes_max: 1,
        headers_max: 1,
        head_timeout: 5 * second,
        body_idle_timeout: second,
        body_timeout: second,
        pass_through_idle_timeout: second,
        keep_alive_timeout: 75 * second,
        write_timeout: 10 * second,
        requests_per_connection_max: 1,
        http2: Http2Limits {
            streams_max: 1,
            stream_window: 1,
            connection_window: 1,
            ping_interval: second,
            ping_timeout: second,
            resets_max: 1,
            age_max: second,
        },
    }
}

fn seconds_left(activity: &ConnectionActivity) -> Option<u128> {
    match activity.next_timeout(&limits()) {
        TimeoutAction::Nothing => None,
        TimeoutAction::Close(at) | TimeoutAction::End(at) => {
            Some(at.since(activity.clock.now()).as_millis().div_ceil(1000))
        }
    }
}

#[test]
fn an_idle_connection_may_stay_and_a_head_that_has_begun_must_end() {
    let activity = ConnectionActivity::new(Clock::start());
    assert_eq!(seconds_left(&activity), Some(75), "opened ahead");
    let (busy, _, calls) = activity.on_call_start(false);
    assert_eq!((calls, activity.next_timeout(&limits())), (1, TimeoutAction::Nothing));
    drop(busy);
    assert_eq!(seconds_left(&activity), Some(75));
    activity.on_read(b"POST");
    assert_eq!(seconds_left(&activity), Some(5), "the next head has begun");
}

#[test]
fn an_http2_connection_without_streams_is_idle_not_late() {
    let activity = ConnectionActivity::new(Clock::start());
    activity.set_http2();
    assert_eq!(seconds_left(&activity), Some(75));
}

#[test]
fn a_connection_waits_for_its_client_until_a_call_is_whole() {
    let activity = ConnectionActivity::new(Clock::start());
    assert!(activity.waits_since().is_some(), "it has sent nothing");
    let (call, ..) = activity.on_call_start(false);
    let upload = activity.on_upload_start();
    assert!(activity.waits_since().is_some(), "the body has not arrived");
    drop(upload);
    assert_eq!(activity.waits_since(), None);
    drop(call);
    assert!(activity.waits_since().is_some(), "it is idle");
    activity.set_relayed();
    assert_eq!(activity.waits_since(), None, "something moved a moment ago");
}

#[test]
fn an_evicted_relay_is_closed_at_once() {
    let activity = ConnectionActivity::new(Clock::start());
    let reader = futures_util::task::noop_waker();
    activity.eviction_waker().wake();
    assert!(!activity.is_relay_evicted(&reader), "hyper serves it");
    activity.set_relayed();
    assert!(activity.is_relay_evicted(&reader));
    assert_eq!(activity.next_timeout(&limits()), TimeoutAction::Close(Tick(0)));
}

#[test]
fn a_flooded_connection_is_closed_once_its_calls_are_answered_and_within_a_bound() {
    let activity = ConnectionActivity::new(Clock::start());
    activity.set_http2();
    let (mut call, ..) = activity.on_call_start(true);
    activity.shut_down_flooded(FloodReason::ControlFrames);
    activity.shut_down_flooded(FloodReason::HeaderLines);
    assert_eq!(activity.flood().unwrap().reason, FloodReason::ControlFrames);
    assert_eq!(seconds_left(&activity), Some(10), "the call is in progress");
    let upload = activity.on_upload_start();
    assert_eq!(seconds_left(&activity), Some(1), "the rest of its body is not read");
    call.on_response_start();
    assert_eq!(seconds_left(&activity), Some(10), "it is answered before its body is complete");
    drop((call, upload));
    assert_eq!(seconds_left(&activity), Some(1));
    activity.eviction_waker().wake();
    assert_eq!(activity.next_timeout(&limits()), TimeoutAction::Close(Tick(0)));
}

#[test]
fn a_blocked_write_or_an_untaken_answer_ends_a_busy_connection() {
    let activity = ConnectionActivity::new(Clock::start());
    let (mut busy, ..) = activity.on_call_start(false);
    activity.on_write(true);
    assert_eq!(seconds_left(&activity), Some(10));
    activity.on_write(false);
    assert_eq!(activity.next_timeout(&limits()), TimeoutAction::Nothing);
    busy.on_bytes_available();
    assert_eq!(seconds_left(&activity), Some(10));
    busy.on_bytes_taken();
    assert_eq!(activity.next_timeout(&limits()), TimeoutAction::Nothing);
}
