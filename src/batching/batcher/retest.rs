//! Retest of a learned ceiling: a batch that the ceiling cuts is replaced by one that exceeds it.
//!
//! A retest is made only if no call pays for it: every member must be in time whether the batch is
//! answered, or refused and sent again in halves, and the replay budget must cover all members. The
//! schedule of retests and the meaning of the answers are in `ceiling`.

use super::super::adaptive::{DispatchKind, slack_of};
use super::super::batch::DispatchCause;
use super::super::call::{CostClassId, KeyId, ScopeId};
use super::super::ceiling::{BatchExtent, SizeMeasure};
use super::super::class::merging::MergeLimit;
use super::super::queue::QueuedCall;
use super::super::select::{BatchCaps, Selection, expected_execution, select_members};
use super::super::tick::{Tick, nanos};
use super::Batcher;
use super::selected_batch::MemberChoice;

// === impl Batcher ===

impl Batcher {
    /// Returns the limits of a key queue's batches.
    pub(super) fn caps(&self, class: CostClassId, scope: ScopeId) -> BatchCaps {
        BatchCaps::new(self.limits.scope(scope), self.classes.get(class), self.is_padded(class))
    }

    /// Returns `true` if a class pays for every item as if it were the heaviest. Only the adaptive
    /// policy learns this and applies it.
    pub(super) fn is_padded(&self, class: CostClassId) -> bool {
        self.is_adaptive() && self.adaptive.is_padded(class)
    }

    /// Returns a larger batch in place of this one, and the ceiling that it tests. Returns `None`
    /// if no retest is due, or if a call would be late for it.
    pub(super) fn retest_batch(
        &self,
        now: Tick,
        key: KeyId,
        members: MemberChoice,
        kind: DispatchKind,
        cut: &Selection,
    ) -> Option<(Selection, SizeMeasure)> {
        if self.draining || cut.unbatched_reason.is_some() || !matches!(kind, DispatchKind::Batch | DispatchKind::Plain)
        {
            return None;
        }
        let head = self.queue.get(*cut.ids.first()?)?;
        let (class_id, scope) = (head.call.cost_class, head.call.scope);
        let class = self.classes.get(class_id)?;
        let (bounded, target, took) = class.retest(now)?;
        let together = match self.merge_bound(&head.call) {
            // Under a ceiling of one item, the retest is the only trial of a batch of two.
            MergeLimit::Trial if class.max(SizeMeasure::Items) == 1 => MergeLimit::Trial,
            MergeLimit::Free => MergeLimit::Free,
            MergeLimit::Trial | MergeLimit::Unbatched(_) | MergeLimit::Deferred => return None,
        };
        if head.call.unmergeable || !self.is_binding(key, members, cut, bounded) {
            return None;
        }
        let padded = self.is_padded(class_id);
        let caps = self.caps(class_id, scope).raised(self.limits.scope(scope), padded, bounded, target);
        // A ceiling on weight ends the batch by weight, whatever number of items was requested.
        let want = |most: Option<u32>| most.filter(|_| bounded == SizeMeasure::Items).map(|_| caps.items);
        let larger = match members {
            MemberChoice::Front(most) => {
                select_members(self.view(), self.queue.calls_of(key), together, caps, want(most))
            }
            MemberChoice::Chosen => {
                // The chosen calls are followed by the others of the key queue.
                let chosen = self.adaptive.chosen();
                let first = chosen.iter().filter_map(|id| self.queue.get(*id));
                let others = self.queue.calls_of(key).filter(|queued| !chosen.contains(&queued.call.id));
                select_members(self.view(), first.chain(others), together, caps, None)
            }
        }?;
        let extent = BatchExtent { items: larger.items, sum: larger.weight, heaviest: larger.heaviest };
        let beyond = extent.in_measure(bounded) > class.max(bounded);
        let members = u64::try_from(larger.ids.len()).unwrap_or(u64::MAX);
        let in_hand = self.classes.replay_room(now) >= members;
        // A call that is refused alone receives the refusal as its answer, which shows nothing
        // about batches.
        (beyond && members > 1 && in_hand && self.all_in_time(now, class_id, &larger, nanos(took)))
            .then_some((larger, bounded))
    }

    /// Returns `true` if this ceiling cut the batch. The adaptive policy requests no more than
    /// fits, so a batch that weight cuts holds everything that was requested.
    fn is_binding(&self, key: KeyId, members: MemberChoice, cut: &Selection, bounded: SizeMeasure) -> bool {
        if bounded == SizeMeasure::Items {
            return cut.bound == Some(DispatchCause::Full);
        }
        let whole = |head: &QueuedCall| {
            let (class, scope) = (head.call.cost_class, head.call.scope);
            select_members(self.view(), self.queue.calls_of(key), MergeLimit::Free, self.caps(class, scope), None)
        };
        let is_whole = |whole: Selection| whole.bound == Some(DispatchCause::Weight) && whole.items <= cut.items;
        cut.bound == Some(DispatchCause::Weight)
            || matches!(members, MemberChoice::Front(Some(_)))
                && cut.ids.first().and_then(|id| self.queue.get(*id)).and_then(whole).is_some_and(is_whole)
    }

    /// Returns `true` if every member is in time both if the batch is answered, and if it is
    /// refused after `took` and its halves are sent one after the other.
    fn all_in_time(&self, now: Tick, class: CostClassId, choice: &Selection, took: u64) -> bool {
        let members: Vec<&QueuedCall> = choice.ids.iter().filter_map(|id| self.queue.get(*id)).collect();
        let (first, second) = members.split_at(members.len() / 2);
        let (Some(whole), Some(one), Some(other)) =
            (self.expected_time(class, &members), self.expected_time(class, first), self.expected_time(class, second))
        else {
            return false;
        };
        let wait = if self.is_adaptive() { self.adaptive.wait(now, class) } else { 0 };
        let first_needs = wait.saturating_add(whole.max(took.saturating_add(one)));
        let second_needs = wait.saturating_add(whole.max(took.saturating_add(one).saturating_add(other)));
        first.iter().all(|queued| slack_of(queued, now) >= first_needs)
            && second.iter().all(|queued| slack_of(queued, now) >= second_needs)
    }

    /// Returns the time that these calls take together, if it is known: its 98th percentile under
    /// the adaptive policy, otherwise that of the last execution with a margin.
    fn expected_time(&self, class: CostClassId, members: &[&QueuedCall]) -> Option<u64> {
        if !self.is_adaptive() {
            return self.classes.get(class).and_then(expected_execution).map(nanos);
        }
        let mut extent = BatchExtent::default();
        for queued in members {
            extent.items += queued.call.items;
            extent.sum = extent.sum.saturating_add(queued.call.weight.sum);
            extent.heaviest = extent.heaviest.max(queued.call.weight.max);
        }
        self.adaptive.late(class, extent)
    }
}
