//! Tests of the batches that suspend merging, of the scope of a suspension, and of its end.

use super::super::super::call::{Call, CallId};
use super::super::super::ceiling::{BatchExtent, SizeMeasure};
use super::super::{ClassSample, ClassState, ClassTable, MergingRestriction, QuarantineReport, RestrictedClass};
use super::*;

const ID: CostClassId = CostClassId(3);
const REFUSED: BatchOutcome = BatchOutcome::Refused(BatchRefusal::Status(422));
const NOT_RETRIED: BatchOutcome = BatchOutcome::NotRetried(BatchRefusal::Status(422));
const OVERLOADED: BatchOutcome = BatchOutcome::Overloaded { retry_after: None };

/// The cost classes of a server, and the batches sent to it.
struct MergeBench {
    classes: ClassTable,
    batches: u64,
    eager: bool,
    /// The number of the last tenant. Each key with a smaller number has a tenant of its own.
    tenants: u64,
}

// === impl MergeBench ===

impl MergeBench {
    fn eager() -> Self {
        Self { classes: ClassTable::default(), batches: 0, eager: true, tenants: u64::MAX }
    }

    fn careful() -> Self {
        Self { eager: false, ..Self::eager() }
    }

    fn bound(&self, second: u64, key: u64) -> MergeLimit {
        let call = Call { key: KeyId(key), cost_class: ID, ..Call::new(CallId(1)) };
        self.classes.merge_bound(Tick::from_millis(second * 1000), &call, self.eager)
    }

    /// Sends a batch of two and returns its number.
    fn send(&mut self, second: u64, key: u64) -> u64 {
        let bound = self.bound(second, key);
        assert!(!matches!(bound, MergeLimit::Unbatched(_)), "{bound:?}");
        self.batches += 1;
        let now = Tick::from_millis(second * 1000);
        self.classes.on_dispatch(now, ID, BatchId(self.batches), 2, bound == MergeLimit::Trial);
        self.batches
    }

    fn end(&mut self, second: u64, (batch, members, key): (u64, u32, u64), replayable: bool, outcome: BatchOutcome) {
        let observed = Observation { duration: Duration::from_millis(5), first_byte: None, outcome };
        let extent = BatchExtent { items: members, sum: u64::from(members), heaviest: 1 };
        let shared = members > 1;
        let size = ClassSample { extent, shared, full: true, memory: SizeMeasure::PaddedWeight, retest: None };
        let ended = EndedBatch {
            batch: BatchId(batch),
            key: Some(KeyId(key)),
            tenant: TenantId(key.min(self.tenants)),
            shared,
            replayable,
        };
        let now = Tick::from_millis(second * 1000);
        self.classes.observe(now, ID, &Limits::default(), (ended, &size), &observed);
    }

    fn batch(&mut self, second: u64, key: u64, outcome: BatchOutcome) {
        let batch = self.send(second, key);
        self.end(second, (batch, 2, key), true, outcome);
    }

    fn unbatched(&mut self, second: u64) {
        self.end(second, (0, 1, 9), true, BatchOutcome::Ok);
    }

    fn changes(&mut self) -> Vec<(bool, bool)> {
        let change = |change: MergingChange| (change.suspension.is_some(), change.is_retest_failure);
        self.classes.take_changes().into_iter().map(change).collect()
    }

    fn quarantine(&self, second: u64) -> Option<QuarantineReport> {
        self.classes.quarantine(Tick::from_millis(second * 1000), ID)
    }
}

#[test]
fn merging_is_suspended_after_two_consecutive_refusals_only() {
    let mut bench = MergeBench::eager();
    bench.batch(0, 1, REFUSED);
    bench.batch(0, 1, BatchOutcome::Ok);
    bench.batch(0, 1, REFUSED);
    assert_eq!(bench.bound(0, 1), MergeLimit::Free);
    bench.batch(0, 1, REFUSED);
    assert_eq!(bench.bound(29, 1), MergeLimit::Unbatched(Some(UnbatchedReason::Refused)));
    assert_eq!(bench.bound(29, 2), MergeLimit::Unbatched(Some(UnbatchedReason::Refused)), "for every key");
    assert_eq!(bench.changes(), [(true, false)]);
}

