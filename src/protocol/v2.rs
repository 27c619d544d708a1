//! The Open Inference Protocol (KServe V2): tensors with a name, a datatype and a shape. This module
//! has the form over REST, and [`grpc`] the form over gRPC.
//!
//! The rows of a call lie along the first dimension of each of its inputs, so it has no list of
//! items that could be joined. Calls with equal inputs apart from their rows are joined input by
//! input, shapes are rewritten, and each output is cut into the rows of the members. Data is in
//! the JSON document, flat or nested, or after it in binary form (`Inference-Header-Content-Length`).
//! In both forms it is spliced as it is.
//!
//! The first dimension is not the batch for every model. Either the server publishes it ([`config`])
//! or a route of the policy names the protocol. Model management and the generation extension are
//! left out: their paths are passed through.

pub(crate) mod binary;
pub(crate) mod config;
pub(crate) mod division;
pub(crate) mod grpc;
pub(crate) mod merge;
pub(crate) mod request;
pub(crate) mod split;
pub(crate) mod tensor;

use crate::pointer::Pointer;
use crate::shape::{Payload, ProtocolShape, ResultLayout};

/// Last step of the path of an inference call, and suffix of a path that a policy names.
pub(crate) const SUFFIX: &str = "/infer";

/// Top-level members of a request.
const KNOWN: [&str; 4] = ["id", "parameters", "inputs", "outputs"];
/// Top-level members of a response, besides the outputs and the id.
const ENVELOPE: [&str; 3] = ["model_name", "model_version", "parameters"];

/// Returns the shape of a call: what surrounds the tensors.
pub(crate) fn shape() -> ProtocolShape {
    ProtocolShape {
        payload: Payload::Tensors,
        results: ResultLayout::Lists(Vec::new()),
        ids: vec![Pointer::from_static("/id")],
        known: &KNOWN,
        // Triton reads and writes `NaN` as a number. Calls with such a number share no batch with
        // calls without one.
        lenient: true,
        envelope: &ENVELOPE,
        ..ProtocolShape::plain("/inputs", "/outputs")
    }
}

/// Returns the model in the path of an inference call, as written:
/// `/v2/models/{model}[/versions/{version}]/infer`, behind any prefix. `None` for any other path.
pub(crate) fn model(path: &str) -> Option<&str> {
    let (_, rest) = path.split_once("/v2/models/")?;
    let steps: Vec<&str> = rest.strip_suffix(SUFFIX)?.split('/').collect();
    match steps.as_slice() {
        [model] => Some(*model),
        [model, "versions", version] if !version.is_empty() => Some(*model),
        _ => None,
    }
    .filter(|model| !model.is_empty())
}

/// Returns the path at which the server publishes the configuration of the model that a call uses.
pub(crate) fn config_path(path: &str) -> Option<String> {
    model(path)?;
    Some(format!("{}/config", path.strip_suffix(SUFFIX)?))
}

#[cfg(test)]
mod tests;
