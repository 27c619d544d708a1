//! OpenAI moderations: `input` is a string or a list of strings, and the results have no index.
//!
//! A list of typed parts is a single input, so a call with one is sent unbatched.

use crate::pointer::Pointer;
use crate::shape::{BareValue, Class, Measure, ProtocolShape, ResultType};

/// Suffix of the path.
pub(crate) const SUFFIX: &str = "/moderations";

const KNOWN: [&str; 2] = ["model", "input"];

/// Returns the shape of `/v1/moderations`.
pub(crate) fn moderations() -> ProtocolShape {
    ProtocolShape {
        bare: BareValue::Strings,
        class: Class::Strings,
        element: ResultType::Object,
        ids: vec![Pointer::from_static("/id")],
        weight: Measure::Tokens,
        known: &KNOWN,
        model: Some(Pointer::from_static("/model")),
        envelope: &["model"],
        ..ProtocolShape::plain("/input", "/results")
    }
}
