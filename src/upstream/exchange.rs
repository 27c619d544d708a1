//! One recognised call upstream and its whole answer, within every bound.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode};
use tokio::time::error::Elapsed;
use tokio::time::{Instant, timeout_at};

use super::Inner;
use crate::body::Body;
use crate::clock::Clock;
use crate::error::FailureKind;
use crate::gather::{Bounds, Gathered, RateFloor, Stop, gather};
use crate::memory::Held;

/// A whole answer.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    pub(super) trailers: Option<HeaderMap>,
    pub(super) first_byte: Duration,
    /// The answer's place in the buffer budget.
    pub(super) held: Held,
}

// === impl Inner ===

impl Inner {
    /// Sends a call and reads its answer to the end.
    ///
    /// The time to the last byte is bounded by `limit` where there is one, each silence inside the body by the body idle time, the size by the answer cap,
    /// its rate by `floor`.
    pub(super) async fn exchange(
        self: &Arc<Self>,
        request: Request<Body>,
        limit: Option<Duration>,
        floor: Option<RateFloor>,
    ) -> Result<Answer, FailureKind> {
        let clock: Clock = self.clock;
        let sent = clock.now();
        let until = limit.map(|limit| clock.instant(sent.after(limit)));
        let response = match within(until, pin!(self.send(request))).await {
            Err(_) => {
                // A peer that vanished is seen in nothing else: the next call makes a connection of its own.
                self.forget_h2().await;
                return Err(FailureKind::UpstreamTimeout);
            }
            Ok(Err(error)) => return Err(error.kind()),
            Ok(Ok(response)) => response,
        };
        let first_byte = clock.now().since(sent);
        let (head, mut incoming) = response.into_parts();
        let max = self.config.answer_bytes_max.min(self.buffers.answer_max());
        let bounds = Bounds { max, idle: self.config.body_idle_timeout, until, floor, evictable: false };
        match gather(&mut incoming, bounds, self.buffers.empty_for_answer()).await {
            Gathered::Whole { bytes, trailers, held } => {
                self.heard.answered(&head.headers);
                Ok(Answer { status: head.status, headers: head.headers, body: bytes, trailers, first_byte, held })
            }
            Gathered::Stopped { why, .. } => Err(match why {
                Stop::TooLarge => FailureKind::AnswerTooLarge,
                Stop::BuffersFull => FailureKind::BytesFull,
                Stop::Slow => FailureKind::UpstreamTimeout,
                // As if it had broken off: the rest is not waited for.
                Stop::BelowFloor | Stop::Broken => FailureKind::UpstreamBroken,
            }),
        }
    }
}

/// Waits for `work`, until an instant where there is one.
async fn within<T>(until: Option<Instant>, work: impl Future<Output = T>) -> Result<T, Elapsed> {
    match until {
        Some(until) => timeout_at(until, work).await,
        None => Ok(work.await),
    }
}
