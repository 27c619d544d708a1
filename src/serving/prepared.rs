//! A call that is ready to be executed: its sequences, and the function that renders their results.

use std::fmt;

use bytes::Bytes;
use groupage_engine::{NonFiniteOutput, OutputKind, SequenceOutput, SequenceResult, TokenSequence};
use groupage_runtime::memory::BufferBudget;
use serde::Serialize;

use crate::error::{CallError, ErrorKind};
use crate::response_memory::ResponseMemory;

/// A sequence to execute, with the kind of result that its route needs.
#[derive(Debug, Clone)]
pub struct InputSequence {
    /// The tokens.
    pub tokens: TokenSequence,
    /// Number of code points of its texts, or of its token ids.
    pub characters: usize,
    /// The wanted result.
    pub kind: OutputKind,
}

/// Memory of a token in bytes: its id and its segment type.
const TOKEN_BYTES: usize = 2 * size_of::<u32>();

/// Renders the results of a call as JSON.
type RenderFunction = Box<dyn FnOnce(Vec<SequenceOutput>) -> Result<Bytes, CallError> + Send>;

/// A call with its sequences, in the order of its inputs.
pub struct PreparedCall {
    sequences: Vec<InputSequence>,
    render: RenderFunction,
    /// Maximum memory of the response in bytes.
    response_bytes: usize,
    /// The charge of the response in the budget of buffers; `None` until it is reserved.
    memory: Option<ResponseMemory>,
}

// === impl PreparedCall ===

impl PreparedCall {
    /// Creates a call with the function that renders its results.
    pub(crate) fn new(
        sequences: Vec<InputSequence>,
        render: impl FnOnce(Vec<SequenceOutput>) -> Result<Bytes, CallError> + Send + 'static,
    ) -> Self {
        Self { sequences, render: Box::new(render), response_bytes: 0, memory: None }
    }

    /// Creates a call with a response that exists already, and its charge. Nothing is executed.
    pub(crate) fn answered((body, memory): (Bytes, ResponseMemory)) -> Self {
        Self { memory: Some(memory), ..Self::new(Vec::new(), move |_| Ok(body)) }
    }

    /// Sets the maximum memory of the response in bytes.
    pub(crate) fn with_response_bytes(self, response_bytes: usize) -> Self {
        Self { response_bytes, ..self }
    }

    /// Charges the memory of the response, unless it is charged already.
    ///
    /// # Errors
    /// The budget has no room for it.
    pub(crate) fn reserve_response(&mut self, budget: &BufferBudget) -> Result<(), CallError> {
        if self.memory.is_none() {
            let mut memory = ResponseMemory::new(budget);
            memory.reserve(self.response_bytes)?;
            self.memory = Some(memory);
        }
        Ok(())
    }

    /// Takes the charge of the response.
    pub(crate) fn take_memory(&mut self) -> Option<ResponseMemory> {
        self.memory.take()
    }

    /// Returns the sequences to execute.
    pub(crate) fn sequences(&self) -> &[InputSequence] {
        &self.sequences
    }

    /// Returns the memory of the sequences in bytes.
    pub(crate) fn sequence_bytes(&self) -> usize {
        let bytes = |sequence: &InputSequence| size_of::<InputSequence>() + sequence.tokens.len() * TOKEN_BYTES;
        self.sequences.iter().map(bytes).sum()
    }

    /// Takes the sequences to execute; none if the response exists already.
    pub fn take_sequences(&mut self) -> Vec<InputSequence> {
        std::mem::take(&mut self.sequences)
    }

    /// Renders the response from the results of the sequences, in their order.
    ///
    /// # Errors
    /// A result is not finite, or not of the kind that was wanted.
    pub fn render(self, results: Vec<SequenceResult>) -> Result<Bytes, CallError> {
        let outputs = results.into_iter().collect::<Result<Vec<_>, NonFiniteOutput>>();
        let outputs = outputs.map_err(|error| CallError::new(ErrorKind::Backend, error.to_string()))?;
        (self.render)(outputs)
    }
}

impl fmt::Debug for PreparedCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PreparedCall").field("sequences", &self.sequences.len()).finish_non_exhaustive()
    }
}

/// Writes a response. Floats have the fewest digits that parse back to the same `f32`.
pub(crate) fn to_json(response: &impl Serialize) -> Result<Bytes, CallError> {
    serde_json::to_vec(response).map(Bytes::from).map_err(|error| CallError::unwritable(&error))
}

pub(crate) fn embeddings(outputs: Vec<SequenceOutput>) -> Result<Vec<Vec<f32>>, CallError> {
    let embedding = |output| match output {
        SequenceOutput::Embedding(embedding) => Ok(embedding),
        SequenceOutput::TokenStates { .. } | SequenceOutput::Logits(_) => Err(wrong_output()),
    };
    outputs.into_iter().map(embedding).collect()
}

pub(crate) fn logits(outputs: Vec<SequenceOutput>) -> Result<Vec<Vec<f32>>, CallError> {
    let logits = |output| match output {
        SequenceOutput::Logits(logits) => Ok(logits),
        SequenceOutput::TokenStates { .. } | SequenceOutput::Embedding(_) => Err(wrong_output()),
    };
    outputs.into_iter().map(logits).collect()
}

/// The error of a result of another kind than the wanted one, which is a defect of the executor.
pub(crate) fn wrong_output() -> CallError {
    CallError::new(ErrorKind::Internal, "the executor returned another kind of result than was wanted")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_written_so_that_they_parse_back_to_the_same_bits() {
        let values: Vec<f32> =
            (0..1000_u32).map(|at| f32::from_bits(at.wrapping_mul(2_654_435_761) % 0x7f7f_ffff)).collect();
        let text = to_json(&values).unwrap();
        let parsed: Vec<f32> = serde_json::from_slice(&text).unwrap();
        assert_eq!(
            parsed.iter().map(|value| value.to_bits()).collect::<Vec<_>>(),
            values.iter().map(|value| value.to_bits()).collect::<Vec<_>>()
        );
        assert_eq!(to_json(&[0.1_f32]).unwrap(), "[0.1]");
    }
}
