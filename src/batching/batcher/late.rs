//! Calls that cannot meet their SLO any more and are served all the same: behind those that can, in a queue of their own.
//!
//! A late call leaves when no call in time can use the room, and in one batch of ten at the least, so that none waits for ever. Its batches are kept short
//! beside calls in time, which would be late behind a long one. It ends by a deadline of its caller, the route's timeout, or when the queue is full and a call
//! comes that can be in time: then the last one makes room.
//!
//! What it leaves out: which calls are late (`refuse`, `adaptive`), and how a batch is formed, which is the same for both queues.

use std::time::Duration;

use super::super::batch::{Decision, Expiry};
use super::super::call::{Call, CallId, DeadlineSource, KeyId, RejectionReason};
use super::super::limits::Late;
use super::super::queue::{Queue, Queued};
use super::super::tick::Tick;
use super::Batcher;
use super::leave::Who;

/// Of this many batches one is of late calls, while some wait. Each costs the calls in time its share of the upstream's time; with a third of a mean batch's
/// length for it, goodput in overload stays above 0.95 of what refusing late calls gives (`groupage simulate --table`, rows `serve`).
const TURNS: u32 = 10;
/// A batch of late calls beside calls in time takes one part in this many of a mean batch …
const MEAN_PARTS: u64 = 3;
/// … and in any case one part in this many of the least SLO: a call that comes meanwhile has the rest.
const SLO_PARTS: u64 = 4;
/// It may always take this many halves of what one call takes alone: next to a fixed cost of that size, more members cost little.
const LONE_HALVES: u64 = 3;

/// Late calls.
#[derive(Debug, Clone, Default)]
pub(super) struct LateCalls {
    pub(super) queue: Queue,
    /// Batches of calls in time since the last one of late calls, while some waited.
    pub(super) passed_by: u32,
    /// The least SLO among those that came since there was no late call the last time.
    slo: Option<Duration>,
    /// Ended to make room, and not yet reported.
    displaced: Vec<CallId>,
    /// What a batch of late calls may take, in nanoseconds, while one is being formed. Both queues have changed places then.
    serving: Option<u64>,
}

// === impl LateCalls ===

impl LateCalls {
    /// A call to report that made room.
    pub(super) fn pop_displaced(&mut self) -> Option<CallId> {
        self.displaced.pop()
    }

    /// Whether a call is to be reported.
    pub(super) fn has_displaced(&self) -> bool {
        !self.displaced.is_empty()
    }

    /// Takes a call out; whether it was here.
    pub(super) fn cancel(&mut self, id: CallId) -> bool {
        let before = self.displaced.len();
        self.displaced.retain(|other| *other != id);
        self.queue.remove(id).is_some() || self.displaced.len() < before
    }

    /// Whether the next batch is theirs.
    fn is_owed(&self) -> bool {
        self.passed_by >= TURNS - 1 && !self.queue.is_empty()
    }

    fn take(&mut self, queued: Queued, slo: Duration) {
        if self.queue.is_empty() {
            (self.passed_by, self.slo) = (0, None);
        }
        self.slo = Some(self.slo.map_or(slo, |least| least.min(slo)));
        self.queue.put(queued);
    }
}

// === impl Batcher ===

impl Batcher {
    /// Moves a call that misses its SLO behind those that can be in time, if its route says so; whether it was moved.
    pub(super) fn defer(&mut self, now: Tick, id: CallId) -> bool {
        let Some(call) = self.queue.get(id).map(|queued| &queued.call) else { return false };
        let slo = call.deadline.filter(|deadline| deadline.source == DeadlineSource::Slo);
        let (Some(slo), Late::Serve) = (slo, self.limits.scope(call.scope).late) else { return false };
        let Some(mut queued) = self.queue.remove(id) else { return false };
        queued.call.deadline = queued.call.later.take();
        self.adaptive.deferred(now, queued.call.items);
        let budget = slo.at.since(queued.arrived);
        self.late.take(queued, budget);
        true
    }

