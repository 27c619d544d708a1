//! OpenAI embeddings, as spoken by OpenAI, vLLM, SGLang, TEI, infinity, Ollama, `LiteLLM`, Voyage, Jina and others.
//!
//! `input` is a string, a list of strings, one list of token ids, a list of such lists, or a list of objects; the answer is always a list under
//! `data`, each element with its `index`.

use crate::protocol::pointer::Pointer;
use crate::protocol::shape::{AloneIf, Bare, Class, Counters, Element, Index, ItemIs, Measure, Shape};

/// Paths that are recognised without being named in a policy; OVMS serves the third.
pub(crate) const PATHS: [&str; 3] = ["/v1/embeddings", "/embeddings", "/v3/embeddings"];
/// How a written path ends.
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

const ALONE: [(&str, AloneIf); 5] = [
    // The texts of one call are one document: merging would mix documents, and tenants, in one context window.
    ("late_chunking", AloneIf::NotFalse),
    // Answered as an octet stream with the rest in a header.
    ("encoding_format", AloneIf::OneOf(&["bytes", "bytes_only"])),
    // A name for this one call, which the server makes the id of its answer.
    ("request_id", AloneIf::Set),
    ("rid", AloneIf::Set),
    // One conversation.
    ("messages", AloneIf::Present),
];

/// The shape of `/v1/embeddings`; `vllm` makes ids of the caller's request id.
pub(crate) fn embeddings(vllm: bool) -> Shape {
    Shape {
        bare: Bare::Strings,
        item_is: ItemIs::Tokens,
        class: Class::Text { objects: true },
        index: Some(Index { at: Pointer::known("/index"), optional: true }),
        element: Element::Object,
        ids: vec![Pointer::known("/id")],
        id_from_request: vllm,
        counters: Counters::Usage(Pointer::known("/usage")),
        share_by: Measure::Text,
        weight: Measure::Tokens,
        known: &KNOWN,
        alone: &ALONE,
        model: Some(Pointer::known("/model")),
        envelope: &["object", "model", "created"],
        ..Shape::plain("/input", "/data")
    }
}
