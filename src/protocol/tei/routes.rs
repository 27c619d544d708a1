//! The own routes of TEI: their items, and their results at the root of the response.
//!
//! `/predict` takes a text, or a pair of texts, as a flat list, and answers it with a flat list.
//! `/rerank` and `/similarity` compare texts with one other text, which is part of the merge key. The
//! root path, and `/invocations` of `SageMaker`, are one of `/embed`, `/predict` and `/rerank`, depending
//! on the model.

use crate::pointer::Pointer;
use crate::published::ModelKind;
use crate::sagemaker;
use crate::shape::{
    BareValue, Class, ItemIs, Measure, ProtocolShape, ResultIndex, ResultLayout, ResultType, SharedText, UnbatchedIf,
};

/// A route of TEI.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TeiRoute {
    Embed,
    EmbedAll,
    EmbedSparse,
    Predict,
    Rerank,
    Similarity,
    Tokenize,
    Decode,
}

const EMBED: [&str; 7] =
    ["inputs", "truncate", "truncation_direction", "prompt_name", "normalize", "dimensions", "stream"];
const PREDICT: [&str; 4] = ["inputs", "truncate", "truncation_direction", "raw_scores"];
const RERANK: [&str; 6] = ["query", "texts", "truncate", "truncation_direction", "raw_scores", "return_text"];
/// Fields of Cohere and of Jina.
const DOCUMENTS: [&str; 8] =
    ["model", "query", "documents", "top_n", "return_documents", "truncate", "max_tokens_per_doc", "priority"];
const SIMILARITY: [&str; 2] = ["inputs", "parameters"];
const TOKENIZE: [&str; 3] = ["inputs", "add_special_tokens", "prompt_name"];
const DECODE: [&str; 2] = ["ids", "skip_special_tokens"];
/// Items of all formats.
const ITEMS: [(&str, UnbatchedIf); 2] = [("inputs", UnbatchedIf::Present), ("texts", UnbatchedIf::Present)];

// === impl TeiRoute ===

impl TeiRoute {
    pub(crate) const ALL: [Self; 8] = [
        Self::Embed,
        Self::EmbedAll,
        Self::EmbedSparse,
        Self::Predict,
        Self::Rerank,
        Self::Similarity,
        Self::Tokenize,
        Self::Decode,
    ];

    /// Returns the route with the last step of a path.
    pub(crate) fn of_path(path: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|route| path.ends_with(route.path()))
    }

    /// Returns the route whose format a path that depends on the model has.
    pub(crate) const fn of_model(kind: ModelKind) -> Self {
        match kind {
            ModelKind::Embedding => Self::Embed,
            ModelKind::Classifier => Self::Predict,
            ModelKind::Reranker => Self::Rerank,
        }
    }

    pub(crate) const fn path(self) -> &'static str {
        match self {
            Self::Embed => "/embed",
            Self::EmbedAll => "/embed_all",
            Self::EmbedSparse => "/embed_sparse",
            Self::Predict => "/predict",
            Self::Rerank => "/rerank",
            Self::Similarity => "/similarity",
            Self::Tokenize => "/tokenize",
            Self::Decode => "/decode",
        }
    }

    /// Returns the shape of the route.
    pub(crate) fn shape(self) -> ProtocolShape {
        match self {
            Self::Embed | Self::EmbedAll | Self::EmbedSparse => embed(),
            Self::Predict => predict(),
            Self::Rerank => rerank(),
            Self::Similarity => similarity(),
            Self::Tokenize => tokenize(),
            Self::Decode => decode(),
        }
    }
}

/// Returns `true` for a path with a format that depends on the model.
pub(crate) fn is_model_path(path: &str) -> bool {
    path == "/" || path.ends_with(sagemaker::SUFFIX)
}

/// Returns the shape of calls to a model whose type is not known. None of them is merged.
pub(crate) fn unknown_model() -> ProtocolShape {
    ProtocolShape { unbatched_fields: &ITEMS, ..embed() }
}

/// Returns the shape of calls for a reranker with `documents`, as of Cohere and Jina. Their counters
/// and `top_n` belong to one call, so they share batches only where each member is executed with its
/// own body, and no shared call is ever written or split by this shape.
pub(crate) fn documents() -> ProtocolShape {
    ProtocolShape {
        items: vec![Pointer::from_static("/documents")],
        results: ResultLayout::Lists(vec![Pointer::from_static("/results")]),
        // A list may have strings and objects.
        class: Class::None,
        known: &DOCUMENTS,
        ..rerank()
    }
}

fn embed() -> ProtocolShape {
    ProtocolShape {
        bare: BareValue::Strings,
        item_is: ItemIs::Tokens,
        class: Class::Text { objects: false },
        element: ResultType::Array,
        share_by: Measure::Text,
        weight: Measure::Tokens,
        known: &EMBED,
        ..ProtocolShape::plain("/inputs", "")
    }
}

fn predict() -> ProtocolShape {
    ProtocolShape {
        bare: BareValue::Strings,
        item_is: ItemIs::TextOrPair,
        // Texts and pairs may be mixed in a list.
        class: Class::None,
        unwrap: true,
        element: ResultType::Array,
        share_by: Measure::Text,
        weight: Measure::Tokens,
        known: &PREDICT,
        ..ProtocolShape::plain("/inputs", "")
    }
}

fn rerank() -> ProtocolShape {
    ProtocolShape {
        class: Class::Strings,
        shared_text: Some(SharedText { at: Pointer::from_static("/query"), with_each: true }),
        // Equal scores are in the reverse order of the texts, and remain so for each client.
        sorted: true,
        index: Some(ResultIndex { at: Pointer::from_static("/index"), optional: false }),
        element: ResultType::Object,
        share_by: Measure::Text,
        weight: Measure::Tokens,
        known: &RERANK,
        ..ProtocolShape::plain("/texts", "")
    }
}

fn similarity() -> ProtocolShape {
    ProtocolShape {
        class: Class::Strings,
        shared_text: Some(SharedText { at: Pointer::from_static("/inputs/source_sentence"), with_each: false }),
        element: ResultType::Number,
        share_by: Measure::Text,
        weight: Measure::Tokens,
        known: &SIMILARITY,
        ..ProtocolShape::plain("/inputs/sentences", "")
    }
}

fn tokenize() -> ProtocolShape {
    ProtocolShape {
        bare: BareValue::Strings,
        class: Class::Strings,
        element: ResultType::Array,
        weight: Measure::Tokens,
        known: &TOKENIZE,
        ..ProtocolShape::plain("/inputs", "")
    }
}

fn decode() -> ProtocolShape {
    ProtocolShape {
        item_is: ItemIs::Tokens,
        class: Class::Text { objects: false },
        element: ResultType::String,
        weight: Measure::Tokens,
        known: &DECODE,
        ..ProtocolShape::plain("/ids", "")
    }
}