    /// What `next` decides for calls in time, and for late ones where it is their turn or no call in time can use the room.
    pub(super) fn in_time_first(
        &mut self,
        now: Tick,
        next: impl Fn(&mut Self) -> Option<Decision>,
    ) -> Option<Decision> {
        // What is half done is finished first: its calls are in the other queue.
        let owed = self.late.is_owed() && !self.adaptive.is_midway();
        let mut wake = None;
        if owed {
            let decision = self.next_late(now, true, &next);
            if decision.is_some() {
                return decision;
            }
            wake = self.adaptive.wake();
        }
        let decision = next(self);
        if decision.is_some() {
            if matches!(decision, Some(Decision::Dispatch(_))) && !self.late.queue.is_empty() {
                self.late.passed_by += 1;
            }
            return decision;
        }
        // No batch of late calls leaves ahead of a free slot: what comes meanwhile would wait behind two.
        let room = self.slot_is_free();
        if !owed && room && self.may_serve_late() {
            wake = wake.into_iter().chain(self.adaptive.wake()).min();
            let decision = self.next_late(now, false, &next);
            if decision.is_some() {
                return decision;
            }
        }
        self.adaptive.wake_by(wake);
        None
    }

    /// Whether room that there is goes to late calls: it is their turn, or no call in time may use it.
    pub(super) fn may_serve_late(&self) -> bool {
        let uses =
            |(key, head): (KeyId, &Queued)| self.scope_is_free(head.call.scope) && self.paused_until(key).is_none();
        !self.late.queue.is_empty() && (self.late.is_owed() || !self.queue.lines().any(uses))
    }

    /// What `next` decides for late calls: both queues change places for it.
    fn next_late(&mut self, now: Tick, owed: bool, next: &impl Fn(&mut Self) -> Option<Decision>) -> Option<Decision> {
        debug_assert_eq!(now, self.now);
        let slo = self.late.slo.map_or(u64::MAX, |slo| u64::try_from(slo.as_nanos()).unwrap_or(u64::MAX) / SLO_PARTS);
        let mean = if owed { self.adaptive.mean_time() / MEAN_PARTS } else { u64::MAX };
        self.late.serving = (!self.draining).then_some(slo.min(mean));
        std::mem::swap(&mut self.queue, &mut self.late.queue);
        let decision = next(self);
        std::mem::swap(&mut self.queue, &mut self.late.queue);
        self.late.serving = None;
        if matches!(decision, Some(Decision::Dispatch(_))) {
            self.late.passed_by = 0;
        }
        decision
    }

    /// Cuts a batch of late calls to what it may take; others are as they were wanted.
    pub(super) fn shorten(&mut self, key: KeyId, who: Who) -> Who {
        let Some(most) = self.late.serving else { return who };
        match who {
            Who::Front(want) => {
                let calls = self.queue.line(key).map(|queued| &queued.call);
                let items = self.adaptive.items_within(calls, most, LONE_HALVES);
                Who::Front(Some(want.map_or(items, |want| want.min(items))))
            }
            Who::Chosen => {
                self.adaptive.shorten_chosen(&self.queue, most, LONE_HALVES);
                Who::Chosen
            }
        }
    }

    /// Has late calls make room for a call that is refused for this reason, the last ones first; what it is refused for then, if it still is.
    pub(super) fn displace(&mut self, call: &Call, mut reason: RejectionReason) -> Option<RejectionReason> {
        if let Some(reason) = self.refuse(call, false) {
            return Some(reason);
        }
        loop {
            let own_scope = |queued: &Queued| queued.call.scope == call.scope;
            let fits = |queued: &Queued| match reason {
                RejectionReason::TenantShare => queued.call.tenant == call.tenant,
                RejectionReason::QueueFull | RejectionReason::BytesFull => {
                    !self.scope_is_full(call) || own_scope(queued)
                }
            };
            let Some(id) = self.late.queue.last_where(fits) else { return Some(reason) };
            if let Some(queued) = self.late.queue.remove(id) {
                self.adaptive.expired(self.now, &queued);
                self.tallies.expired(queued.call.cost_class, Expiry::QueueFull, queued.call.items);
            }
            self.late.displaced.push(id);
            reason = self.refuse(call, true)?;
        }
    }
}
