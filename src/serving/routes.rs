//! The routes: each parses a body into sequences, and renders their results.

mod documents;
mod embed;
mod embeddings;
mod predict;
mod relevance;
mod rerank;
mod similarity;
mod tokens;
pub(crate) mod views;

use std::sync::Arc;

use groupage_engine::OutputKind;
use groupage_runtime::memory::BufferBudget;

use crate::error::{CallError, ErrorKind};
use crate::model::ServedModel;
use crate::prepared::{InputSequence, PreparedCall};
use crate::route::ModelRoute;

/// Maximum number of elements of the results of a call: 64 MiB as `f32`, and about 180 MB as JSON.
/// It admits 2048 embeddings of 8192 elements, and all tokens of 32 texts of 512 tokens with 1024
/// elements each.
const OUTPUT_ELEMENTS_MAX: usize = 1 << 24;

/// Memory of a number of a response. As text, it has at most 15 characters (`-1.1754944e-38`) and a
/// comma. Most have 9 to 12 characters, which leaves about 4 bytes for the `f32` of the result.
const NUMBER_BYTES: usize = 16;
/// Memory of the names and brackets around the result of a sequence, or around the score of a label.
const ENVELOPE_BYTES: usize = 64;

/// Parses the body of a call and tokenises its inputs. Takes milliseconds for long inputs, so it runs
/// on a thread that may block. A response that needs no execution is built, and charged to `buffers`.
///
/// # Errors
/// The body, a field or an input is not accepted, the model cannot answer calls of this route, or
/// there is no memory for the response.
pub fn prepare_call(
    model: &Arc<ServedModel>,
    route: &ModelRoute,
    body: &[u8],
    buffers: &BufferBudget,
) -> Result<PreparedCall, CallError> {
    let prepared = parse(model, route, body, buffers)?;
    check_elements(prepared.sequences().iter().map(|sequence| output_elements(model, sequence)).sum())?;
    let results: usize = prepared.sequences().iter().map(|sequence| result_bytes(model, sequence)).sum();
    // A response may repeat the texts, so the body is charged as well.
    Ok(prepared.with_response_bytes(results + body.len() + ENVELOPE_BYTES))
}

/// Parses the body by the format of the route.
fn parse(
    model: &Arc<ServedModel>,
    route: &ModelRoute,
    body: &[u8],
    buffers: &BufferBudget,
) -> Result<PreparedCall, CallError> {
    match route {
        ModelRoute::Embeddings => embeddings::prepare(model, body),
        ModelRoute::Embed => embed::prepare(model, body),
        ModelRoute::EmbedAll => embed::prepare_all(model, body),
        ModelRoute::Predict => predict::prepare(model, body),
        ModelRoute::Rerank => rerank::prepare(model, body),
        ModelRoute::Similarity => similarity::prepare(model, body),
        ModelRoute::Tokenize => tokens::prepare_tokenize(model, body, buffers),
        ModelRoute::Decode => tokens::prepare_decode(model, body, buffers),
        ModelRoute::Info | ModelRoute::Health | ModelRoute::Models | ModelRoute::Model(_) => {
            Err(CallError::new(ErrorKind::WrongMethod, "the route has no body: use GET"))
        }
    }
}

/// Returns the number of elements of the result of a sequence.
fn output_elements(model: &ServedModel, sequence: &InputSequence) -> usize {
    let hidden = model.model().config().hidden;
    match sequence.kind {
        OutputKind::Embedding => hidden,
        OutputKind::TokenStates => hidden * sequence.tokens.len(),
        OutputKind::Logits => model.model().head().map_or(0, |head| head.labels.len()),
    }
}

/// Returns the memory of the result of a sequence in a response.
fn result_bytes(model: &ServedModel, sequence: &InputSequence) -> usize {
    let labels = match (sequence.kind, model.model().head()) {
        (OutputKind::Logits, Some(head)) => head.labels.iter().map(|label| label.len() + ENVELOPE_BYTES).sum(),
        _ => 0,
    };
    ENVELOPE_BYTES + labels + output_elements(model, sequence) * NUMBER_BYTES
}

/// Checks the number of elements of all results of a call.
fn check_elements(elements: usize) -> Result<(), CallError> {
    if elements <= OUTPUT_ELEMENTS_MAX {
        return Ok(());
    }
    let limit = format!("the limit is {OUTPUT_ELEMENTS_MAX}: send fewer inputs");
    Err(CallError::new(ErrorKind::TooLarge, format!("the response would have {elements} numbers and {limit}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_that_would_be_too_large_is_refused() {
        assert_eq!(check_elements(OUTPUT_ELEMENTS_MAX), Ok(()));
        assert_eq!(check_elements(OUTPUT_ELEMENTS_MAX + 1).unwrap_err().kind, ErrorKind::TooLarge);
    }
}
