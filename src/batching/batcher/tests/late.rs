//! Tests of late calls that are served: their place in the order, their dispatch and their end.

use super::*;
use crate::LateTreatment;

mod property;

fn serving(change: impl FnOnce(&mut Limits)) -> Limits {
    limits(|l| {
        l.scopes[0].late = LateTreatment::Serve;
        change(l);
    })
}

fn adaptive(l: &mut Limits) {
    l.policy = DispatchPolicy::Adaptive { hold_permille: 0 };
}

/// Returns a core with call 1 in flight since 0 ms.
fn busy(limits: Limits) -> (Batcher, Batch) {
    let mut batcher = serial(Batcher::new(limits, 0));
    batcher.enqueue(ms(0), call(1)).unwrap();
    let first = dispatched(&mut batcher, ms(0));
    (batcher, first)
}

#[test]
fn a_call_past_its_slo_is_served_behind_those_in_time() {
    for policy in [DispatchPolicy::WorkConserving, DispatchPolicy::Adaptive { hold_permille: 0 }] {
        let (mut batcher, first) = busy(serving(|l| l.policy = policy));
        batcher.enqueue(ms(1), until(2, 10)).unwrap();
        batcher.enqueue(ms(2), Call { key: KeyId(7), ..until(3, 60) }).unwrap();
        assert_eq!(batcher.poll(ms(12)), None, "it ends nothing");
        assert_eq!((batcher.counts().queue_calls, batcher.counts().oldest), (2, Some(ms(1))));
        batcher.complete(ms(13), first.id, ok(13 * MS));
        let second = dispatched(&mut batcher, ms(13));
        assert_eq!(ids(&second), [3], "{policy:?}: the one in time goes first, although it arrived later");
        batcher.complete(ms(20), second.id, ok(7 * MS));
        assert_eq!(ids(&dispatched(&mut batcher, ms(20))), [2], "{policy:?}");
        assert_eq!(batcher.counts().queue_calls, 0);
    }
}

#[test]
fn a_call_that_would_miss_its_slo_is_served_later_and_not_refused() {
    let (mut batcher, first) = busy(serving(adaptive));
    batcher.complete(ms(10), first.id, ok(10 * MS));
    batcher.enqueue(ms(10), call(2)).unwrap();
    let second = dispatched(&mut batcher, ms(10));
    // Call 3 would need 10 ms from 20 ms on. Call 4 has enough time.
    batcher.enqueue(ms(11), until(3, 28)).unwrap();
    batcher.enqueue(ms(11), Call { key: KeyId(7), ..until(4, 60) }).unwrap();
    batcher.complete(ms(20), second.id, ok(10 * MS));
    let third = dispatched(&mut batcher, ms(20));
    assert_eq!(ids(&third), [4]);
    batcher.complete(ms(30), third.id, ok(10 * MS));
    assert_eq!(ids(&dispatched(&mut batcher, ms(30))), [3]);
}

#[test]
fn a_late_call_still_ends_by_its_callers_deadline() {
    let (mut batcher, _) = busy(serving(adaptive));
    let later = Some(Deadline { at: ms(90), source: DeadlineSource::Caller });
    batcher.enqueue(ms(1), Call { fallback_deadline: later, ..until(2, 10) }).unwrap();
    assert_eq!(batcher.poll(ms(11)), None);
    assert_eq!(batcher.next_wakeup(), Some(ms(90)));
    assert_eq!(batcher.poll(ms(90)), Some(Decision::Expire { id: CallId(2), reason: ExpiryReason::Deadline }));
    assert_eq!((batcher.poll(ms(90)), batcher.counts().queue_items), (None, 0));
}

#[test]
fn a_late_call_can_leave() {
    let (mut batcher, first) = busy(serving(adaptive));
    batcher.enqueue(ms(1), until(2, 10)).unwrap();
    assert_eq!(batcher.poll(ms(11)), None);
    assert!(batcher.cancel(ms(12), CallId(2)) && !batcher.cancel(ms(12), CallId(2)));
    batcher.complete(ms(13), first.id, ok(13 * MS));
    assert_eq!((batcher.poll(ms(13)), batcher.counts().queue_calls), (None, 0));
}

#[test]
fn one_batch_in_ten_is_of_late_calls_while_calls_in_time_keep_coming() {
    let (mut batcher, first) = busy(serving(|l| l.scopes[0].batch_items_max = 1));
    (2..5).for_each(|id| batcher.enqueue(ms(1), until(id, 5)).unwrap());
    assert_eq!(batcher.poll(ms(6)), None);
    batcher.complete(ms(6), first.id, ok(6 * MS));
    let mut late = Vec::new();
    for turn in 0..30 {
        let now = ms(6 + turn);
        batcher.enqueue(now, until(100 + turn, 1000)).unwrap();
        let batch = dispatched(&mut batcher, now);
        if ids(&batch)[0] < 100 {
            late.push((turn, ids(&batch)[0]));
        }
        batcher.complete(ms(7 + turn), batch.id, ok(MS));
    }
    assert_eq!(late, [(9, 2), (19, 3), (29, 4)]);
}

#[test]
fn in_a_full_queue_the_last_late_call_makes_room_for_one_that_can_be_in_time() {
    let (mut batcher, _) = busy(serving(|l| l.queue_items_max = 3));
    (2..5).for_each(|id| batcher.enqueue(ms(1), until(id, 5)).unwrap());
    assert_eq!(batcher.poll(ms(6)), None);
    batcher.enqueue(ms(7), until(5, 50)).unwrap();
    assert_eq!(batcher.next_wakeup(), Some(ms(7)));
    assert_eq!(batcher.poll(ms(7)), Some(Decision::Expire { id: CallId(4), reason: ExpiryReason::QueueFull }));
    assert_eq!((batcher.poll(ms(7)), batcher.counts().queue_items), (None, 3));
    batcher.enqueue(ms(8), until(6, 50)).unwrap();
    batcher.enqueue(ms(8), until(7, 50)).unwrap();
    let full = batcher.enqueue(ms(8), until(8, 50)).unwrap_err();
    assert_eq!(full.reason, RejectionReason::QueueFull, "none of those in time makes room");
    assert!(batcher.cancel(ms(9), CallId(3)), "one that made room and was not reported yet can leave");
    assert_eq!(batcher.poll(ms(9)), Some(Decision::Expire { id: CallId(2), reason: ExpiryReason::QueueFull }));
    assert_eq!(batcher.poll(ms(9)), None);
}

#[test]
fn late_calls_are_not_evicted_for_a_call_that_still_does_not_fit() {
    let (mut batcher, _) = busy(serving(|l| l.queue_items_max = 3));
    batcher.enqueue(ms(1), until(2, 5)).unwrap();
    batcher.enqueue(ms(1), until(3, 90)).unwrap();
    assert_eq!(batcher.poll(ms(6)), None);
    let large = Call { items: 3, ..until(4, 90) };
    assert_eq!(batcher.enqueue(ms(7), large).unwrap_err().reason, RejectionReason::QueueFull);
    assert_eq!((batcher.poll(ms(7)), batcher.counts().queue_items), (None, 2));
}

#[test]
fn draining_serves_late_calls_too() {
    let (mut batcher, first) = busy(serving(adaptive));
    batcher.enqueue(ms(1), until(2, 10)).unwrap();
    assert_eq!(batcher.poll(ms(11)), None);
    batcher.drain(ms(12));
    batcher.complete(ms(13), first.id, ok(13 * MS));
    let last = dispatched(&mut batcher, ms(13));
    assert_eq!((ids(&last), last.cause), (vec![2], DispatchCause::Drain));
}
