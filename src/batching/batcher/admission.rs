//! Admission control and deadline expiry. Predicted lateness is handled in `adaptive`.

use std::time::Duration;

use super::super::batch::{Decision, ExpiryReason};
use super::super::call::{Call, CallId, CostClassId, DeadlineSource, RejectionReason};
use super::super::class::ClassState;
use super::super::limits::DispatchPolicy;
use super::super::queue::{Load, Queue};
use super::super::tick::Tick;
use super::Batcher;

/// The load that is queued in the room that limits a call.
#[derive(Debug, Clone, Copy)]
pub(super) struct OccupiedRoom {
    all: Load,
    /// Of its route.
    scope: Load,
    /// Items of its tenant.
    tenant: u64,
    /// Other tenants have queued calls.
    has_others: bool,
}

// === impl OccupiedRoom ===

impl OccupiedRoom {
    /// Releases the room of a queued call.
    pub(super) fn release_call(&mut self, queued: &Call, call: &Call) {
        let own = Load { items: u64::from(queued.items), weight: 0, bytes: queued.bytes };
        self.all = self.all.without(own);
        if queued.scope == call.scope {
            self.scope = self.scope.without(own);
        }
        if queued.tenant == call.tenant {
            self.tenant = self.tenant.saturating_sub(own.items);
        }
    }

    /// Releases a load that may lie anywhere: no less room is left than after the release of its
    /// calls.
    pub(super) fn release(&mut self, load: Load) {
        (self.all, self.scope) = (self.all.without(load), self.scope.without(load));
        self.tenant = self.tenant.saturating_sub(load.items);
    }
}

// === impl Batcher ===

impl Batcher {
    /// Returns the reason to reject a call, if the queue has no room for it. Late calls occupy room
    /// only if `with_late`, since they can be displaced.
    pub(super) fn rejection_reason(&self, call: &Call, with_late: bool) -> Option<RejectionReason> {
        self.rejection_within(call, &self.occupied_room(call, with_late))
    }

    /// Returns the room that limits a call.
    pub(super) fn occupied_room(&self, call: &Call, with_late: bool) -> OccupiedRoom {
        let both = [&self.queue, &self.late.queue];
        let queues = &both[..1 + usize::from(with_late)];
        let sum =
            |load: &dyn Fn(&Queue) -> Load| queues.iter().map(|queue| load(queue)).fold(Load::default(), Load::and);
        OccupiedRoom {
            all: sum(&Queue::held),
            scope: sum(&|queue| queue.held_by_scope(call.scope)),
            tenant: queues.iter().map(|queue| queue.held_by_tenant(call.tenant)).sum(),
            has_others: queues.iter().any(|queue| queue.has_others(call.tenant)),
        }
    }

    /// Returns the reason to reject a call beside this occupied room.
    pub(super) fn rejection_within(&self, call: &Call, room: &OccupiedRoom) -> Option<RejectionReason> {
        let (items, scope) = (u64::from(call.items), self.limits.scope(call.scope));
        let over = |held: u64, more: u64, max: u64| held > 0 && held + more > max;
        let items_max = u64::from(self.limits.queue_items_max);
        if over(room.all.items, items, items_max) || over(room.scope.items, items, u64::from(scope.queue_items_max)) {
            return Some(RejectionReason::QueueFull);
        }
        let bytes_full = |held: Load, max: u64| held.items > 0 && held.bytes + call.bytes > max;
        if bytes_full(room.all, self.limits.queue_bytes_max) || bytes_full(room.scope, scope.queue_bytes_max) {
            return Some(RejectionReason::BytesFull);
        }
        // Once the queue is half full, a tenant may hold at most half of it while others are
        // queued.
        let half = items_max / 2;
        let exceeds_half = room.tenant > 0 && room.all.items >= half && room.tenant + items > half;
        (exceeds_half && room.has_others).then_some(RejectionReason::TenantShare)
    }

    /// Returns the total of both queues.
    pub(super) fn held(&self) -> Load {
        self.queue.held().and(self.late.queue.held())
    }

    /// Returns the queued items of a cost class, in time and late.
    pub(super) fn held_by_class(&self, class: CostClassId) -> u64 {
        self.queue.held_by_class(class) + self.late.queue.held_by_class(class)
    }

    /// Returns `true` if the call does not fit into its route's share of the queue.
    pub(super) fn scope_is_full(&self, call: &Call, room: &OccupiedRoom) -> bool {
        let (held, scope) = (room.scope, self.limits.scope(call.scope));
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
            self.adaptive.on_expiry(now, &queued);
            self.tallies.on_expiry(queued.call.cost_class, reason, queued.call.items);
        }
        Decision::Expire { id, reason }
    }

    /// Returns the `Retry-After` of a rejection: whole seconds, drawn between the predicted drain
    /// time and 1.5 times that so that retries spread, and at least 1.
    pub fn retry_after(&mut self) -> Duration {
        let slots = match self.limits.policy {
            DispatchPolicy::Adaptive { .. } => self.adaptive.slots().clamp(1, self.limits.slots),
            _ => self.limits.slots,
        };
        let drain = self.pace.drain_ns(self.held().items, slots);
        let drawn = drain.saturating_add(self.draw.next_u64() % (drain / 2 + 1));
        Duration::from_secs(drawn.div_ceil(1_000_000_000).clamp(1, 3600))
    }
}
