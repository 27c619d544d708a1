//! Example-based tests of the state machine. `tests/it/sim` checks it against a model.

mod ceilings;
mod closed_loop;
mod deferral;
mod displacing;
mod late;
mod lengths;
mod ordering;
mod refusing;
mod required_merge;
mod reset;

use std::time::Duration;

use super::*;
use crate::{
    Batch, BatchOutcome, Deadline, DeadlineSource, DispatchCause, DispatchPolicy, ExpiryReason, KeyId, Observation,
    RejectionReason, ScopeLimits, TenantId, UnbatchedReason, UpstreamSnapshot, Weight,
};

const MS: Duration = Duration::from_millis(1);

fn ms(millis: u64) -> Tick {
    Tick::from_millis(millis)
}

fn call(id: u64) -> Call {
    Call::new(CallId(id))
}

fn on_key(id: u64, key: u64) -> Call {
    Call { key: KeyId(key), ..call(id) }
}

fn weighing(id: u64, weight: u64) -> Call {
    Call { weight: Weight { sum: weight, max: weight }, ..call(id) }
}

/// Returns the call with an SLO that ends at `at`, in milliseconds.
fn due(call: Call, at: u64) -> Call {
    Call { deadline: Some(Deadline { at: ms(at), source: DeadlineSource::Slo }), ..call }
}

/// Returns a call with an SLO that ends at `at`, in milliseconds.
fn until(id: u64, at: u64) -> Call {
    due(call(id), at)
}

/// Queues calls with these ids.
fn enqueue_calls(batcher: &mut Batcher, at: Tick, ids: impl IntoIterator<Item = u64>) {
    ids.into_iter().for_each(|id| batcher.enqueue(at, call(id)).unwrap());
}

fn ok(duration: Duration) -> Observation {
    Observation { duration, first_byte: None, outcome: BatchOutcome::Ok }
}

/// Returns a core that treats its server as a serial one from the start.
fn serial(batcher: Batcher) -> Batcher {
    batcher.without_feature(Feature::StandAside)
}

fn limits(change: impl FnOnce(&mut Limits)) -> Limits {
    let mut limits = Limits::default();
    change(&mut limits);
    limits
}

fn window(items: u32, millis: u64) -> DispatchPolicy {
    DispatchPolicy::Window { items, delay: Duration::from_millis(millis) }
}

#[track_caller]
fn dispatched(batcher: &mut Batcher, at: Tick) -> Batch {
    match batcher.poll(at) {
        Some(Decision::Dispatch(batch)) => batch,
        other => panic!("expected a dispatch, got {other:?}"),
    }
}

fn ids(batch: &Batch) -> Vec<u64> {
    batch.members.iter().map(|member| member.id.0).collect()
}

#[test]
fn a_lone_call_on_an_idle_slot_leaves_in_the_same_poll() {
    let mut batcher = Batcher::new(Limits::default(), 0);
    batcher.enqueue(ms(5), call(1)).unwrap();
    let batch = dispatched(&mut batcher, ms(5));
    assert_eq!((ids(&batch), batch.cause), (vec![1], DispatchCause::Idle));
    assert_eq!(batcher.poll(ms(5)), None);
    assert_eq!(batcher.next_wakeup(), None, "nothing wakes an empty core");
}

#[test]
fn calls_collect_while_the_slot_is_busy_and_leave_together() {
    let mut batcher = Batcher::new(Limits::default(), 0);
    batcher.enqueue(ms(0), call(1)).unwrap();
    let first = dispatched(&mut batcher, ms(0));
    for id in 2..6 {
        batcher.enqueue(ms(id), call(id)).unwrap();
        assert_eq!(batcher.poll(ms(id)), None);
    }
    batcher.complete(ms(10), first.id, ok(10 * MS));
    let batch = dispatched(&mut batcher, ms(10));
    assert_eq!(ids(&batch), [2, 3, 4, 5]);
    assert_eq!(batch.members[3].items, 3..4);
}