#[test]
fn one_batch_retests_a_suspension_and_failures_double_the_wait_up_to_an_hour() {
    let mut bench = MergeBench::eager();
    bench.batch(0, 1, REFUSED);
    bench.batch(0, 1, REFUSED);
    let (mut second, mut wait) = (0, 30);
    for _ in 0..10 {
        assert_eq!(bench.bound(second + wait - 1, 1), MergeLimit::Unbatched(Some(UnbatchedReason::Refused)));
        second += wait;
        assert_eq!(bench.bound(second, 1), MergeLimit::Unbatched(None), "left to other keys first");
        second += 1;
        let batch = bench.send(second, 1);
        assert_eq!(bench.bound(second, 1), MergeLimit::Unbatched(Some(UnbatchedReason::Refused)), "one at a time");
        bench.end(second, (batch, 2, 1), true, REFUSED);
        wait = (wait * 2).min(3600);
    }
    assert_eq!(wait, 3600);
    assert_eq!(bench.changes().iter().filter(|change| !change.1).count(), 1);
    bench.batch(second + wait + 1, 1, BatchOutcome::Ok);
    assert_eq!(bench.bound(second + wait + 1, 1), MergeLimit::Free);
    assert_eq!(bench.changes(), [(false, false)]);
}

#[test]
fn the_wait_starts_small_again_after_a_hundred_whole_batches() {
    for (whole, wait) in [(99, 60), (100, 30)] {
        let mut bench = MergeBench::eager();
        bench.batch(0, 1, REFUSED);
        bench.batch(0, 1, REFUSED);
        (0..whole).for_each(|_| bench.batch(31, 1, BatchOutcome::Ok));
        bench.batch(31, 1, REFUSED);
        bench.batch(31, 1, REFUSED);
        assert!(matches!(bench.bound(31 + wait - 1, 2), MergeLimit::Unbatched(_)));
        assert_eq!(bench.bound(31 + wait, 2), MergeLimit::Trial);
    }
}

#[test]
fn a_poisoned_batch_is_no_evidence_about_merging() {
    let mut bench = MergeBench::eager();
    (0..10).for_each(|_| bench.batch(0, 1, BatchOutcome::Failed));
    assert_eq!(bench.bound(0, 1), MergeLimit::Free);
}

#[test]
fn a_class_without_a_whole_batch_tries_one_of_two_at_a_time() {
    let mut bench = MergeBench::careful();
    let batch = bench.send(0, 1);
    assert_eq!(bench.bound(0, 2), MergeLimit::Unbatched(None));
    bench.end(0, (batch, 2, 1), true, BatchOutcome::Failed);
    assert_eq!(bench.bound(0, 1), MergeLimit::Trial, "a poisoned trial showed nothing");
    bench.batch(0, 1, BatchOutcome::Ok);
    assert_eq!(bench.bound(0, 1), MergeLimit::Free);
}

#[test]
fn without_replay_the_first_failure_suspends_merging() {
    let mut bench = MergeBench::careful();
    let batch = bench.send(0, 1);
    bench.end(0, (batch, 2, 1), false, NOT_RETRIED);
    assert_eq!(bench.bound(0, 1), MergeLimit::Unbatched(Some(UnbatchedReason::Refused)));
}

#[test]
fn without_replay_a_proven_server_is_suspended_only_if_unbatched_calls_succeed() {
    let mut bench = MergeBench::careful();
    bench.batch(0, 1, BatchOutcome::Ok);
    for _ in 0..2 {
        let batch = bench.send(0, 1);
        bench.end(0, (batch, 2, 1), false, NOT_RETRIED);
    }
    let quarantined = MergeLimit::Unbatched(Some(UnbatchedReason::Quarantined));
    assert_eq!(bench.bound(0, 1), quarantined, "each further batch of the key would fail calls");
    assert_eq!(bench.bound(0, 2), MergeLimit::Free, "unbatched calls failed as well");
    bench.unbatched(1);
    let batch = bench.send(1, 2);
    bench.end(1, (batch, 2, 2), false, NOT_RETRIED);
    assert_eq!(bench.bound(1, 2), MergeLimit::Unbatched(Some(UnbatchedReason::Refused)));
}

