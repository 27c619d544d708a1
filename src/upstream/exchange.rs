//! One recognised call upstream and its whole answer, within every bound.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Request, StatusCode};
use http_body_util::BodyExt;
use tokio::time::timeout;

use super::Inner;
use super::client::SendError;
use crate::body::Body;
use crate::buffer::Held;
use crate::clock::Clock;
use crate::error::FailureKind;

/// A whole answer.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    pub(super) trailers: Option<HeaderMap>,
    pub(super) first_byte: Duration,
    /// The answer's place in the buffer budget.
    pub(super) _held: Held,
}

// === impl Inner ===

impl Inner {
    /// Sends a call and reads its answer to the end.
    ///
    /// The time to the first byte is bounded by `limit`, each silence inside the body by the body idle time, the size by the answer cap.
    pub(super) async fn exchange(
        self: &Arc<Self>,
        request: Request<Body>,
        limit: Duration,
    ) -> Result<Answer, FailureKind> {
        let clock: Clock = self.clock;
        let sent = clock.now();
        let response = match timeout(limit, self.send(request)).await {
            Err(_) => return Err(FailureKind::UpstreamTimeout),
            Ok(Err(SendError::Refused)) => return Err(FailureKind::UpstreamRefused),
            Ok(Err(SendError::Broken)) => return Err(FailureKind::UpstreamBroken),
            Ok(Ok(response)) => response,
        };
        let first_byte = clock.now().since(sent);
        let (head, mut incoming) = response.into_parts();
        let cap = self.config.answer_bytes_max.min(self.buffers.answer_max());
        let mut held = self.buffers.empty();
        let mut first: Option<Bytes> = None;
        let mut rest = BytesMut::new();
        let mut trailers = None;
        let mut size = 0_usize;
        loop {
            let frame = match timeout(self.config.body_idle_timeout, incoming.frame()).await {
                Err(_) => return Err(FailureKind::UpstreamTimeout),
                Ok(None) => break,
                Ok(Some(Err(_))) => return Err(FailureKind::UpstreamBroken),
                Ok(Some(Ok(frame))) => frame,
            };
            match frame.into_data() {
                Ok(data) => {
                    size += data.len();
                    if size > cap {
                        return Err(FailureKind::AnswerTooLarge);
                    }
                    held.grow(data.len()).map_err(|_| FailureKind::BytesFull)?;
                    // Most answers come in one piece, which is kept as it is.
                    match first.take() {
                        None if rest.is_empty() => first = Some(data),
                        None => rest.extend_from_slice(&data),
                        Some(whole) => {
                            rest.reserve(whole.len() + data.len());
                            rest.extend_from_slice(&whole);
                            rest.extend_from_slice(&data);
                        }
                    }
                }
                Err(frame) => trailers = frame.into_trailers().ok(),
            }
        }
        let body = first.unwrap_or_else(|| rest.freeze());
        Ok(Answer { status: head.status, headers: head.headers, body, trailers, first_byte, _held: held })
    }
}
