//! Batches of sequences, packed one after the other without padding.

use crate::tokenize::TokenSequence;

/// The result that is wanted for a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputKind {
    /// The pooled vector.
    Embedding,
    /// The hidden state of every token.
    TokenStates,
    /// The logits of the classification head.
    Logits,
}

/// Sequences that are executed together.
///
/// The tokens of all sequences lie in one list. Sequence `i` has those from `starts[i]` up to
/// `starts[i + 1]`, as in the variable-length attention of `FlashAttention`.
#[derive(Debug, Clone)]
pub struct PackedBatch {
    ids: Vec<u32>,
    type_ids: Vec<u32>,
    starts: Vec<usize>,
    kinds: Vec<OutputKind>,
    tokens_max: usize,
}

/// Error of a sequence that a batch has no room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "a batch of {tokens} tokens and a sequence of {added} exceed the limit of {tokens_max}: execute the batch first"
)]
pub struct BatchFull {
    /// Number of tokens in the batch.
    pub tokens: usize,
    /// Number of tokens of the sequence.
    pub added: usize,
    /// Limit of the batch.
    pub tokens_max: usize,
}

// === impl PackedBatch ===

impl PackedBatch {
    /// Creates an empty batch of at most `tokens_max` tokens.
    #[must_use]
    pub fn new(tokens_max: usize) -> Self {
        Self { ids: Vec::new(), type_ids: Vec::new(), starts: vec![0], kinds: Vec::new(), tokens_max }
    }

    /// Adds a sequence.
    ///
    /// # Errors
    /// The tokens of the batch would exceed its limit. The batch is unchanged.
    pub fn push(&mut self, sequence: &TokenSequence, kind: OutputKind) -> Result<(), BatchFull> {
        let (tokens, added, tokens_max) = (self.ids.len(), sequence.len(), self.tokens_max);
        if added > tokens_max.saturating_sub(tokens) {
            return Err(BatchFull { tokens, added, tokens_max });
        }
        self.ids.extend_from_slice(sequence.ids());
        self.type_ids.extend_from_slice(sequence.type_ids());
        self.starts.push(self.ids.len());
        self.kinds.push(kind);
        Ok(())
    }

    /// Removes all sequences and keeps the memory.
    pub fn clear(&mut self) {
        self.ids.clear();
        self.type_ids.clear();
        self.starts.truncate(1);
        self.kinds.clear();
    }

    /// Number of tokens of all sequences.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.ids.len()
    }

    /// Number of sequences.
    #[must_use]
    pub fn len(&self) -> usize {
        self.kinds.len()
    }

    /// Returns `true` if there is no sequence.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.kinds.is_empty()
    }

    /// Token ids of all sequences.
    #[must_use]
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// Segment types of all tokens.
    #[must_use]
    pub fn type_ids(&self) -> &[u32] {
        &self.type_ids
    }

    /// The wanted results, one a sequence.
    #[must_use]
    pub fn kinds(&self) -> &[OutputKind] {
        &self.kinds
    }

    /// Index of the first token and number of tokens of each sequence.
    pub fn spans(&self) -> impl ExactSizeIterator<Item = (usize, usize)> + '_ {
        self.starts.iter().zip(self.starts.iter().skip(1)).map(|(start, end)| (*start, end - start))
    }
}
