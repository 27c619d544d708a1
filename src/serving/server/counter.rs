//! The tokenizer of the model as the measure of calls.

use std::sync::Arc;

use groupage_protocol::TokenCounter;

use crate::model::ServedModel;

/// Counts the tokens that a text has in a batch.
#[derive(Debug)]
pub(super) struct ModelTokenCounter(pub(super) Arc<ServedModel>);

impl TokenCounter for ModelTokenCounter {
    fn count(&self, text: &str) -> Option<u64> {
        let sequence = self.0.model().tokenizer().encode_text(text, true).ok()?;
        u64::try_from(sequence.len()).ok()
    }
}
