//! Pairs of a query and a text, and the scores that a reranker gives them.

use groupage_engine::sigmoid;

use crate::error::CallError;
use crate::inputs::EncodeOptions;
use crate::model::ServedModel;
use crate::prepared::{InputSequence, wrong_output};

/// Encodes a query with each text of the list `field`.
pub(super) fn encode_pairs<'a>(
    model: &ServedModel,
    query: &str,
    (field, texts): (&str, impl Iterator<Item = &'a str>),
    options: &EncodeOptions,
) -> Result<Vec<InputSequence>, CallError> {
    model.require_reranker()?;
    let encode = |(index, text): (usize, &str)| match (query, text) {
        ("", "") => Err(CallError::empty_pair("query", format_args!("{field}[{index}]"))),
        pair => model.encode_pair(pair, options),
    };
    texts.enumerate().map(encode).collect()
}

/// Returns the score of each pair: the logistic function of the logit, or the logit itself if `raw`.
pub(super) fn relevance_scores(logits: &[Vec<f32>], raw: bool) -> Result<Vec<f32>, CallError> {
    let score = |logit: &f32| if raw { *logit } else { sigmoid(*logit) };
    logits.iter().map(|logits| logits.first().map(score).ok_or_else(wrong_output)).collect()
}
