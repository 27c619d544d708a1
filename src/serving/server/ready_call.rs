//! Calls with their tokens. Most are prepared before they are queued: their weight is their number
//! of tokens, and the tokens are kept until they are executed.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use groupage_batching::{Tick, Weight};
use groupage_engine::SequenceResult;
use groupage_protocol::CallAttachment;
use groupage_runtime::memory::{BufferBudget, BufferGuard, BuffersFull};

use super::measures::{CallMeasures, CallResponse};
use crate::error::CallError;
use crate::prepared::{InputSequence, PreparedCall};
use crate::response_memory::ResponseMemory;
use crate::route::RouteError;

/// A prepared call with its measures.
pub(super) struct ReadyCall {
    call: PreparedCall,
    measures: CallMeasures,
    /// Charge of the memory of a call that was prepared before it was queued.
    held: BufferGuard,
}

/// The result of a preparation, until the call is executed.
struct QueuedCall(Mutex<Option<Result<ReadyCall, RouteError>>>);

// === impl ReadyCall ===

impl ReadyCall {
    /// Creates a call with a preparation that has taken `tokenization` from `received` on.
    pub(super) fn new(call: PreparedCall, (received, tokenization): (Tick, Duration), held: BufferGuard) -> Self {
        let sequences = call.sequences();
        let measures = CallMeasures {
            characters: sequences.iter().map(|sequence| sequence.characters).sum(),
            tokens: sequences.iter().map(|sequence| sequence.tokens.len()).sum(),
            received,
            tokenization,
            queue: Duration::ZERO,
            inference: Duration::ZERO,
        };
        Self { call, measures, held }
    }

    /// Returns the number of tokens: of all sequences, and of the longest one.
    pub(super) fn weight(&self) -> Weight {
        let tokens = |sequence: &InputSequence| u64::try_from(sequence.tokens.len()).unwrap_or(u64::MAX);
        let sequences = self.call.sequences();
        let (sum, max) = (sequences.iter().map(tokens).sum::<u64>(), sequences.iter().map(tokens).max());
        // A call that executes nothing occupies the queue all the same.
        Weight { sum: sum.max(1), max: max.unwrap_or(1) }
    }

    /// Charges the memory of the tokens, and of the texts that the response may repeat.
    pub(super) fn charge(mut self, body_bytes: usize, budget: &BufferBudget) -> Result<Self, BuffersFull> {
        let mut held = budget.empty();
        held.grow(self.call.sequence_bytes() + body_bytes)?;
        self.held = held;
        Ok(self)
    }

    /// Charges the memory of the response, before the call is executed.
    ///
    /// # Errors
    /// The budget has no room for it.
    pub(super) fn reserve_response(&mut self, budget: &BufferBudget) -> Result<(), CallError> {
        self.call.reserve_response(budget)
    }

    pub(super) fn take_sequences(&mut self) -> Vec<InputSequence> {
        self.call.take_sequences()
    }

    pub(super) fn on_executed(&mut self, began: Tick, duration: Duration) {
        let CallMeasures { received, tokenization, .. } = self.measures;
        self.measures.queue = began.since(received.after(tokenization));
        self.measures.inference = duration;
    }

    /// Renders the response from the results of the sequences.
    pub(super) fn render(self, results: Vec<SequenceResult>) -> Result<CallResponse, CallError> {
        let Self { mut call, measures, held } = self;
        let reserved = call.take_memory().map(ResponseMemory::into_guard);
        let body = call.render(results)?;
        drop(held);
        Ok(CallResponse { body, measures: (measures.tokens > 0).then_some(measures), reserved })
    }
}

/// Keeps the result of a preparation until the call is executed.
pub(super) fn attach_ready(prepared: Result<ReadyCall, RouteError>) -> CallAttachment {
    CallAttachment::new(QueuedCall(Mutex::new(Some(prepared))))
}

/// Takes the result of an earlier preparation. `None` if there was none, if it was taken before, as
/// of a call that is executed again for `verify`, or if there was no memory for it.
pub(super) fn take_ready(attachment: Option<&CallAttachment>) -> Option<Result<ReadyCall, RouteError>> {
    let QueuedCall(ready) = attachment?.downcast::<QueuedCall>()?;
    // The value is replaced as a whole, so it is valid after a panic as well.
    ready.lock().unwrap_or_else(PoisonError::into_inner).take()
}
