//! Routes that are read: `/info` of TEI, and `/v1/models` of OpenAI.

use groupage_engine::{HeadConfig, NumberType, Pooling};
use serde_json::{Map, Value, json};

use crate::error::{CallError, ErrorKind};
use crate::model::ServedModel;

/// Maximum number of calls that are answered at the same time without a slot of the scheduler: the
/// default `max_concurrent_requests` of TEI.
pub(crate) const CONCURRENT_CALLS_MAX: usize = 512;
/// The default `max_client_batch_size` of TEI, published for its clients. Longer lists are accepted
/// up to [`INPUTS_MAX`](crate::inputs::INPUTS_MAX), and executed in several batches.
const CLIENT_BATCH_SIZE: usize = 32;

/// Returns the members of `/info`. `number_type` is that of the executor, `batch_tokens_max` the
/// maximum number of tokens that are executed at once, and `workers` the number of threads that
/// tokenise.
pub(crate) fn info(model: &ServedModel, number_type: NumberType, batch_tokens_max: usize, workers: usize) -> Value {
    json!({
        "model_id": model.name(),
        "served_model_name": model.name(),
        "model_sha": null,
        "model_dtype": number_type.name(),
        "model_type": model_type(model),
        "max_concurrent_requests": CONCURRENT_CALLS_MAX,
        "max_input_length": model.model().tokens_max(),
        "max_batch_tokens": batch_tokens_max,
        "max_batch_requests": null,
        "max_client_batch_size": CLIENT_BATCH_SIZE,
        "auto_truncate": true,
        "tokenization_workers": workers,
        "version": env!("CARGO_PKG_VERSION"),
        "sha": null,
        "docker_label": null,
    })
}

fn model_type(model: &ServedModel) -> Value {
    let labels = |head: &HeadConfig| {
        let names = head.labels.iter().enumerate();
        let by_id: Map<String, Value> = names.clone().map(|(id, name)| (id.to_string(), json!(name))).collect();
        let by_name: Map<String, Value> = names.map(|(id, name)| (name.clone(), json!(id))).collect();
        json!({"id2label": by_id, "label2id": by_name})
    };
    match model.model().head() {
        Some(head) if head.labels.len() == 1 => json!({"reranker": labels(head)}),
        Some(head) => json!({"classifier": labels(head)}),
        None => json!({"embedding": {"pooling": pooling_name(model.model().pooling())}}),
    }
}

/// Returns the name of a pooling in TEI, which has none for the maximum.
const fn pooling_name(pooling: Pooling) -> &'static str {
    match pooling {
        Pooling::Mean => "mean",
        Pooling::First => "cls",
        Pooling::Last => "last_token",
        Pooling::Max => "max",
    }
}

pub(crate) fn models(model: &ServedModel) -> Value {
    json!({"object": "list", "data": [model_entry(model)]})
}

/// Returns one model.
///
/// # Errors
/// The model has another name.
pub(crate) fn one_model(model: &ServedModel, id: &str) -> Result<Value, CallError> {
    if id == model.name() {
        return Ok(model_entry(model));
    }
    let message = format!("there is no model {id:?}: this server has {:?}", model.name());
    Err(CallError::new(ErrorKind::NotFound, message))
}

fn model_entry(model: &ServedModel) -> Value {
    json!({"id": model.name(), "object": "model", "created": model.created, "owned_by": "groupage"})
}
