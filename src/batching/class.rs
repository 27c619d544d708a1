//! Per-class memory: ceilings, overload, permission to merge, and recent execution times of each
//! cost class.

pub(super) mod merging;
mod state;

use std::collections::BTreeMap;
use std::time::Duration;

use super::batch::{BatchId, BatchOutcome, BatchRefusal, Observation, UnbatchedReason};
use super::budget::ReplayBudget;
use super::call::{Call, CostClassId, KeyId};
use super::ceiling::{CeilingSnapshot, Ceilings, SizeMeasure};
use super::limits::Limits;
use super::tick::Tick;
use merging::{EndedBatch, KeyQuarantine, MergeLimit, MergingChange, is_answered_unbatched};
pub(super) use state::{ClassSample, ClassState};

/// Maximum number of cost classes remembered. Beyond it the least recently used one is dropped.
/// Larger than the number of cost curves, because these entries are smaller.
const CLASSES_MAX: usize = 256;
/// Maximum number of merging changes kept until they are taken, which is enough for a log.
const CHANGES_MAX: usize = 64;

/// The reason why a part of a cost class is not merged although merging is not suspended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MergingRestriction {
    /// The server refused batches of one merge key, which is in quarantine.
    KeyRefused {
        /// Response of the server to the last batch.
        refusal: BatchRefusal,
        /// Instant from which a batch is tried.
        retest: Tick,
    },
    /// The server accepts one item per call, as it responded to a batch.
    OneItem {
        /// Status of the response, if known.
        status: Option<u16>,
    },
}

/// A restriction of merging that began for a cost class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RestrictedClass {
    /// The cost class.
    pub class: CostClassId,
    /// The restriction.
    pub restriction: MergingRestriction,
}

/// Quarantine of merge keys of a cost class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuarantineReport {
    /// Response of the server to the last batch of such a key.
    pub refusal: BatchRefusal,
    /// `true` if no other merge key of the class is merged, so that the quarantine ends merging.
    pub ends_merging: bool,
}

/// All cost classes, and the budget that bounds attempts to merge.
#[derive(Debug, Clone, Default)]
pub(super) struct ClassTable {
    map: BTreeMap<CostClassId, ClassState>,
    keys: KeyQuarantine,
    /// Estimated budget for replays of failed batches. It leaves out the policy's share, which is
    /// not known here, and counts every failed batch as if each of its members had been replayed.
    replays: ReplayBudget,
    changes: Vec<MergingChange>,
    restrictions: Vec<RestrictedClass>,
}

// === impl ClassTable ===

impl ClassTable {
    /// Discards ceilings, quarantines and suspensions, because a different upstream may accept
    /// other batches. An overload ceiling is kept.
    pub(super) fn forget(&mut self) {
        self.keys = KeyQuarantine::default();
        for (id, class) in &mut self.map {
            class.ceilings = Ceilings::default();
            if class.merging.reset() {
                let change = MergingChange { class: *id, suspension: None, is_retest_failure: false };
                push_change(&mut self.changes, change);
            }
        }
    }

    /// Returns the bound on the number of calls of this call's merge key that may share a batch.
    /// `eager` is set for policies that batch as configured before the first batch has succeeded.
    pub(super) fn merge_bound(&self, now: Tick, call: &Call, eager: bool) -> MergeLimit {
        let eager = eager && call.replayable;
        let (class, key) = (self.get(call.cost_class), call.key.without_bucket());
        let bound = class.map(|class| class.merging.merge_limit(now, eager));
        let bound = bound.unwrap_or(if eager { MergeLimit::Free } else { MergeLimit::Trial });
        match bound {
            MergeLimit::Unbatched(_) => bound,
            _ if class.is_some_and(|class| class.accepts_one_item(now)) => {
                MergeLimit::Unbatched(Some(UnbatchedReason::Refused))
            }
            _ if let Some(refusal) = self.keys.quarantine_cause(now, key) => {
                let is_different = refusal == BatchRefusal::Different;
                let reason = if is_different { UnbatchedReason::Different } else { UnbatchedReason::Quarantined };
                MergeLimit::Unbatched(Some(reason))
            }
            _ if self.replays.replays_left(now) == 0 => MergeLimit::Unbatched(Some(UnbatchedReason::BudgetEmpty)),
            _ if class.is_some_and(|class| class.deferred) => MergeLimit::Deferred,
            // Without a reason: `Refused` would open the limiter, and the calls of a preferred key
            // would leave alone instead of as the pair of the retest.
            _ if class.is_some_and(|class| class.merging.prefers_other_key(now, key)) => MergeLimit::Unbatched(None),
            _ => bound,
        }
    }