#[test]
fn keys_never_mix_and_none_blocks_another() {
    let mut batcher = Batcher::new(limits(|l| l.policy = window(4, 20)), 0);
    batcher.enqueue(ms(0), on_key(1, 1)).unwrap();
    for id in 2..6 {
        batcher.enqueue(ms(1), on_key(id, 2)).unwrap();
    }
    let batch = dispatched(&mut batcher, ms(1));
    assert_eq!(
        (ids(&batch), batch.cause),
        (vec![2, 3, 4, 5], DispatchCause::Full),
        "the full key is dispatched past the held one"
    );
}

#[test]
fn a_window_starts_when_an_item_and_a_free_slot_are_both_there() {
    let mut batcher = Batcher::new(limits(|l| l.policy = window(64, 20)), 0);
    batcher.enqueue(ms(0), call(1)).unwrap();
    assert_eq!(batcher.poll(ms(0)), None);
    assert_eq!(batcher.next_wakeup(), Some(ms(20)));
    let first = dispatched(&mut batcher, ms(20));
    assert_eq!(first.cause, DispatchCause::Delay);
    batcher.enqueue(ms(21), call(2)).unwrap();
    assert_eq!(batcher.next_wakeup(), None, "no free slot, nothing to wake for");
    batcher.complete(ms(600), first.id, ok(580 * MS));
    assert_eq!(batcher.poll(ms(600)), None);
    assert_eq!(batcher.next_wakeup(), Some(ms(620)));
}

#[test]
fn a_static_delay_counts_from_the_oldest_arrival() {
    let policy = DispatchPolicy::Static { items: 64, delay: 15 * MS };
    let mut batcher = Batcher::new(limits(|l| l.policy = policy), 0);
    batcher.enqueue(ms(0), call(1)).unwrap();
    let first = dispatched(&mut batcher, ms(15));
    batcher.enqueue(ms(16), call(2)).unwrap();
    batcher.complete(ms(50), first.id, ok(35 * MS));
    assert_eq!(ids(&dispatched(&mut batcher, ms(50))), [2], "it has waited long enough already");
}

#[test]
fn queue_delay_max_bounds_a_longer_window() {
    let mut batcher = Batcher::new(limits(|l| l.policy = window(64, 500)), 0);
    batcher.enqueue(ms(0), call(1)).unwrap();
    batcher.poll(ms(0));
    assert_eq!(batcher.next_wakeup(), Some(ms(20)));
}

#[test]
fn a_deadline_inside_the_window_sends_the_batch_early() {
    let mut batcher = Batcher::new(limits(|l| l.policy = window(64, 20)), 0);
    let deadline = Some(Deadline { at: ms(10), source: DeadlineSource::Caller });
    batcher.enqueue(ms(0), Call { deadline, ..call(1) }).unwrap();
    assert_eq!(batcher.poll(ms(0)), None);
    let at = batcher.next_wakeup().unwrap();
    assert!(at < ms(10));
    assert_eq!(dispatched(&mut batcher, at).cause, DispatchCause::Deadline);
}

#[test]
fn a_batch_ends_at_each_limit_with_that_limit_as_its_cause() {
    let scope = ScopeLimits {
        batch_items_max: 4,
        batch_weight_max: Some(100),
        batch_bytes_max: 1000,
        ..ScopeLimits::default()
    };
    for (weight, bytes, expect, cause) in
        [(1, 1, 4, DispatchCause::Full), (40, 1, 2, DispatchCause::Weight), (1, 400, 2, DispatchCause::Bytes)]
    {
        let mut batcher = Batcher::new(limits(|l| l.scopes = vec![scope.clone()]), 0);
        for id in 0..5 {
            batcher.enqueue(ms(0), Call { bytes, ..weighing(id, weight) }).unwrap();
        }
        let batch = dispatched(&mut batcher, ms(0));
        assert_eq!((batch.members.len(), batch.cause), (expect, cause));
    }
}

#[test]
fn a_call_that_does_not_fit_starts_the_next_batch_and_keeps_its_items_together() {
    let mut batcher = Batcher::new(limits(|l| l.scopes[0].batch_items_max = 4), 0);
    for (id, items) in [(1, 3), (2, 2), (3, 1)] {
        batcher.enqueue(ms(0), Call { items, ..call(id) }).unwrap();
    }
    let batch = dispatched(&mut batcher, ms(0));
    assert_eq!(ids(&batch), [1]);
    batcher.complete(ms(1), batch.id, ok(MS));
    assert_eq!(ids(&dispatched(&mut batcher, ms(1))), [2, 3]);
}

