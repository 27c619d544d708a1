//! Length buckets and the order by length, under every policy.

use super::*;
use crate::CallOrder;

/// Policies with one slot, each of which sends what waits once the slot is free.
fn policies() -> [DispatchPolicy; 4] {
    let delay = Duration::from_millis(0);
    [
        DispatchPolicy::WorkConserving,
        DispatchPolicy::Window { items: 32, delay },
        DispatchPolicy::Static { items: 32, delay },
        DispatchPolicy::Adaptive { hold_permille: 0 },
    ]
}

/// Returns a core with one busy slot, behind which calls of these weights wait, after batches were
/// answered.
fn busy(policy: DispatchPolicy, change: impl FnOnce(&mut Limits), weights: &[u64]) -> (Batcher, BatchId) {
    let limits = limits(|limits| {
        (limits.policy, limits.slots) = (policy, 1);
        change(limits);
    });
    let mut batcher = serial(Batcher::new(limits, 7));
    let mut next = 1000;
    // Batches of two show that the server accepts batches.
    for round in 0..8 {
        let now = ms(round * 100);
        for _ in 0..2 {
            batcher.enqueue(now, weighing(next, 1)).unwrap();
            next += 1;
        }
        while let Some(Decision::Dispatch(batch)) = batcher.poll(now) {
            batcher.complete(now.after(10 * MS), batch.id, ok(10 * MS));
        }
        while let Some(Decision::Dispatch(batch)) = batcher.poll(now.after(20 * MS)) {
            batcher.complete(now.after(30 * MS), batch.id, ok(10 * MS));
        }
    }
    batcher.enqueue(ms(1000), weighing(next, 1)).unwrap();
    let running = dispatched(&mut batcher, ms(1000));
    for (id, weight) in (1..).zip(weights) {
        batcher.enqueue(ms(1000 + id), weighing(id, *weight)).unwrap();
    }
    (batcher, running.id)
}

/// Completes one batch after the other, and returns the calls of each.
fn drain(batcher: &mut Batcher, mut running: BatchId) -> Vec<Vec<u64>> {
    let (mut now, mut batches) = (ms(1050), Vec::new());
    loop {
        batcher.complete(now, running, ok(10 * MS));
        let Some(Decision::Dispatch(batch)) = batcher.poll(now) else { return batches };
        running = batch.id;
        batches.push(ids(&batch));
        now = now.after(10 * MS);
    }
}

#[test]
fn calls_of_different_buckets_share_no_batch() {
    for policy in policies() {
        let weights = [10, 500, 20, 600, 64, 65];
        let (mut batcher, running) = busy(policy, |limits| limits.length_buckets = vec![64, 512], &weights);
        let mut batches = drain(&mut batcher, running);
        batches.iter_mut().for_each(|batch| batch.sort_unstable());
        batches.sort();
        assert_eq!(batches.concat().len(), weights.len(), "{policy:?}");
        let bucket = |id: u64| match weights[usize::try_from(id).unwrap() - 1] {
            0..=64 => 0,
            65..=512 => 1,
            _ => 2,
        };
        for batch in &batches {
            assert!(batch.iter().all(|id| bucket(*id) == bucket(batch[0])), "{policy:?}: {batches:?}");
        }
        assert!(batches.iter().any(|batch| batch.len() > 1), "{policy:?}: {batches:?}");
    }
}

#[test]
fn short_calls_leave_first_and_a_long_one_is_not_passed_for_ever() {
    for policy in policies() {
        let change = |limits: &mut Limits| {
            limits.order = CallOrder::ShortFirst;
            limits.scopes[0].batch_items_max = 2;
        };
        let (mut batcher, running) = busy(policy, change, &[4096, 16, 4096, 16]);
        assert_eq!(drain(&mut batcher, running), [[2, 4], [1, 3]], "{policy:?}");
        let (mut batcher, running) = busy(policy, change, &[4096, 4096]);
        // Each of 4096 tokens waits for 1.2 s at most behind short calls that arrive later.
        for id in 10..14 {
            batcher.enqueue(ms(2300), weighing(id, 1)).unwrap();
        }
        let first = {
            batcher.complete(ms(2300), running, ok(10 * MS));
            ids(&dispatched(&mut batcher, ms(2300)))
        };
        assert_eq!(first, [1, 2], "{policy:?}");
    }
}