    /// Puts a merge key of this class in quarantine, because a call received another response from
    /// a batch than alone.
    pub(super) fn quarantine_different(&mut self, now: Tick, base: Duration, id: CostClassId, key: KeyId) {
        self.keys.quarantine((now, base), (id, key.without_bucket()), BatchRefusal::Different);
    }

    /// Returns `true` if some calls of this class are dispatched alone because a batch could not be
    /// split or was refused.
    pub(super) fn is_quarantined(&self, now: Tick, id: CostClassId) -> bool {
        let suspended = self.get(id).and_then(ClassState::suspension).is_some_and(|suspension| now < suspension.retest);
        suspended || self.keys.has_quarantined(now, id)
    }

    /// Returns the quarantine of merge keys of this class, if the last batch of a key failed.
    pub(super) fn quarantine(&self, now: Tick, id: CostClassId) -> Option<QuarantineReport> {
        let refusal = self.keys.refusal(now, id)?;
        let whole = self.get(id).and_then(|class| class.merging.whole_key());
        Some(QuarantineReport { refusal, ends_merging: whole.is_none_or(|key| self.keys.is_failing(now, key)) })
    }

    /// Records the dispatch of a batch of several members. `trial`: the batch tests whether the
    /// server accepts batches.
    pub(super) fn on_dispatch(&mut self, now: Tick, id: CostClassId, batch: BatchId, members: usize, trial: bool) {
        (0..members).for_each(|_| self.replays.record_client_call(now));
        self.replays.record_first_send(now);
        if trial {
            self.entry(now, id).merging.on_trial_dispatch(batch);
        }
    }

    /// Returns the number of replays that failed batches may still cause.
    pub(super) fn replay_room(&self, now: Tick) -> u64 {
        self.replays.replays_left(now)
    }

    /// Records a replay of each of this many members.
    pub(super) fn record_replays(&mut self, now: Tick, members: usize) {
        (0..members).for_each(|_| self.replays.record_replay(now));
    }

    /// Returns the number of classes for which merging is suspended.
    pub(super) fn suspended_count(&self) -> usize {
        self.map.values().filter(|class| class.suspension().is_some()).count()
    }

    pub(super) fn take_changes(&mut self) -> Vec<MergingChange> {
        std::mem::take(&mut self.changes)
    }

    /// Takes the restrictions of merging that began since the last call.
    pub(super) fn take_restrictions(&mut self) -> Vec<RestrictedClass> {
        std::mem::take(&mut self.restrictions)
    }

    /// Keeps a restriction until it is taken. If there are too many, the earliest are kept.
    fn restrict(&mut self, class: CostClassId, restriction: MergingRestriction) {
        if self.restrictions.len() < CHANGES_MAX {
            self.restrictions.push(RestrictedClass { class, restriction });
        }
    }

    /// Updates the quarantine of the merge key and the permission to merge the class, and records
    /// what has changed.
    fn observe_merging(
        &mut self,
        now: Tick,
        id: CostClassId,
        base: Duration,
        ended: EndedBatch,
        observed: &Observation,
    ) {
        let quarantine_end = |keys: &KeyQuarantine| ended.key.and_then(|key| keys.quarantine_end(now, key));
        let was_quarantined = quarantine_end(&self.keys).is_some();
        let whole_total = self.get(id).map_or(0, |class| class.merging.whole_total());
        // The keys in quarantine are so many that the cause is the server and no single client.
        let is_server = ended.shared
            && ended.key.is_some_and(|key| {
                self.keys.observe((now, base), (id, key, ended.tenant), whole_total, observed.outcome)
            });
        let new_quarantine_end = quarantine_end(&self.keys).filter(|_| !was_quarantined);
        let class = self.entry(now, id);
        let was_suspended = class.suspension().is_some();
        let last = class.last_execution();
        let mut change = class.merging.observe((now, base), ended, observed, last);
        if is_server && change.is_none() && !was_suspended {
            let refusal = match observed.outcome {
                BatchOutcome::Refused(refusal) => refusal,
                _ => BatchRefusal::Mismatch,
            };
            let answered_unbatched = is_answered_unbatched(observed.outcome);
            change = Some(Some(class.merging.suspend(now, base, refusal, answered_unbatched)));
        }
        if let Some(suspension) = change {
            let is_retest_failure = was_suspended && suspension.is_some();
            push_change(&mut self.changes, MergingChange { class: id, suspension, is_retest_failure });
        } else if !was_suspended
            && let (Some(retest), BatchOutcome::Refused(refusal)) = (new_quarantine_end, observed.outcome)
        {
            // Not reported beside a suspension, which covers the key. A mismatch is reported where
            // the response is split.
            self.restrict(id, MergingRestriction::KeyRefused { refusal, retest });
        }
    }

