//! An execution in flight: the replies that its members wait for, and the slot that it holds until
//! it ends.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use super::stream_tokens::{StreamRecorder, StreamTokens};
use super::{DriverEvent, ExecutionDetails, SubmitOutcome};
use crate::backend::{Backend, BatchOutputs, BatchRequest, BufferedReply, StreamedAnswer};
use crate::batching::{BatchId, BatchOutcome, CallId, Observation, Tick};
use crate::clock::Clock;
use crate::error::{Failure, FailureKind};

#[derive(Debug, Clone, Copy)]
pub(super) struct Completion {
    /// Number of the run of the driver that dispatched it. Batch ids start again after a restart.
    pub(super) generation: u64,
    pub(super) batch: BatchId,
    pub(super) observed: Observation,
    /// Number of tokens of all streams of the cost class so far, if the response was a stream.
    pub(super) stream_tokens: Option<u64>,
}

/// The slot of one execution. Dropping it releases the slot and reports the outcome, which is
/// `Cancelled` unless it was set.
#[derive(Debug)]
pub(super) struct Slot {
    completions: mpsc::Sender<Completion>,
    generation: u64,
    batch: BatchId,
    clock: Clock,
    /// Instant of dispatch.
    sent: Tick,
    outcome: BatchOutcome,
    /// Time from dispatch to the first byte of the response.
    first_byte: Option<Duration>,
    /// The counter for the class of the call, if it may stream generated text.
    stream_tokens: Option<StreamTokens>,
    /// Set once the response is known to be a stream of generated text.
    stream: Option<StreamRecorder>,
}

/// The permit to send one call upstream unbatched, in its original form, from the task of its
/// caller.
///
/// Dropping it releases the slot: the caller has gone, or the response has been read.
#[derive(Debug)]
pub struct UnbatchedPermit {
    slot: Slot,
    /// Details of the execution.
    pub details: ExecutionDetails,
}

/// The members of a batch that wait for a reply. The lists are in the order of the members.
#[derive(Debug)]
pub(super) struct WaitingMembers {
    pub(super) ids: Vec<CallId>,
    /// `None` for a member that was answered.
    pub(super) replies: Vec<Option<oneshot::Sender<SubmitOutcome>>>,
    pub(super) details: Vec<ExecutionDetails>,
    /// Reports answered members to the driver while `is_isolating` is set.
    pub(super) events: mpsc::WeakSender<DriverEvent>,
    /// `true` once the members are answered one after the other, while others still wait.
    pub(super) is_isolating: bool,
    /// `None` once the backend has released the slot.
    pub(super) slot: Option<Slot>,
    /// Instant at which the backend released the slot.
    pub(super) answered: Option<Tick>,
}

// === impl Slot ===

impl Slot {
    pub(super) fn new(
        completions: mpsc::Sender<Completion>,
        generation: u64,
        batch: BatchId,
        clock: Clock,
        stream_tokens: Option<StreamTokens>,
    ) -> Self {
        let sent = clock.now();
        let outcome = BatchOutcome::Cancelled;
        Self { completions, generation, batch, clock, sent, outcome, first_byte: None, stream_tokens, stream: None }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let stream = self.stream.as_ref().and_then(StreamRecorder::observed);
        let observed = Observation {
            duration: self.clock.now().since(self.sent),
            first_byte: stream.map(|(first, _)| first).or(self.first_byte),
            outcome: self.outcome,
        };
        let stream_tokens = stream.map(|(_, tokens)| tokens);
        let completion = Completion { generation: self.generation, batch: self.batch, observed, stream_tokens };
        // The channel has a place for every possible slot, and is closed only when the driver has
        // stopped.
        if let Err(mpsc::error::TrySendError::Full(_)) = self.completions.try_send(completion) {
            tracing::error!("a slot could not be released");
        }
    }
}

// === impl UnbatchedPermit ===

impl UnbatchedPermit {
    pub(super) const fn new(slot: Slot, details: ExecutionDetails) -> Self {
        Self { slot, details }
    }

    /// Records the arrival of the first response byte.
    pub fn on_first_byte(&mut self) {
        self.slot.first_byte = Some(self.slot.clock.now().since(self.slot.sent));
    }

    /// Returns the recorder for a generated stream, whose first token counts instead of the first
    /// byte.
    pub fn record_stream(&mut self) -> StreamRecorder {
        let Slot { clock, sent, stream_tokens, .. } = &self.slot;
        let tokens = stream_tokens.clone().unwrap_or_default();
        self.slot.stream.insert(tokens.recorder(*clock, *sent)).clone()
    }

    /// Sets the outcome of the execution. The slot is released when the permit is dropped.
    pub fn set_outcome(&mut self, outcome: BatchOutcome) {
        self.slot.outcome = outcome;
    }
}

// === impl WaitingMembers ===

impl WaitingMembers {
    /// Ends the wait of a member with the outcome that `outcome` builds from the details of the
    /// execution.
    fn answer_member(&mut self, member: usize, outcome: impl FnOnce(ExecutionDetails) -> SubmitOutcome) {
        let Some(reply) = self.replies.get_mut(member).and_then(Option::take) else { return };
        let details = self.details.get(member).copied().unwrap_or_default();
        // Sending fails if the caller has gone and needs no reply.
        reply.send(outcome(ExecutionDetails { answered: self.answered, ..details })).ok();
        if self.is_isolating
            && let (Some(events), Some(id)) = (self.events.upgrade(), self.ids.get(member))
        {
            // If this event is lost to a full channel, a batch without remaining members runs to
            // its end and is not aborted early.
            events.try_send(DriverEvent::MemberAnswered(*id)).ok();
        }
    }
}

impl BatchOutputs for WaitingMembers {
    fn deliver(&mut self, member: usize, result: Result<BufferedReply, Failure>) {
        self.answer_member(member, |details| match result {
            Ok(answer) => SubmitOutcome::Reply(Box::new(answer), details),
            Err(failure) => SubmitOutcome::Failed(failure, details),
        });
    }

    fn deliver_streamed(&mut self, member: usize, response: StreamedAnswer) {
        self.answer_member(member, |details| SubmitOutcome::Streamed(Box::new(response), details));
    }

    fn on_isolation(&mut self) {
        self.is_isolating = true;
    }

    fn release_slot(&mut self, observed: Observation) {
        if let Some(mut slot) = self.slot.take() {
            slot.outcome = observed.outcome;
            slot.first_byte = observed.first_byte;
            self.answered = Some(slot.clock.now());
        }
    }

    fn is_waiting(&self, member: usize) -> bool {
        self.replies.get(member).and_then(Option::as_ref).is_some_and(|reply| !reply.is_closed())
    }
}

/// Executes one batch. The slot is released when this returns or is dropped, or earlier if the
/// backend frees it.
pub(super) async fn execute(backend: Arc<dyn Backend>, request: BatchRequest, mut waiting: WaitingMembers) {
    let observed = backend.execute(request, &mut waiting).await;
    waiting.release_slot(observed);
    for member in 0..waiting.replies.len() {
        if waiting.is_waiting(member) {
            tracing::error!("a member of a batch had no response");
            waiting.deliver(member, Err(FailureKind::Internal.into()));
        }
    }
}
