//! Tests of calls that make room in a full queue for those of higher priority classes.

use super::*;
use crate::{CallOrigin, PriorityClass, PriorityId};

const URGENT: PriorityId = PriorityId(0);
const BULK: PriorityId = PriorityId(1);

fn of(priority: PriorityId, id: u64) -> Call {
    Call { priority, unmergeable: true, ..call(id) }
}

/// Returns a core with call 1 in flight and bulk calls in all 9 places of its queue.
fn flooded(change: impl FnOnce(&mut Limits)) -> Batcher {
    let mut batcher = serial(Batcher::new(
        limits(|l| {
            l.policy = DispatchPolicy::Adaptive { hold_permille: 0 };
            l.priorities = vec![PriorityClass { weight: 8, ..PriorityClass::PLAIN }, PriorityClass::PLAIN];
            l.queue_items_max = 9;
            change(l);
        }),
        0,
    ));
    batcher.enqueue(ms(0), of(BULK, 1)).unwrap();
    dispatched(&mut batcher, ms(0));
    (2..=10).for_each(|id| batcher.enqueue(ms(id), of(BULK, id)).unwrap());
    batcher
}

fn displaced(batcher: &mut Batcher, at: Tick) -> Option<u64> {
    match batcher.poll(at) {
        Some(Decision::Expire { id, reason: ExpiryReason::QueueFull }) => Some(id.0),
        None => None,
        other => panic!("expected a displaced call, got {other:?}"),
    }
}

#[test]
fn the_last_call_of_a_lower_class_makes_room_for_an_urgent_one() {
    let mut batcher = flooded(|_| {});
    assert_eq!(batcher.enqueue(ms(11), of(BULK, 11)).unwrap_err().reason, RejectionReason::QueueFull);
    batcher.enqueue(ms(12), of(URGENT, 12)).unwrap();
    assert_eq!(batcher.next_wakeup(), Some(ms(12)));
    assert_eq!((displaced(&mut batcher, ms(12)), displaced(&mut batcher, ms(12))), (Some(10), None));
    assert_eq!(batcher.counts().queue_items, 9);
}

#[test]
fn a_class_displaces_others_up_to_its_share_of_the_queue() {
    let mut batcher = flooded(|_| {});
    for id in 20..28 {
        batcher.enqueue(ms(20), of(URGENT, id)).unwrap();
    }
    assert_eq!(batcher.enqueue(ms(20), of(URGENT, 28)).unwrap_err().reason, RejectionReason::QueueFull);
    let mut gone: Vec<u64> = std::iter::from_fn(|| displaced(&mut batcher, ms(20))).collect();
    gone.sort_unstable();
    assert_eq!(gone, [3, 4, 5, 6, 7, 8, 9, 10], "one of nine places stays with the bulk class");
}

#[test]
fn the_class_that_exceeds_its_share_the_most_loses_its_last_call() {
    const NORMAL: PriorityId = PriorityId(2);
    let mut batcher = flooded(|l| {
        l.priorities.push(PriorityClass { weight: 4, ..PriorityClass::PLAIN });
        l.queue_items_max = 13;
    });
    for id in 11..=14 {
        batcher.enqueue(ms(id), of(NORMAL, id)).unwrap();
    }
    batcher.enqueue(ms(15), of(URGENT, 15)).unwrap();
    assert_eq!(displaced(&mut batcher, ms(15)), Some(10), "nine bulk calls hold the places of one");
    let mut batcher = flooded(|l| {
        l.priorities.push(PriorityClass { weight: 2, ..PriorityClass::PLAIN });
        l.queue_items_max = 99;
    });
    for id in 20..110 {
        batcher.enqueue(ms(20), of(NORMAL, id)).unwrap();
    }
    batcher.enqueue(ms(21), of(URGENT, 200)).unwrap();
    assert_eq!(displaced(&mut batcher, ms(21)), Some(109), "bulk calls hold 9 places, their share");
}

#[test]
fn a_call_of_the_proxy_itself_displaces_none() {
    let mut batcher = flooded(|_| {});
    let own = Call { origin: CallOrigin::Proxy, ..of(URGENT, 11) };
    assert_eq!(batcher.enqueue(ms(11), own).unwrap_err().reason, RejectionReason::QueueFull);
}

#[test]
fn no_call_is_displaced_for_one_that_still_does_not_fit() {
    // An urgent call of 50 bytes fills half of the route's bytes, and cannot be displaced.
    let mut batcher = flooded(|l| l.scopes[0].queue_bytes_max = 100);
    batcher.enqueue(ms(11), Call { bytes: 50, ..of(URGENT, 11) }).unwrap();
    assert_eq!(displaced(&mut batcher, ms(11)), Some(10));
    let large = Call { bytes: 60, ..of(URGENT, 12) };
    assert_eq!(batcher.enqueue(ms(12), large).unwrap_err().reason, RejectionReason::BytesFull);
    assert_eq!((displaced(&mut batcher, ms(12)), batcher.counts().queue_items), (None, 9));
}

#[test]
fn a_policy_that_does_not_order_by_class_displaces_none() {
    let mut batcher = flooded(|l| l.policy = DispatchPolicy::WorkConserving);
    assert_eq!(batcher.enqueue(ms(11), of(URGENT, 11)).unwrap_err().reason, RejectionReason::QueueFull);
    assert_eq!(displaced(&mut batcher, ms(11)), None);
}

#[test]
fn a_displaced_call_can_be_cancelled_before_it_is_reported() {
    let mut batcher = flooded(|_| {});
    batcher.enqueue(ms(11), of(URGENT, 11)).unwrap();
    assert!(batcher.cancel(ms(11), CallId(10)) && !batcher.cancel(ms(11), CallId(10)));
    assert_eq!(displaced(&mut batcher, ms(11)), None);
}
