//! OpenAI embeddings, as implemented by OpenAI, vLLM, SGLang, TEI, infinity, Ollama, `LiteLLM`,
//! Voyage, Jina and others.
//!
//! `input` is a string, a list of strings, a list of token ids, a list of such lists, or a list of
//! objects. The response is always a list under `data`, in which each element has an `index`.
//! Completions, chat, moderations and contextualized embeddings are in modules of their own.

pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod contextual;
pub(crate) mod moderations;

use crate::pointer::Pointer;
use crate::shape::{BareValue, Class, Counters, ItemIs, Measure, ProtocolShape, ResultIndex, ResultType, UnbatchedIf};

/// Paths that are recognised even if no policy names them. OVMS serves the third, and KServe's
/// runtime of Hugging Face models the fourth.
pub(crate) const PATHS: [&str; 4] = ["/v1/embeddings", "/embeddings", "/v3/embeddings", "/openai/v1/embeddings"];
/// Suffix of a path that a policy names.
pub(crate) const SUFFIX: &str = "/embeddings";

const KNOWN: [&str; 22] = [
    "model",
    "input",
    "encoding_format",
    "dimensions",
    "user",
    "truncate",
    "truncation",
    "truncate_prompt_tokens",
    "input_type",
    "task",
    "embedding_type",
    "normalized",
    "output_dtype",
    "output_dimension",
    "priority",
    "cache_salt",
    "request_id",
    "rid",
    "late_chunking",
    "messages",
    "stream",
    "keep_alive",
];

const UNBATCHED: [(&str, UnbatchedIf); 5] = [
    // The texts of one call are one document. Merging would mix documents, and therefore tenants,
    // in one context window.
    ("late_chunking", UnbatchedIf::NotFalse),
    // The response is an octet stream, with all other data in a header.
    ("encoding_format", UnbatchedIf::OneOf(&["bytes", "bytes_only"])),
    // An id for this call alone, which the server uses as the id of its response.
    ("request_id", UnbatchedIf::Set),
    ("rid", UnbatchedIf::Set),
    // The messages are a single conversation.
    ("messages", UnbatchedIf::Present),
];

/// Returns the shape that most routes of OpenAI and of servers with its API have in common: an
/// index in each result, an id, counters of tokens, and the model.
pub(crate) fn indexed_results(items: &str, results: &str) -> ProtocolShape {
    ProtocolShape {
        index: Some(ResultIndex { at: Pointer::from_static("/index"), optional: false }),
        element: ResultType::Object,
        ids: vec![Pointer::from_static("/id")],
        counters: Counters::Usage(Pointer::from_static("/usage")),
        share_by: Measure::Text,
        weight: Measure::Tokens,
        model: Some(Pointer::from_static("/model")),
        envelope: &["object", "model", "created"],
        ..ProtocolShape::plain(items, results)
    }
}

/// Returns the shape of `/v1/embeddings`. With `vllm`, ids are derived from the client's request
/// id.
pub(crate) fn embeddings(vllm: bool) -> ProtocolShape {
    ProtocolShape {
        bare: BareValue::Strings,
        item_is: ItemIs::Tokens,
        class: Class::Text { objects: true },
        index: Some(ResultIndex { at: Pointer::from_static("/index"), optional: true }),
        id_from_request: vllm,
        known: &KNOWN,
        unbatched_fields: &UNBATCHED,
        ..indexed_results("/input", "/data")
    }
}
