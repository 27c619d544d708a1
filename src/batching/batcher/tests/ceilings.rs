//! Tests of ceilings, weight limits, pauses and infeasible SLOs in the state machine.

use super::*;
use crate::{LimitSource, SizeMeasure};

fn adaptive() -> Limits {
    limits(|l| l.policy = DispatchPolicy::Adaptive { hold_permille: 0 })
}

fn ended(outcome: BatchOutcome) -> Observation {
    Observation { outcome, ..ok(MS) }
}

const TOO_LARGE: BatchOutcome = BatchOutcome::TooLarge { limit: None };

/// Returns a core that has learned that 4 items succeed and 5 are refused.
fn found(policy: DispatchPolicy) -> Batcher {
    let mut batcher = Batcher::new(limits(|l| l.policy = policy), 0);
    for (batch, items) in [(0, 4), (1, 5)] {
        for id in 0..items {
            batcher.enqueue(ms(batch), call(batch * 10 + id)).unwrap();
        }
        let sent = dispatched(&mut batcher, ms(batch));
        assert_eq!(u64::from(sent.items), items);
        batcher.complete(ms(batch), sent.id, if items == 4 { ok(MS) } else { ended(TOO_LARGE) });
    }
    assert_eq!(batcher.ceiling(CostClassId(0)), Some(4));
    batcher
}

#[test]
fn ceiling_is_retested_if_no_member_is_late() {
    let mut batcher = found(DispatchPolicy::WorkConserving);
    enqueue_calls(&mut batcher, ms(500), 100..120);
    let early = dispatched(&mut batcher, ms(500));
    assert_eq!((early.items, early.cause), (4, DispatchCause::Full), "a second has not gone");
    batcher.complete(ms(1100), early.id, ok(MS));
    let retest = dispatched(&mut batcher, ms(1100));
    assert_eq!((retest.items, retest.cause), (5, DispatchCause::Probe));
    batcher.complete(ms(1101), retest.id, ended(TOO_LARGE));
    let next = dispatched(&mut batcher, ms(1101));
    assert_eq!((next.items, next.cause), (4, DispatchCause::Full), "two seconds until the retest");
    batcher.complete(ms(3200), next.id, ok(MS));
    let retest = dispatched(&mut batcher, ms(3200));
    assert_eq!((retest.items, retest.cause), (5, DispatchCause::Probe));
    batcher.complete(ms(3201), retest.id, ok(MS));
    assert_eq!(batcher.ceiling(CostClassId(0)), None, "it has gone");
}

#[test]
fn a_ceiling_is_not_retested_if_a_member_would_be_late() {
    let mut batcher = found(DispatchPolicy::WorkConserving);
    for id in 100..110 {
        let deadline = Some(Deadline { at: ms(2010), source: DeadlineSource::Caller });
        batcher.enqueue(ms(2000), Call { deadline, ..call(id) }).unwrap();
    }
    // Two halves of 1 ms and the margin take longer than 10 ms.
    let batch = dispatched(&mut batcher, ms(2000));
    assert_eq!((batch.items, batch.cause), (4, DispatchCause::Full));
}

#[test]
fn a_ceiling_of_one_item_forbids_merging_until_its_retest_of_two() {
    for policy in [DispatchPolicy::WorkConserving, window(8, 20)] {
        let mut batcher = Batcher::new(limits(|l| l.policy = policy), 0);
        enqueue_calls(&mut batcher, ms(0), 0..2);
        let sent = dispatched(&mut batcher, ms(20));
        batcher.complete(ms(21), sent.id, ended(TOO_LARGE));
        let refused = (1, Some(UnbatchedReason::Refused));
        assert_eq!((batcher.ceiling(CostClassId(0)), batcher.merge_limit(ms(21), &call(9))), (Some(1), refused));
        enqueue_calls(&mut batcher, ms(30), 10..14);
        let unbatched = dispatched(&mut batcher, ms(30));
        assert_eq!((ids(&unbatched), unbatched.unbatched_reason), (vec![10], refused.1));
        batcher.complete(ms(1100), unbatched.id, ok(MS));
        let retest = dispatched(&mut batcher, ms(1100));
        assert_eq!((ids(&retest), retest.cause), (vec![11, 12], DispatchCause::Probe));
        assert_eq!(batcher.merge_limit(ms(1100), &call(9)), refused, "one at a time");
        batcher.complete(ms(1101), retest.id, ok(MS));
        assert_eq!(batcher.merge_limit(ms(1101), &call(9)), (usize::MAX, None));
    }
}

