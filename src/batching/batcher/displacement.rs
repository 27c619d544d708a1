//! Displacement: in a full queue, some calls make room for another, the last ones first.
//!
//! Late calls make room for every call that can be in time. Calls of a lower priority class make
//! room for a class that holds less than its share of the queue, which is divided by weight like the
//! time of the upstream: otherwise a flood of a class that may wait has an urgent call refused.

use super::super::batch::ExpiryReason;
use super::super::call::{Call, CallId, PriorityId, RejectionReason};
use super::super::limits::Limits;
use super::super::priority::{PriorityClass, Rank};
use super::super::queue::QueuedCall;
use super::Batcher;

/// Calls that were displaced and are not yet reported.
#[derive(Debug, Clone, Default)]
pub(super) struct DisplacedCalls(Vec<CallId>);

/// A call that was taken out of the queue to make room.
struct Victim {
    queued: QueuedCall,
    is_late: bool,
}

// === impl DisplacedCalls ===

impl DisplacedCalls {
    /// Removes and returns a call.
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
        let from_lower = self.may_displace_lower(call, reason);
        if !from_lower && let Some(reason) = self.rejection_reason(call, false) {
            return Some(reason);
        }
        let mut victims = Vec::new();
        let mut refused = Some(reason);
        while let Some(reason) = refused {
            let Some(victim) = self.take_victim(call, reason, from_lower) else { break };
            victims.push(victim);
            refused = self.rejection_reason(call, true);
        }
        for Victim { queued, is_late } in victims {
            if refused.is_some() {
                let queue = if is_late { &mut self.late.queue } else { &mut self.queue };
                queue.insert_queued(queued);
                continue;
            }
            self.adaptive.expired(self.now, &queued);
            self.tallies.on_expiry(queued.call.cost_class, ExpiryReason::QueueFull, queued.call.items);
            self.displaced.0.push(queued.call.id);
        }
        refused
    }

    /// Takes the last late call, or else the last one of a lower class, that is in the way of a call.
    fn take_victim(&mut self, call: &Call, reason: RejectionReason, from_lower: bool) -> Option<Victim> {
        let scope_is_full = self.scope_is_full(call);
        let is_in_the_way = |queued: &QueuedCall| match reason {
            RejectionReason::TenantShare => queued.call.tenant == call.tenant,
            RejectionReason::QueueFull | RejectionReason::BytesFull => {
                !scope_is_full || queued.call.scope == call.scope
            }
        };
        if let Some(id) = self.late.queue.rfind(is_in_the_way) {
            return self.late.queue.remove(id).map(|queued| Victim { queued, is_late: true });
        }
        let limits = &self.limits;
        let is_lower =
            |queued: &QueuedCall| limits.is_lower(queued.call.priority, call.priority) && is_in_the_way(queued);
        let id = from_lower.then(|| self.queue.rfind(is_lower)).flatten()?;
        self.queue.remove(id).map(|queued| Victim { queued, is_late: false })
    }

    /// Returns `true` if the class of a call holds less than its share of the queue, and calls of
    /// lower classes are queued that may be in its way.
    fn may_displace_lower(&self, call: &Call, reason: RejectionReason) -> bool {
        let (limits, class) = (&self.limits, self.limits.priority(call.priority));
        if !self.is_adaptive() || class.filler {
            return false;
        }
        let mut flows = self.queue.flow_loads();
        let is_lower = flows.any(|(flow, _)| {
            limits.is_lower(flow.priority, call.priority)
                && (reason != RejectionReason::TenantShare || flow.tenant == call.tenant)
        });
        let share = |max: u64| limits.class_share(class, max);
        let own = self.queue.held_by_priority(call.priority);
        is_lower
            && own.items.saturating_add(u64::from(call.items)) <= share(u64::from(limits.queue_items_max))
            && own.bytes.saturating_add(call.bytes) <= share(limits.queue_bytes_max)
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
    /// use all of it.
    fn class_share(&self, class: &PriorityClass, max: u64) -> u64 {
        if class.strict {
            return max;
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
        let shares = [0, 1, 2].map(|id| limits.class_share(limits.priority(PriorityId(id)), 900));
        assert_eq!(shares, [800, 100, 900]);
        let lower = |one, other| limits.is_lower(PriorityId(one), PriorityId(other));
        assert!(lower(1, 0) && lower(0, 2) && lower(1, 2) && lower(3, 1), "filler, plain by weight, strict");
        assert!(!lower(0, 0) && !lower(0, 1) && !lower(2, 0) && !lower(1, 3));
    }
}
