//! Routes of pooling models: classification, pooling, scores of pairs and reranking, as implemented
//! by vLLM, SGLang and infinity.
//!
//! A call of `/score` holds pairs of texts, or one text and several others. In a shared call the
//! text is repeated, so that both lists have the same length, which is the only form with the same
//! meaning for every number of pairs. `/rerank` is merged under one query; a call with a maximum
//! number of results is sent unbatched, because the server applies it to the whole response. SGLang
//! answers it with the sorted list alone, and scores each document by itself.

use crate::openai::indexed_results;
use crate::pointer::Pointer;
use crate::shape::{
    BareValue, Class, Counters, ItemIs, ProtocolShape, ResultLayout, ResultType, SharedText, UnbatchedIf,
};

/// A route of a pooling model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PoolingRoute {
    VllmClassify,
    VllmPooling,
    VllmScore,
    VllmRerank,
    SgLangClassify,
    SgLangScore,
    SgLangRerank,
    InfinityClassify,
    InfinityRerank,
}

const CLASSIFY: [&str; 11] = [
    "model",
    "input",
    "messages",
    "data",
    "task",
    "encoding_format",
    "truncate_prompt_tokens",
    "priority",
    "cache_salt",
    "request_id",
    "rid",
];
const SCORE: [&str; 13] = [
    "model",
    "queries",
    "documents",
    "items",
    "text_1",
    "text_2",
    "data_1",
    "data_2",
    "truncate_prompt_tokens",
    "priority",
    "cache_salt",
    "request_id",
    "rid",
];
const RERANK: [&str; 11] = [
    "model",
    "query",
    "documents",
    "top_n",
    "return_documents",
    "raw_scores",
    "truncate_prompt_tokens",
    "priority",
    "cache_salt",
    "request_id",
    "rid",
];
const SGLANG_RERANK: [&str; 8] =
    ["model", "query", "documents", "instruct", "top_n", "return_documents", "request_id", "rid"];
const ITEM_SCORES: [&str; 8] =
    ["model", "query", "items", "label_token_ids", "apply_softmax", "item_first", "request_id", "rid"];

const UNBATCHED: [(&str, UnbatchedIf); 7] = [
    // The messages are a single conversation, and the data is the input of a plugin.
    ("messages", UnbatchedIf::Present),
    ("data", UnbatchedIf::Present),
    ("task", UnbatchedIf::OneOf(&["plugin"])),
    // The response is an octet stream, with all other data in a header.
    ("encoding_format", UnbatchedIf::OneOf(&["bytes", "bytes_only"])),
    // The server removes results beyond this number, over all documents.
    ("top_n", UnbatchedIf::Set),
    // An id for this call alone, which the server uses as the id of its response.
    ("request_id", UnbatchedIf::Set),
    ("rid", UnbatchedIf::Set),
];

// === impl PoolingRoute ===

impl PoolingRoute {
    pub(crate) const VLLM: [Self; 4] = [Self::VllmClassify, Self::VllmPooling, Self::VllmScore, Self::VllmRerank];
    pub(crate) const SGLANG: [Self; 3] = [Self::SgLangClassify, Self::SgLangScore, Self::SgLangRerank];
    pub(crate) const INFINITY: [Self; 2] = [Self::InfinityClassify, Self::InfinityRerank];

    /// Returns the one of `routes` with the last step of a path.
    pub(crate) fn of_path(routes: &[Self], path: &str) -> Option<Self> {
        routes.iter().copied().find(|route| path.ends_with(route.suffix()))
    }

    const fn suffix(self) -> &'static str {
        match self {
            Self::VllmClassify | Self::SgLangClassify | Self::InfinityClassify => "/classify",
            Self::VllmPooling => "/pooling",
            Self::VllmScore | Self::SgLangScore => "/score",
            Self::VllmRerank | Self::SgLangRerank | Self::InfinityRerank => "/rerank",
        }
    }

    /// Returns the shape of the route.
    pub(crate) fn shape(self) -> ProtocolShape {
        let shape = match self {
            Self::VllmClassify | Self::VllmPooling => vllm_inputs(),
            Self::SgLangClassify => ProtocolShape { item_is: ItemIs::Element, class: Class::Strings, ..vllm_inputs() },
            Self::VllmScore => vllm_score(),
            Self::VllmRerank | Self::InfinityRerank => rerank(),
            Self::SgLangScore => sglang_score(),
            Self::SgLangRerank => sglang_rerank(),
            Self::InfinityClassify => infinity_classify(),
        };
        ProtocolShape { id_from_request: Self::VLLM.contains(&self), unbatched_fields: &UNBATCHED, ..shape }
    }
}

fn vllm_inputs() -> ProtocolShape {
    ProtocolShape {
        bare: BareValue::Strings,
        item_is: ItemIs::Tokens,
        class: Class::Text { objects: false },
        known: &CLASSIFY,
        ..indexed_results("/input", "/data")
    }
}

fn vllm_score() -> ProtocolShape {
    let pairs = |first: &str, second: &str| vec![Pointer::from_static(first), Pointer::from_static(second)];
    ProtocolShape {
        items: pairs("/queries", "/documents"),
        alternatives: vec![pairs("/queries", "/items"), pairs("/text_1", "/text_2"), pairs("/data_1", "/data_2")],
        repeats_first: true,
        bare: BareValue::Strings,
        class: Class::Strings,
        known: &SCORE,
        ..indexed_results("/queries", "/data")
    }
}

fn rerank() -> ProtocolShape {
    ProtocolShape {
        class: Class::Strings,
        shared_text: Some(SharedText { at: Pointer::from_static("/query"), with_each: true }),
        sorted: true,
        known: &RERANK,
        ..indexed_results("/documents", "/results")
    }
}

fn sglang_rerank() -> ProtocolShape {
    ProtocolShape {
        results: ResultLayout::Lists(vec![Pointer::from_static("")]),
        // The response has no members beside the results.
        ids: Vec::new(),
        counters: Counters::None,
        envelope: &[],
        known: &SGLANG_RERANK,
        ..rerank()
    }
}

fn sglang_score() -> ProtocolShape {
    ProtocolShape {
        class: Class::Strings,
        shared_text: Some(SharedText { at: Pointer::from_static("/query"), with_each: true }),
        index: None,
        element: ResultType::Array,
        known: &ITEM_SCORES,
        ..indexed_results("/items", "/scores")
    }
}

fn infinity_classify() -> ProtocolShape {
    ProtocolShape {
        class: Class::Strings,
        index: None,
        element: ResultType::Array,
        known: &CLASSIFY,
        ..indexed_results("/input", "/data")
    }
}
