//! The Hugging Face toolkit of `SageMaker`, at `/invocations`: a list of texts in `inputs`, and a
//! list of results at the root. Triton serves the Open Inference Protocol there (`v2`), recognised by
//! its content type.
//!
//! Pipelines differ in their response to a text that is not in a list, and to objects: some answer
//! with a list and some with its only element. Such calls are sent unbatched, since the form of
//! their response cannot be derived from that of a batch.

use crate::shape::{Class, Measure, ProtocolShape};
use crate::v2;

/// Suffix of the path.
pub(crate) const SUFFIX: &str = "/invocations";

const KNOWN: [&str; 2] = ["inputs", "parameters"];

/// Returns the shape of `/invocations`.
pub(crate) fn invocations() -> ProtocolShape {
    ProtocolShape {
        class: Class::Strings,
        weight: Measure::Tokens,
        known: &KNOWN,
        ..ProtocolShape::plain("/inputs", "")
    }
}

/// Returns the shape of `/invocations` of Triton, with tensors in binary form. The content type has
/// the length of the document before them, since `SageMaker` forwards no other header.
pub(crate) fn tensors() -> ProtocolShape {
    ProtocolShape { is_framed_by_type: true, ..v2::shape() }
}
