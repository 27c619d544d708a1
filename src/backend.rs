//! The ports: what executes a batch, and what carries a call that is not merged.
//!
//! `upstream` implements both over HTTP; an engine in the process implements the first. The scheduler and the proxy know these traits only.

use std::fmt;
use std::sync::Arc;
use std::task::Context;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::batching::{BatchId, Observed};
use crate::body::Body;
use crate::error::Failure;
use crate::protocol::{Call, Endpoint, Published, Reply, SharedAnswer};

/// A batch of at least two members.
#[derive(Debug, Clone)]
pub struct BatchRequest {
    /// Which execution, for logs.
    pub id: BatchId,
    /// How it is written and split.
    pub endpoint: Arc<Endpoint>,
    /// Its members, in order.
    pub members: Vec<Arc<Call>>,
    /// From dispatch to the last byte of the answer; `None`: no limit.
    pub timeout: Option<Duration>,
    /// The latest member's own deadline in milliseconds from now, when every member has one.
    pub deadline_ms: Option<u64>,
}

/// An answer that is too large to be held: its beginning, and the rest as it comes.
pub type StreamedAnswer = http::Response<Body>;

/// Where the outputs of a batch go. Members may be answered one by one, early, in any order.
pub trait Outputs: Send {
    /// Answers a member; a second answer to the same member is ignored.
    fn deliver(&mut self, member: usize, result: Result<Reply, Failure>);

    /// Answers a member with an answer that is too large to be held and comes on while it is given.
    fn deliver_streamed(&mut self, member: usize, response: StreamedAnswer);

    /// From now on members are answered one after the other, while others still wait.
    fn isolating(&mut self);

    /// The upstream has done its part: the slot is free for the next batch, whose members need not wait until these answers are handed out.
    fn free(&mut self, observed: Observed);

    /// Whether a member has neither left nor been answered.
    fn is_waiting(&self, member: usize) -> bool;
}

/// Executes batches.
pub trait Backend: Send + Sync + fmt::Debug {
    /// Executes a batch and answers every member through `outputs`. A member without an answer at the end gets `internal`.
    ///
    /// Dropping the future ends the execution.
    fn execute<'a>(&'a self, request: BatchRequest, outputs: &'a mut dyn Outputs) -> BoxFuture<'a, Observed>;

    /// Returns `true` while calls of this merge key go alone, since the server's answers differ in
    /// parts that belong to no single result.
    fn is_apart(&self, call: &Call) -> bool;

    /// What the model server publishes of its own limits, if it does.
    fn published(&self) -> BoxFuture<'_, Option<Published>>;
}

/// The way of one client connection to the upstream: nothing on it is ever another client's.
pub trait Lane: Send + Sync + fmt::Debug {
    /// Sends a call as it came. It connects when it is first used.
    fn send(self: Arc<Self>, request: http::Request<Body>)
    -> BoxFuture<'static, Result<http::Response<Body>, Failure>>;

    /// Whether the last call of a client that speaks HTTP/1 went over a connection that had carried
    /// another, which the server may have closed meanwhile.
    fn was_reused(&self) -> bool;

    /// The client speaks HTTP/2, so the server may be asked whether it does.
    fn client_speaks_http2(&self);

    /// Drives the lane's own connection as far as it goes. The task of the client's connection does so, and is woken for more: a task of the lane's own
    /// would have to be woken for every message between the two.
    fn poll_drive(&self, cx: &mut Context<'_>);
}

/// A connection as it is, for what is no HTTP.
pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// Makes lanes.
pub trait Forward: Send + Sync + fmt::Debug {
    /// A lane for a new client connection. It connects when it is first used.
    fn lane(&self) -> Arc<dyn Lane>;

    /// A connection of its own, to be used as it is.
    fn open(&self) -> BoxFuture<'static, std::io::Result<Box<dyn Duplex>>>;

    /// Carries one call on a connection of its own, without a client's connection to pin it to.
    fn alone(&self, request: http::Request<Body>) -> BoxFuture<'static, Result<http::Response<Body>, Failure>>;

    /// Records what the head of an answer to a recognised call shows of the server's identity.
    fn observe_answer(&self, headers: &http::HeaderMap);

    /// Records what the whole answer to a call that went alone shows of the answers to its merge
    /// key.
    fn observe_lone(&self, endpoint: &Endpoint, call: &Call, answer: SharedAnswer<'_>);
}
