//! Ollama's own route of embeddings, at `/api/embed`.
//!
//! `input` is a text or a list of texts. `/api/embeddings`, `/api/generate` and `/api/chat` take
//! one prompt and are left out.

use crate::pointer::Pointer;
use crate::shape::{BareValue, Class, CounterRule, Counters, Measure, ProtocolShape, ResultType};

/// Suffix of the path, and suffix of the path of the older route.
const SUFFIX: &str = "/api/embed";
const OLDER_SUFFIX: &str = "/api/embeddings";

const KNOWN: [&str; 6] = ["model", "input", "truncate", "options", "keep_alive", "dimensions"];

/// Returns `true` for a path of the route.
pub(crate) fn is_path(path: &str) -> bool {
    path.ends_with(SUFFIX)
}

/// Returns `true` for a path of the older route, which has the same ending as OpenAI embeddings.
pub(crate) fn is_older_path(path: &str) -> bool {
    path.ends_with(OLDER_SUFFIX)
}

/// Returns the shape of `/api/embed`.
pub(crate) fn embed() -> ProtocolShape {
    ProtocolShape {
        bare: BareValue::Strings,
        class: Class::Strings,
        element: ResultType::Array,
        counters: Counters::Totals {
            at: vec![Pointer::from_static("/prompt_eval_count")],
            share: CounterRule::Proportional,
        },
        share_by: Measure::Text,
        weight: Measure::Tokens,
        known: &KNOWN,
        model: Some(Pointer::from_static("/model")),
        envelope: &["model", "total_duration", "load_duration"],
        ..ProtocolShape::plain("/input", "/embeddings")
    }
}
