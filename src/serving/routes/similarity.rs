//! `/similarity` of TEI: the cosine similarity of a text with others.

use std::sync::Arc;

use groupage_engine::{OutputKind, finish_embedding};
use serde::Deserialize;

use crate::error::CallError;
use crate::inputs::{EncodeOptions, TextInput, check_count, parse_body, refuse_empty};
use crate::model::ServedModel;
use crate::prepared::{PreparedCall, embeddings, to_json};

#[derive(Deserialize)]
struct SimilarityRequest {
    inputs: SimilarityInputs,
    parameters: Option<EncodeOptions>,
}

#[derive(Deserialize)]
struct SimilarityInputs {
    source_sentence: String,
    sentences: Vec<String>,
}

pub(super) fn prepare(model: &Arc<ServedModel>, body: &[u8]) -> Result<PreparedCall, CallError> {
    let SimilarityRequest { inputs, parameters } = parse_body(body)?;
    model.require_embeddings()?;
    check_count(inputs.sentences.len(), "inputs.sentences")?;
    refuse_empty(inputs.sentences.iter().map(String::is_empty), "inputs.sentences")?;
    if inputs.source_sentence.is_empty() {
        return Err(CallError::empty_input("inputs.source_sentence"));
    }
    let options = parameters.unwrap_or_default();
    let texts = std::iter::once(inputs.source_sentence).chain(inputs.sentences);
    let encode = |text| model.encode(&TextInput::Text(text), &options, OutputKind::Embedding);
    let sequences = texts.map(encode).collect::<Result<_, _>>()?;
    Ok(PreparedCall::new(sequences, |outputs| {
        let mut embeddings = embeddings(outputs)?;
        embeddings.iter_mut().for_each(|embedding| finish_embedding(embedding, None, true));
        let similarities: Vec<f32> = match embeddings.split_first() {
            Some((source, others)) => others.iter().map(|other| dot(source, other)).collect(),
            None => Vec::new(),
        };
        to_json(&similarities)
    }))
}

/// The scalar product, which is the cosine similarity of vectors of unit length.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}
