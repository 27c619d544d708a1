//! `/v1/embeddings` of OpenAI (<https://platform.openai.com/docs/api-reference/embeddings>).

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use groupage_engine::{OutputKind, finish_embedding};
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

use crate::error::CallError;
use crate::inputs::{EncodeOptions, TextInputs, TruncationSide, parse_body};
use crate::model::ServedModel;
use crate::prepared::{PreparedCall, embeddings, to_json};

/// A request. `model` and `user` are accepted and ignored: the response names the model that serves.
/// Other servers with this route have fields that the API of OpenAI lacks; those that change vectors
/// are read as by `/embed`.
#[derive(Deserialize)]
struct EmbeddingsRequest {
    input: TextInputs,
    dimensions: Option<usize>,
    encoding_format: Option<EncodingFormat>,
    /// `true` if embeddings are scaled to unit length, which is the default.
    normalize: Option<bool>,
    truncate: Option<bool>,
    truncation_direction: Option<TruncationSide>,
    prompt_name: Option<String>,
    /// Purpose of the input, by which other servers select a prompt.
    input_type: Option<IgnoredAny>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum EncodingFormat {
    /// A list of numbers.
    Float,
    /// Base64 of the numbers as little-endian `f32`.
    Base64,
}

#[derive(Serialize)]
struct EmbeddingsResponse<'a> {
    object: &'static str,
    data: Vec<EmbeddingElement>,
    model: &'a str,
    usage: TokenUsage,
}

#[derive(Serialize)]
struct EmbeddingElement {
    object: &'static str,
    embedding: EmbeddingValue,
    index: usize,
}

#[derive(Serialize)]
#[serde(untagged)]
enum EmbeddingValue {
    Floats(Vec<f32>),
    Base64(String),
}

#[derive(Serialize)]
struct TokenUsage {
    prompt_tokens: usize,
    total_tokens: usize,
}

pub(super) fn prepare(model: &Arc<ServedModel>, body: &[u8]) -> Result<PreparedCall, CallError> {
    let request: EmbeddingsRequest = parse_body(body)?;
    model.require_embeddings()?;
    model.check_dimensions(request.dimensions)?;
    if request.input_type.is_some() {
        refuse_input_type(model)?;
    }
    let EmbeddingsRequest { input, truncate, truncation_direction, prompt_name, .. } = request;
    let options = EncodeOptions { truncate, truncation_direction, prompt_name };
    let encode = |input| model.encode(&input, &options, OutputKind::Embedding);
    let sequences = input.into_list("input")?.into_iter().map(encode).collect::<Result<Vec<_>, _>>()?;
    let tokens = sequences.iter().map(|sequence| sequence.tokens.len()).sum();
    let (dimensions, format) = (request.dimensions, request.encoding_format.unwrap_or(EncodingFormat::Float));
    let (model, normalizes) = (model.clone(), request.normalize.unwrap_or(true));
    Ok(PreparedCall::new(sequences, move |outputs| {
        let element = |(index, mut embedding): (usize, Vec<f32>)| {
            finish_embedding(&mut embedding, dimensions, normalizes);
            EmbeddingElement { object: "embedding", embedding: EmbeddingValue::new(embedding, format), index }
        };
        let data = embeddings(outputs)?.into_iter().enumerate().map(element).collect();
        let usage = TokenUsage { prompt_tokens: tokens, total_tokens: tokens };
        to_json(&EmbeddingsResponse { object: "list", data, model: model.name(), usage })
    }))
}

/// Refuses `input_type` for a model with prompts: the caller expects one of them, and its values are
/// not their names. For a model without prompts it changes nothing.
fn refuse_input_type(model: &ServedModel) -> Result<(), CallError> {
    let prompts = &model.model().prompts().by_name;
    if prompts.values().all(String::is_empty) {
        return Ok(());
    }
    let known: Vec<&str> = prompts.keys().map(String::as_str).collect();
    let message = format!("`input_type` is not supported for this model: set `prompt_name` to one of {known:?}");
    Err(CallError::invalid(message))
}

// === impl EmbeddingValue ===

impl EmbeddingValue {
    fn new(embedding: Vec<f32>, format: EncodingFormat) -> Self {
        match format {
            EncodingFormat::Float => Self::Floats(embedding),
            EncodingFormat::Base64 => {
                let bytes: Vec<u8> = embedding.iter().flat_map(|value| value.to_le_bytes()).collect();
                Self::Base64(STANDARD.encode(bytes))
            }
        }
    }
}
