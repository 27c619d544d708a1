//! Batches in flight: cancellation and answers of their members, and the end of their executions.
//!
//! A batch is recorded here by `dispatch`. The record outlives its members: the slot is free only
//! after the upstream has returned.

use super::super::batch::{BatchId, BatchOutcome, Observation};
use super::super::call::{CallId, CostClassId, KeyId, ScopeId, TenantId};
use super::super::class::ClassSample;
use super::super::class::merging::EndedBatch;
use super::super::tick::Tick;
use super::Batcher;

/// A batch in flight.
#[derive(Debug, Clone)]
pub(super) struct InFlightBatch {
    /// `None` for a call that is dispatched alone: no other call has its key.
    pub(super) key: Option<KeyId>,
    /// Tenant of the first call.
    pub(super) tenant: TenantId,
    pub(super) replayable: bool,
    pub(super) cost_class: CostClassId,
    pub(super) scope: ScopeId,
    pub(super) size: ClassSample,
    pub(super) members: Vec<CallId>,
    /// Members that are neither cancelled nor answered.
    pub(super) waiting: usize,
}

// === impl Batcher ===

impl Batcher {
    /// Cancels a call after its client has disconnected. A queued call is removed at once; a batch
    /// is aborted by the next `poll` once all its members are cancelled. Returns `true` if the call
    /// was queued or in flight.
    pub fn cancel(&mut self, now: Tick, id: CallId) -> bool {
        self.advance(now);
        if self.queue.remove(id).is_some() || self.late.cancel(id) || self.displaced.cancel(id) {
            return true;
        }
        let Some(batch) = self.members.remove(id) else { return false };
        if let Some(in_flight) = self.in_flight.get_mut(&batch) {
            in_flight.waiting -= 1;
            if in_flight.waiting == 0 {
                self.aborts.push(batch);
            }
        }
        true
    }

    /// Removes a call that was cancelled after the decision to dispatch its batch and before the
    /// batch was sent. A batch of which one call remains is no evidence about merging.
    pub fn withdraw(&mut self, now: Tick, id: CallId) {
        let batch = self.members.get(id).copied();
        self.cancel(now, id);
        if let Some(in_flight) = batch.and_then(|batch| self.in_flight.get_mut(&batch)) {
            in_flight.size.shared &= in_flight.waiting > 1;
        }
    }

    /// Records that a member of a batch in flight has been answered while the batch is still
    /// running.
    pub fn on_member_answered(&mut self, id: CallId) {
        let Some(batch) = self.members.remove(id) else { return };
        // Does not abort the batch, even after its last member: the execution is about to complete
        // with its measurements.
        if let Some(in_flight) = self.in_flight.get_mut(&batch) {
            in_flight.waiting -= 1;
        }
    }

    /// Records the end of an execution and frees its slot.
    pub fn complete(&mut self, now: Tick, batch: BatchId, observed: Observation) {
        self.end_batch(now, batch, observed, None);
    }

    /// Records the end of an execution whose response was a stream of generated tokens, and frees
    /// its slot. `tokens`: those of all streams of its class so far.
    pub fn complete_stream(&mut self, now: Tick, batch: BatchId, observed: Observation, tokens: u64) {
        self.end_batch(now, batch, observed, Some(tokens));
    }

    fn end_batch(&mut self, now: Tick, batch: BatchId, observed: Observation, tokens: Option<u64>) {
        let now = self.advance(now);
        let Some(in_flight) = self.in_flight.remove(&batch) else { return };
        let class = in_flight.cost_class;
        let here = (self.held_by_class(class), self.caps(class, in_flight.scope).items);
        let changed = self.adaptive.on_completion(now, batch, (&observed, tokens), here);
        if changed && self.is_adaptive() {
            self.classes.on_server_change(now, in_flight.cost_class);
        }
        self.free.set_free(now, self.has_free_slot());
        self.aborts.retain(|id| *id != batch);
        for id in &in_flight.members {
            self.members.remove(*id);
        }
        if let Some(count) = self.scopes_in_flight.get_mut(&in_flight.scope) {
            *count -= 1;
            if *count == 0 {
                self.scopes_in_flight.remove(&in_flight.scope);
            }
        }
        let InFlightBatch { key, tenant, replayable, .. } = in_flight;
        let key = key.map(KeyId::without_bucket);
        let ended = EndedBatch { batch, key, tenant, shared: in_flight.size.shared, replayable };
        self.classes.observe(now, in_flight.cost_class, &self.limits, (ended, &in_flight.size), &observed);
        match observed.outcome {
            BatchOutcome::Ok => self.pace.observe(observed.duration, in_flight.size.extent.items),
            // The response is forwarded to the callers unmodified, or no caller is left: nothing is
            // replayed.
            BatchOutcome::Overloaded { retry_after } => {
                if let (Some(key), Some(after)) = (key, retry_after) {
                    self.paused.pause(now, key, in_flight.cost_class, after);
                }
            }
            BatchOutcome::Cancelled | BatchOutcome::TimedOut => {}
            _ if in_flight.size.shared => self.classes.record_replays(now, in_flight.members.len()),
            _ => {}
        }
    }
}
