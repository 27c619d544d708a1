//! The traits between the scheduler and proxy on one side and the upstream on the other: executing
//! a batch, and forwarding a call that is not merged.
//!
//! `upstream` implements both over HTTP. The scheduler and the proxy depend only on these traits.

use std::fmt;
use std::sync::Arc;
use std::task::Context;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::batching::{BatchId, Observation, Weight};
use crate::body::Body;
use crate::error::Failure;
use crate::memory::{BufferBudget, BufferGuard};
use crate::protocol::{
    BatchResponse, Call, CallAttachment, Endpoint, LimitsSource, PublishedLimits, Reply, ResponseMismatch,
};

/// A batch of at least two members.
#[derive(Debug, Clone)]
pub struct BatchRequest {
    /// Id of the execution, for logs.
    pub id: BatchId,
    /// The endpoint by which the batch is merged and its response is split.
    pub endpoint: Arc<Endpoint>,
    /// Its members, in order.
    pub members: Vec<Arc<Call>>,
    /// Maximum time from dispatch to the last byte of the response, or to the head of a stream;
    /// `None`: no limit.
    pub timeout: Option<Duration>,
    /// The latest of the members' own deadlines in milliseconds from now, if every member has one.
    pub deadline_ms: Option<u64>,
}

/// A stream of events, or a response that is too large to be buffered: its beginning, and the rest
/// as it arrives.
pub type StreamedAnswer = http::Response<Body>;

/// A complete response to one client, with its memory charge until the client has taken it.
#[derive(Debug)]
pub struct BufferedReply {
    /// The response.
    pub reply: Reply,
    /// The charge of its body.
    pub held: BufferGuard,
}

/// Result of the preparation of a call by its backend.
#[derive(Debug, Default)]
pub struct CallPreparation {
    /// Weight of the call; `None` if it stays as parsed.
    pub weight: Option<Weight>,
    /// Data for the execution. An unbatched call carries it in the extensions of its request.
    pub attachment: Option<CallAttachment>,
}

/// State of the look-up of the limits that the model server publishes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitsLookUp {
    /// They are not known yet. Calls that depend on them share no batch.
    Pending,
    /// The limits; `None` if the server publishes none.
    Known(Option<PublishedLimits>),
}

/// Receives the results of a batch. Members may be answered individually, early, and in any order.
pub trait BatchOutputs: Send {
    /// Answers a member; a second answer to the same member is ignored.
    fn deliver(&mut self, member: usize, result: Result<BufferedReply, Failure>);

    /// Answers a member with a response that is streamed.
    fn deliver_streamed(&mut self, member: usize, response: StreamedAnswer);

    /// Reports that the members are answered one after the other from now on, while others still
    /// wait.
    fn on_isolation(&mut self);

    /// Reports that the upstream has done its part: the slot is free for the next batch before
    /// these responses are delivered.
    fn release_slot(&mut self, observed: Observation);

    /// Returns `true` if a member has neither been answered nor gone.
    fn is_waiting(&self, member: usize) -> bool;
}

// === impl BatchRequest ===

impl BatchRequest {
    /// Returns `true` if the members request streams.
    #[must_use]
    pub fn is_stream(&self) -> bool {
        self.members.first().is_some_and(|call| call.is_mergeable_stream())
    }
}

// === impl BufferedReply ===

impl BufferedReply {
    /// Creates a response that is charged with bytes that were reserved for it.
    #[must_use]
    pub fn from_reserved(reply: Reply, reserved: &mut BufferGuard) -> Self {
        Self { held: reserved.split_off(reply.body.len()), reply }
    }

    /// Creates a response, charging bytes that exist already.
    #[must_use]
    pub fn new(reply: Reply, buffers: &BufferBudget) -> Self {
        Self { held: buffers.charge_unchecked(reply.body.len()), reply }
    }
}

// === impl LimitsLookUp ===

impl LimitsLookUp {
    /// Returns the limits, if they are known and there are any.
    #[must_use]
    pub const fn limits(self) -> Option<PublishedLimits> {
        match self {
            Self::Pending => None,
            Self::Known(limits) => limits,
        }
    }
}