#[test]
fn the_default_order_ignores_the_weight() {
    for policy in policies() {
        let (mut batcher, running) = busy(policy, |limits| limits.scopes[0].batch_items_max = 2, &[4096, 16, 16, 4096]);
        assert_eq!(drain(&mut batcher, running), [[1, 2], [3, 4]], "{policy:?}");
    }
}

#[test]
fn queued_calls_follow_new_buckets_and_a_new_order() {
    let policy = DispatchPolicy::WorkConserving;
    let (mut batcher, running) = busy(policy, |_| {}, &[500, 10, 600, 20]);
    let mut changed = batcher.limits().clone();
    (changed.length_buckets, changed.order) = (vec![64], CallOrder::ShortFirst);
    batcher.set_limits(changed.clone());
    changed.length_buckets = vec![550];
    batcher.set_limits(changed);
    assert_eq!(drain(&mut batcher, running), [vec![2, 4, 1], vec![3]]);
}

#[test]
fn a_quarantine_covers_all_length_buckets_of_a_key() {
    for policy in policies() {
        let weights = [10, 500, 20, 600, 64, 65];
        let change = |limits: &mut Limits| limits.length_buckets = vec![64, 512];
        let (mut batcher, running) = busy(policy, change, &weights);
        let member = weighing(1, 500);
        batcher.quarantine_different(ms(1040), member.cost_class, member.key);
        let batches = drain(&mut batcher, running);
        assert_eq!(batches.concat().len(), weights.len(), "{policy:?}");
        assert!(batches.iter().all(|batch| batch.len() == 1), "{policy:?}: {batches:?}");
    }
}

#[test]
fn a_pause_covers_all_length_buckets_of_a_key() {
    for policy in policies() {
        let change = |limits: &mut Limits| limits.length_buckets = vec![64, 512];
        let (mut batcher, running) = busy(policy, change, &[10, 500, 600]);
        let refused = BatchOutcome::Overloaded { retry_after: Some(80 * MS) };
        batcher.complete(ms(1050), running, Observation { duration: 10 * MS, first_byte: None, outcome: refused });
        assert_eq!(batcher.poll(ms(1051)), None, "{policy:?}");
        assert_eq!(batcher.next_wakeup(), Some(ms(1130)), "{policy:?}");
        assert!(matches!(batcher.poll(ms(1130)), Some(Decision::Dispatch(_))), "{policy:?}");
    }
}

#[test]
fn a_hold_for_short_calls_ends_before_the_deadline_of_a_long_one() {
    let change = |limits: &mut Limits| {
        limits.order = CallOrder::ShortFirst;
        limits.scopes[0].queue_delay_max = Duration::from_secs(60);
    };
    let (mut batcher, running) = busy(DispatchPolicy::Adaptive { hold_permille: 900 }, change, &[]);
    batcher.complete(ms(1010), running, ok(10 * MS));
    batcher.enqueue(ms(2000), due(weighing(1, 1), 12_000)).unwrap();
    // It is passed by the short one, and due long before it.
    batcher.enqueue(ms(2000), due(weighing(2, 1 << 20), 2400)).unwrap();
    let mut now = ms(2000);
    let batch = loop {
        match batcher.poll(now) {
            Some(Decision::Dispatch(batch)) => break batch,
            None => now = batcher.next_wakeup().unwrap(),
            other => panic!("at {now:?}: {other:?}"),
        }
    };
    assert_eq!(ids(&batch), [1, 2]);
    assert!(ms(2001) < now && now < ms(2390), "held, and in time: {now:?}");
}

#[test]
fn a_call_that_cannot_be_in_time_does_not_shrink_the_batch_of_short_ones() {
    let change = |limits: &mut Limits| limits.order = CallOrder::ShortFirst;
    let (mut batcher, running) = busy(DispatchPolicy::Adaptive { hold_permille: 0 }, change, &[1; 8]);
    batcher.enqueue(ms(1040), due(weighing(9, 1 << 20), 1052)).unwrap();
    let batches = drain(&mut batcher, running);
    // Twice the size that was measured.
    assert_eq!(batches[0], [1, 2, 3, 4], "{batches:?}");
}