#[test]
fn an_overload_ends_merging_only_where_unbatched_calls_are_answered_meanwhile() {
    for unbatched in [false, true] {
        let mut bench = MergeBench::eager();
        bench.unbatched(0);
        bench.batch(0, 1, OVERLOADED);
        if unbatched {
            bench.unbatched(0);
        }
        bench.batch(0, 1, OVERLOADED);
        assert_eq!(matches!(bench.bound(0, 1), MergeLimit::Unbatched(_)), unbatched);
    }
}

#[test]
fn a_server_that_never_answers_a_list_costs_two_batches() {
    let mut bench = MergeBench::careful();
    bench.batch(0, 1, BatchOutcome::TimedOut);
    bench.batch(5, 1, BatchOutcome::TimedOut);
    assert_eq!(bench.bound(5, 1), MergeLimit::Unbatched(Some(UnbatchedReason::Refused)));
    // A server that accepted batches before and hangs altogether is a different case.
    let mut bench = MergeBench::eager();
    bench.batch(0, 1, BatchOutcome::Ok);
    (0..5).for_each(|_| bench.batch(0, 1, BatchOutcome::TimedOut));
    assert_eq!(bench.bound(0, 1), MergeLimit::Free);
    bench.unbatched(0);
    bench.batch(0, 1, BatchOutcome::TimedOut);
    assert_eq!(bench.bound(0, 1), MergeLimit::Unbatched(Some(UnbatchedReason::Refused)));
}

#[test]
fn one_failing_key_is_quarantined_and_three_suspend_the_class() {
    let mut bench = MergeBench::eager();
    bench.batch(0, 1, BatchOutcome::Ok);
    bench.batch(0, 2, BatchOutcome::Mismatched);
    assert_eq!(
        (bench.bound(0, 2), bench.bound(0, 1)),
        (MergeLimit::Unbatched(Some(UnbatchedReason::Quarantined)), MergeLimit::Free)
    );
    bench.batch(0, 3, BatchOutcome::Mismatched);
    assert_eq!(bench.bound(0, 1), MergeLimit::Free);
    bench.batch(0, 4, BatchOutcome::Mismatched);
    assert_eq!(bench.bound(0, 1), MergeLimit::Unbatched(Some(UnbatchedReason::Refused)));
}

#[test]
fn odd_keys_of_one_tenant_do_not_end_merging_for_the_others() {
    for outcome in [BatchOutcome::Mismatched, REFUSED] {
        let mut bench = MergeBench { tenants: 2, ..MergeBench::eager() };
        bench.batch(0, 1, BatchOutcome::Ok);
        for key in 2..17 {
            bench.end(0, (0, 2, key), true, outcome);
            bench.end(0, (0, 2, key), true, outcome);
        }
        assert_eq!(bench.bound(0, 1), MergeLimit::Free, "{outcome:?}");
        // A tenant with ever new keys does not test each of them.
        bench.end(0, (0, 2, 17), true, outcome);
        bench.end(0, (0, 2, 17), true, outcome);
        assert_eq!(bench.bound(0, 1), MergeLimit::Unbatched(Some(UnbatchedReason::Refused)), "{outcome:?}");
    }
}

#[test]
fn odd_keys_of_several_tenants_beside_whole_batches_do_not_end_merging() {
    for outcome in [BatchOutcome::Mismatched, REFUSED] {
        let mut bench = MergeBench::eager();
        for key in 2..9 {
            bench.batch(0, 1, BatchOutcome::Ok);
            bench.end(0, (0, 2, key), true, outcome);
            bench.end(0, (0, 2, key + 100), true, outcome);
        }
        assert_eq!(bench.bound(0, 1), MergeLimit::Free, "{outcome:?}");
    }
}

#[test]
fn an_answer_that_is_withheld_is_no_refusal() {
    let mut bench = MergeBench::eager();
    bench.batch(0, 1, BatchOutcome::Ok);
    (0..9).for_each(|_| bench.end(0, (0, 2, 1), false, BatchOutcome::Withheld));
    assert_eq!(bench.bound(0, 1), MergeLimit::Free);
}