    pub(super) fn least_ceiling(&self) -> Option<u32> {
        self.map.values().map(ClassState::ceiling).min()
    }

    pub(super) fn get(&self, id: CostClassId) -> Option<&ClassState> {
        self.map.get(&id)
    }

    /// Defers merging of this class until [`Self::end_deferral`].
    pub(super) fn defer_merging(&mut self, now: Tick, id: CostClassId) {
        self.entry(now, id).deferred = true;
    }

    pub(super) fn end_deferral(&mut self, id: CostClassId) {
        if let Some(class) = self.map.get_mut(&id) {
            class.deferred = false;
        }
    }

    /// Applies a maximum number of items that the server publishes for this class. The smallest
    /// value is kept.
    pub(super) fn publish(&mut self, now: Tick, id: CostClassId, items_max: u32) {
        self.entry(now, id).ceilings.set_published(now, SizeMeasure::Items, u64::from(items_max));
    }

    /// Applies a maximum weight that the server publishes, in the measure that determines the cost.
    /// The smallest value is kept.
    pub(super) fn publish_weight(&mut self, now: Tick, id: CostClassId, bounded: SizeMeasure, weight_max: u64) {
        self.entry(now, id).ceilings.set_published_weight(now, bounded, weight_max);
    }

    pub(super) fn begin_retest(&mut self, id: CostClassId, bounded: SizeMeasure) {
        if let Some(class) = self.map.get_mut(&id) {
            class.ceilings.begin_retest(bounded);
        }
    }

    pub(super) fn on_server_change(&mut self, now: Tick, id: CostClassId) {
        if let Some(class) = self.map.get_mut(&id) {
            class.ceilings.on_server_change(now);
        }
    }

    /// Returns the learned ceilings of a class, for persistence.
    pub(super) fn snapshot(&self, id: CostClassId) -> Vec<CeilingSnapshot> {
        self.map.get(&id).map(|class| class.ceilings.snapshot().collect()).unwrap_or_default()
    }

    pub(super) fn restore(&mut self, now: Tick, id: CostClassId, snapshots: &[CeilingSnapshot]) {
        let class = self.entry(now, id);
        snapshots.iter().for_each(|snapshot| class.ceilings.restore(now, snapshot));
    }

    /// Returns the smallest ceiling in one measure, or `u64::MAX` if there is none.
    pub(super) fn min_ceiling(&self, bounded: SizeMeasure) -> u64 {
        self.map.values().map(|class| class.max(bounded)).min().unwrap_or(u64::MAX)
    }

    pub(super) fn observe(
        &mut self,
        now: Tick,
        id: CostClassId,
        limits: &Limits,
        (ended, batch): (EndedBatch, &ClassSample),
        observed: &Observation,
    ) {
        self.observe_merging(now, id, limits.quarantine, ended, observed);
        let class = self.entry(now, id);
        let before = class.max(SizeMeasure::Items);
        class.observe(now, limits, batch, observed);
        if before > 1 && class.max(SizeMeasure::Items) == 1 {
            let status = match observed.outcome {
                BatchOutcome::Refused(refusal) => refusal.status(),
                _ => None,
            };
            self.restrict(id, MergingRestriction::OneItem { status });
        }
    }

    fn entry(&mut self, now: Tick, id: CostClassId) -> &mut ClassState {
        if !self.map.contains_key(&id) && self.map.len() >= CLASSES_MAX {
            let oldest = self.map.iter().min_by_key(|(id, class)| (class.used, **id)).map(|(id, _)| *id);
            if let Some(oldest) = oldest {
                self.map.remove(&oldest);
            }
        }
        let class = self.map.entry(id).or_insert_with(|| ClassState::new(now));
        class.used = now;
        class
    }
}

/// Keeps a change until it is taken. If there are too many, the earliest are kept.
fn push_change(changes: &mut Vec<MergingChange>, change: MergingChange) {
    if changes.len() < CHANGES_MAX {
        changes.push(change);
    }
}

#[cfg(test)]
mod tests;