#[test]
fn an_overload_ceiling_of_one_item_does_not_forbid_merging() {
    let mut batcher = Batcher::new(Limits::default(), 0);
    enqueue_calls(&mut batcher, ms(0), 0..2);
    let sent = dispatched(&mut batcher, ms(0));
    batcher.complete(ms(1), sent.id, ended(BatchOutcome::Overloaded { retry_after: None }));
    assert_eq!(batcher.ceiling(CostClassId(0)), Some(1));
    assert_eq!(batcher.merge_limit(ms(1), &call(9)), (usize::MAX, None));
}

#[test]
fn without_replay_a_ceiling_of_one_item_is_retested_by_the_trial() {
    let mut batcher = Batcher::new(Limits::default(), 0);
    let once = |id| Call { replayable: false, ..call(id) };
    (0..2).for_each(|id| batcher.enqueue(ms(0), once(id)).unwrap());
    let sent = dispatched(&mut batcher, ms(0));
    batcher.complete(ms(1), sent.id, ended(TOO_LARGE));
    (10..14).for_each(|id| batcher.enqueue(ms(2), once(id)).unwrap());
    let unbatched = dispatched(&mut batcher, ms(2));
    batcher.complete(ms(1100), unbatched.id, ok(MS));
    let retest = dispatched(&mut batcher, ms(1100));
    assert_eq!((ids(&retest), retest.cause), (vec![11, 12], DispatchCause::Probe));
    batcher.complete(ms(1101), retest.id, ok(MS));
    assert_eq!(ids(&dispatched(&mut batcher, ms(1101))), [13]);
    assert_eq!(batcher.merge_limit(ms(1101), &once(9)), (usize::MAX, None));
}

#[test]
fn no_ceiling_is_retested_during_a_drain() {
    let mut batcher = found(DispatchPolicy::WorkConserving);
    enqueue_calls(&mut batcher, ms(2000), 100..110);
    batcher.drain(ms(2000));
    assert_eq!(dispatched(&mut batcher, ms(2000)).items, 4);
}

#[test]
fn after_out_of_memory_a_batch_holds_half_of_the_padded_weight() {
    for policy in [DispatchPolicy::WorkConserving, DispatchPolicy::Adaptive { hold_permille: 0 }] {
        let mut batcher = serial(Batcher::new(limits(|l| l.policy = policy), 0));
        (0..2).for_each(|id| batcher.enqueue(ms(0), weighing(id, 100)).unwrap());
        let batch = dispatched(&mut batcher, ms(0));
        batcher.complete(ms(1), batch.id, ended(BatchOutcome::OutOfMemory));
        for (id, weight) in [(10, 40), (11, 50), (12, 10)] {
            batcher.enqueue(ms(2), weighing(id, weight)).unwrap();
        }
        let batch = dispatched(&mut batcher, ms(2));
        assert_eq!(ids(&batch), [10, 11], "3 × 50 is more than 100");
        let report = batcher.report();
        let ceiling = report.ceilings.iter().find(|found| found.ceiling.bounded == SizeMeasure::PaddedWeight).unwrap();
        assert_eq!((ceiling.ceiling.max, ceiling.ceiling.source), (100, LimitSource::Learned));
        assert_eq!(batcher.min_weight_ceiling(), Some(100));
    }
}

#[test]
fn of_policy_published_and_learned_the_smallest_weight_wins() {
    for (policy, published, expected, source) in [
        (Some(30), None, 3, LimitSource::Policy),
        (Some(30), Some(20), 2, LimitSource::Published),
        (Some(20), Some(30), 2, LimitSource::Policy),
        (None, Some(40), 4, LimitSource::Published),
    ] {
        let mut batcher = Batcher::new(limits(|l| l.scopes[0].batch_weight_max = policy), 0);
        if let Some(published) = published {
            batcher.set_published_weight_max(ms(0), CostClassId(0), published);
        }
        (0..8).for_each(|id| batcher.enqueue(ms(0), weighing(id, 10)).unwrap());
        let batch = dispatched(&mut batcher, ms(0));
        assert_eq!((batch.items, batch.cause), (expected, DispatchCause::Weight));
        let reported = batcher.report().ceilings;
        let reported: Vec<_> = reported.iter().map(|found| (found.ceiling.bounded, found.ceiling.source)).collect();
        assert_eq!(reported, [(SizeMeasure::Items, LimitSource::Policy), (SizeMeasure::Weight, source)]);
    }
}

