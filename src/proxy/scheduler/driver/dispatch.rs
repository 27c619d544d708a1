//! Execution of a dispatch decision: takes the members from the queue and sends their batch, or
//! returns a single call to the task of its caller.

use super::super::execution::{Slot, UnbatchedPermit, WaitingMembers, execute};
use super::super::waits::WaitReasons;
use super::super::{ExecutionDetails, SubmitOutcome};
use super::{Driver, InFlightExecution, QueuedCall, send_outcome};
use crate::backend::BatchRequest;
use crate::batching::{Batch, BatchId, CallId, DispatchCause, ScopeId, Tick};
use crate::telemetry::DispatchSample;

// === impl Driver ===

impl Driver<'_> {
    /// Removes the members of a batch from the queue. A cancelled call is not sent, even if its
    /// `Cancel` event still waits behind others.
    fn take_members(&mut self, batch: &Batch, now: Tick) -> Vec<(CallId, QueuedCall)> {
        let mut members: Vec<(CallId, QueuedCall)> = Vec::with_capacity(batch.members.len());
        for member in &batch.members {
            let Some(queued) = self.remove_call(member.id) else { continue };
            if queued.reply.is_closed() {
                self.core.withdraw(now, member.id);
            } else {
                members.push((member.id, queued));
            }
        }
        members
    }

    /// Records the members of a batch and their time in the queue.
    fn record_dispatch(&self, cause: DispatchCause, members: &[(CallId, QueuedCall)], now: Tick) -> DispatchSample {
        let mut sample =
            DispatchSample { cause, members: members.len(), items: 0, items_max: 0, weight: 0, weight_max: 0 };
        for (_, QueuedCall { submission, .. }) in members {
            sample.items += submission.call.items;
            sample.weight = sample.weight.saturating_add(submission.call.weight.sum);
            sample.weight_max = sample.weight_max.max(submission.call.weight.max);
            sample.items_max = self.supervisor.config.limits.scope(submission.scope).batch_items_max;
        }
        if let Some((_, first)) = members.first() {
            let delays = || members.iter().map(|(_, queued)| now.since(queued.arrival.at));
            self.supervisor.metrics.record_dispatch(&sample, delays());
            if let Some(observer) = self.supervisor.metrics.observer() {
                observer.on_dispatch(first.submission.scope, sample.items, &mut delays());
            }
        }
        sample
    }

    pub(super) fn dispatch(&mut self, batch: &Batch, now: Tick) {
        let members = self.take_members(batch, now);
        self.report_empty_budget(batch, now);
        let sample = self.record_dispatch(batch.cause, &members, now);
        let scope = members.first().map_or(ScopeId(u16::MAX), |(_, queued)| queued.submission.scope);
        let waits = self.wait_reasons(batch);
        waits.count(&self.supervisor.metrics, members.iter().map(|(_, queued)| queued.arrival));
        let mode = self.core.flow_mode(batch.cost_class);
        let details_of = |queued: &QueuedCall| ExecutionDetails {
            batch: Some(batch.id),
            batch_items: sample.items,
            calls: u32::try_from(sample.members).unwrap_or(u32::MAX),
            is_divided: false,
            cause: Some(batch.cause),
            queue_delay: now.since(queued.arrival.at),
            held: waits.reason(queued.arrival),
            mode,
            unbatched_reason: batch.unbatched_reason,
            own_connection: batch.own_connection,
            predicted: batch.predicted,
            sent: Some(now),
            answered: None,
        };
        let generates = members.first().is_some_and(|(_, queued)| queued.submission.endpoint.is_generation());
        let stream_tokens = generates.then(|| self.stream_tokens.of_class(batch.cost_class));
        let slot =
            Slot::new(self.completion_sender.clone(), self.generation, batch.id, self.supervisor.clock, stream_tokens);
        let (ids, mut members): (Vec<CallId>, Vec<QueuedCall>) = members.into_iter().unzip();
        // A batch of one is sent unbatched by the task of its caller, which holds the slot through
        // the permit.
        if members.len() <= 1 {
            self.in_flight.insert(batch.id, InFlightExecution { task: None, scope });
            if let Some(queued) = members.pop() {
                let details = details_of(&queued);
                send_outcome(queued.reply, SubmitOutcome::Unbatched(UnbatchedPermit::new(slot, details)));
            }
            return;
        }
        let Some(request) = build_request(batch.id, &members, now) else { return };
        let details = members.iter().map(details_of).collect();
        let waiting = WaitingMembers {
            ids,
            replies: members.into_iter().map(|queued| Some(queued.reply)).collect(),
            details,
            events: self.supervisor.events.clone(),
            is_isolating: false,
            slot: Some(slot),
            answered: None,
        };
        let task = tokio::spawn(execute(self.supervisor.backend.clone(), request, waiting));
        self.in_flight.insert(batch.id, InFlightExecution { task: Some(task.abort_handle()), scope });
    }

    /// Returns the reasons for which the calls of a batch waited.
    fn wait_reasons(&self, batch: &Batch) -> WaitReasons {
        WaitReasons::new(batch.cause, self.core.pause_end(batch.key), self.rounds)
    }
}

/// Builds the request of a batch. It carries the latest of the callers' deadlines, and none if any
/// caller set none.
fn build_request(id: BatchId, members: &[QueuedCall], now: Tick) -> Option<BatchRequest> {
    let first = &members.first()?.submission;
    let deadlines: Option<Vec<Tick>> = members.iter().map(|queued| queued.submission.caller_deadline).collect();
    Some(BatchRequest {
        id,
        endpoint: first.endpoint.clone(),
        timeout: first.timeout,
        members: members.iter().map(|queued| queued.submission.call.clone()).collect(),
        deadline_ms: deadlines
            .and_then(|deadlines| deadlines.into_iter().max())
            .map(|latest| u64::try_from(latest.since(now).as_millis()).unwrap_or(u64::MAX)),
    })
}
