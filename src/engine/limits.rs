//! The limits that a batch is checked against before an executor uses it.

use crate::batch::{OutputKind, PackedBatch};
use crate::config::EncoderConfig;
use crate::executor::ExecuteError;

/// Limits of an executor and of its model.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BatchLimits {
    /// Maximum number of tokens of a batch.
    pub(crate) tokens_max: usize,
    /// Maximum number of tokens of a sequence.
    pub(crate) sequence_max: usize,
    has_head: bool,
    /// Number of token ids with an embedding.
    vocabulary: usize,
    /// Number of segment types that may be used.
    types: usize,
}

// === impl BatchLimits ===

impl BatchLimits {
    pub(crate) fn new(config: &EncoderConfig, tokens_max: usize, sequence_max: usize) -> Self {
        // Models without embeddings of segment types take the type 0 only.
        let (has_head, vocabulary, types) = (config.head.is_some(), config.vocabulary, config.types.max(1));
        Self { tokens_max, sequence_max, has_head, vocabulary, types }
    }

    /// Checks that a batch was made for this model, and has no more tokens than the limit.
    pub(crate) fn check(&self, batch: &PackedBatch) -> Result<(), ExecuteError> {
        let (tokens, tokens_max) = (batch.tokens(), self.tokens_max);
        if tokens > tokens_max {
            return Err(ExecuteError::TooManyTokens { tokens, tokens_max });
        }
        let tokens_max = self.sequence_max;
        for (sequence, ((_, tokens), kind)) in batch.spans().zip(batch.kinds()).enumerate() {
            if tokens == 0 || tokens > tokens_max {
                return Err(ExecuteError::WrongLength { sequence, tokens, tokens_max });
            }
            if *kind == OutputKind::Logits && !self.has_head {
                return Err(ExecuteError::NoHead { sequence, kind: *kind });
            }
        }
        let is_below = |value: u32, count: usize| usize::try_from(value).is_ok_and(|value| value < count);
        let mut tokens = batch.ids().iter().zip(batch.type_ids());
        match tokens.position(|(id, type_id)| !is_below(*id, self.vocabulary) || !is_below(*type_id, self.types)) {
            Some(token) => Err(ExecuteError::UnknownToken { token }),
            None => Ok(()),
        }
    }
}
