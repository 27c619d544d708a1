//! The types shared by the protocol adapters and the rest of the proxy: calls, shared calls and
//! replies.

use std::fmt;

use bytes::Bytes;
use http::{HeaderMap, Method, StatusCode, Uri, Version};
use strum::{IntoStaticStr, VariantArray};

use crate::attachment::CallAttachment;
use crate::batching::Weight;
use crate::identity::Tenant;
use crate::items::ItemSpans;
use crate::stream_options::StreamOptions;
use crate::tokens::CallText;
use crate::v2::grpc::request::InferRequest;
use crate::v2::request::TensorRequest;

/// A client request on a recognised route.
pub struct Call {
    /// The merge key, or the reason for which the call is sent unbatched.
    pub merge: MergeEligibility,
    /// Number of items; one if it could not be determined.
    pub items: u32,
    /// Weight of the items.
    pub weight: Weight,
    /// Size in bytes of the body, or of its part of a shared call if that is larger.
    pub bytes: usize,
    /// The tenant that sent the call.
    pub tenant: Tenant,
    /// Cost class, under which the cost of the call is learned: route, path, model and form of its
    /// items, without any identity.
    pub cost_class: Box<[u8]>,
    /// Values that may occur only once in a batch: the keys of its items in a result map.
    pub exclusive: Vec<Box<[u8]>>,
    /// `true` if the call requests a streamed response.
    pub streaming: bool,
    /// The original body, kept for a replay.
    pub body: Bytes,
    /// The original head, kept for a replay.
    pub head: RequestHead,
    /// Data that the backend has derived from the body.
    pub attachment: Option<CallAttachment>,
    /// `true` if the trace of the call is sampled, `false` if not; `None` if the call is not
    /// traced.
    pub(crate) sampled_trace: Option<bool>,
    /// Sizes of the texts of a call with an estimated weight. Boxed, because many calls have none.
    pub(crate) text: Option<Box<CallText>>,
    /// Positions of the items in the body; empty for a call that is sent unbatched.
    pub(crate) found: ItemSpans,
    /// The tensors of a call that may be merged, where the protocol has tensors in JSON.
    pub(crate) tensors: Option<TensorRequest>,
    /// The options of a call that requests a stream and may be merged.
    pub(crate) stream: Option<StreamOptions>,
    /// The tensors of a gRPC call that may be merged. Boxed, because most calls have none.
    pub(crate) message: Option<Box<InferRequest>>,
}

/// The part of a request head that a replay needs.
#[derive(Clone)]
pub struct RequestHead {
    /// The request method.
    pub method: Method,
    /// The request target, with the authority if the client's HTTP version sends one.
    pub uri: Uri,
    /// All headers as received.
    pub headers: HeaderMap,
}

/// Eligibility of a call for merging.
#[derive(Clone, PartialEq, Eq)]
pub enum MergeEligibility {
    /// May be merged with calls that have the same key.
    With(Box<[u8]>),
    /// Must be sent unbatched.
    Unbatched(UnmergeableReason),
}

/// Reason for which a call is sent unbatched or passed through, in the order of `docs/metrics.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum UnmergeableReason {
    /// No adapter recognised the path.
    NotRecognised,
    /// The call requests a streamed response.
    Streaming,
    /// The call generates text on a route that merges no such calls.
    Generation,
    /// The content type, charset or coding is not plain JSON in UTF-8.
    Encoding,
    /// The body is larger than the maximum for merged calls.
    TooLarge,
    /// The call alone holds more items than a batch may.
    ClientBatchFull,
    /// The body is not a single JSON document that every server interprets in the same way.
    AmbiguousJson,
    /// A header is only meaningful for an unbatched call, or an identity header occurs twice.
    Header,
    /// The items have a form that cannot be merged.
    ItemForm,
    /// The merge key is in quarantine after a mismatch or a refused batch.
    Quarantined,
    /// The server refused batches of such calls or accepts one item per call, or failed batches
    /// have exhausted the replay budget.
    MergeRefused,
    /// The route is in mode `Observe`.
    PolicyObserve,
    /// The route is in mode `Passthrough`.
    PolicyOff,
    /// The route has `merge: Never`.
    MergeNever,
    /// Batching does not pay off for such calls.
    NoGain,
    /// The merge key is in quarantine after a response that differed from the response to the same
    /// call alone.
    VerifyFailed,
    /// The server's responses differ in an undeclared member outside the results, which may quote
    /// an input.
    AnswerVaries,
    /// A call of the Open Inference Protocol (`/v2/models/*/infer`, also behind a prefix, or
    /// `ModelInfer` of gRPC) to a model whose first dimension is not the batch, or is not known to be:
    /// neither does the server publish it, nor does a route name the protocol.
    OpenInference,
}

