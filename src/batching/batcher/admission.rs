//! Admission control and deadline expiry. Predicted lateness is handled in `adaptive`.

use std::time::Duration;

use super::super::batch::{Decision, ExpiryReason};
use super::super::call::{Call, CallId, CostClassId, DeadlineSource, RejectionReason};
use super::super::class::ClassState;
use super::super::limits::DispatchPolicy;
use super::super::queue::Load;
use super::super::tick::Tick;
use super::Batcher;

// === impl Batcher ===

impl Batcher {
    /// Returns the reason to reject a call, if the queue has no room for it. Late calls occupy room
    /// only if `with_late`, since they can be displaced.
    pub(super) fn rejection_reason(&self, call: &Call, with_late: bool) -> Option<RejectionReason> {
        let items = u64::from(call.items);
        let scope = self.limits.scope(call.scope);
        let (held, scope_held) = if with_late {
            (self.held(), self.held_by_scope(call))
        } else {
            (self.queue.held(), self.queue.held_by_scope(call.scope))
        };
        let over = |held: u64, more: u64, max: u64| held > 0 && held + more > max;
        let items_max = u64::from(self.limits.queue_items_max);
        if over(held.items, items, items_max) || over(scope_held.items, items, u64::from(scope.queue_items_max)) {
            return Some(RejectionReason::QueueFull);
        }
        let bytes_full = |bytes: u64, max: u64| held.items > 0 && bytes + call.bytes > max;
        if bytes_full(held.bytes, self.limits.queue_bytes_max)
            || (scope_held.items > 0 && bytes_full(scope_held.bytes, scope.queue_bytes_max))
        {
            return Some(RejectionReason::BytesFull);
        }
        // Once the queue is half full, a tenant may hold at most half of it while others are
        // queued.
        let half = items_max / 2;
        let both = [&self.queue, &self.late.queue];
        let queues = &both[..1 + usize::from(with_late)];
        let own = queues.iter().map(|queue| queue.held_by_tenant(call.tenant)).sum::<u64>();
        let others = || queues.iter().any(|queue| queue.has_others(call.tenant));
        if own > 0 && others() && held.items >= half && own + items > half {
            return Some(RejectionReason::TenantShare);
        }
        None
    }

    /// Returns the total of both queues.
    pub(super) fn held(&self) -> Load {
        self.queue.held().and(self.late.queue.held())
    }

    /// Returns the queued items of a cost class, in time and late.
    pub(super) fn held_by_class(&self, class: CostClassId) -> u64 {
        self.queue.held_by_class(class) + self.late.queue.held_by_class(class)
    }

    fn held_by_scope(&self, call: &Call) -> Load {
        self.queue.held_by_scope(call.scope).and(self.late.queue.held_by_scope(call.scope))
    }

    /// Returns `true` if the call does not fit into its route's share of the queue.
    pub(super) fn scope_is_full(&self, call: &Call) -> bool {
        let (held, scope) = (self.held_by_scope(call), self.limits.scope(call.scope));
        held.items > 0
            && (held.items + u64::from(call.items) > u64::from(scope.queue_items_max)
                || held.bytes + call.bytes > scope.queue_bytes_max)
    }

    pub(super) fn next_expiry(&mut self, now: Tick) -> Option<Decision> {
        while let Some((at, id)) = self.first_deadline() {
            if at > now {
                break;
            }
            let queued = self.queue.get(id)?;
            let slo =
                queued.call.deadline.filter(|d| d.source == DeadlineSource::Slo).map(|d| d.at.since(queued.arrived));
            let least = match self.limits.policy {
                DispatchPolicy::Adaptive { .. } => self.adaptive.predicted_lone_tail(queued.call.cost_class),
                _ => self.classes.get(queued.call.cost_class).and_then(ClassState::fastest_execution),
            };
            if let (Some(slo), Some(least)) = (slo, least)
                && least > slo
            {
                // Shedding cannot save an SLO that is shorter than one execution: serve the call
                // anyway.
                self.queue.give_up_deadline(id, &self.limits);
                continue;
            }
            if self.defer(now, id) {
                continue;
            }
            return Some(self.expire_call(now, id, ExpiryReason::Deadline));
        }
        // Late calls end by a deadline of their client or by the timeout.
        let (_, id) = self.late.queue.first_deadline().filter(|(at, _)| *at <= now)?;
        Some(self.expire_call(now, id, ExpiryReason::Deadline))
    }

    pub(super) fn expire_call(&mut self, now: Tick, id: CallId, reason: ExpiryReason) -> Decision {
        if let Some(queued) = self.queue.remove(id).or_else(|| self.late.queue.remove(id)) {
            self.adaptive.expired(now, &queued);
            self.tallies.on_expiry(queued.call.cost_class, reason, queued.call.items);
        }
        Decision::Expire { id, reason }
    }

    /// Returns the `Retry-After` of a rejection: whole seconds, drawn between the predicted drain
    /// time and 1.5 times that so that retries spread, and at least 1.
    pub(super) fn retry_after(&mut self) -> Duration {
        let slots = match self.limits.policy {
            DispatchPolicy::Adaptive { .. } => self.adaptive.slots().clamp(1, self.limits.slots),
            _ => self.limits.slots,
        };
        let drain = self.pace.drain_ns(self.held().items, slots);
        let drawn = drain.saturating_add(self.draw.next_u64() % (drain / 2 + 1));
        Duration::from_secs(drawn.div_ceil(1_000_000_000).clamp(1, 3600))
    }
}
