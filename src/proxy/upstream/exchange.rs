//! Sends a recognised call to the upstream and reads its response, within limits of time, size and
//! rate.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response, response};
use hyper::body::Incoming;
use tokio::time::Instant;

use super::Inner;
use crate::backend::BufferedReply;
use crate::body::Body;
use crate::bounded_body::{MinRate, ReadLimits, ReadResult, StopReason, read_bounded, timeout_until};
use crate::clock::Clock;
use crate::error::FailureKind;
use crate::protocol::Reply;
use crate::protocol::headers::is_event_stream;

#[derive(Debug)]
pub(super) enum UnbatchedResponse {
    Whole(BufferedReply),
    /// A stream of events, or a response that is too large to be buffered: the part that was read,
    /// followed by the rest as it arrives.
    Streamed(Response<Body>),
}

/// The head of a response, with its body yet to be read.
pub(super) struct PendingResponse {
    pub(super) head: response::Parts,
    pub(super) body: Incoming,
    pub(super) first_byte: Duration,
    /// Deadline for the last byte.
    until: Option<Instant>,
}

// === impl Inner ===

impl Inner {
    /// Sends a call of the proxy and reads the complete response.
    ///
    /// `limit` bounds the time to the last byte, the body idle timeout each pause within the body,
    /// and the maximum response size its length.
    pub(super) async fn exchange(
        self: &Arc<Self>,
        request: Request<Body>,
        limit: Option<Duration>,
    ) -> Result<BufferedReply, FailureKind> {
        let pending = self.begin(request, limit).await?;
        let bounds = self.bounds(pending.until);
        self.read_whole(pending, bounds).await
    }

    /// Reads the complete response to a shared call. Each member gets a copy of its part, so both
    /// have to fit into the part of the buffers that is meant for responses.
    pub(super) async fn read_shared(
        &self,
        pending: PendingResponse,
        floor: MinRate,
    ) -> Result<BufferedReply, FailureKind> {
        let max = self.config.answer_bytes_max.min(self.buffers.shared_answer_max());
        let bounds = ReadLimits { max, floor: Some(floor), is_copied: true, ..self.bounds(pending.until) };
        self.read_whole(pending, bounds).await
    }

    /// Reads the complete body of a response.
    async fn read_whole(&self, pending: PendingResponse, bounds: ReadLimits) -> Result<BufferedReply, FailureKind> {
        let PendingResponse { head, mut body, .. } = pending;
        match read_bounded(&mut body, bounds, self.buffers.empty_for_answer()).await {
            ReadResult::Whole { bytes, trailers, held } => {
                self.identity.on_response(&head.headers);
                let reply = Reply { status: head.status, headers: head.headers, body: bytes, trailers };
                Ok(BufferedReply { reply, held })
            }
            ReadResult::Stopped { reason, .. } => Err(reason.response_failure()),
        }
    }

    /// Reads the response to the call of one client, completely if it can be buffered. A stream of
    /// events that the call requests (`streams`) is forwarded as it arrives.
    pub(super) async fn read_unbatched(
        &self,
        pending: PendingResponse,
        streams: bool,
    ) -> Result<UnbatchedResponse, FailureKind> {
        let PendingResponse { head, body, until, .. } = pending;
        self.identity.on_response(&head.headers);
        let mut body = Body::stream(body);
        if streams && is_event_stream(&head.headers) {
            let body = body.with_idle_timeout(self.config.body_idle_timeout, None);
            return Ok(UnbatchedResponse::Streamed(Response::from_parts(head, body)));
        }
        match read_bounded(&mut body, self.bounds(until), self.buffers.empty_for_answer()).await {
            ReadResult::Whole { bytes, trailers, held } => {
                let reply = Reply { status: head.status, headers: head.headers, body: bytes, trailers };
                Ok(UnbatchedResponse::Whole(BufferedReply { reply, held }))
            }
            ReadResult::Stopped { reason: StopReason::TooLarge | StopReason::BuffersFull, read, held } => {
                let body = body.with_prefix(read, held).with_idle_timeout(self.config.body_idle_timeout, None);
                Ok(UnbatchedResponse::Streamed(Response::from_parts(head, body)))
            }
            ReadResult::Stopped { reason, .. } => Err(reason.response_failure()),
        }
    }

    /// Sends a call and reads the head of its response.
    pub(super) async fn begin(
        self: &Arc<Self>,
        request: Request<Body>,
        limit: Option<Duration>,
    ) -> Result<PendingResponse, FailureKind> {
        let clock: Clock = self.clock;
        let sent = clock.now();
        let until = limit.map(|limit| clock.instant(sent.after(limit)));
        let response = match timeout_until(until, pin!(self.send(request, true))).await {
            Err(_) => {
                // A peer that vanished shows no other sign. The next call opens a new connection.
                self.shared.forget_http2().await;
                return Err(FailureKind::UpstreamTimeout);
            }
            Ok(Err(error)) => return Err(error.kind()),
            Ok(Ok(response)) => response,
        };
        let first_byte = clock.now().since(sent);
        let (head, body) = response.into_parts();
        Ok(PendingResponse { head, body, first_byte, until })
    }

    fn bounds(&self, until: Option<Instant>) -> ReadLimits {
        let max = self.config.answer_bytes_max.min(self.buffers.answer_max());
        let idle = self.config.body_idle_timeout;
        ReadLimits { until, ..ReadLimits::new(max, idle) }
    }
}