#[test]
fn a_client_batch_over_the_limit_is_sent_unbatched() {
    let mut batcher = Batcher::new(limits(|l| l.scopes[0].batch_items_max = 4), 0);
    batcher.enqueue(ms(0), Call { items: 10, ..call(1) }).unwrap();
    batcher.enqueue(ms(0), call(2)).unwrap();
    let batch = dispatched(&mut batcher, ms(0));
    assert_eq!((ids(&batch), batch.unbatched_reason), (vec![1], Some(UnbatchedReason::ClientBatchFull)));
}

#[test]
fn calls_with_equal_exclusive_values_never_share_a_batch() {
    let mut batcher = Batcher::new(Limits::default(), 0);
    for (id, value) in [(1, 7), (2, 8), (3, 7)] {
        batcher.enqueue(ms(0), Call { exclusive: vec![value], ..call(id) }).unwrap();
    }
    assert_eq!(ids(&dispatched(&mut batcher, ms(0))), [1, 2]);
}

#[test]
fn a_cancelled_call_never_leaves_and_an_abandoned_batch_is_aborted() {
    let mut batcher = Batcher::new(Limits::default(), 0);
    enqueue_calls(&mut batcher, ms(0), 1..4);
    assert!(batcher.cancel(ms(0), CallId(2)));
    let batch = dispatched(&mut batcher, ms(0));
    assert_eq!(ids(&batch), [1, 3]);
    assert!(batcher.cancel(ms(1), CallId(1)));
    assert_eq!(batcher.poll(ms(1)), None, "one member still waits");
    assert!(batcher.cancel(ms(2), CallId(3)));
    assert!(!batcher.cancel(ms(2), CallId(3)));
    assert_eq!(batcher.poll(ms(2)), Some(Decision::Abort(batch.id)));
    assert_eq!(batcher.poll(ms(2)), None);
    batcher.complete(ms(3), batch.id, Observation { outcome: BatchOutcome::Cancelled, ..ok(MS) });
    assert_eq!(batcher.counts().in_flight, 0);
}

#[test]
fn a_batch_with_one_remaining_call_is_no_evidence_about_merging() {
    for remains in [1, 2] {
        let policy = DispatchPolicy::Adaptive { hold_permille: 0 };
        let mut batcher = serial(Batcher::new(limits(|limits| (limits.policy, limits.slots) = (policy, 1)), 0));
        enqueue_calls(&mut batcher, ms(0), 0..3);
        let batch = dispatched(&mut batcher, ms(0));
        assert_eq!(batch.members.len(), 2, "one batch of two is tried");
        if remains == 1 {
            batcher.withdraw(ms(0), batch.members[0].id);
        }
        batcher.complete(ms(2), batch.id, ok(MS));
        assert_eq!(batcher.merge_limit(ms(2), &call(9)).0 > 2, remains == 2);
    }
}

#[test]
fn a_call_past_its_deadline_expires_and_is_never_sent() {
    let mut batcher = Batcher::new(Limits::default(), 0);
    batcher.enqueue(ms(0), call(1)).unwrap();
    let first = dispatched(&mut batcher, ms(0));
    batcher.enqueue(ms(1), until(2, 10)).unwrap();
    assert_eq!(batcher.next_wakeup(), Some(ms(10)));
    assert_eq!(batcher.poll(ms(10)), Some(Decision::Expire { id: CallId(2), reason: ExpiryReason::Deadline }));
    batcher.complete(ms(11), first.id, ok(11 * MS));
    assert_eq!(batcher.poll(ms(11)), None);
}