/// A request to the upstream that carries the items of several calls.
#[derive(Clone)]
pub struct SharedRequest {
    /// The version of HTTP. HTTP/1.1 stands for any that the upstream supports.
    pub version: Version,
    /// The request method.
    pub method: Method,
    /// The raw path, with the query if there is one.
    pub target: String,
    /// End-to-end headers. The sender adds the framing.
    pub headers: HeaderMap,
    /// The merged body.
    pub body: Bytes,
    /// The newly generated `x-request-id`.
    pub request_id: String,
    /// The newly generated `traceparent`, if a member had one.
    pub traceparent: Option<String>,
}

/// The response to one client.
#[derive(Clone)]
pub struct Reply {
    /// The status code.
    pub status: StatusCode,
    /// End-to-end headers. The sender adds the framing.
    pub headers: HeaderMap,
    /// The response body.
    pub body: Bytes,
    /// Trailers, present for an unbatched call whose response had some, and where the protocol writes
    /// its status into them.
    pub trailers: Option<HeaderMap>,
}

/// Error for a batch response that cannot be split.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the response to a batch cannot be split: {}", what.as_str())]
pub struct ResponseMismatch {
    /// The defect that was found.
    pub what: MismatchKind,
    /// Path of an undeclared member that also occurs in unbatched responses and differs between
    /// them. The path is common to several inputs, so it contains none of them and may be logged.
    pub member: Option<String>,
}

/// Defect of a batch response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum MismatchKind {
    /// The number of results differs from the number of items.
    Count,
    /// The indexes are not exactly those of the items.
    Index,
    /// Results are missing or of a different type, or counters cannot be divided.
    Shape,
    /// The body is not a single JSON document, or a single message where the protocol has messages.
    NotJson,
    /// The body has a content coding that was not requested.
    Compressed,
    /// The body is empty.
    Empty,
    /// A success status without a complete body, such as 204 or 206.
    Status,
    /// The server is known to count only the first item in its counters.
    Usage,
    /// Members outside the results may quote an input.
    Undeclared,
}

/// The upstream rejected a batch as too large.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchTooLarge {
    /// Maximum number of items that the upstream named.
    pub limit: Option<u32>,
}

/// Returns `true` for the statuses of an overloaded server.
pub fn is_overload(status: StatusCode) -> bool {
    matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE)
}

// === impl Call ===

impl Call {
    /// Returns the reason for which the call is sent unbatched, if it is.
    #[must_use]
    pub const fn unbatched_reason(&self) -> Option<UnmergeableReason> {
        match self.merge {
            MergeEligibility::With(_) => None,
            MergeEligibility::Unbatched(reason) => Some(reason),
        }
    }

    /// Returns `true` if the call may be merged and requests a stream. All calls with its merge key
    /// do.
    #[must_use]
    pub const fn is_mergeable_stream(&self) -> bool {
        self.stream.is_some()
    }

    /// Returns `true` if the tensors of the call may contain text; `None` for a call without tensors.
    pub(crate) fn tensors_may_hold_text(&self) -> Option<bool> {
        let tensors = self.tensors.as_ref().map(|tensors| tensors.may_hold_text);
        tensors.or_else(|| self.message.as_ref().map(|message| message.may_hold_text))
    }
}

impl fmt::Debug for Call {
    /// Prints sizes and digests only: body, headers and key must not reach a log.
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

impl fmt::Debug for RequestHead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestHead")
            .field("method", &self.method)
            .field("headers", &self.headers.len())
            .finish_non_exhaustive()
    }
}

// === impl MergeEligibility ===

impl fmt::Debug for MergeEligibility {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::With(key) => write!(f, "With({} bytes)", key.len()),
            Self::Unbatched(reason) => write!(f, "Unbatched({reason:?})"),
        }
    }
}

// === impl UnmergeableReason ===

impl UnmergeableReason {
    /// Returns the name used in metrics and logs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

// === impl SharedRequest ===

impl fmt::Debug for SharedRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedRequest")
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

// === impl ResponseMismatch ===

impl ResponseMismatch {
    /// Returns `true` if the merge key is put in quarantine: the response was complete but did not
    /// match the items. After an undeclared member, such calls are sent unbatched for a while, and
    /// all other kinds of mismatch end merging in the same way as a refused batch.
    #[must_use]
    pub const fn is_quarantining(&self) -> bool {
        matches!(self.what, MismatchKind::Count | MismatchKind::Index | MismatchKind::Shape)
    }
}

impl From<MismatchKind> for ResponseMismatch {
    fn from(what: MismatchKind) -> Self {
        Self { what, member: None }
    }
}

// === impl MismatchKind ===

impl MismatchKind {
    /// Returns the name used in metrics and logs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}