/// Executes batches.
pub trait Backend: Send + Sync + fmt::Debug {
    /// Executes a batch and answers every member through `outputs`. A member without an answer at
    /// the end fails with `internal`.
    ///
    /// Dropping the future aborts the execution.
    fn execute<'a>(&'a self, request: BatchRequest, outputs: &'a mut dyn BatchOutputs) -> BoxFuture<'a, Observation>;

    /// Prepares a call before it is queued, on other threads than those that serve connections.
    /// `None`, the default, if the backend prepares nothing. Dropping the future abandons the call.
    fn prepare_call(&self, _: &Call) -> Option<BoxFuture<'static, CallPreparation>> {
        None
    }

    /// Returns `true` while calls of this merge key are executed unbatched, because the server's
    /// responses differ in parts that belong to no single result.
    fn is_merging_unsafe(&self, call: &Call) -> bool;

    /// Takes a call that no client sent from the replay budget. Returns `false` if the budget is
    /// empty.
    fn take_replay(&self) -> bool;

    /// Returns the defect of the last response to a batch that could not be split, if there was one
    /// in the last seconds.
    fn recent_mismatch(&self) -> Option<ResponseMismatch> {
        None
    }

    /// Returns the limits that the model server publishes in a document, as far as they are known.
    /// They are looked up in the background, from the first time on that this is called.
    fn published_limits(&self, source: &LimitsSource) -> LimitsLookUp;

    /// Returns `true` if a response showed that the model server publishes
    /// [`LimitsSource::Info`].
    fn publishes_info(&self) -> bool {
        false
    }

    /// Returns `true` if each member of a batch is executed with its own body, so that a batch may
    /// also have calls whose responses could not be cut out of a shared one.
    fn executes_members(&self) -> bool {
        false
    }

    /// Returns whether the model server is known to batch text generation by itself; `None` until
    /// that is known. It is looked up in the background, from the first time on that this is
    /// called.
    fn batches_text(&self) -> Option<bool>;
}

/// The path from one client connection to the upstream. Its connections are never shared with
/// another client.
pub trait Lane: Send + Sync + fmt::Debug {
    /// Sends a call unmodified. The lane connects on first use.
    fn send(self: Arc<Self>, request: http::Request<Body>)
    -> BoxFuture<'static, Result<http::Response<Body>, Failure>>;

    /// Returns `true` if the last call of an HTTP/1 client used a connection that had carried
    /// another call, which the server may have closed in the meantime.
    fn was_reused(&self) -> bool;

    /// Records that the client speaks HTTP/2, so that HTTP/2 may be attempted with the server.
    fn client_speaks_http2(&self);

    /// Drives the I/O of the lane's own connection. It is polled by the task of the client
    /// connection, because a separate task would have to be woken for every message between the
    /// two.
    fn poll_drive(&self, cx: &mut Context<'_>);
}

/// A byte stream, for protocols other than HTTP.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

/// Creates lanes, and forwards traffic that is not batched.
pub trait Forwarder: Send + Sync + fmt::Debug {
    /// Creates a lane for a new client connection. It connects on first use.
    fn lane(&self) -> Arc<dyn Lane>;

    /// Opens a connection for use as a byte stream.
    fn open_connection(&self) -> BoxFuture<'static, std::io::Result<Box<dyn ByteStream>>>;

    /// Forwards one call on a connection of its own, without a client connection to pin it to.
    fn forward_once(&self, request: http::Request<Body>) -> BoxFuture<'static, Result<http::Response<Body>, Failure>>;

    /// Records the server identity shown by the head of a response to a recognised call.
    fn observe_answer(&self, headers: &http::HeaderMap);

    /// Records the evidence that a complete response to an unbatched call provides about the
    /// responses to its merge key.
    fn observe_unbatched(&self, endpoint: &Endpoint, call: &Call, answer: BatchResponse<'_>);

    /// Records the same evidence from the stream that answers an unbatched call, while its body is
    /// forwarded. Returns the body, with what observes it; by default, the body as it is.
    fn observe_stream(
        &self,
        _: (&Arc<Endpoint>, &Arc<Call>),
        _: (http::StatusCode, &http::HeaderMap),
        body: Body,
    ) -> Body {
        body
    }
}
