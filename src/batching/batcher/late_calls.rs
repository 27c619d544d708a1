//! Late calls: they can no longer meet their SLO and are served behind the calls that can, from a
//! queue of their own.
//!
//! A late call leaves when no call in time can use the capacity, and at least one batch in ten is
//! of late calls, so that none starves. Batches of late calls are kept short beside calls in time,
//! which would be late behind a long one. A late call ends by a deadline of its client, by the
//! route's timeout, or by `displacement` from a full queue. Lateness is determined in `admission`
//! and `adaptive`. Batches are formed in the same way for both queues.

use std::time::Duration;

use super::super::batch::Decision;
use super::super::call::{CallId, DeadlineSource, KeyId};
use super::super::limits::LateTreatment;
use super::super::queue::{Queue, QueuedCall};
use super::super::tick::{Tick, nanos};
use super::Batcher;
use super::selected_batch::MemberChoice;

/// One batch in this many is of late calls, while some wait. Each costs the calls in time its share
/// of the upstream's time. At a third of a mean batch's time for it, goodput in overload stays
/// above 0.95 of that with late calls refused (`just sim-table 3 cases`, rows `serve`).
const TURNS: u32 = 10;
/// Inverse share of a mean batch's time that a batch of late calls takes beside calls in time.
const MEAN_PARTS: u64 = 3;
/// Inverse share of the least SLO that it takes in any case: a call that arrives meanwhile has the
/// rest.
const SLO_PARTS: u64 = 4;
/// Halves of the time of an unbatched call that it may always take: beside a fixed cost of that
/// size, more members cost little.
const UNBATCHED_HALVES: u64 = 3;

/// The late calls and the order of their service.
#[derive(Debug, Clone, Default)]
pub(super) struct LateCalls {
    pub(super) queue: Queue,
    /// Batches of calls in time since the last one of late calls, while some waited.
    pub(super) batches_since_late: u32,
    /// Least SLO among the calls that became late since the queue was last empty.
    slo: Option<Duration>,
    /// Maximum time of the batch of late calls that is being formed, in nanoseconds. The two queues
    /// are swapped meanwhile.
    batch_nanos_max: Option<u64>,
}

// === impl LateCalls ===

impl LateCalls {
    /// Removes a call. Returns `true` if it was present.
    pub(super) fn cancel(&mut self, id: CallId) -> bool {
        self.queue.remove(id).is_some()
    }

    /// Returns `true` if the next batch is due to late calls.
    fn is_owed(&self) -> bool {
        self.batches_since_late >= TURNS - 1 && !self.queue.is_empty()
    }

    fn push(&mut self, queued: QueuedCall, slo: Duration) {
        if self.queue.is_empty() {
            (self.batches_since_late, self.slo) = (0, None);
        }
        self.slo = Some(self.slo.map_or(slo, |least| least.min(slo)));
        self.queue.insert(queued);
    }
}

// === impl Batcher ===

impl Batcher {
    /// Moves a call that misses its SLO behind those that can be in time, if its route serves late
    /// calls. Returns `true` if it was moved.
    pub(super) fn defer(&mut self, now: Tick, id: CallId) -> bool {
        let Some(call) = self.queue.get(id).map(|queued| &queued.call) else { return false };
        let slo = call.deadline.filter(|deadline| deadline.source == DeadlineSource::Slo);
        let (Some(slo), LateTreatment::Serve) = (slo, self.limits.scope(call.scope).late) else { return false };
        let Some(mut queued) = self.queue.remove(id) else { return false };
        queued.call.deadline = queued.call.fallback_deadline.take();
        self.adaptive.on_deferral(now, queued.call.items);
        let budget = slo.at.since(queued.arrived);
        self.late.push(queued, budget);
        true
    }

    /// Returns the decision of `next` for calls in time, or for late calls if it is their turn or
    /// no call in time can use the capacity.
    pub(super) fn decide_by_lateness(
        &mut self,
        now: Tick,
        next: impl Fn(&mut Self) -> Option<Decision>,
    ) -> Option<Decision> {
        // A decision with further steps is finished first, because its calls are in the main queue.
        let owed = self.late.is_owed() && !self.adaptive.is_midway();
        let mut wake = None;
        if owed {
            let decision = self.decide_late(now, true, &next);
            if decision.is_some() {
                return decision;
            }
            wake = self.adaptive.wake();
        }
        let decision = next(self);
        if decision.is_some() {
            if matches!(decision, Some(Decision::Dispatch(_))) && !self.late.queue.is_empty() {
                self.late.batches_since_late += 1;
            }
            return decision;
        }
        // A batch of late calls does not leave with a lead: calls that arrive meanwhile would wait
        // behind two batches.
        let room = self.has_free_slot();
        if !owed && room && self.may_serve_late() {
            wake = wake.into_iter().chain(self.adaptive.wake()).min();
            let decision = self.decide_late(now, false, &next);
            if decision.is_some() {
                return decision;
            }
        }
        self.adaptive.wake_by(wake);
        None
    }

    /// Returns `true` if free capacity goes to late calls: it is their turn, or no call in time may
    /// use it.
    pub(super) fn may_serve_late(&self) -> bool {
        let uses = |(key, head): (KeyId, &QueuedCall)| {
            self.has_free_scope_slot(head.call.scope) && self.paused_until(key).is_none()
        };
        !self.late.queue.is_empty() && (self.late.is_owed() || !self.queue.heads().any(uses))
    }

    /// Returns the decision of `next` for late calls. The two queues are swapped for it.
    fn decide_late(
        &mut self,
        now: Tick,
        owed: bool,
        next: &impl Fn(&mut Self) -> Option<Decision>,
    ) -> Option<Decision> {
        debug_assert_eq!(now, self.now);
        let slo = self.late.slo.map_or(u64::MAX, |slo| nanos(slo) / SLO_PARTS);
        let mean = if owed { self.adaptive.mean_time() / MEAN_PARTS } else { u64::MAX };
        self.late.batch_nanos_max = (!self.draining).then_some(slo.min(mean));
        std::mem::swap(&mut self.queue, &mut self.late.queue);
        let decision = next(self);
        std::mem::swap(&mut self.queue, &mut self.late.queue);
        self.late.batch_nanos_max = None;
        if matches!(decision, Some(Decision::Dispatch(_))) {
            self.late.batches_since_late = 0;
        }
        decision
    }

    /// Shortens a batch of late calls to its maximum time. Other batches are unchanged.
    pub(super) fn shorten_late_batch(&mut self, key: KeyId, members: MemberChoice) -> MemberChoice {
        let Some(most) = self.late.batch_nanos_max else { return members };
        match members {
            MemberChoice::Front(want) => {
                let calls = self.queue.calls_of(key).map(|queued| &queued.call);
                let items = self.adaptive.items_within(calls, most, UNBATCHED_HALVES);
                MemberChoice::Front(Some(want.map_or(items, |want| want.min(items))))
            }
            MemberChoice::Chosen => {
                self.adaptive.shorten_chosen(&self.queue, most, UNBATCHED_HALVES);
                MemberChoice::Chosen
            }
        }
    }
}