#[test]
fn a_batch_that_is_cut_by_weight_has_the_cause_weight() {
    let adaptive = adaptive();
    let mut batcher = serial(Batcher::new(adaptive.clone(), 0));
    let weight = |id: u64| 1 + id * 7 % 40;
    let (mut now, mut id) = (0, 0);
    while !batcher.report().classes.first().is_some_and(|(_, cost)| cost.weights_matter) {
        (id..id + 4).for_each(|id| batcher.enqueue(ms(now), weighing(id, weight(id))).unwrap());
        id += 4;
        while let Some(Decision::Dispatch(batch)) = batcher.poll(ms(now)) {
            // Every item of a batch costs as much as the heaviest one.
            let heaviest = batch.members.iter().map(|member| weight(member.id.0)).max().unwrap();
            let took = 2 + u64::from(batch.items) * heaviest / 4;
            now += took;
            batcher.complete(ms(now), batch.id, ok(Duration::from_millis(took)));
        }
        assert!(id < 10_000, "{:?}", batcher.report().classes);
    }
    let scopes = vec![ScopeLimits { batch_weight_max: Some(30), ..adaptive.scopes[0].clone() }];
    batcher.set_limits(Limits { scopes, ..adaptive });
    (0..8).for_each(|more| batcher.enqueue(ms(now), weighing(id + more, 10)).unwrap());
    let batch = dispatched(&mut batcher, ms(now));
    assert_eq!((batch.items, batch.cause), (3, DispatchCause::Weight));
}

#[test]
fn a_retry_after_pauses_only_the_key_that_received_it() {
    for policy in [DispatchPolicy::WorkConserving, DispatchPolicy::Adaptive { hold_permille: 0 }] {
        for (requested, until) in [(30, 31), (30_000, 101)] {
            let mut batcher = Batcher::new(limits(|l| l.policy = policy), 0);
            batcher.enqueue(ms(0), on_key(1, 1)).unwrap();
            let first = dispatched(&mut batcher, ms(0));
            let retry_after = Some(Duration::from_millis(requested));
            batcher.complete(ms(1), first.id, ended(BatchOutcome::Overloaded { retry_after }));
            batcher.enqueue(ms(2), on_key(2, 1)).unwrap();
            assert_eq!((batcher.poll(ms(2)), batcher.next_wakeup()), (None, Some(ms(until))));
            assert_eq!(batcher.report().paused, [(CostClassId(0), ms(until))]);
            batcher.enqueue(ms(3), on_key(3, 2)).unwrap();
            let other = dispatched(&mut batcher, ms(3));
            assert_eq!(ids(&other), [3]);
            batcher.complete(ms(4), other.id, ok(MS));
            assert_eq!(batcher.poll(ms(until - 1)), None);
            assert_eq!(ids(&dispatched(&mut batcher, ms(until))), [2]);
        }
    }
}

#[test]
fn the_drain_waits_for_no_pause() {
    let mut batcher = Batcher::new(adaptive(), 0);
    batcher.enqueue(ms(0), call(1)).unwrap();
    let first = dispatched(&mut batcher, ms(0));
    let retry_after = Some(Duration::from_secs(1));
    batcher.complete(ms(1), first.id, ended(BatchOutcome::Overloaded { retry_after }));
    batcher.enqueue(ms(2), call(2)).unwrap();
    batcher.drain(ms(3));
    assert_eq!(ids(&dispatched(&mut batcher, ms(3))), [2]);
}

#[test]
fn an_slo_below_a_lone_calls_time_is_served_late_and_reported() {
    let mut batcher = Batcher::new(adaptive(), 0);
    for id in 0..2 {
        batcher.enqueue(ms(100 * id), until(id, 100 * id + 20)).unwrap();
        let batch = dispatched(&mut batcher, ms(100 * id));
        batcher.enqueue(ms(100 * id + 1), until(10 + id, 100 * id + 21)).unwrap();
        batcher.complete(ms(100 * id + 50), batch.id, ok(50 * MS));
        let late = dispatched(&mut batcher, ms(100 * id + 50));
        assert_eq!(ids(&late), [10 + id], "late rather than never");
        batcher.complete(ms(100 * id + 99), late.id, ok(50 * MS));
    }
    let found = batcher.report().infeasible;
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].slo_nanos, 20_000_000);
    assert!((50_000_000..=80_000_000).contains(&found[0].lone_nanos), "{found:?}");
}

#[test]
fn the_reported_slo_is_the_configured_one_and_not_the_remaining_time() {
    let mut batcher = Batcher::new(adaptive(), 0);
    let slo = Some(20 * MS);
    for id in 0..2 {
        let deadline = Some(Deadline { at: ms(100 * id + 19), source: DeadlineSource::Slo });
        batcher.enqueue(ms(100 * id), Call { deadline, slo, ..call(id) }).unwrap();
        let batch = dispatched(&mut batcher, ms(100 * id));
        batcher.complete(ms(100 * id + 50), batch.id, ok(50 * MS));
    }
    assert_eq!(batcher.report().infeasible[0].slo_nanos, 20_000_000);
    assert_eq!(batcher.decision_stats(ms(200)).classes[0].tally.slo, slo);
}