#[test]
fn a_call_with_an_slo_that_cannot_be_met_does_not_expire() {
    let mut batcher = Batcher::new(Limits::default(), 0);
    batcher.enqueue(ms(0), call(1)).unwrap();
    let first = dispatched(&mut batcher, ms(0));
    batcher.complete(ms(50), first.id, ok(50 * MS));
    batcher.enqueue(ms(50), call(2)).unwrap();
    let second = dispatched(&mut batcher, ms(50));
    batcher.enqueue(ms(51), until(3, 70)).unwrap();
    let own = Some(Deadline { at: ms(70), source: DeadlineSource::Caller });
    batcher.enqueue(ms(51), Call { deadline: own, ..call(4) }).unwrap();
    assert_eq!(batcher.poll(ms(80)), Some(Decision::Expire { id: CallId(4), reason: ExpiryReason::Deadline }));
    batcher.complete(ms(100), second.id, ok(50 * MS));
    assert_eq!(ids(&dispatched(&mut batcher, ms(100))), [3], "best effort: it is served late rather than never");
}

#[test]
fn a_call_whose_slo_is_given_up_still_ends_at_its_later_deadline() {
    let mut batcher = Batcher::new(Limits::default(), 0);
    batcher.enqueue(ms(0), call(1)).unwrap();
    let first = dispatched(&mut batcher, ms(0));
    batcher.complete(ms(50), first.id, ok(50 * MS));
    batcher.enqueue(ms(50), call(2)).unwrap();
    dispatched(&mut batcher, ms(50));
    let later = Some(Deadline { at: ms(90), source: DeadlineSource::Timeout });
    batcher.enqueue(ms(50), Call { fallback_deadline: later, ..until(3, 70) }).unwrap();
    assert_eq!(batcher.poll(ms(75)), None);
    assert_eq!(batcher.next_wakeup(), Some(ms(90)));
    assert_eq!(batcher.poll(ms(90)), Some(Decision::Expire { id: CallId(3), reason: ExpiryReason::Deadline }));
}

#[test]
fn a_full_queue_rejects_a_call_with_a_retry_after() {
    let mut batcher = Batcher::new(limits(|l| l.queue_items_max = 3), 0);
    enqueue_calls(&mut batcher, ms(0), 0..3);
    let rejection = batcher.enqueue(ms(0), call(3)).unwrap_err();
    assert_eq!(rejection.reason, RejectionReason::QueueFull);
    assert!(rejection.retry_after >= Duration::from_secs(1));
    assert_eq!(rejection.retry_after.subsec_nanos(), 0);
}

#[test]
fn retry_after_follows_the_predicted_drain_time() {
    let mut batcher = Batcher::new(limits(|l| (l.queue_items_max, l.scopes[0].batch_items_max) = (100, 1)), 3);
    batcher.enqueue(ms(0), call(0)).unwrap();
    let first = dispatched(&mut batcher, ms(0));
    batcher.complete(ms(1000), first.id, ok(1000 * MS));
    enqueue_calls(&mut batcher, ms(1000), 1..=100);
    let after = batcher.enqueue(ms(1000), call(101)).unwrap_err().retry_after.as_secs();
    assert!((100..=151).contains(&after), "100 calls of 1 s each: {after} s");
}

#[test]
fn a_call_larger_than_the_whole_queue_is_not_refused_for_ever() {
    let mut batcher = Batcher::new(limits(|l| l.queue_items_max = 3), 0);
    batcher.enqueue(ms(0), Call { items: 9, ..call(1) }).unwrap();
}

#[test]
fn a_flooding_tenant_keeps_half_the_queue_only_while_others_wait() {
    let mut batcher = Batcher::new(limits(|l| l.queue_items_max = 10), 0);
    let of = |id, tenant| Call { tenant: TenantId(tenant), ..call(id) };
    for id in 0..8 {
        batcher.enqueue(ms(0), of(id, 1)).unwrap();
    }
    batcher.enqueue(ms(0), of(8, 2)).unwrap();
    assert_eq!(batcher.enqueue(ms(0), of(9, 1)).unwrap_err().reason, RejectionReason::TenantShare);
    batcher.enqueue(ms(0), of(10, 2)).unwrap();
    assert_eq!(batcher.enqueue(ms(0), of(11, 2)).unwrap_err().reason, RejectionReason::QueueFull);
}

