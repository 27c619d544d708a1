use super::*;

fn frame(kind: u8, payload: usize) -> Vec<u8> {
    let length = u32::try_from(payload).unwrap().to_be_bytes();
    let mut frame = vec![length[1], length[2], length[3], kind, 0, 0, 0, 0, 1];
    frame.resize(FRAME_HEADER_LEN + payload, 0xff);
    frame
}

const fn header(kind: FrameKind, length: u32) -> FrameHeader {
    FrameHeader { length, kind, stream: 1 }
}

/// Returns the number of control frames that are accepted in a row.
fn accepted_frames(budget: &mut ControlFrameLimiter) -> u32 {
    let accepted = (0..10 * CONTROL_BURST).find(|_| budget.try_take(header(FrameKind::Control, 8)));
    accepted.expect("the flood was not noticed")
}

#[test]
fn a_flood_of_control_frames_is_noticed() {
    use FrameKind::{Control, Goaway, Window};
    for kind in [Control, Goaway, Window] {
        let mut budget = ControlFrameLimiter::new(Clock::start());
        let is_flood = (0..3 * CONTROL_BURST).position(|_| budget.try_take(header(kind, 0)));
        assert!(is_flood.is_some_and(|count| count >= CONTROL_BURST as usize), "{kind:?}: {is_flood:?}");
        // Frames of calls are not limited here.
        let mut calls = [FrameKind::Call, FrameKind::Headers, FrameKind::Data].into_iter();
        assert!(!calls.any(|kind| budget.try_take(header(kind, 0))));
    }
}

#[test]
fn a_flood_between_a_few_calls_is_noticed() {
    let mut budget = ControlFrameLimiter::new(Clock::start());
    let is_flood = (0..10 * CONTROL_BURST).any(|number| {
        if number.is_multiple_of(100) {
            budget.refund(header(FrameKind::Headers, 30));
            budget.refund(header(FrameKind::Data, 8));
        }
        budget.try_take(header(FrameKind::Control, 8))
    });
    assert!(is_flood);
}

#[test]
fn control_frames_that_responses_explain_are_never_cut_off() {
    use FrameKind::{Control, Data, Headers, Window};
    let of_call = [header(Window, 4), header(Control, 8)];
    for (what, sent, received) in [
        ("two frames for each call", &[header(Headers, 30), header(Data, 8)][..], &of_call[..]),
        ("two frames for each small piece of a stream", &[header(Data, 0)][..], &of_call[..]),
        (
            "window updates for each part of a large response",
            &[header(Data, 16 << 10)][..],
            &[header(Window, 4); 16][..],
        ),
    ] {
        let mut budget = ControlFrameLimiter::new(Clock::start());
        // A thousand times a second for a minute. The time that passes meanwhile would only add
        // tokens.
        for _ in 0..60_000 {
            sent.iter().for_each(|frame| budget.refund(*frame));
            assert!(!received.iter().any(|frame| budget.try_take(*frame)), "{what}");
        }
    }
}

#[test]
fn refunds_do_not_exceed_the_burst() {
    let mut budget = ControlFrameLimiter::new(Clock::start());
    for _ in 0..10 * CONTROL_BURST {
        budget.refund(header(FrameKind::Data, u32::MAX >> 8));
    }
    assert_eq!(budget.tokens, CONTROL_BURST);
    // The elapsed time adds a second burst at most, and then the refill rate.
    let accepted = accepted_frames(&mut budget);
    assert!((CONTROL_BURST..3 * CONTROL_BURST).contains(&accepted), "{accepted}");
    for kind in [FrameKind::Call, FrameKind::Window, FrameKind::Goaway, FrameKind::Control] {
        budget.tokens = 0;
        budget.refund(header(kind, 1 << 20));
        assert_eq!(budget.tokens, 0, "{kind:?} refunds nothing");
    }
}

#[test]
fn heads_are_found_for_any_split_of_the_stream() {
    let kinds = [(4, 0), (1, 30), (0, 70_000), (8, 4), (6, 8), (0xba, 3), (0, 0)];
    let stream: Vec<u8> = kinds.iter().flat_map(|(kind, payload)| frame(*kind, *payload)).collect();
    for step in [1, 2, 7, 9, 10, 1000, stream.len()] {
        let mut scanner = FrameScanner::default();
        let mut heads = Vec::new();
        for piece in stream.chunks(step) {
            scanner.scan(piece, |head| heads.push(head));
        }
        assert!(scanner.is_between_frames());
        let lengths: Vec<_> = heads.iter().map(|head| head.length).collect();
        assert_eq!(lengths, [0, 30, 70_000, 4, 8, 3, 0], "steps of {step}");
        use FrameKind::{Control, Data, Headers, Window};
        let kinds: Vec<_> = heads.iter().map(|head| head.kind).collect();
        assert_eq!(kinds, [Control, Headers, Data, Window, Control, Control, Data]);
        assert!(heads.iter().all(|head| head.stream == 1));
    }
}

#[test]
fn a_frame_may_follow_whole_frames_and_whole_header_blocks() {
    let mut scanner = FrameScanner::default();
    let mut last = frame(9, 20);
    last[4] = END_HEADERS;
    let window = frame(8, 4);
    for (bytes, is_between) in [
        (window[..5].to_vec(), false),
        (window[5..12].to_vec(), false),
        (window[12..].to_vec(), true),
        (frame(1, 20), false),
        (frame(9, 20), false),
        (last, true),
        (frame(3, 4), true),
    ] {
        scanner.scan(&bytes, |_| {});
        assert_eq!(scanner.is_between_frames(), is_between, "{bytes:?}");
    }
}
