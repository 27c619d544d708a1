//! Calls that are not merged and hold no slot: forwarded on the connection's own lane.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use http::{Request, Response};

use super::Proxy;
use super::recorder::CallRecorder;
use crate::backend::Lane;
use crate::body::Body;
use crate::error::{Failure, FailureKind};
use crate::protocol::{Dialect, UnmergeableReason};
use crate::telemetry::names::Outcome;

/// A call that passes through. It is polled by the task of its connection, which is woken at the
/// end of the drain.
pub(super) struct PassthroughFuture {
    proxy: Arc<Proxy>,
    sending: BoxFuture<'static, Result<Response<Body>, Failure>>,
    /// Taken when the response is available.
    recorder: Option<CallRecorder>,
    dialect: Dialect,
}

impl Future for PassthroughFuture {
    type Output = Response<Body>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Response<Body>> {
        let this = &mut *self;
        let result = match this.sending.as_mut().poll(cx) {
            Poll::Ready(result) => result,
            Poll::Pending if this.proxy.shutdown.is_cancelled() => Err(FailureKind::Draining.into()),
            Poll::Pending => return Poll::Pending,
        };
        let recorder = this.recorder.take();
        Poll::Ready(match result {
            Ok(mut response) => {
                if let Some(recorder) = recorder {
                    recorder.end(Outcome::Passed, &mut response);
                }
                response
            }
            Err(failure) => {
                // The idle timeout is the only one that applies to a pass-through call.
                let silent = failure.kind == FailureKind::UpstreamTimeout;
                let limit = silent.then_some("proxy.client.passThroughIdleTimeout");
                let mut response = this.proxy.failure_response(this.dialect, &failure, limit);
                if let Some(recorder) = recorder {
                    recorder.fail(&failure, &mut response);
                }
                response
            }
        })
    }
}

// === impl Proxy ===

impl Proxy {
    /// Starts to forward a call unmodified.
    pub(super) fn start_passthrough(
        self: &Arc<Self>,
        lane: Arc<dyn Lane>,
        request: Request<Body>,
        reason: UnmergeableReason,
        mut recorder: CallRecorder,
        dialect: Dialect,
    ) -> PassthroughFuture {
        recorder.on_passthrough(reason);
        PassthroughFuture { proxy: self.clone(), sending: lane.send(request), recorder: Some(recorder), dialect }
    }

    /// Forwards a call unmodified.
    pub(super) async fn pass(
        self: &Arc<Self>,
        lane: Arc<dyn Lane>,
        request: Request<Body>,
        reason: UnmergeableReason,
        recorder: CallRecorder,
        dialect: Dialect,
    ) -> Response<Body> {
        let mut passing = self.start_passthrough(lane, request, reason, recorder, dialect);
        match self.shutdown.run_until_cancelled(&mut passing).await {
            Some(response) => response,
            // The drain is over, so this poll is the last: it returns a response or a failure.
            None => passing.await,
        }
    }
}