#[test]
fn after_a_mismatch_its_cost_class_is_not_merged_for_a_while() {
    let mut batcher = Batcher::new(limits(|l| l.quarantine = 10 * MS), 0);
    enqueue_calls(&mut batcher, ms(0), 0..2);
    let batch = dispatched(&mut batcher, ms(0));
    enqueue_calls(&mut batcher, ms(0), 2..6);
    batcher.complete(ms(1), batch.id, Observation { outcome: BatchOutcome::Mismatched, ..ok(MS) });
    let unbatched = dispatched(&mut batcher, ms(1));
    assert_eq!((ids(&unbatched), unbatched.unbatched_reason), (vec![2], Some(UnbatchedReason::Quarantined)));
    batcher.complete(ms(12), unbatched.id, ok(MS));
    assert_eq!(ids(&dispatched(&mut batcher, ms(12))), [3, 4, 5], "merging resumes when it is over");
}

#[test]
fn a_named_limit_cuts_the_next_batches() {
    let mut batcher = Batcher::new(Limits::default(), 0);
    enqueue_calls(&mut batcher, ms(0), 0..20);
    let batch = dispatched(&mut batcher, ms(0));
    enqueue_calls(&mut batcher, ms(0), 20..40);
    batcher.complete(ms(1), batch.id, Observation { outcome: BatchOutcome::TooLarge { limit: Some(8) }, ..ok(MS) });
    let next = dispatched(&mut batcher, ms(1));
    assert_eq!((next.items, next.cause), (8, DispatchCause::Full));
}

#[test]
fn slots_are_limited_for_each_route_and_for_the_upstream() {
    let scope = ScopeLimits { slots_max: 2, ..ScopeLimits::default() };
    let mut batcher = Batcher::new(limits(|l| (l.slots, l.scopes) = (3, vec![scope.clone(), scope])), 0);
    for id in 0..6 {
        let route = ScopeId(u16::from(id >= 3));
        batcher.enqueue(ms(0), Call { scope: route, ..on_key(id, id) }).unwrap();
    }
    let first = [0; 3].map(|_| dispatched(&mut batcher, ms(0)));
    assert_eq!(first.each_ref().map(ids), [[0_u64], [1], [3]], "the first route has no third slot");
    assert_eq!(batcher.poll(ms(0)), None, "the second route has a slot left, but the upstream has no fourth one");
    batcher.complete(ms(1), first[2].id, ok(MS));
    assert_eq!(ids(&dispatched(&mut batcher, ms(1))), [4], "the first route still has no third slot");
    assert_eq!(batcher.poll(ms(1)), None);
    batcher.complete(ms(2), first[0].id, ok(MS));
    assert_eq!(ids(&dispatched(&mut batcher, ms(2))), [2]);
}

#[test]
fn a_drain_dispatches_held_calls_at_once() {
    let mut batcher = Batcher::new(limits(|l| l.policy = window(64, 20)), 0);
    batcher.enqueue(ms(0), call(1)).unwrap();
    assert_eq!(batcher.poll(ms(0)), None);
    batcher.drain(ms(1));
    assert_eq!(dispatched(&mut batcher, ms(1)).cause, DispatchCause::Drain);
}

#[test]
fn a_call_after_a_cancelled_drain_is_held_again() {
    let mut batcher = Batcher::new(limits(|l| l.policy = window(64, 20)), 0);
    batcher.drain(ms(1));
    batcher.enqueue(ms(2), call(1)).unwrap();
    let first = dispatched(&mut batcher, ms(2));
    assert_eq!(first.cause, DispatchCause::Drain);
    batcher.complete(ms(3), first.id, ok(MS));
    batcher.resume(ms(3));
    batcher.enqueue(ms(4), call(2)).unwrap();
    assert_eq!(batcher.poll(ms(4)), None);
    assert_eq!(dispatched(&mut batcher, ms(24)).cause, DispatchCause::Delay);
}

#[test]
fn an_unmergeable_call_shares_no_batch_with_calls_of_its_key() {
    let mut batcher = Batcher::new(limits(|l| l.slots = 3), 0);
    batcher.enqueue(ms(0), call(1)).unwrap();
    batcher.enqueue(ms(0), Call { unmergeable: true, ..call(2) }).unwrap();
    batcher.enqueue(ms(0), call(3)).unwrap();
    for id in 1..4 {
        assert_eq!(ids(&dispatched(&mut batcher, ms(0))), [id]);
    }
}

