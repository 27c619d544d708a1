//! The simulated proxy: the interface through which a policy observes its calls and acts on them.
//!
//! It also records the state of every call and checks that each ends exactly once: a policy that
//! ends or sends a call twice causes a panic at once.

use std::time::Duration;

use crate::batching::{CallId, Tick};

use super::batch::{BatchCompletion, ResponseStatus, SimBatchId};
use super::call::{Arrival, CallOutcome, CompletedCall};
use super::curve::BatchLoad;
use super::event_queue::{EventQueue, SimEvent};
use super::random::RandomStream;
use super::upstream::UpstreamState;

/// The proxy as a policy sees it.
#[derive(Debug)]
pub struct SimProxy {
    pub(super) now: Tick,
    /// Events to come, except the arrivals of the open workload and the wake-up of the policy.
    pub(super) events: EventQueue,
    pub(super) upstream: UpstreamState,
    /// Instant of the wake-up that the policy has requested.
    pub(super) wake: Option<Tick>,
    /// Closed-loop clients of the calls that ended since the event loop last collected them.
    pub(super) freed_clients: Vec<u32>,
    pub(super) counts: DispatchCounts,
    slo: Duration,
    /// Random numbers for the policy.
    random: RandomStream,
    /// All calls that have arrived, by id.
    entries: Vec<CallEntry>,
    /// All batches that were sent, by id.
    sent: Vec<SentBatch>,
    /// Number of calls without an outcome.
    outstanding: u32,
}

/// Counters of what was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DispatchCounts {
    /// Number of batches sent, including those sent again.
    pub batches: u64,
    /// Number of items in them.
    pub items: u64,
    /// Number of batches that the upstream refused.
    pub refusals: u64,
    /// Maximum number of calls without an outcome at one instant.
    pub outstanding_max: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CallPhase {
    Queued,
    Sent,
    Ended,
}

#[derive(Debug)]
struct CallEntry {
    /// The call, with its outcome once `phase` is `Ended`.
    ended: CompletedCall,
    phase: CallPhase,
    /// Number of the closed-loop client that sent the call; `None` in an open workload.
    client: Option<u32>,
}

#[derive(Debug)]
struct SentBatch {
    /// Instant at which it was sent.
    at: Tick,
    items: u32,
    /// Its calls; empty after the response.
    members: Vec<CallId>,
    aborted: bool,
}

// === impl SimProxy ===

impl SimProxy {
    pub(super) fn new(slo: Duration, upstream: UpstreamState, random: RandomStream) -> Self {
        Self {
            now: Tick::default(),
            events: EventQueue::default(),
            upstream,
            wake: None,
            freed_clients: Vec::new(),
            counts: DispatchCounts::default(),
            slo,
            random,
            entries: Vec::new(),
            sent: Vec::new(),
            outstanding: 0,
        }
    }

    /// Returns the current instant.
    #[must_use]
    pub fn now(&self) -> Tick {
        self.now
    }

    /// Returns the SLO of the policy.
    #[must_use]
    pub fn slo(&self) -> Duration {
        self.slo
    }

    /// Returns a call that has arrived.
    #[must_use]
    pub fn arrival(&self, id: CallId) -> &Arrival {
        &self.entry(id).ended.arrival
    }

    /// Returns `true` if the call is queued: it has arrived, is not in flight and has not ended.
    #[must_use]
    pub fn is_queued(&self, id: CallId) -> bool {
        self.entry(id).phase == CallPhase::Queued
    }

    /// Returns the random numbers for policies that draw.
    pub fn rng(&mut self) -> &mut RandomStream {
        &mut self.random
    }

    /// Requests one [`super::SimPolicy::on_tick`] at this instant, in place of an earlier request.
    /// `None` cancels the request.
    pub fn set_wakeup(&mut self, at: Option<Tick>) {
        self.wake = at;
    }

    /// Sends calls upstream as one batch.
    ///
    /// # Panics
    /// If there are none, or one of them is not in the queue.
    pub fn send(&mut self, members: Vec<CallId>) -> SimBatchId {
        assert!(!members.is_empty(), "a batch is not empty");
        let mut load = BatchLoad::default();
        for &id in &members {
            let entry = self.entry_mut(id);
            assert!(entry.phase == CallPhase::Queued, "{id:?} is {:?} and cannot be sent", entry.phase);
            entry.phase = CallPhase::Sent;
            let call = &entry.ended.arrival.call;
            load.items += call.items;
            load.sum += call.weight.sum;
            load.max = load.max.max(call.weight.max);
        }
        self.counts.batches += 1;
        self.counts.items += u64::from(load.items);
        let id = SimBatchId(self.sent.len() as u64);
        self.sent.push(SentBatch { at: self.now, items: load.items, members, aborted: false });
        self.upstream.submit(self.now, id, load, &mut self.events);
        id
    }

