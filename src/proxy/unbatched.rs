//! Forwarding of a recognised call that is not batched: its original bytes are sent under a slot of
//! its own, over the lane pinned to the client's connection as for a pass-through call, and the
//! upstream's response is returned as received.
//!
//! The response is buffered up to a cap, so that a slow client never occupies the slot. A larger
//! response is streamed and frees the slot. An event stream is forwarded as it arrives.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, Request, Response, StatusCode, Version, response};
use tokio::time::Instant;

use super::Proxy;
use crate::backend::{BufferedReply, Forwarder, Lane};
use crate::batching::BatchOutcome;
use crate::body::Body;
use crate::bounded_body::{ReadLimits, ReadResult, StopReason, read_bounded, timeout_until};
use crate::error::FailureKind;
use crate::memory::BufferGuard;
use crate::protocol::headers::{is_event_stream, parse_retry_after};
use crate::protocol::{BatchResponse, Call, CallAttachment, Endpoint, Reply};
use crate::scheduler::UnbatchedPermit;

/// A recognised request with its body read, in its original form.
#[derive(Debug, Clone)]
pub(super) struct BufferedRequest {
    pub(super) head: Parts,
    pub(super) bytes: Bytes,
    pub(super) trailers: Option<HeaderMap>,
}

// === impl BufferedRequest ===

impl BufferedRequest {
    /// Returns the request of a part of the call.
    pub(super) fn of_part(&self, part: &Call) -> Self {
        let mut head = self.head.clone();
        head.headers.clone_from(&part.head.headers);
        let mut request = Self { head, bytes: part.body.clone(), trailers: None };
        request.attach(part);
        request
    }

    /// Sets the attachment of the request to that of a call, or removes it if the call has none.
    pub(super) fn attach(&mut self, call: &Call) {
        match &call.attachment {
            Some(attachment) => _ = self.head.extensions.insert(attachment.clone()),
            None => _ = self.head.extensions.remove::<CallAttachment>(),
        }
    }

    fn into_request(self) -> Request<Body> {
        let Self { head, bytes, trailers } = self;
        Request::from_parts(head, Body::full(bytes).with_trailers(trailers))
    }
}

// === impl Proxy ===

impl Proxy {
    /// Sends a call that holds a slot, and returns its response, buffered or streamed. `limit`
    /// bounds the time to the last byte of a response that is buffered, and to the first byte of
    /// one that is streamed. Without a limit the call ends when its client or its connection does.
    /// Without a lane, the call has a connection of its own.
    pub(super) async fn forward_unbatched(
        self: &Arc<Self>,
        lane: Option<Arc<dyn Lane>>,
        buffered: BufferedRequest,
        permit: UnbatchedPermit,
        sent: (&Arc<Endpoint>, &Arc<Call>),
        limit: Option<Duration>,
    ) -> Result<Response<Body>, FailureKind> {
        let (head, body) = self.execute_unbatched(lane, buffered, permit, sent, limit).await?;
        let body = match body {
            AnswerBody::Whole { bytes, trailers, held } => Body::full(bytes).with_trailers(trailers).with_charge(held),
            AnswerBody::Streamed(body, _) => body,
        };
        Ok(Response::from_parts(head, body))
    }

    /// Sends a call that holds a slot over a connection of its own, and reads its response into
    /// memory. `limit` bounds the time to the last byte.
    pub(super) async fn fetch_unbatched(
        self: &Arc<Self>,
        buffered: BufferedRequest,
        permit: UnbatchedPermit,
        sent: (&Arc<Endpoint>, &Arc<Call>),
        limit: Option<Duration>,
    ) -> Result<BufferedReply, FailureKind> {
        match self.execute_unbatched(None, buffered, permit, sent, limit).await? {
            (head, AnswerBody::Whole { bytes, trailers, held }) => {
                let reply = Reply { status: head.status, headers: head.headers, body: bytes, trailers };
                Ok(BufferedReply { reply, held })
            }
            (_, AnswerBody::Streamed(_, reason)) => Err(reason.response_failure()),
        }
    }

