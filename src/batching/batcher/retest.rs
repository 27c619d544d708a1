//! Asking a learned ceiling again: in place of a batch that it cuts, one that goes beyond it (`scheduling.md` §2.6).
//!
//! Only where nobody pays for the question: every member must be on time whether the batch is answered or refused and sent again in halves, and there
//! must be replays in hand. What it leaves out: when a ceiling is asked again, and what the answer means (`ceiling`).

use super::super::adaptive::{Kind, slack_of};
use super::super::call::CostClassId;
use super::super::call::KeyId;
use super::super::ceiling::{Bounded, Extent};
use super::super::class::merging::Bound;
use super::super::decide::{Choice, Walls, choose, expected};
use super::super::limits::Policy;
use super::super::queue::Queued;
use super::super::tick::{Tick, nanos};
use super::Batcher;
use super::leave::Who;

// === impl Batcher ===

impl Batcher {
    /// The walls of a line's batches.
    pub(super) fn walls(&self, class: CostClassId, scope: super::ScopeId) -> Walls {
        Walls::new(self.limits.scope(scope), self.classes.get(class), self.is_padded(class))
    }

    /// Whether a class pays for every item as if it were the heaviest. Only who learns it goes by it.
    pub(super) fn is_padded(&self, class: CostClassId) -> bool {
        matches!(self.limits.policy, Policy::Adaptive { .. }) && self.adaptive.is_padded(class)
    }

    /// A larger batch in place of this one, and the ceiling that it asks; none if it is not the time, or somebody would pay for it.
    pub(super) fn ask_again(
        &self,
        now: Tick,
        key: KeyId,
        who: Who,
        kind: Kind,
        cut: &Choice,
    ) -> Option<(Choice, Bounded)> {
        if self.draining || cut.lone.is_some() || !matches!(kind, Kind::Batch | Kind::Plain) {
            return None;
        }
        let head = self.queue.get(*cut.ids.first()?)?;
        let (class_id, scope) = (head.call.cost_class, head.call.scope);
        let class = self.classes.get(class_id)?;
        let (bounded, target, took) = class.retest(now)?;
        if head.call.alone || !self.binds(key, who, cut, bounded) {
            return None;
        }
        let padded = self.is_padded(class_id);
        let walls = self.walls(class_id, scope).raised(self.limits.scope(scope), padded, bounded, target);
        // A wall of weight binds whatever number was wanted.
        let want = |most: Option<u32>| most.filter(|_| bounded == Bounded::Items).map(|_| walls.items);
        let larger = match who {
            Who::Front(most) => choose(self.view(), self.queue.line(key), Bound::Free, walls, want(most)),
            Who::Chosen => {
                // Beyond those that were chosen, the next of the line.
                let chosen = self.adaptive.chosen();
                let first = chosen.iter().filter_map(|id| self.queue.get(*id));
                let others = self.queue.line(key).filter(|queued| !chosen.contains(&queued.call.id));
                choose(self.view(), first.chain(others), Bound::Free, walls, None)
            }
        }?;
        let extent = Extent { items: larger.items, sum: larger.weight, heaviest: larger.heaviest };
        let beyond = extent.of(bounded) > class.max(bounded);
        let members = u64::try_from(larger.ids.len()).unwrap_or(u64::MAX);
        let in_hand = self.classes.replay_room(now) >= members;
        // One alone that is refused gets its refusal, and says nothing of what a batch may hold.
        (beyond && members > 1 && in_hand && self.nobody_late(now, class_id, &larger, nanos(took)))
            .then_some((larger, bounded))
    }

    /// Whether it is this wall that cut a batch. Who learns wants no more than fits, so a batch that weight cuts has all that was wanted.
    fn binds(&self, key: KeyId, who: Who, cut: &Choice, bounded: Bounded) -> bool {
        if bounded == Bounded::Items {
            return cut.bound == Some(super::Cause::Full);
        }
        let whole = |head: &Queued| {
            let (class, scope) = (head.call.cost_class, head.call.scope);
            choose(self.view(), self.queue.line(key), Bound::Free, self.walls(class, scope), None)
        };
        cut.bound == Some(super::Cause::Weight)
            || matches!(who, Who::Front(Some(_)))
                && cut
                    .ids
                    .first()
                    .and_then(|id| self.queue.get(*id))
                    .and_then(whole)
                    .is_some_and(|whole| whole.bound == Some(super::Cause::Weight) && whole.items <= cut.items)
    }

    /// Whether every member is on time if the batch is answered, and if it is refused after `took` and its halves are sent one after the other.
    fn nobody_late(&self, now: Tick, class: CostClassId, choice: &Choice, took: u64) -> bool {
        let members: Vec<&Queued> = choice.ids.iter().filter_map(|id| self.queue.get(*id)).collect();
        let (first, second) = members.split_at(members.len() / 2);
        let (Some(whole), Some(one), Some(other)) =
            (self.takes(class, &members), self.takes(class, first), self.takes(class, second))
        else {
            return false;
        };
        let wait = if let Policy::Adaptive { .. } = self.limits.policy { self.adaptive.wait(now, class) } else { 0 };
        let first_needs = wait.saturating_add(whole.max(took.saturating_add(one)));
        let second_needs = wait.saturating_add(whole.max(took.saturating_add(one).saturating_add(other)));
        first.iter().all(|queued| slack_of(queued, now) >= first_needs)
            && second.iter().all(|queued| slack_of(queued, now) >= second_needs)
    }

    /// What these calls take together but once in fifty times, as far as it is known.
    fn takes(&self, class: CostClassId, members: &[&Queued]) -> Option<u64> {
        if !matches!(self.limits.policy, Policy::Adaptive { .. }) {
            return self.classes.get(class).and_then(expected).map(nanos);
        }
        let mut extent = Extent::default();
        for queued in members {
            extent.items += queued.call.items;
            extent.sum = extent.sum.saturating_add(queued.call.weight.sum);
            extent.heaviest = extent.heaviest.max(queued.call.weight.max);
        }
        self.adaptive.late(class, extent)
    }
}
