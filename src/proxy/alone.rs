//! A recognised call that goes alone: its original bytes, on a slot of its own, and the upstream's answer as it came.
//!
//! The answer is read to the cap, so a slow client never keeps the slot; a larger one streams on and frees it. A stream of events is given on as it comes.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http::request::Parts;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::BodyExt;
use tokio::time::timeout;

use super::Proxy;
use crate::batching::ObservedOutcome;
use crate::body::{Body, BodyIdle};
use crate::error::FailureKind;
use crate::protocol::Endpoint;
use crate::scheduler::Grant;

/// The call as it came.
#[derive(Debug)]
pub(super) struct Lonely {
    pub(super) head: Parts,
    pub(super) bytes: Bytes,
    pub(super) trailers: Option<HeaderMap>,
}

// === impl Proxy ===

impl Proxy {
    /// Sends a call that holds a slot, and reads its answer.
    pub(super) async fn alone(
        self: &Arc<Self>,
        lonely: Lonely,
        mut grant: Grant,
        endpoint: &Endpoint,
        streaming: bool,
    ) -> Result<Response<Body>, FailureKind> {
        let Lonely { head, bytes, trailers } = lonely;
        let request = Request::from_parts(head, Body::full(bytes).with_trailers(trailers));
        let limit = self.route(endpoint.route).timeout;
        let response = match timeout(limit, self.forward.alone(request)).await {
            Err(_) => Err(FailureKind::UpstreamTimeout),
            Ok(Err(failure)) => Err(failure.kind),
            Ok(Ok(response)) => Ok(response),
        };
        let response = response.inspect_err(|_| grant.observed(ObservedOutcome::Failed))?;
        grant.first_byte();
        let (head, body) = response.into_parts();
        if streaming || is_event_stream(&head.headers) {
            grant.observed(ObservedOutcome::Ok);
            let body = body.idle_after(self.config.answer_idle_timeout, None).keeping(grant);
            return Ok(Response::from_parts(head, body));
        }
        let body = self.read_answer(body).await.inspect_err(|_| grant.observed(ObservedOutcome::Failed))?;
        grant.observed(outcome(endpoint, head.status, &body));
        Ok(Response::from_parts(head, body.into_body()))
    }

    async fn read_answer(&self, mut body: Body) -> Result<Read, FailureKind> {
        let cap = self.config.answer_bytes_max.min(self.buffers.answer_max());
        let mut held = self.buffers.empty();
        let mut first: Option<Bytes> = None;
        let mut all = BytesMut::new();
        let mut trailers = None;
        let mut size = 0;
        loop {
            let frame = match timeout(self.config.answer_idle_timeout, body.frame()).await {
                Err(_) => return Err(FailureKind::UpstreamTimeout),
                Ok(None) => break,
                Ok(Some(Err(error))) if error.is::<BodyIdle>() => return Err(FailureKind::UpstreamTimeout),
                Ok(Some(Err(_))) => return Err(FailureKind::UpstreamBroken),
                Ok(Some(Ok(frame))) => frame,
            };
            let data = match frame.into_data() {
                Ok(data) => data,
                Err(frame) => {
                    trailers = frame.into_trailers().ok();
                    continue;
                }
            };
            size += data.len();
            let fits = size <= cap && held.grow(data.len()).is_ok();
            match first.take() {
                None if all.is_empty() => first = Some(data),
                None => all.extend_from_slice(&data),
                Some(whole) => {
                    all.extend_from_slice(&whole);
                    all.extend_from_slice(&data);
                }
            }
            if !fits {
                // Too large to hold: what was read goes ahead, the rest streams after it, and the slot is free.
                let read = first.unwrap_or_else(|| all.freeze());
                return Ok(Read::TooLarge(body.prepend(read).keeping(held)));
            }
        }
        let bytes = first.unwrap_or_else(|| all.freeze());
        Ok(Read::Whole(bytes.clone(), Body::full(bytes).with_trailers(trailers).keeping(held)))
    }
}

/// An answer that was read, or as much of it as could be.
enum Read {
    Whole(Bytes, Body),
    TooLarge(Body),
}

// === impl Read ===

impl Read {
    fn into_body(self) -> Body {
        match self {
            Self::Whole(_, body) | Self::TooLarge(body) => body,
        }
    }
}

/// What a lone answer teaches: an overload, or a limit that it names.
fn outcome(endpoint: &Endpoint, status: StatusCode, body: &Read) -> ObservedOutcome {
    match status {
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
            ObservedOutcome::Overloaded { retry_after: None }
        }
        status if status.is_success() => ObservedOutcome::Ok,
        status => match body {
            Read::Whole(bytes, _) => match endpoint.too_large(status, bytes) {
                Some(too_large) if too_large.limit.is_some() => ObservedOutcome::TooLarge { limit: too_large.limit },
                _ => ObservedOutcome::Failed,
            },
            Read::TooLarge(_) => ObservedOutcome::Failed,
        },
    }
}

fn is_event_stream(headers: &HeaderMap) -> bool {
    headers.get(http::header::CONTENT_TYPE).is_some_and(|value| {
        value.as_bytes().get(..17).is_some_and(|start| start.eq_ignore_ascii_case(b"text/event-stream"))
    })
}
