//! The words in which a protocol and the rest of the proxy speak: a call, a shared call, an answer.

use std::fmt;

use bytes::Bytes;
use http::{HeaderMap, Method, StatusCode, Uri};

use crate::batching::Weight;
use crate::protocol::items::Items;
use crate::protocol::secret::Tenant;

/// One client request on a recognised route.
pub struct Call {
    /// With what it may share a batch, or why with nothing.
    pub merge: Merge,
    /// How many items it holds; one where that could not be told.
    pub items: u32,
    /// What its items cost.
    pub weight: Weight,
    /// Bytes of its body.
    pub bytes: usize,
    /// Who calls.
    pub tenant: Tenant,
    /// What its cost is learned under: route, path, model and form of its items; no identity.
    pub cost_class: Box<[u8]>,
    /// Values that may stand in a batch only once.
    pub exclusive: Vec<Box<[u8]>>,
    /// It asks for a stream.
    pub streaming: bool,
    /// The original body, for a replay.
    pub body: Bytes,
    /// The original head, for a replay.
    pub head: Head,
    /// Where its items stand in the body; empty when it goes alone.
    pub(crate) found: Items,
}

/// The part of a request's head that a replay needs.
#[derive(Clone)]
pub struct Head {
    /// The method.
    pub method: Method,
    /// The target, with the authority where the client's HTTP version has one.
    pub uri: Uri,
    /// All headers as they came.
    pub headers: HeaderMap,
}

/// With what a call may share a batch.
#[derive(Clone, PartialEq, Eq)]
pub enum Merge {
    /// With calls of the same key.
    With(Box<[u8]>),
    /// With none.
    Alone(Reason),
}

/// Why a call goes alone or passes through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// No adapter matched.
    NotRecognised,
    /// It asks for a stream.
    Streaming,
    /// Content type, charset or coding other than plain JSON in UTF-8.
    Encoding,
    /// Larger than a call that may be merged.
    TooLarge,
    /// It alone holds more items than a batch may.
    ClientBatchFull,
    /// Not one JSON document that every server reads alike.
    AmbiguousJson,
    /// A header that only makes sense alone, or an identity told twice.
    Header,
    /// Items of a form that cannot be merged.
    ItemForm,
    /// No merging for now after answers that could not be split.
    Quarantined,
    /// The server refused batches of such calls and answered their members alone, or failed batches have used up the extra calls that they may cost.
    MergeRefused,
    /// The policy only observes.
    PolicyObserve,
    /// The policy passes through.
    PolicyOff,
    /// Batching does not pay here.
    NoGain,
    /// The whole proxy is bypassed.
    Bypassed,
    /// Batched answers differed from single ones.
    VerifyFailed,
    /// The server's answers differ in a member outside the results that the protocol does not declare.
    AnswerVaries,
    /// A call of the Open Inference Protocol (`/v2/models/*/infer`), whose tensors are not merged.
    OpenInference,
}

/// A call to the upstream that carries the items of several.
#[derive(Clone)]
pub struct Outgoing {
    /// The method.
    pub method: Method,
    /// Raw path, and query where there is one.
    pub target: String,
    /// End-to-end headers; framing is the sender's business.
    pub headers: HeaderMap,
    /// The merged body.
    pub body: Bytes,
    /// The fresh `x-request-id`.
    pub request_id: String,
    /// The fresh `traceparent`, where a member had one.
    pub traceparent: Option<String>,
}

/// One caller's answer.
#[derive(Clone)]
pub struct Reply {
    /// The status.
    pub status: StatusCode,
    /// End-to-end headers; framing is the sender's business.
    pub headers: HeaderMap,
    /// The body.
    pub body: Bytes,
    /// Trailers, of a call that went alone.
    pub trailers: Option<HeaderMap>,
}

/// An answer to a batch that cannot be split.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("answer to a batch cannot be split: {}", what.as_str())]
pub struct Mismatch {
    /// What is wrong with it.
    pub what: MismatchKind,
    /// Of an undeclared member that lone answers have too, and in which they differ: its path. It is
    /// no input, since it is common to several, and may be logged.
    pub member: Option<String>,
}

/// What is wrong with an answer to a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MismatchKind {
    /// More or fewer results than items.
    Count,
    /// Indexes that are not exactly those of the items.
    Index,
    /// Results missing, of another kind, or counters that cannot be told apart.
    Shape,
    /// Not one JSON document.
    NotJson,
    /// A content coding that nobody asked for.
    Compressed,
    /// No body.
    Empty,
    /// A success that is no answer: 204, 206 and their like.
    Status,
    /// Counters of a server that is known to count the first item alone.
    Usage,
    /// Members outside the results that may quote an input.
    Undeclared,
}