#[test]
fn answered_members_do_not_keep_an_abandoned_batch_running() {
    let mut batcher = Batcher::new(Limits::default(), 0);
    enqueue_calls(&mut batcher, ms(0), 1..4);
    let batch = dispatched(&mut batcher, ms(0));
    batcher.on_member_answered(CallId(1));
    assert!(batcher.cancel(ms(1), CallId(2)));
    assert_eq!(batcher.poll(ms(1)), None, "one member still waits");
    assert!(batcher.cancel(ms(1), CallId(3)));
    assert_eq!(batcher.poll(ms(1)), Some(Decision::Abort(batch.id)));
}

#[test]
fn a_window_starts_when_new_limits_bring_the_free_slot() {
    let mut batcher = Batcher::new(limits(|l| l.policy = window(64, 20)), 0);
    batcher.enqueue(ms(0), call(1)).unwrap();
    dispatched(&mut batcher, ms(20));
    batcher.enqueue(ms(25), call(2)).unwrap();
    assert_eq!(batcher.poll(ms(90)), None);
    batcher.set_limits(limits(|l| (l.policy, l.slots) = (window(64, 20), 2)));
    assert_eq!(batcher.poll(ms(90)), None);
    assert_eq!(batcher.next_wakeup(), Some(ms(110)));
}

#[test]
fn a_call_queued_at_a_policy_change_is_not_sorted_behind_all_later_calls() {
    let adaptive = limits(|l| l.policy = DispatchPolicy::Adaptive { hold_permille: 0 });
    let plain = limits(|l| l.scopes[0].batch_items_max = 1);
    for (before, after) in [(&plain, &adaptive), (&adaptive, &plain)] {
        let mut batcher = Batcher::new(before.clone(), 0);
        batcher.enqueue(ms(0), call(0)).unwrap();
        let busy = dispatched(&mut batcher, ms(0));
        let due =
            |id: u64, at| Call { deadline: Some(Deadline { at: ms(at), source: DeadlineSource::Timeout }), ..call(id) };
        batcher.enqueue(ms(1), due(1, 30_000)).unwrap();
        batcher.set_limits(after.clone());
        batcher.enqueue(ms(2), due(2, 40_000)).unwrap();
        batcher.complete(ms(3), busy.id, ok(MS));
        let first = dispatched(&mut batcher, ms(3));
        assert_eq!(first.members.first().map(|member| member.id), Some(CallId(1)));
    }
}

#[test]
fn smaller_batch_limit_applies_to_queued_calls_only() {
    let of = |items_max| limits(|l| (l.slots, l.scopes[0].batch_items_max) = (1, items_max));
    let mut batcher = Batcher::new(of(4), 0);
    enqueue_calls(&mut batcher, ms(0), 0..20);
    let mut sizes = Vec::new();
    for items_max in [4, 13, 2] {
        batcher.set_limits(of(items_max));
        let batch = dispatched(&mut batcher, ms(1));
        // The next limit is applied while the batch is in flight.
        batcher.set_limits(of(1));
        sizes.push(batch.items);
        batcher.complete(ms(1), batch.id, ok(MS));
    }
    assert_eq!(sizes, [4, 13, 2], "queued calls are dispatched under the limits in force at that time");
}

#[test]
fn a_restored_upstream_snapshot_is_used_and_bounded() {
    let adaptive = limits(|l| (l.policy, l.slots) = (DispatchPolicy::Adaptive { hold_permille: 0 }, 16));
    let mut batcher = Batcher::new(adaptive, 0);
    let known = UpstreamSnapshot { slots: 4, lead_nanos: 500_000, mean_nanos: 2_000_000, explore_permille: 250 };
    batcher.restore_upstream(ms(0), known);
    assert_eq!(batcher.upstream_snapshot(), known);
    for id in 0..4 {
        batcher.enqueue(ms(1), call(id)).unwrap();
        dispatched(&mut batcher, ms(1));
    }
    let wild =
        UpstreamSnapshot { slots: u32::MAX, lead_nanos: u64::MAX, mean_nanos: u64::MAX, explore_permille: u32::MAX };
    batcher.restore_upstream(ms(2), wild);
    let bounded = batcher.upstream_snapshot();
    assert!(bounded.slots <= 64 && bounded.lead_nanos <= bounded.mean_nanos && bounded.mean_nanos < u64::MAX);
    batcher.reset(ms(3));
    assert_eq!(batcher.upstream_snapshot().slots, 0, "nothing is known about a different one");
}