#[test]
fn an_slo_that_a_lone_call_meets_still_ends_calls_however_slow_large_batches_are() {
    let mut batcher = Batcher::new(adaptive(), 0);
    for id in 0..8 {
        batcher.enqueue(ms(100 * id), call(id)).unwrap();
        let batch = dispatched(&mut batcher, ms(100 * id));
        batcher.complete(ms(100 * id + 5), batch.id, ok(5 * MS));
    }
    batcher.enqueue(ms(1000), call(50)).unwrap();
    let slow = dispatched(&mut batcher, ms(1000));
    batcher.enqueue(ms(1000), until(51, 1020)).unwrap();
    assert!(matches!(batcher.poll(ms(1020)), Some(Decision::Expire { id: CallId(51), .. })));
    batcher.complete(ms(1040), slow.id, ok(40 * MS));
    assert!(batcher.report().infeasible.is_empty());
}

#[test]
fn ceilings_are_kept_beside_the_curve() {
    let batcher = found(DispatchPolicy::WorkConserving);
    let snapshots = batcher.snapshot();
    let mut other = Batcher::new(adaptive(), 1);
    for (class, snapshot) in &snapshots {
        assert_eq!(snapshot.ceilings.len(), 1);
        other.restore(ms(0), *class, snapshot);
    }
    assert_eq!(other.ceiling(CostClassId(0)), Some(4));
}

#[test]
fn only_calls_that_overlap_no_other_make_an_slo_infeasible() {
    let mut batcher = Batcher::new(Limits { slots: 8, ..adaptive() }, 0);
    // A server that shares its processor: two calls at once take 110 ms, a lone call takes 40 ms.
    for round in 0..3 {
        let begun = 1000 * round;
        batcher.enqueue(ms(begun), until(2 * round, begun + 100)).unwrap();
        let first = dispatched(&mut batcher, ms(begun));
        batcher.enqueue(ms(begun + 1), until(2 * round + 1, begun + 101)).unwrap();
        let second = dispatched(&mut batcher, ms(begun + 1));
        batcher.complete(ms(begun + 110), first.id, ok(110 * MS));
        batcher.complete(ms(begun + 111), second.id, ok(110 * MS));
    }
    assert_eq!(batcher.report().infeasible, [], "each overlapped another");
    assert_eq!(
        batcher.decision_stats(ms(10_000)).classes[0].point.unwrap().lone_late_nanos,
        0,
        "nothing is known of a lone call"
    );
    let run_unbatched = |batcher: &mut Batcher, from: u64, took: u64| {
        for round in 0..10 {
            let begun = from + 1000 * round;
            batcher.enqueue(ms(begun), until(from + round, begun + 100)).unwrap();
            let batch = dispatched(batcher, ms(begun));
            batcher.complete(ms(begun + took), batch.id, ok(Duration::from_millis(took)));
        }
    };
    run_unbatched(&mut batcher, 20_000, 40);
    assert_eq!(batcher.report().infeasible, []);
    run_unbatched(&mut batcher, 40_000, 150);
    let found = batcher.report().infeasible;
    assert_eq!(found.len(), 1, "150 ms alone, and the SLO is 100 ms");
    assert!((140_000_000..=240_000_000).contains(&found[0].lone_nanos), "{found:?}");
}

#[test]
fn each_class_starts_with_the_limiter_of_its_snapshot() {
    use crate::{ClassSnapshot, FlowMode, FlowSnapshot, OpenReason, UpstreamSnapshot};
    let learned = found(DispatchPolicy::WorkConserving).snapshot().remove(0).1;
    let with = |flow| ClassSnapshot { flow, ..learned.clone() };
    let snapshot = |limit, no_gain_permille| Some(FlowSnapshot { limit, no_gain_permille, base_nanos: 5_000_000 });
    let mut batcher = Batcher::new(adaptive(), 0);
    batcher
        .restore_upstream(ms(0), UpstreamSnapshot { slots: 7, mean_nanos: 5_000_000, ..UpstreamSnapshot::default() });
    // The last class has no limiter in its snapshot, as snapshots with one limit for all classes.
    for (class, flow) in [(0, snapshot(2, 0)), (1, snapshot(0, 970)), (2, snapshot(0, 0)), (3, None)] {
        batcher.restore(ms(0), CostClassId(class), &with(flow));
    }
    let modes: Vec<FlowMode> = batcher.report().flows.iter().map(|(_, flow)| flow.mode).collect();
    let no_gain = FlowMode::Open(OpenReason::NoGain { permille: 970 });
    let learning = FlowMode::Open(OpenReason::Learning);
    assert_eq!(modes, [FlowMode::Limited(2), no_gain, learning, FlowMode::Limited(7)]);
    let again: Vec<_> = batcher.snapshot().into_iter().map(|(_, class)| class.flow.unwrap()).collect();
    assert_eq!((again[0].limit, again[1].no_gain_permille, again[0].base_nanos), (2, 970, 5_000_000));
}
