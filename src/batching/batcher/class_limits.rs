//! Limits on the batches of a cost class: the maxima that its server publishes, the learned
//! ceilings, and the permission to merge. The state behind them is in `class`.

use super::super::batch::UnbatchedReason;
use super::super::call::{Call, CostClassId, KeyId};
use super::super::ceiling::SizeMeasure;
use super::super::class::merging::{MergeLimit, MergingChange};
use super::super::class::{ClassState, RestrictedClass};
use super::super::tick::Tick;
use super::Batcher;

// === impl Batcher ===

impl Batcher {
    /// Defers merging of a cost class until the limits that its server publishes are known: its
    /// calls are dispatched one by one until [`Batcher::end_deferral`].
    pub fn defer_merging(&mut self, now: Tick, class: CostClassId) {
        let now = self.advance(now);
        self.classes.defer_merging(now, class);
    }

    /// Ends the deferral of merging of a cost class.
    pub fn end_deferral(&mut self, class: CostClassId) {
        self.classes.end_deferral(class);
    }

    /// Applies the maximum number of items that the server publishes for a cost class.
    pub fn set_published_items_max(&mut self, now: Tick, class: CostClassId, items_max: u32) {
        let now = self.advance(now);
        self.classes.publish(now, class, items_max);
    }

    /// Applies the maximum weight that the server publishes for a cost class.
    pub fn set_published_weight_max(&mut self, now: Tick, class: CostClassId, weight_max: u64) {
        let now = self.advance(now);
        let bounded = if self.is_padded(class) { SizeMeasure::PaddedWeight } else { SizeMeasure::Weight };
        self.classes.publish_weight(now, class, bounded, weight_max);
    }

    /// Puts a merge key in quarantine, because a call received another response from a batch than
    /// alone.
    pub fn quarantine_different(&mut self, now: Tick, class: CostClassId, key: KeyId) {
        let now = self.advance(now);
        self.classes.quarantine_different(now, self.limits.quarantine, class, key);
    }

    /// Takes the changes of merging per cost class, suspended or resumed, since the last call.
    pub fn take_merging_changes(&mut self) -> Vec<MergingChange> {
        self.classes.take_changes()
    }

    /// Takes the restrictions of merging that began since the last call: a merge key whose batches
    /// are refused, or a limit of one item.
    pub fn take_merging_restrictions(&mut self) -> Vec<RestrictedClass> {
        self.classes.take_restrictions()
    }

    /// Returns the number of cost classes for which merging is suspended because the server refused
    /// their batches.
    #[must_use]
    pub fn count_suspended_classes(&self) -> usize {
        self.classes.suspended_count()
    }

    /// Returns the number of replays that failed batches may still cause at this instant. For
    /// models that predict decisions.
    #[doc(hidden)]
    #[must_use]
    pub fn replays_left(&self, now: Tick) -> u64 {
        self.classes.replay_room(self.now.max(now))
    }

    /// Returns the maximum number of calls of this call's merge key that may share a batch at this
    /// instant and, if that number is one, the reason if it is reported. For models that predict
    /// decisions.
    #[doc(hidden)]
    #[must_use]
    pub fn merge_limit(&self, now: Tick, call: &Call) -> (usize, Option<UnbatchedReason>) {
        match self.classes.merge_bound(self.now.max(now), call, self.limits.merges_eagerly(call.scope)) {
            MergeLimit::Unbatched(reason) => (1, reason),
            MergeLimit::Deferred => (1, None),
            MergeLimit::Trial => (2, None),
            MergeLimit::Free => (usize::MAX, None),
        }
    }

    /// Returns the bound on the number of calls of this call's merge key that may share a batch.
    pub(super) fn merge_bound(&self, call: &Call) -> MergeLimit {
        self.classes.merge_bound(self.now, call, self.limits.merges_eagerly(call.scope))
    }

    /// Returns the learned or published maximum number of items for a cost class.
    #[must_use]
    pub fn ceiling(&self, class: CostClassId) -> Option<u32> {
        self.classes.get(class).map(ClassState::ceiling).filter(|ceiling| *ceiling < u32::MAX)
    }

    /// Returns the smallest ceiling on items of all cost classes, for a gauge.
    #[must_use]
    pub fn min_ceiling(&self) -> Option<u32> {
        self.classes.least_ceiling().filter(|ceiling| *ceiling < u32::MAX)
    }

    /// Returns the smallest ceiling on weight of all cost classes, for a gauge.
    #[must_use]
    pub fn min_weight_ceiling(&self) -> Option<u64> {
        let least =
            self.classes.min_ceiling(SizeMeasure::Weight).min(self.classes.min_ceiling(SizeMeasure::PaddedWeight));
        (least < u64::MAX).then_some(least)
    }
}