#[test]
fn a_key_whose_batches_are_refused_is_not_merged_while_those_of_others_are_answered() {
    let mut bench = MergeBench::eager();
    bench.batch(0, 1, BatchOutcome::Ok);
    bench.batch(0, 2, REFUSED);
    bench.batch(0, 2, REFUSED);
    assert_eq!(
        (bench.bound(0, 2), bench.bound(0, 1)),
        (MergeLimit::Unbatched(Some(UnbatchedReason::Quarantined)), MergeLimit::Free)
    );
    assert_eq!(bench.bound(30, 2), MergeLimit::Free);
}

#[test]
fn the_quarantine_of_a_key_doubles_and_resets_after_a_hundred_whole_batches() {
    let mut bench = MergeBench::eager();
    bench.batch(0, 1, BatchOutcome::Ok);
    bench.batch(0, 2, BatchOutcome::Mismatched);
    bench.batch(30, 2, BatchOutcome::Mismatched);
    assert_eq!(bench.bound(89, 2), MergeLimit::Unbatched(Some(UnbatchedReason::Quarantined)));
    (0..100).for_each(|_| bench.batch(90, 2, BatchOutcome::Ok));
    bench.batch(90, 2, BatchOutcome::Mismatched);
    assert_eq!(bench.bound(120, 2), MergeLimit::Free);
}

#[test]
fn a_retest_is_left_to_a_key_that_worked_and_the_failure_of_another_does_not_prolong_it() {
    let mut bench = MergeBench::eager();
    bench.batch(0, 1, BatchOutcome::Ok);
    (2..=4).for_each(|key| bench.batch(0, key, BatchOutcome::Mismatched));
    assert_eq!(bench.changes(), [(true, false)]);
    let refused = MergeLimit::Unbatched(Some(UnbatchedReason::Refused));
    for due in [30, 61, 92] {
        assert_eq!((bench.bound(due - 1, 1), bench.bound(due - 1, due)), (refused, refused));
        assert_eq!((bench.bound(due, 1), bench.bound(due, due)), (MergeLimit::Trial, MergeLimit::Unbatched(None)));
        bench.batch(due + 1, due, REFUSED);
    }
    bench.batch(123, 1, BatchOutcome::Ok);
    assert_eq!((bench.bound(123, 1), bench.changes()), (MergeLimit::Free, vec![(false, false)]));
}

#[test]
fn a_key_that_worked_an_hour_ago_is_no_longer_waited_for() {
    let mut bench = MergeBench::eager();
    bench.batch(0, 1, BatchOutcome::Ok);
    (2..=4).for_each(|key| bench.batch(0, key, BatchOutcome::Mismatched));
    assert_eq!(bench.bound(3600, 5), MergeLimit::Trial);
    bench.batch(3601, 5, REFUSED);
    assert!(matches!(bench.bound(3601 + 59, 5), MergeLimit::Unbatched(_)));
    assert_eq!(
        (bench.bound(3601 + 60, 5), bench.bound(3601 + 60, 6)),
        (MergeLimit::Unbatched(None), MergeLimit::Trial)
    );
}

#[test]
fn a_failing_first_key_does_not_extend_the_suspension_of_other_keys() {
    let mut bench = MergeBench::eager();
    (0..2).for_each(|_| bench.batch(0, 1, REFUSED));
    assert_eq!((bench.bound(30, 1), bench.bound(30, 2)), (MergeLimit::Unbatched(None), MergeLimit::Trial));
    bench.batch(30, 2, BatchOutcome::Ok);
    assert_eq!((bench.bound(30, 2), bench.changes()), (MergeLimit::Free, vec![(true, false), (false, false)]));
}

#[test]
fn a_response_that_is_withheld_and_a_batch_that_is_not_sent_are_no_evidence() {
    for outcome in [BatchOutcome::Withheld, BatchOutcome::Failed] {
        for replayable in [false, true] {
            let mut bench = MergeBench::careful();
            for _ in 0..5 {
                let batch = bench.send(0, 1);
                bench.end(0, (batch, 2, 1), replayable, outcome);
                bench.unbatched(0);
            }
            assert_eq!((bench.bound(0, 1), bench.changes()), (MergeLimit::Trial, vec![]), "{outcome:?}");
        }
    }
}

