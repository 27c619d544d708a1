//! Displacement: in a full queue, some calls make room for another, the last ones first.
//!
//! Late calls make room for every call that can be in time. Calls of lower priority classes make
//! room for a class that holds less than its share of the queue, which is divided by weight like
//! the time of the upstream: otherwise a flood of a class that may wait has an urgent call refused.
//! The class that exceeds its own share the most loses its last call, so that no class starves.

use std::collections::BTreeMap;

use super::super::batch::ExpiryReason;
use super::super::call::{Call, CallId, PriorityId, RejectionReason};
use super::super::limits::Limits;
use super::super::priority::{PriorityClass, Rank};
use super::super::queue::{Load, QueuedCall};
use super::Batcher;
use super::admission::OccupiedRoom;

/// Calls that were displaced and are not yet reported.
#[derive(Debug, Clone, Default)]
pub(super) struct DisplacedCalls(Vec<CallId>);

// === impl DisplacedCalls ===

impl DisplacedCalls {
    pub(super) fn pop(&mut self) -> Option<CallId> {
        self.0.pop()
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Removes a call. Returns `true` if it was present.
    pub(super) fn cancel(&mut self, id: CallId) -> bool {
        let before = self.0.len();
        self.0.retain(|other| *other != id);
        self.0.len() < before
    }
}

// === impl Batcher ===

impl Batcher {
    /// Displaces calls to make room for a call that is refused for this reason. If that does not
    /// suffice, none is displaced, and the reason why the call is still refused is returned.
    pub(super) fn make_room(&mut self, call: &Call, reason: RejectionReason) -> Option<RejectionReason> {
        let lower = self.lower_classes(call, reason);
        // Refuses without a search if all calls that could be displaced do not suffice.
        let mut least = self.occupied_room(call, false);
        lower.iter().for_each(|(_, held)| least.release(*held));
        if let Some(reason) = self.rejection_within(call, &least) {
            return Some(reason);
        }
        let mut room = self.occupied_room(call, true);
        let (mut refused, mut victims) = (Some(reason), Vec::new());
        let of_class = |class: PriorityId| self.queue.newest_first().filter(move |own| own.call.priority == class);
        for queued in self.late.queue.newest_first().chain(lower.iter().flat_map(|(class, _)| of_class(*class))) {
            let Some(reason) = refused else { break };
            if self.is_in_the_way(queued, call, (reason, &room)) {
                room.release_call(&queued.call, call);
                victims.push(queued.call.id);
                refused = self.rejection_within(call, &room);
            }
        }
        if refused.is_none() {
            for id in victims {
                self.expire_call(self.now, id, ExpiryReason::QueueFull);
                self.displaced.0.push(id);
            }
        }
        refused
    }

    /// Returns `true` if a queued call occupies room that another one needs.
    fn is_in_the_way(
        &self,
        queued: &QueuedCall,
        call: &Call,
        (reason, room): (RejectionReason, &OccupiedRoom),
    ) -> bool {
        match reason {
            RejectionReason::TenantShare => queued.call.tenant == call.tenant,
            RejectionReason::QueueFull | RejectionReason::BytesFull => {
                queued.call.scope == call.scope || !self.scope_is_full(call, room)
            }
        }
    }

    /// Returns the classes whose calls make room for a call, with what they hold: lower ones, the
    /// one that exceeds its share the most first. None if the class of the call holds its share.
    fn lower_classes(&self, call: &Call, reason: RejectionReason) -> Vec<(PriorityId, Load)> {
        let (limits, class) = (&self.limits, self.limits.priority(call.priority));
        let share = |max: u64| limits.class_share(class, max);
        let own = self.queue.held_by_priority(call.priority);
        let has_share = own.items.saturating_add(u64::from(call.items)) <= share(u64::from(limits.queue_items_max))
            && own.bytes.saturating_add(call.bytes) <= share(limits.queue_bytes_max);
        if !self.is_adaptive() || class.filler || !has_share {
            return Vec::new();
        }
        let mut lower: BTreeMap<PriorityId, Load> = BTreeMap::new();
        for (flow, held) in self.queue.flow_loads() {
            let is_in_the_way = reason != RejectionReason::TenantShare || flow.tenant == call.tenant;
            if is_in_the_way && limits.is_lower(flow.priority, call.priority) {
                let sum = lower.entry(flow.priority).or_default();
                *sum = sum.and(held);
            }
        }
        let mut lower: Vec<(PriorityId, Load)> = lower.into_iter().collect();
        let weight = |id: PriorityId| limits.class_share(limits.priority(id), u64::from(limits.queue_items_max));
        lower.sort_by_key(|(id, held)| {
            let permille = u128::from(held.items) * 1000 / u128::from(weight(*id).max(1));
            std::cmp::Reverse(permille)
        });
        lower
    }
}

// === impl Limits ===

impl Limits {
    /// Returns `true` if calls of the class `one` make room for those of the class `other`.
    fn is_lower(&self, one: PriorityId, other: PriorityId) -> bool {
        let [one, other] = [one, other].map(|id| self.priority(id));
        match one.base_rank().cmp(&other.base_rank()) {
            std::cmp::Ordering::Equal => one.weight < other.weight,
            // A rank that precedes another is less.
            order => order.is_gt(),
        }
    }

    /// Returns the share of a class of `max`, by weight among the plain classes. A strict class may
    /// use all of it, and a filler has none.
    fn class_share(&self, class: &PriorityClass, max: u64) -> u64 {
        match class.base_rank() {
            Rank::Strict => return max,
            Rank::Filler => return 0,
            Rank::Plain => {}
        }
        let plain = self.priorities.iter().filter(|class| class.base_rank() == Rank::Plain);
        let all: u64 = plain.map(|class| u64::from(class.weight.max(1))).sum();
        let share = u128::from(max) * u128::from(class.weight.max(1)) / u128::from(all.max(1));
        u64::try_from(share).unwrap_or(max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn class(weight: u32, strict: bool, filler: bool) -> PriorityClass {
        PriorityClass { weight, strict, filler, ..PriorityClass::PLAIN }
    }

    #[test]
    fn the_queue_is_divided_by_weight_among_the_plain_classes() {
        let priorities =
            vec![class(8, false, false), class(1, false, false), class(1, true, false), class(9, false, true)];
        let limits = Limits { priorities, ..Limits::default() };
        let shares = [0, 1, 2, 3].map(|id| limits.class_share(limits.priority(PriorityId(id)), 900));
        assert_eq!(shares, [800, 100, 900, 0]);
        let lower = |one, other| limits.is_lower(PriorityId(one), PriorityId(other));
        assert!(lower(1, 0) && lower(0, 2) && lower(1, 2) && lower(3, 1), "filler, plain by weight, strict");
        assert!(!lower(0, 0) && !lower(0, 1) && !lower(2, 0) && !lower(1, 3));
    }
}