    /// Sends a call, reads its response as far as it is buffered, and sets the outcome of the
    /// permit. The permit is dropped when a buffered response has been read, when a response turns
    /// out to be too large to be buffered, or at the end of a stream.
    async fn execute_unbatched(
        self: &Arc<Self>,
        lane: Option<Arc<dyn Lane>>,
        buffered: BufferedRequest,
        mut permit: UnbatchedPermit,
        (endpoint, call): (&Arc<Endpoint>, &Arc<Call>),
        limit: Option<Duration>,
    ) -> Result<(response::Parts, AnswerBody), FailureKind> {
        let until = limit.map(|limit| self.clock.instant(self.clock.now().after(limit)));
        // Pinned here, so that the future is stored once and not again inside each branch that
        // awaits it.
        let lane = lane.filter(|_| endpoint.idempotent);
        let send = pin!(send(&*self.forward, lane, buffered, permit.details.own_connection));
        let response = match timeout_until(until, send).await {
            Err(_) => Err(FailureKind::UpstreamTimeout),
            Ok(Err(kind)) => Err(kind),
            Ok(Ok(response)) => Ok(response),
        };
        let response = response.inspect_err(|_| permit.set_outcome(BatchOutcome::Failed))?;
        permit.on_first_byte();
        let (mut head, body) = response.into_parts();
        self.forward.observe_answer(&head.headers);
        // The idle timeout of pass-through traffic does not apply to a recognised call.
        let body = body.without_idle();
        if call.streaming || streams(endpoint, &head.headers) {
            permit.set_outcome(text_outcome(endpoint, &head));
            if endpoint.is_generation() {
                head.extensions.insert(permit.record_stream());
            }
            let body = self.forward.observe_stream((endpoint, call), (head.status, &head.headers), body);
            let body = body.with_idle_timeout(self.config.answer_idle_timeout, None).with_guard(permit);
            return Ok((head, AnswerBody::Streamed(body, StopReason::TooLarge)));
        }
        let body = self.read_answer(body, until).await.inspect_err(|_| permit.set_outcome(BatchOutcome::Failed))?;
        let read = match &body {
            AnswerBody::Whole { bytes, trailers, .. } => {
                Some(endpoint.response_status(head.status, (&head.headers, trailers.as_ref()), bytes))
            }
            AnswerBody::Streamed(..) => None,
        };
        permit.set_outcome(observed_outcome(endpoint, &head, read.as_ref()));
        if let Some((status, bytes)) = &read {
            if !endpoint.is_generation() {
                let answer = BatchResponse { status: *status, headers: &head.headers, body: bytes };
                self.forward.observe_unbatched(endpoint, call, answer);
            }
            // The response is framed anew: its length is that of the buffered bytes.
            head.headers.remove(http::header::CONTENT_LENGTH);
        }
        Ok((head, body))
    }

    async fn read_answer(&self, mut body: Body, until: Option<Instant>) -> Result<AnswerBody, FailureKind> {
        let idle = self.config.answer_idle_timeout;
        let max = self.config.answer_bytes_max.min(self.buffers.answer_max());
        match read_bounded(
            &mut body,
            ReadLimits { until, ..ReadLimits::new(max, idle) },
            self.buffers.empty_for_answer(),
        )
        .await
        {
            ReadResult::Whole { bytes, trailers, held } => Ok(AnswerBody::Whole { bytes, trailers, held }),
            // Too large to buffer: the bytes already read are sent first, the rest is streamed
            // after them, and the slot becomes free.
            ReadResult::Stopped { reason: reason @ (StopReason::TooLarge | StopReason::BuffersFull), read, held } => {
                let body = body.with_prefix(read, held).with_idle_timeout(idle, None);
                Ok(AnswerBody::Streamed(body, reason))
            }
            ReadResult::Stopped { reason, .. } => Err(reason.response_failure()),
        }
    }
}

/// Sends a call over its client's lane, if it has one. With `own_connection` it is sent over a new
/// connection, so that its time can be compared with that of batches, which use one as well. If no
/// connection can be opened, nothing was sent yet, and the call is sent over the lane after all.
async fn send(
    forward: &dyn Forwarder,
    lane: Option<Arc<dyn Lane>>,
    buffered: BufferedRequest,
    own_connection: bool,
) -> Result<Response<Body>, FailureKind> {
    let Some(lane) = lane else {
        return forward.forward_once(buffered.into_request()).await.map_err(|failure| failure.kind);
    };
    if own_connection {
        match forward.forward_once(buffered.clone().into_request()).await {
            Err(failure) if matches!(failure.kind, FailureKind::UpstreamRefused | FailureKind::ConnectionsFull) => {}
            sent => return sent.map_err(|failure| failure.kind),
        }
    }
    send_over_lane(forward, lane, buffered).await
}

/// Sends an idempotent call over a lane, and retries it on a new connection if the reused one
/// breaks, because the server may have closed it while the call was on its way.
async fn send_over_lane(
    forward: &dyn Forwarder,
    lane: Arc<dyn Lane>,
    buffered: BufferedRequest,
) -> Result<Response<Body>, FailureKind> {
    let retry = buffered.clone();
    // Calls of HTTP/2 clients run concurrently, each over any connection of the lane, so
    // `was_reused` does not identify the connection of this call.
    let is_concurrent = buffered.head.version == Version::HTTP_2;
    match lane.clone().send(buffered.into_request()).await {
        Err(failure) if failure.kind == FailureKind::UpstreamBroken && (is_concurrent || lane.was_reused()) => {
            forward.forward_once(retry.into_request()).await.map_err(|failure| failure.kind)
        }
        sent => sent.map_err(|failure| failure.kind),
    }
}

enum AnswerBody {
    /// Read to its end, with its memory charge.
    Whole { bytes: Bytes, trailers: Option<HeaderMap>, held: BufferGuard },
    /// Forwarded as it arrives, or read up to the cap, with the reason why it is not in memory.
    Streamed(Body, StopReason),
}