#[test]
fn a_late_overload_of_a_larger_batch_does_not_raise_the_size_again() {
    let mut batcher = Batcher::new(limits(|l| (l.slots, l.scopes[0].batch_items_max) = (2, 8)), 0);
    enqueue_calls(&mut batcher, ms(0), 0..12);
    let (large, small) = (dispatched(&mut batcher, ms(0)), dispatched(&mut batcher, ms(0)));
    for batch in [&small, &large] {
        batcher.complete(
            ms(1),
            batch.id,
            Observation { outcome: BatchOutcome::Overloaded { retry_after: None }, ..ok(MS) },
        );
    }
    assert_eq!((large.items, small.items, batcher.ceiling(CostClassId(0))), (8, 4, Some(2)));
}

#[test]
fn the_cause_of_every_batch_during_a_drain_is_drain() {
    let mut batcher = Batcher::new(limits(|l| l.scopes[0].batch_items_max = 2), 0);
    enqueue_calls(&mut batcher, ms(0), 0..3);
    batcher.drain(ms(0));
    let batch = dispatched(&mut batcher, ms(0));
    assert_eq!((batch.items, batch.cause), (2, DispatchCause::Drain));
}

#[test]
fn the_waits_of_a_window_beside_a_free_slot_add_up_despite_other_keys() {
    let mut batcher = Batcher::new(limits(|l| l.policy = window(64, 20)), 0);
    batcher.enqueue(ms(0), on_key(1, 1)).unwrap();
    batcher.enqueue(ms(15), on_key(2, 2)).unwrap();
    let first = dispatched(&mut batcher, ms(20));
    assert_eq!(ids(&first), [1]);
    batcher.enqueue(ms(30), on_key(3, 1)).unwrap();
    batcher.complete(ms(50), first.id, ok(30 * MS));
    // Key 1 waited 5 ms beside the free slot before, so 15 ms are left. The other key waits its
    // full 20 ms.
    assert_eq!((batcher.poll(ms(50)), batcher.next_wakeup()), (None, Some(ms(65))));
    let second = dispatched(&mut batcher, ms(65));
    assert_eq!((ids(&second), second.cause), (vec![2], DispatchCause::Delay));
    batcher.complete(ms(70), second.id, ok(5 * MS));
    assert_eq!((batcher.poll(ms(70)), batcher.next_wakeup()), (None, Some(ms(75))));
}

#[test]
fn a_held_batch_leaves_some_ms_before_a_deadline_however_fast_the_last_one_was() {
    let mut batcher = Batcher::new(limits(|l| l.policy = window(64, 20)), 0);
    batcher.enqueue(ms(0), call(1)).unwrap();
    let first = dispatched(&mut batcher, ms(20));
    batcher.complete(ms(21), first.id, ok(MS));
    let deadline = Some(Deadline { at: ms(40), source: DeadlineSource::Caller });
    batcher.enqueue(ms(30), Call { deadline, ..call(2) }).unwrap();
    assert_eq!((batcher.poll(ms(30)), batcher.next_wakeup()), (None, Some(ms(35))));
}

#[test]
fn a_batch_that_a_limit_cuts_is_not_held() {
    for (cause, change) in [
        (DispatchCause::Weight, (|l| l.scopes[0].batch_weight_max = Some(5)) as fn(&mut Limits)),
        (DispatchCause::Bytes, |l| l.scopes[0].batch_bytes_max = 50),
    ] {
        let mut batcher = Batcher::new(limits(|l| (l.policy = window(64, 20), change(l)).1), 0);
        let heavy = |id| Call { bytes: 30, ..weighing(id, 3) };
        batcher.enqueue(ms(0), heavy(1)).unwrap();
        assert_eq!(batcher.poll(ms(1)), None);
        batcher.enqueue(ms(1), heavy(2)).unwrap();
        let batch = dispatched(&mut batcher, ms(1));
        assert_eq!((ids(&batch), batch.cause), (vec![1], cause));
    }
}