    /// Ends a queued call as expired.
    pub fn expire(&mut self, id: CallId) {
        self.record_outcome(id, CallOutcome::Expired);
    }

    /// Ends a call that has just arrived as rejected.
    pub fn reject(&mut self, id: CallId) {
        self.record_outcome(id, CallOutcome::Rejected);
    }

    /// Ends a call with the refusal of the upstream.
    pub fn refuse(&mut self, id: CallId) {
        self.record_outcome(id, CallOutcome::Refused);
    }

    /// Aborts an execution that no member waits for: its response is not reported to the policy.
    /// The upstream continues to execute it, as most servers do.
    pub fn abort(&mut self, id: SimBatchId) {
        self.sent[index(id.0)].aborted = true;
    }

    /// Adds a call that arrives now. Returns its id.
    pub(super) fn admit(&mut self, mut arrival: Arrival, client: Option<u32>) -> CallId {
        let id = CallId(self.entries.len() as u64);
        arrival.call.id = id;
        if let Some(at) = arrival.cancel_at {
            self.events.schedule(at, SimEvent::Cancel(id));
        }
        let ended = CompletedCall { arrival, outcome: CallOutcome::Unanswered, at: self.now };
        self.entries.push(CallEntry { ended, phase: CallPhase::Queued, client });
        self.outstanding += 1;
        self.counts.outstanding_max = self.counts.outstanding_max.max(self.outstanding);
        id
    }

    /// Cancels a call on behalf of its client. Returns `true` if the call had not ended.
    pub(super) fn on_cancel(&mut self, id: CallId) -> bool {
        let waiting = self.entry(id).phase != CallPhase::Ended;
        if waiting {
            self.record_outcome(id, CallOutcome::Cancelled);
        }
        waiting
    }

    /// Handles the response to a batch: its members are answered, or queued again if the upstream
    /// refused it. Returns the completion to report to the policy, or `None` if the batch was
    /// aborted.
    pub(super) fn on_response(&mut self, id: SimBatchId, status: ResponseStatus) -> Option<BatchCompletion> {
        let sent = &mut self.sent[index(id.0)];
        let mut members = std::mem::take(&mut sent.members);
        let (at, items, aborted) = (sent.at, sent.items, sent.aborted);
        if status == ResponseStatus::Ok {
            for &member in &members {
                if self.entry(member).phase == CallPhase::Sent {
                    self.record_outcome(member, CallOutcome::Answered);
                }
            }
        } else {
            self.counts.refusals += 1;
            members.retain(|&member| self.entry(member).phase == CallPhase::Sent);
            for &member in &members {
                self.entry_mut(member).phase = CallPhase::Queued;
            }
        }
        (!aborted).then_some(BatchCompletion { id, sent: at, items, status, members })
    }

    pub(super) fn members(&self, id: SimBatchId) -> &[CallId] {
        &self.sent[index(id.0)].members
    }

    /// Returns the outcome of a call that has ended.
    pub(super) fn outcome(&self, id: CallId) -> Option<CallOutcome> {
        let entry = self.entry(id);
        (entry.phase == CallPhase::Ended).then_some(entry.ended.outcome)
    }

    /// Ends the run. Returns all calls in order of arrival.
    pub(super) fn into_outcomes(self) -> Vec<CompletedCall> {
        let now = self.now;
        let end = |mut entry: CallEntry| {
            if entry.phase != CallPhase::Ended {
                entry.ended.at = now;
            }
            entry.ended
        };
        self.entries.into_iter().map(end).collect()
    }

    fn record_outcome(&mut self, id: CallId, outcome: CallOutcome) {
        let now = self.now;
        let entry = self.entry_mut(id);
        assert!(entry.phase != CallPhase::Ended, "{id:?} ended {:?} and again {outcome:?}", entry.ended.outcome);
        entry.phase = CallPhase::Ended;
        entry.ended.outcome = outcome;
        entry.ended.at = now;
        let client = entry.client;
        self.freed_clients.extend(client);
        self.outstanding -= 1;
    }

    fn entry(&self, id: CallId) -> &CallEntry {
        &self.entries[index(id.0)]
    }

    fn entry_mut(&mut self, id: CallId) -> &mut CallEntry {
        &mut self.entries[index(id.0)]
    }
}

fn index(id: u64) -> usize {
    usize::try_from(id).expect("ids index values in memory")
}
