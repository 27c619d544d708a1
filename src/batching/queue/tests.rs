use super::super::call::{Deadline, DeadlineSource};
use super::super::limits::DispatchPolicy;
use super::super::sorted_deque::GAPS_MAX;
use super::*;

fn call(id: u64, key: u64) -> Call {
    Call { key: KeyId(key), bytes: 10, ..Call::new(CallId(id)) }
}

fn order(queue: &Queue) -> Vec<u64> {
    queue.heads().map(|(key, _)| key.0).collect()
}

#[test]
fn keys_are_ordered_by_their_heads() {
    let mut queue = Queue::default();
    for (id, key) in [(1, 7), (2, 3), (3, 7), (4, 5)] {
        queue.push(Tick(id), Duration::ZERO, Tick(0), call(id, key));
    }
    assert_eq!(order(&queue), [7, 3, 5]);
    queue.remove(CallId(1));
    assert_eq!(order(&queue), [3, 7, 5]);
    queue.remove(CallId(3));
    assert_eq!(order(&queue), [3, 5]);
}

#[test]
fn removed_calls_leave_no_state_in_the_queue() {
    let mut queue = Queue::default();
    for id in 0..100 {
        queue.push(Tick(id), Duration::ZERO, Tick(0), call(id, id % 3));
    }
    for id in (0..100).rev() {
        assert!(queue.remove(CallId(id)).is_some());
        assert!(queue.remove(CallId(id)).is_none());
    }
    assert!(queue.is_empty() && queue.key_queues.is_empty() && queue.heads.is_empty());
    assert!(queue.flows.is_empty() && queue.by_flow.is_empty() && queue.tenants == 0);
    assert!(queue.scopes.is_empty() && queue.deadlines.is_empty());
    assert_eq!(queue.held(), Load::default());
}

#[test]
fn gaps_in_a_line_are_closed() {
    let mut queue = Queue::default();
    queue.push(Tick(0), Duration::ZERO, Tick(0), call(0, 0));
    for id in 1..10_000 {
        queue.push(Tick(id), Duration::ZERO, Tick(0), call(id, 0));
        queue.remove(CallId(id));
    }
    assert!(queue.key_queues[&KeyId(0)].ids.len_with_tombstones() <= 2 + GAPS_MAX + 1);
}

#[test]
fn reorder_sorts_by_deadline_or_arrival() {
    let mut queue = Queue::default();
    for (id, key, deadline) in [(1, 7, 50), (2, 3, 40), (3, 7, 30)] {
        let deadline = Some(Deadline { at: Tick(deadline), source: DeadlineSource::Slo });
        queue.push(Tick(id), Duration::ZERO, Tick(0), Call { deadline, ..call(id, key) });
    }
    let ids = |queue: &Queue| queue.calls_of(KeyId(7)).map(|queued| queued.call.id.0).collect::<Vec<_>>();
    let held = queue.held();
    queue.reorder(&Limits { policy: DispatchPolicy::Adaptive { hold_permille: 0 }, ..Limits::default() });
    assert_eq!((ids(&queue), order(&queue)), (vec![3, 1], vec![7, 3]));
    assert_eq!(queue.flow_queues(KeyId(7)).map(|(_, queue)| queue.calls.keys().count()).sum::<usize>(), 2);
    queue.reorder(&Limits::default());
    assert_eq!((ids(&queue), order(&queue)), (vec![1, 3], vec![7, 3]));
    assert_eq!((queue.held(), queue.oldest()), (held, Some(Tick(1))));
}

#[test]
fn new_head_moves_its_key() {
    let mut queue = Queue::default();
    for (id, key, order) in [(1, 7, 50), (2, 3, 40), (3, 7, 30), (4, 7, 50), (5, 7, 30)] {
        queue.push(Tick(id), Duration::ZERO, Tick(order), call(id, key));
    }
    let ids = |queue: &Queue| queue.calls_of(KeyId(7)).map(|queued| queued.call.id.0).collect::<Vec<_>>();
    assert_eq!((ids(&queue), order(&queue)), (vec![3, 5, 1, 4], vec![7, 3]));
    queue.remove(CallId(3));
    queue.remove(CallId(5));
    assert_eq!((ids(&queue), order(&queue)), (vec![1, 4], vec![3, 7]));
}
