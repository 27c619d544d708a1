//! `/predict` of TEI: scores of the labels of a classification model.

use std::cmp::Ordering;
use std::sync::Arc;

use groupage_engine::{OutputKind, score_logits};
use serde::{Deserialize, Serialize};

use crate::error::CallError;
use crate::inputs::{EncodeOptions, TextInput, TruncationSide, check_count, parse_body, refuse_empty};
use crate::model::ServedModel;
use crate::prepared::{InputSequence, PreparedCall, logits, to_json};

/// Accepted forms of `inputs`. The attribute of [`PredictInputs`] repeats the text, because it
/// takes only a literal.
const FORMS: &str = "expected a string, a pair [string, string], or a list of [string] and [string, string]";

#[derive(Deserialize)]
struct PredictRequest {
    inputs: PredictInputs,
    raw_scores: Option<bool>,
    truncate: Option<bool>,
    truncation_direction: Option<TruncationSide>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a string, a pair [string, string], or a list of [string] and [string, string]")]
enum PredictInputs {
    Text(String),
    /// One text or one pair. A flat list of texts is not a batch, unlike for other routes.
    Flat(Vec<String>),
    Batch(Vec<Vec<String>>),
}

/// Score of a label.
#[derive(Serialize)]
struct Prediction<'a> {
    score: f32,
    label: &'a str,
}

pub(super) fn prepare(model: &Arc<ServedModel>, body: &[u8]) -> Result<PreparedCall, CallError> {
    let PredictRequest { inputs, raw_scores, truncate, truncation_direction } = parse_body(body)?;
    let options = EncodeOptions { truncate, truncation_direction, prompt_name: None };
    model.require_head()?;
    let (inputs, is_batch) = match inputs {
        PredictInputs::Text(text) => (vec![vec![text]], false),
        // Refused by `check_count`, like an empty batch.
        PredictInputs::Flat(flat) if flat.is_empty() => (Vec::new(), true),
        PredictInputs::Flat(flat) => (vec![flat], false),
        PredictInputs::Batch(batch) => (batch, true),
    };
    check_count(inputs.len(), "inputs")?;
    check_texts(&inputs, is_batch)?;
    let sequences = inputs.iter().map(|input| encode(model, input, &options)).collect::<Result<_, _>>()?;
    let (model, raw) = (model.clone(), raw_scores.unwrap_or(false));
    Ok(PreparedCall::new(sequences, move |outputs| {
        let head = model.require_head()?;
        let mut batch = Vec::new();
        for mut scores in logits(outputs)? {
            if !raw {
                score_logits(&mut scores);
            }
            let labels = head.labels.iter().map(String::as_str);
            let mut predictions: Vec<_> =
                scores.into_iter().zip(labels).map(|(score, label)| Prediction { score, label }).collect();
            sort_descending(&mut predictions, |prediction| prediction.score);
            batch.push(predictions);
        }
        match batch.as_slice() {
            [one] if !is_batch => to_json(one),
            _ => to_json(&batch),
        }
    }))
}

/// Checks that no input is an empty text or a pair of two empty texts. The position is part of the
/// error in a list only.
fn check_texts(inputs: &[Vec<String>], is_batch: bool) -> Result<(), CallError> {
    let is_empty = |input: &Vec<String>| !input.is_empty() && input.iter().all(String::is_empty);
    match inputs {
        [one] if !is_batch && is_empty(one) => Err(CallError::empty_input("inputs")),
        _ => refuse_empty(inputs.iter().map(is_empty), "inputs"),
    }
}

/// Encodes a text or a pair.
fn encode(model: &ServedModel, input: &[String], options: &EncodeOptions) -> Result<InputSequence, CallError> {
    match input {
        [text] => model.encode(&TextInput::Text(text.clone()), options, OutputKind::Logits),
        [first, second] => model.encode_pair((first, second), options),
        _ => Err(CallError::invalid(format!("an element of `inputs` has {} strings: {FORMS}", input.len()))),
    }
}

/// Sorts by descending score. Equal scores are in the reverse order of their positions, as in TEI,
/// which reverses an ascending order.
pub(super) fn sort_descending<T>(items: &mut [T], score: impl Fn(&T) -> f32) {
    items.sort_by(|a, b| score(a).partial_cmp(&score(b)).unwrap_or(Ordering::Equal));
    items.reverse();
}
