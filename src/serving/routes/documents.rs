//! Reranking in the format of Cohere (<https://docs.cohere.com/reference/rerank>) and Jina
//! (<https://jina.ai/reranker>). The response has the members of both.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::relevance::{encode_pairs, relevance_scores};
use crate::error::CallError;
use crate::inputs::{EncodeOptions, check_count, parse_body};
use crate::model::ServedModel;
use crate::prepared::{PreparedCall, logits, to_json};

/// Number of documents that Cohere counts as one search unit.
const SEARCH_UNIT_DOCUMENTS: usize = 100;

#[derive(Deserialize)]
struct DocumentsRequest {
    query: String,
    documents: Vec<RankDocument>,
    /// Maximum number of results; all by default.
    top_n: Option<usize>,
    return_documents: Option<bool>,
    /// `true` if a document that is too long is cut, which is the default of both APIs.
    truncate: Option<bool>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a string or an object with `text`")]
enum RankDocument {
    Text(String),
    Object { text: String },
}

#[derive(Serialize)]
struct DocumentsResponse<'a> {
    model: &'a str,
    results: Vec<RankedDocument>,
    usage: RankUsage,
    meta: RankMeta,
}

#[derive(Serialize)]
struct RankedDocument {
    index: usize,
    relevance_score: f32,
    #[serde(skip_serializing_if = "Option::is_none")]
    document: Option<DocumentText>,
}

#[derive(Serialize)]
struct DocumentText {
    text: String,
}

/// Counters of Jina.
#[derive(Serialize)]
struct RankUsage {
    total_tokens: usize,
}

/// Counters of Cohere.
#[derive(Serialize)]
struct RankMeta {
    billed_units: BilledUnits,
}

#[derive(Serialize)]
struct BilledUnits {
    search_units: usize,
}

pub(super) fn prepare(model: &Arc<ServedModel>, body: &[u8]) -> Result<PreparedCall, CallError> {
    let DocumentsRequest { query, documents, top_n, return_documents, truncate } = parse_body(body)?;
    check_count(documents.len(), "documents")?;
    if top_n == Some(0) {
        return Err(CallError::invalid("`top_n` is 0: choose at least 1, or leave it out"));
    }
    let texts: Vec<String> = documents.into_iter().map(RankDocument::into_text).collect();
    let options = EncodeOptions { truncate, ..EncodeOptions::default() };
    let sequences = encode_pairs(model, &query, ("documents", texts.iter().map(String::as_str)), &options)?;
    let tokens = sequences.iter().map(|sequence| sequence.tokens.len()).sum();
    let (model, returned) = (model.clone(), return_documents.unwrap_or(false));
    Ok(PreparedCall::new(sequences, move |outputs| {
        let scores = relevance_scores(&logits(outputs)?, false)?;
        let search_units = texts.len().div_ceil(SEARCH_UNIT_DOCUMENTS);
        let ranked = |((index, relevance_score), text): ((usize, f32), String)| {
            let document = returned.then_some(DocumentText { text });
            RankedDocument { index, relevance_score, document }
        };
        let mut results: Vec<RankedDocument> = scores.into_iter().enumerate().zip(texts).map(ranked).collect();
        // The sort is stable: equal scores stay in the order of the documents.
        results.sort_by(|a, b| b.relevance_score.total_cmp(&a.relevance_score));
        results.truncate(top_n.unwrap_or(usize::MAX));
        to_json(&DocumentsResponse {
            model: model.name(),
            results,
            usage: RankUsage { total_tokens: tokens },
            meta: RankMeta { billed_units: BilledUnits { search_units } },
        })
    }))
}

// === impl RankDocument ===

impl RankDocument {
    fn into_text(self) -> String {
        match self {
            Self::Text(text) | Self::Object { text } => text,
        }
    }
}
