//! `/embed` and `/embed_all` of TEI.

use std::sync::Arc;

use groupage_engine::{OutputKind, SequenceOutput, finish_embedding};
use serde::Deserialize;

use crate::error::CallError;
use crate::inputs::{EncodeOptions, TextInputs, TruncationSide, parse_body};
use crate::model::ServedModel;
use crate::prepared::{InputSequence, PreparedCall, embeddings, to_json, wrong_output};

#[derive(Deserialize)]
struct EmbedRequest {
    inputs: TextInputs,
    /// `true` if embeddings are scaled to unit length, which is the default.
    normalize: Option<bool>,
    dimensions: Option<usize>,
    truncate: Option<bool>,
    truncation_direction: Option<TruncationSide>,
    prompt_name: Option<String>,
}

/// Prepares a call that is answered with one embedding for each input.
pub(super) fn prepare(model: &Arc<ServedModel>, body: &[u8]) -> Result<PreparedCall, CallError> {
    let request: EmbedRequest = parse_body(body)?;
    let (normalize, dimensions) = (request.normalize, request.dimensions);
    model.check_dimensions(dimensions)?;
    let sequences = encode(model, request, OutputKind::Embedding)?;
    Ok(PreparedCall::new(sequences, move |outputs| {
        let mut embeddings = embeddings(outputs)?;
        for embedding in &mut embeddings {
            finish_embedding(embedding, dimensions, normalize.unwrap_or(true));
        }
        to_json(&embeddings)
    }))
}

/// Prepares a call that is answered with the hidden states of all tokens of each input.
pub(super) fn prepare_all(model: &Arc<ServedModel>, body: &[u8]) -> Result<PreparedCall, CallError> {
    let sequences = encode(model, parse_body(body)?, OutputKind::TokenStates)?;
    Ok(PreparedCall::new(sequences, |outputs| {
        let states: Vec<(Vec<f32>, usize)> = outputs.into_iter().map(token_states).collect::<Result<_, _>>()?;
        let rows: Vec<Vec<&[f32]>> =
            states.iter().map(|(values, hidden)| values.chunks_exact((*hidden).max(1)).collect()).collect();
        to_json(&rows)
    }))
}

fn encode(model: &ServedModel, request: EmbedRequest, kind: OutputKind) -> Result<Vec<InputSequence>, CallError> {
    model.require_embeddings()?;
    let EmbedRequest { inputs, truncate, truncation_direction, prompt_name, .. } = request;
    let options = EncodeOptions { truncate, truncation_direction, prompt_name };
    inputs.into_list("inputs")?.iter().map(|input| model.encode(input, &options, kind)).collect()
}

fn token_states(output: SequenceOutput) -> Result<(Vec<f32>, usize), CallError> {
    match output {
        SequenceOutput::TokenStates { values, hidden } => Ok((values, hidden)),
        SequenceOutput::Embedding(_) | SequenceOutput::Logits(_) => Err(wrong_output()),
    }
}
