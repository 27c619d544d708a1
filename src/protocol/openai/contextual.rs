//! Contextualized embeddings of Voyage: an item is a list of texts, the parts of one document.
//!
//! The texts of an item are embedded together, so an item is never divided.

use super::indexed_results;
use crate::shape::{Class, ProtocolShape};

/// Suffix of the path.
pub(crate) const SUFFIX: &str = "/contextualizedembeddings";

const KNOWN: [&str; 6] = ["model", "inputs", "input_type", "output_dtype", "output_dimension", "encoding_format"];

/// Returns the shape of `/v1/contextualizedembeddings`.
pub(crate) fn embeddings() -> ProtocolShape {
    ProtocolShape { class: Class::StringLists, known: &KNOWN, ..indexed_results("/inputs", "/data") }
}
