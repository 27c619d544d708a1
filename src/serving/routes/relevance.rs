//! Pairs of a query and a text, and the scores that a reranker gives them.

use crate::error::CallError;
use crate::inputs::EncodeOptions;
use crate::model::ServedModel;
use crate::prepared::{InputSequence, wrong_output};

/// Encodes a query with each text.
pub(super) fn encode_pairs<'a>(
    model: &ServedModel,
    query: &str,
    texts: impl Iterator<Item = &'a str>,
    options: &EncodeOptions,
) -> Result<Vec<InputSequence>, CallError> {
    model.require_reranker()?;
    texts.map(|text| model.encode_pair((query, text), options)).collect()
}

/// Returns the score of each pair: the logit itself if `raw`.
pub(super) fn relevance_scores(model: &ServedModel, logits: Vec<Vec<f32>>, raw: bool) -> Result<Vec<f32>, CallError> {
    let head = model.require_reranker()?;
    let score = |mut logits: Vec<f32>| {
        if !raw {
            head.scores.apply(&mut logits);
        }
        logits.first().copied().ok_or_else(wrong_output)
    };
    logits.into_iter().map(score).collect()
}
