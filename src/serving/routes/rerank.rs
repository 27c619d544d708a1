//! `/rerank`: texts ranked by their relevance to a query, in the format of TEI, or in that of Cohere
//! and Jina (`documents`), which has other fields.

use std::sync::Arc;

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

use super::documents;
use super::predict::sort_descending;
use super::relevance::{encode_pairs, relevance_scores};
use crate::error::CallError;
use crate::inputs::{EncodeOptions, TruncationSide, check_count, parse_body};
use crate::model::ServedModel;
use crate::prepared::{PreparedCall, logits, to_json};

/// The fields by which the two formats differ.
#[derive(Deserialize)]
struct FormatFields {
    texts: Option<IgnoredAny>,
    documents: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct RerankRequest {
    query: String,
    texts: Vec<String>,
    raw_scores: Option<bool>,
    return_text: Option<bool>,
    truncate: Option<bool>,
    truncation_direction: Option<TruncationSide>,
}

#[derive(Serialize)]
struct RankedText {
    index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    score: f32,
}

pub(super) fn prepare(model: &Arc<ServedModel>, body: &[u8]) -> Result<PreparedCall, CallError> {
    match parse_body(body)? {
        FormatFields { documents: Some(_), texts: None } => documents::prepare(model, body),
        FormatFields { documents: None, .. } => prepare_texts(model, body),
        FormatFields { .. } => Err(CallError::invalid(
            "the body has `texts` and `documents`: send `texts` (TEI) or `documents` (Cohere, Jina)",
        )),
    }
}

fn prepare_texts(model: &Arc<ServedModel>, body: &[u8]) -> Result<PreparedCall, CallError> {
    let RerankRequest { query, texts, raw_scores, return_text, truncate, truncation_direction } = parse_body(body)?;
    let options = EncodeOptions { truncate, truncation_direction, prompt_name: None };
    check_count(texts.len(), "texts")?;
    let sequences = encode_pairs(model, &query, ("texts", texts.iter().map(String::as_str)), &options)?;
    let raw = raw_scores.unwrap_or(false);
    let texts = return_text.unwrap_or(false).then_some(texts);
    Ok(PreparedCall::new(sequences, move |outputs| {
        let scores = relevance_scores(&logits(outputs)?, raw)?;
        let mut texts = texts.map(Vec::into_iter);
        let ranked = |(index, score)| RankedText { index, text: texts.as_mut().and_then(Iterator::next), score };
        let mut ranks: Vec<RankedText> = scores.into_iter().enumerate().map(ranked).collect();
        sort_descending(&mut ranks, |rank| rank.score);
        to_json(&ranks)
    }))
}