#[test]
fn a_suspension_names_the_response_and_whether_the_members_were_answered_unbatched() {
    let (refused, status) = (BatchRefusal::Reset, BatchRefusal::Status(422));
    for (outcome, expected) in
        [(BatchOutcome::Refused(refused), (refused, true)), (BatchOutcome::NotRetried(status), (status, false))]
    {
        let mut bench = MergeBench::careful();
        for _ in 0..2 {
            bench.end(0, (0, 2, 1), true, outcome);
        }
        let suspension = bench.classes.get(ID).and_then(ClassState::suspension).unwrap();
        assert_eq!((suspension.refusal, suspension.answered_unbatched), expected);
    }
}

#[test]
fn a_suspension_ends_with_a_change_of_the_server() {
    let mut bench = MergeBench::careful();
    bench.batch(0, 1, REFUSED);
    bench.batch(0, 1, REFUSED);
    assert_eq!(bench.classes.suspended_count(), 1);
    bench.classes.forget();
    assert_eq!((bench.bound(1, 1), bench.classes.suspended_count()), (MergeLimit::Trial, 0));
    assert_eq!(bench.changes(), [(true, false), (false, false)]);
}

#[test]
fn an_empty_budget_bounds_attempts_to_merge() {
    let mut bench = MergeBench::eager();
    let mut sent = 0;
    while bench.bound(0, 1) == MergeLimit::Free {
        bench.batch(0, 1, BatchOutcome::Failed);
        bench.classes.record_replays(Tick::default(), 2);
        sent += 1;
    }
    assert_eq!((sent, bench.bound(0, 1)), (30, MergeLimit::Unbatched(Some(UnbatchedReason::BudgetEmpty))));
    assert_eq!(bench.bound(20, 1), MergeLimit::Free);
}

#[test]
fn the_keys_remembered_are_bounded() {
    let mut bench = MergeBench::eager();
    for key in 0..2_000 {
        bench.end(0, (0, 2, key), true, BatchOutcome::Mismatched);
    }
    assert!(format!("{:?}", bench.classes).matches("KeyState {").count() <= 256);
}

#[test]
fn a_refused_key_beside_one_that_is_merged_is_reported_once_for_each_quarantine() {
    let mut bench = MergeBench::eager();
    bench.batch(0, 2, BatchOutcome::Ok);
    bench.batch(0, 1, REFUSED);
    assert_eq!((bench.classes.take_restrictions(), bench.quarantine(0)), (Vec::new(), None));
    bench.batch(0, 1, REFUSED);
    bench.end(1, (0, 2, 1), true, REFUSED);
    let of = |second: u64| MergingRestriction::KeyRefused {
        refusal: BatchRefusal::Status(422),
        retest: Tick::from_millis(second * 1000),
    };
    assert_eq!(bench.classes.take_restrictions(), [RestrictedClass { class: ID, restriction: of(30) }]);
    let expected = QuarantineReport { refusal: BatchRefusal::Status(422), ends_merging: false };
    assert_eq!((bench.quarantine(1), bench.changes()), (Some(expected), Vec::new()));
}

#[test]
fn a_quarantine_of_the_only_key_ends_merging_until_a_batch_succeeds() {
    let mut bench = MergeBench::eager();
    bench.batch(0, 1, BatchOutcome::Ok);
    bench.batch(0, 1, BatchOutcome::Mismatched);
    assert_eq!(bench.classes.take_restrictions(), [], "the mismatch itself is logged");
    let expected = QuarantineReport { refusal: BatchRefusal::Mismatch, ends_merging: true };
    assert_eq!((bench.quarantine(1), bench.quarantine(31)), (Some(expected), Some(expected)));
    assert_eq!(bench.quarantine(91), None, "its callers are gone");
    bench.batch(31, 1, BatchOutcome::Ok);
    assert_eq!(bench.quarantine(31), None);
}

#[test]
fn a_limit_of_one_item_is_reported_with_the_status_when_it_is_found() {
    let mut bench = MergeBench::careful();
    let too_large = BatchOutcome::Refused(BatchRefusal::TooLarge(413));
    bench.batch(0, 1, too_large);
    let restriction = MergingRestriction::OneItem { status: Some(413) };
    assert_eq!(bench.classes.take_restrictions(), [RestrictedClass { class: ID, restriction }]);
    bench.end(1, (0, 2, 1), true, too_large);
    assert_eq!(bench.classes.take_restrictions(), []);
}
