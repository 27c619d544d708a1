//! First steps of a decision: the permit of the concurrency limiter, and the share of the queued
//! items that it allows in one batch.

use std::ops::ControlFlow;

use super::super::batch::{DispatchCause, UnbatchedReason};
use super::super::class::merging::MergeLimit;
use super::super::cost::CostMeasure;
use super::super::limiter::{Permit, PermitRequest};
use super::super::select::BatchCaps;
use super::super::slots::{SlotAvailability, SlotInputs};
use super::super::stats::HoldReason;
use super::batch_draft::TestSubject;
use super::decision::{Action, DispatchKind, KeyDecision};
use super::fair_queueing;
use super::lost_requests::ExtraPermit;
use super::models::{ClassModel, in_flight_of, model_of};
use super::queue_view::KeyContext;
use super::state::Adaptive;

/// The permit of a key queue, and the state of its class at that time.
#[derive(Debug, Clone, Copy)]
pub(super) struct SlotPermit {
    permit: Permit,
    extra: ExtraPermit,
    pub(super) subject: TestSubject,
    /// Items of the class that are queued.
    queued: u64,
    /// Requests of the class in flight.
    pub(super) in_flight: u32,
    /// Limits of a batch of the key queue.
    pub(super) caps: BatchCaps,
}

/// The step that decides whether a batch may leave shortly before a slot frees.
pub(super) type LeadStep = fn(&mut Adaptive, &KeyContext<'_>, &SlotPermit) -> SlotAvailability;

// === impl SlotPermit ===

impl SlotPermit {
    /// Returns the purpose of a batch under this permit.
    pub(super) const fn kind(&self) -> DispatchKind {
        if matches!(self.permit, Permit::Probe(_)) { DispatchKind::Probe } else { DispatchKind::Batch }
    }
}

// === impl Adaptive ===

impl Adaptive {
    /// Obtains the permit of the class's concurrency limiter, which decides whether anything may be
    /// sent, and how many items. At its limit, overdue requests may still leave room.
    pub(super) fn obtain_permit(&mut self, queue: &KeyContext<'_>) -> ControlFlow<KeyDecision, SlotPermit> {
        let KeyContext { ctx, head, merge, .. } = *queue;
        let (class_id, unbatched) = (queue.class_id(), queue.is_unbatched());
        self.ensure_model(class_id);
        let has_second = !unbatched && ctx.queue.load_of_key(queue.key).items > u64::from(head.call.items);
        let queued = ctx.queue.held_by_class(class_id);
        let request = PermitRequest { now: ctx.now, unmergeable: unbatched, arrived: head.arrived, has_second, queued };
        let Some(model) = self.models.get_mut(&class_id) else { return ControlFlow::Break(KeyDecision::Skip) };
        model.flow.set_all_in_flight(self.flights.len());
        // The server refuses batches of this class, so a limit has nothing to gain.
        if merge == MergeLimit::Unbatched(Some(UnbatchedReason::Refused)) {
            model.flow.open_for_refused_batches(ctx.now);
        }
        model.flow.set_ordered(ctx.now, ctx.limits.ordered || self.mix.is_mixed(ctx.now));
        let permit = model.flow.permit(&request);
        let extra = if permit == Permit::Full {
            model.extra_permit(in_flight_of(&self.flights, class_id), merge, ctx.now, self.mean_time)
        } else {
            ExtraPermit::None(None)
        };
        if let Some(limit) = model.flow.limit() {
            model.slots.set_count(limit);
        }
        // A probe must not wait for anything. Holding is also pointless while overdue requests are
        // counted as lost, because no slot is about to free.
        let is_testing =
            model.flow.is_testing(queued) || extra == ExtraPermit::ReplaceLost || matches!(permit, Permit::Probe(_));
        let subject = match () {
            () if model.flow.is_growing(queued) => TestSubject::BatchSize,
            () if is_testing => TestSubject::Limit,
            () => TestSubject::Nothing,
        };
        let is_padded = model.cost.base_kind() == CostMeasure::Padded;
        let caps = BatchCaps::new(ctx.limits.scope(head.call.scope), queue.class, is_padded);
        let in_flight = model.flow.in_flight();
        ControlFlow::Continue(SlotPermit { permit, extra, subject, queued, in_flight, caps })
    }

    /// Returns the share of a permit, the upper bound on the items of the batch. Permits that fix
    /// the batch, and those that send or hold nothing, are final.
    pub(super) fn apply_permit(
        &mut self,
        queue: &KeyContext<'_>,
        slot: &SlotPermit,
        use_lead: LeadStep,
    ) -> ControlFlow<KeyDecision, u32> {
        let key = queue.key;
        match slot.permit {
            Permit::Forward | Permit::Pair | Permit::Control if queue.merges_always() => {
                ControlFlow::Break(self.merge_or_forward(queue, slot.caps))
            }
            Permit::Forward => ControlFlow::Break(self.forward_call(queue, slot.caps)),
            Permit::Pair => ControlFlow::Break(KeyDecision::Do(Action::Send {
                key,
                items: 2,
                cause: DispatchCause::Probe,
                kind: DispatchKind::Pair,
            })),
            Permit::Control => ControlFlow::Break(KeyDecision::Do(Action::Send {
                key,
                items: 1,
                cause: DispatchCause::Probe,
                kind: DispatchKind::Control,
            })),
            Permit::Hold(until) if self.in_flight() > 0 => {
                self.note_hold(key, HoldReason::Gather);
                let is_open = self.models.get(&queue.class_id()).is_some_and(|model| model.flow.is_open());
                ControlFlow::Break(if is_open { KeyDecision::Hold(until) } else { KeyDecision::NoSlot(Some(until)) })
            }
            Permit::Hold(_) => ControlFlow::Continue(1),
            Permit::Share(items) | Permit::Probe(items) => ControlFlow::Continue(items),
            Permit::Full => self.use_room_at_limit(queue, slot, use_lead),
        }
    }

    /// Dispatches a call that shares no batch. If several flows are queued, the call whose turn it
    /// is leaves instead.
    pub(super) fn send_unbatched_call(
        &mut self,
        queue: &KeyContext<'_>,
        slot: &SlotPermit,
    ) -> ControlFlow<KeyDecision> {
        if queue.is_unbatched() {
            return ControlFlow::Break(self.send_unbatched(queue, slot.caps, slot.kind()));
        }
        ControlFlow::Continue(())
    }

    /// Forwards a call, unless its answer would be useless to its client.
    pub(super) fn forward_call(&mut self, queue: &KeyContext<'_>, caps: BatchCaps) -> KeyDecision {
        let lone = self.models.get(&queue.class_id()).and_then(ClassModel::unloaded_nanos);
        match queue.single_call(caps).head_late_for_client(lone) {
            Some(late) => KeyDecision::expire_late(late),
            None => self.send_unbatched(queue, caps, DispatchKind::Forward),
        }
    }

    /// Returns the share of a class at its limit: lost requests leave room, or a batch may leave
    /// shortly before another one returns. If all requests are overdue, one call is sent.
    fn use_room_at_limit(
        &mut self,
        queue: &KeyContext<'_>,
        slot: &SlotPermit,
        use_lead: LeadStep,
    ) -> ControlFlow<KeyDecision, u32> {
        let overdue = match slot.extra {
            ExtraPermit::Probe => {
                return ControlFlow::Break(self.send_unbatched(queue, slot.caps, DispatchKind::Batch));
            }
            ExtraPermit::None(next) => next,
            ExtraPermit::ReplaceLost => None,
        };
        let availability = match slot.subject {
            _ if slot.extra == ExtraPermit::ReplaceLost => SlotAvailability::Free,
            TestSubject::Nothing => use_lead(self, queue, slot),
            TestSubject::Limit | TestSubject::BatchSize => SlotAvailability::Busy,
        };
        let model = model_of(&self.models, queue.class_id())?;
        let at = match availability {
            SlotAvailability::Free => return ControlFlow::Continue(model.flow.lead_share(slot.queued)),
            SlotAvailability::At(at) => Some(at),
            SlotAvailability::Busy => None,
        };
        self.note_hold(queue.key, HoldReason::SlotBusy);
        ControlFlow::Break(KeyDecision::NoSlot(overdue.into_iter().chain(at).min()))
    }

    /// Returns whether a batch may leave shortly before a slot frees.
    pub(super) fn use_lead(&mut self, queue: &KeyContext<'_>, slot: &SlotPermit) -> SlotAvailability {
        let Some(model) = self.models.get_mut(&queue.class_id()) else { return SlotAvailability::Busy };
        let inputs = SlotInputs {
            in_flight: slot.in_flight,
            earliest_due: model.earliest_due(in_flight_of(&self.flights, queue.class_id())),
            slots_max: queue.ctx.limits.slots,
            samples: u64::from(model.cost.samples()),
            mean_time: self.mean_time,
            backlog: model.backlog,
        };
        model.slots.decide(queue.ctx.now, inputs, &mut self.draw)
    }

    /// Dispatches a single call: the head, or the first call in fair order if several flows are
    /// queued.
    fn send_unbatched(&mut self, queue: &KeyContext<'_>, caps: BatchCaps, kind: DispatchKind) -> KeyDecision {
        let (key, cause) = (queue.key, DispatchCause::Idle);
        let in_turn = queue.is_mixed && !queue.head.call.unmergeable;
        let Some(model) = self.models.get(&queue.class_id()).filter(|_| in_turn) else {
            return KeyDecision::Do(Action::Send { key, items: 1, cause, kind });
        };
        let single = queue.single_call(caps);
        fair_queueing::choose_fair(&single, &model.cost, &self.clocks, 1, &mut self.room, &mut self.chosen);
        KeyDecision::Do(Action::Chosen { key, cause, kind })
    }
}