/// The upstream said that the batch was too large.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooLarge {
    /// The number of items that it named as its limit.
    pub limit: Option<u32>,
}

/// Returns `true` for the statuses of a server that has too much to do.
pub(crate) fn is_overload(status: StatusCode) -> bool {
    matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE)
}

// === impl Call ===

impl Call {
    /// The reason for which it goes alone.
    #[must_use]
    pub const fn alone(&self) -> Option<Reason> {
        match self.merge {
            Merge::With(_) => None,
            Merge::Alone(reason) => Some(reason),
        }
    }
}

impl fmt::Debug for Call {
    /// Sizes and digests only: neither body nor headers nor key may reach a log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call")
            .field("merge", &self.merge)
            .field("items", &self.items)
            .field("weight", &self.weight)
            .field("bytes", &self.bytes)
            .field("tenant", &self.tenant)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Head {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Head")
            .field("method", &self.method)
            .field("headers", &self.headers.len())
            .finish_non_exhaustive()
    }
}

// === impl Merge ===

impl fmt::Debug for Merge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::With(key) => write!(f, "With({} bytes)", key.len()),
            Self::Alone(reason) => write!(f, "Alone({reason:?})"),
        }
    }
}

// === impl Reason ===

impl Reason {
    /// Every reason, in the order of the metrics' documentation.
    pub const ALL: [Self; 17] = [
        Self::NotRecognised,
        Self::Streaming,
        Self::Encoding,
        Self::TooLarge,
        Self::ClientBatchFull,
        Self::AmbiguousJson,
        Self::Header,
        Self::ItemForm,
        Self::Quarantined,
        Self::MergeRefused,
        Self::PolicyObserve,
        Self::PolicyOff,
        Self::NoGain,
        Self::Bypassed,
        Self::VerifyFailed,
        Self::AnswerVaries,
        Self::OpenInference,
    ];

    /// Why a call passes whose path no adapter takes.
    #[must_use]
    pub fn of_unrecognised(path: &str) -> Self {
        let open_inference = path.starts_with("/v2/models/") && path.ends_with("/infer");
        if open_inference { Self::OpenInference } else { Self::NotRecognised }
    }

    /// The word in metrics and logs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NotRecognised => "not_recognised",
            Self::Streaming => "streaming",
            Self::Encoding => "encoding",
            Self::TooLarge => "too_large",
            Self::ClientBatchFull => "client_batch_full",
            Self::AmbiguousJson => "ambiguous_json",
            Self::Header => "header",
            Self::ItemForm => "item_form",
            Self::Quarantined => "quarantined",
            Self::MergeRefused => "merge_refused",
            Self::PolicyObserve => "policy_observe",
            Self::PolicyOff => "policy_off",
            Self::NoGain => "no_gain",
            Self::Bypassed => "bypassed",
            Self::VerifyFailed => "verify_failed",
            Self::AnswerVaries => "answer_varies",
            Self::OpenInference => "open_inference",
        }
    }
}

// === impl Outgoing ===

impl fmt::Debug for Outgoing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outgoing")
            .field("method", &self.method)
            .field("headers", &self.headers.len())
            .field("bytes", &self.body.len())
            .field("request_id", &self.request_id)
            .finish_non_exhaustive()
    }
}

// === impl Reply ===

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reply")
            .field("status", &self.status)
            .field("headers", &self.headers.len())
            .field("bytes", &self.body.len())
            .finish_non_exhaustive()
    }
}

// === impl Mismatch ===

impl Mismatch {
    /// Whether merging stops for a while in this cost class: the answer was whole, and yet not one
    /// for these items. Wrong counters are no such answer: they end merging as refusals do.
    #[must_use]
    pub const fn quarantines(&self) -> bool {
        matches!(self.what, MismatchKind::Count | MismatchKind::Index | MismatchKind::Shape)
    }
}

impl From<MismatchKind> for Mismatch {
    fn from(what: MismatchKind) -> Self {
        Self { what, member: None }
    }
}

// === impl MismatchKind ===

impl MismatchKind {
    /// The word in metrics and logs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Count => "count",
            Self::Index => "index",
            Self::Shape => "shape",
            Self::NotJson => "not_json",
            Self::Compressed => "compressed",
            Self::Empty => "empty",
            Self::Status => "status",
            Self::Usage => "usage",
            Self::Undeclared => "undeclared",
        }
    }
}
