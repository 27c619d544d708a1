//! Embeddings of Cohere, at `/v1/embed` and `/v2/embed`.
//!
//! `embeddings` is a list, or an object with a list for each type of embedding, and `texts` repeats
//! the texts. Images and mixed inputs are left out, and so is `/rerank`, whose billed units cannot
//! be divided.

use crate::pointer::Pointer;
use crate::shape::{Class, CostShare, Counters, Measure, ProtocolShape, ResultLayout, UnbatchedIf};

/// Suffix of the path.
pub(crate) const SUFFIX: &str = "/embed";

const KNOWN: [&str; 10] = [
    "model",
    "texts",
    "images",
    "inputs",
    "input_type",
    "embedding_types",
    "truncate",
    "output_dimension",
    "max_tokens",
    "priority",
];
const UNBATCHED: [(&str, UnbatchedIf); 2] = [("images", UnbatchedIf::Set), ("inputs", UnbatchedIf::Set)];
/// Types of embeddings.
const TYPES: [&str; 6] = ["float", "int8", "uint8", "binary", "ubinary", "base64"];

/// Returns the shape of `/v1/embed` and `/v2/embed`.
pub(crate) fn embed() -> ProtocolShape {
    let counters = ["/meta/billed_units/input_tokens", "/meta/tokens/input_tokens", "/meta/tokens/output_tokens"];
    ProtocolShape {
        class: Class::Strings,
        results: ResultLayout::Columns {
            at: Pointer::from_static("/embeddings"),
            names: &TYPES,
            echo: Pointer::from_static("/texts"),
        },
        ids: vec![Pointer::from_static("/id")],
        counters: Counters::Totals { at: counters.map(Pointer::from_static).to_vec(), share: CostShare::Proportional },
        share_by: Measure::Text,
        weight: Measure::Tokens,
        known: &KNOWN,
        unbatched_fields: &UNBATCHED,
        model: Some(Pointer::from_static("/model")),
        envelope: &[
            "response_type",
            "meta/api_version/version",
            "meta/api_version/is_deprecated",
            "meta/api_version/is_experimental",
        ],
        ..ProtocolShape::plain("/texts", "/embeddings")
    }
}
