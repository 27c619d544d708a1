//! Contextualized embeddings of Voyage: an item is a list of texts, the parts of one document.
//!
//! The texts of an item are embedded together, so an item is never divided.

use crate::pointer::Pointer;
use crate::shape::{Class, Counters, Measure, ProtocolShape, ResultIndex, ResultType};

/// Suffix of the path.
pub(crate) const SUFFIX: &str = "/contextualizedembeddings";

const KNOWN: [&str; 6] = ["model", "inputs", "input_type", "output_dtype", "output_dimension", "encoding_format"];

/// Returns the shape of `/v1/contextualizedembeddings`.
pub(crate) fn embeddings() -> ProtocolShape {
    ProtocolShape {
        class: Class::StringLists,
        index: Some(ResultIndex { at: Pointer::from_static("/index"), optional: false }),
        element: ResultType::Object,
        ids: vec![Pointer::from_static("/id")],
        counters: Counters::Usage(Pointer::from_static("/usage")),
        share_by: Measure::Text,
        weight: Measure::Tokens,
        known: &KNOWN,
        model: Some(Pointer::from_static("/model")),
        envelope: &["object", "model", "created"],
        ..ProtocolShape::plain("/inputs", "/data")
    }
}
