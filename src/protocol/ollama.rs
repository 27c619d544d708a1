//! Ollama's own route of embeddings, at `/api/embed`.
//!
//! `input` is a text or a list of texts. `/api/embeddings`, `/api/generate` and `/api/chat` take
//! one prompt and are left out.

use crate::pointer::Pointer;
use crate::shape::{BareValue, Class, CostShare, Counters, Measure, ProtocolShape, ResultType};

/// Suffix of the path.
pub(crate) const SUFFIX: &str = "/api/embed";
/// Suffix of the path of the older route, which has the same ending as OpenAI embeddings.
pub(crate) const OLDER_SUFFIX: &str = "/api/embeddings";

const KNOWN: [&str; 6] = ["model", "input", "truncate", "options", "keep_alive", "dimensions"];

/// Returns the shape of `/api/embed`.
pub(crate) fn embed() -> ProtocolShape {
    ProtocolShape {
        bare: BareValue::Strings,
        class: Class::Strings,
        element: ResultType::Array,
        counters: Counters::Totals {
            at: vec![Pointer::from_static("/prompt_eval_count")],
            share: CostShare::Proportional,
        },
        share_by: Measure::Text,
        weight: Measure::Tokens,
        known: &KNOWN,
        model: Some(Pointer::from_static("/model")),
        envelope: &["model", "total_duration", "load_duration"],
        ..ProtocolShape::plain("/input", "/embeddings")
    }
}