/// Derives the outcome that the batching core learns from the response to an unbatched call:
/// success, overload, or a size limit named in the error. `read` are the status and the body of a
/// whole response.
fn observed_outcome(endpoint: &Endpoint, head: &response::Parts, read: Option<&(StatusCode, Bytes)>) -> BatchOutcome {
    if endpoint.is_generation() {
        return text_outcome(endpoint, head);
    }
    let outcome = outcome_of_status(read.map_or(head.status, |(status, _)| *status), &head.headers);
    let Some((status, body)) = read.filter(|_| outcome == BatchOutcome::Failed) else { return outcome };
    let limit = endpoint.detect_too_large(*status, body).and_then(|found| found.limit);
    limit.map_or(outcome, |limit| BatchOutcome::TooLarge { limit: Some(limit) })
}

/// Derives the outcome from the head of a response with text, or of a stream. Gateways answer
/// 429 to a caller above its own quota, which must not slow down others. Engines report their load
/// with 503, and TGI with 429.
fn text_outcome(endpoint: &Endpoint, head: &response::Parts) -> BatchOutcome {
    let is_quota = head.status == StatusCode::TOO_MANY_REQUESTS && !endpoint.dialect.reports_load_with_429();
    if endpoint.is_generation() && is_quota {
        return BatchOutcome::Failed;
    }
    outcome_of_status(head.status, &head.headers)
}

fn outcome_of_status(status: StatusCode, headers: &HeaderMap) -> BatchOutcome {
    match status {
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
            BatchOutcome::Overloaded { retry_after: parse_retry_after(headers) }
        }
        status if status.is_success() => BatchOutcome::Ok,
        _ => BatchOutcome::Failed,
    }
}

/// Returns `true` for a response that is forwarded as it arrives although its call requested no
/// stream: server-sent events, and text whose length the server did not know at its beginning.
fn streams(endpoint: &Endpoint, headers: &HeaderMap) -> bool {
    is_event_stream(headers) || endpoint.is_generation() && !headers.contains_key(http::header::CONTENT_LENGTH)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Context;

    use futures_util::FutureExt;
    use futures_util::future::BoxFuture;

    use super::*;
    use crate::backend::ByteStream;
    use crate::error::Failure;

    type SendFuture = BoxFuture<'static, Result<Response<Body>, Failure>>;

    /// A lane that answers with 202, and connections of their own that fail.
    #[derive(Debug)]
    struct FailingConnections {
        kind: FailureKind,
        sent_over_lane: AtomicUsize,
    }

    impl Lane for FailingConnections {
        fn send(self: Arc<Self>, _: Request<Body>) -> SendFuture {
            self.sent_over_lane.fetch_add(1, Ordering::Relaxed);
            let response = Response::builder().status(StatusCode::ACCEPTED).body(Body::full(Bytes::new())).unwrap();
            async { Ok(response) }.boxed()
        }

        fn was_reused(&self) -> bool {
            true
        }

        fn client_speaks_http2(&self) {}

        fn poll_drive(&self, _: &mut Context<'_>) {}
    }

    impl Forwarder for FailingConnections {
        fn lane(&self) -> Arc<dyn Lane> {
            unreachable!("the call has a lane")
        }

        fn open_connection(&self) -> BoxFuture<'static, std::io::Result<Box<dyn ByteStream>>> {
            unreachable!("no stream is opened")
        }

        fn forward_once(&self, _: Request<Body>) -> SendFuture {
            let failure = Failure::from(self.kind);
            async move { Err(failure) }.boxed()
        }

        fn observe_answer(&self, _: &HeaderMap) {}

        fn observe_unbatched(&self, _: &Endpoint, _: &Call, _: BatchResponse<'_>) {}
    }

    /// Sends a call whose own connection fails in this way, and returns the status of its response
    /// and the number of times that it was sent over the lane.
    async fn send_after(kind: FailureKind, own_connection: bool) -> (Result<StatusCode, FailureKind>, usize) {
        let server = Arc::new(FailingConnections { kind, sent_over_lane: AtomicUsize::new(0) });
        let head = Request::post("/").body(()).unwrap().into_parts().0;
        let buffered = BufferedRequest { head, bytes: Bytes::from_static(b"{}"), trailers: None };
        let sent = send(&*server, Some(server.clone()), buffered, own_connection).await;
        (sent.map(|response| response.status()), server.sent_over_lane.load(Ordering::Relaxed))
    }

    #[tokio::test]
    async fn a_call_without_a_connection_of_its_own_is_sent_over_its_lane() {
        for kind in [FailureKind::UpstreamRefused, FailureKind::ConnectionsFull] {
            assert_eq!(send_after(kind, true).await, (Ok(StatusCode::ACCEPTED), 1), "{kind:?}");
        }
        let kind = FailureKind::UpstreamBroken;
        assert_eq!(send_after(kind, true).await, (Err(kind), 0), "the server may have received it");
        assert_eq!(send_after(kind, false).await, (Ok(StatusCode::ACCEPTED), 1));
    }
}
