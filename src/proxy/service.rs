//! The path of a recognised call: its body is read, the call is queued, and it is answered with the
//! result of its batch, of an unbatched execution, or with a failure.
//!
//! `routing` decides by the head whether a call is recognised at all, and `preparation` parses a
//! recognised one for the scheduler.

mod preparation;
mod routing;

use std::future::Future;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;

use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use tokio_util::sync::CancellationToken;

pub(super) use self::preparation::CallRequirements;
use self::preparation::PreparedCall;
use self::routing::RecognisedCall;
pub(super) use self::routing::{CallRouting, PendingRouting};
use super::collect::{CollectResult, collect};
use super::recorder::CallRecorder;
use super::response::to_response;
use super::unbatched::BufferedRequest;
use super::upload::UploadGuard;
use super::{Proxy, RouteMode, RoutingTable};
use crate::backend::{BufferedReply, Lane};
use crate::batching::{Tick, UnbatchedReason};
use crate::body::Body;
use crate::bounded_body::timeout_until;
use crate::error::{Failure, FailureKind};
use crate::protocol::{Dialect, Endpoint, UnmergeableReason};
use crate::scheduler::{ExecutionDetails, SubmitOutcome};
use crate::telemetry::names::{Outcome as CallOutcome, OverheadStage};

/// Arrival time of a call, and the address of its client.
#[derive(Debug, Clone, Copy)]
pub(super) struct CallArrival {
    pub(super) at: Tick,
    pub(super) client: IpAddr,
}

// === impl Proxy ===

impl Proxy {
    /// Answers a recognised call.
    pub(super) async fn serve(
        self: &Arc<Self>,
        lane: Arc<dyn Lane>,
        request: Request<Incoming>,
        upload: Option<Box<UploadGuard>>,
        recognised: RecognisedCall,
    ) -> Response<Body> {
        let RecognisedCall { table, endpoint, arrival, recorder } = recognised;
        if table.route(endpoint.route).mode == RouteMode::Observe {
            let watch = upload.map(UploadGuard::into_watch);
            let request = request.map(|body| Body::stream(body).with_upload_watch(watch));
            return Box::pin(self.observe(&table, &endpoint, lane, request, (arrival, recorder))).await;
        }
        self.serve_recognised(&table, &endpoint, lane, (request, upload), (arrival, recorder)).await
    }

    /// Reads the body of a call, and queues it. A call with a body too large to be merged passes
    /// through.
    async fn serve_recognised(
        self: &Arc<Self>,
        table: &RoutingTable,
        endpoint: &Arc<Endpoint>,
        lane: Arc<dyn Lane>,
        (request, upload): (Request<Incoming>, Option<Box<UploadGuard>>),
        (arrival, recorder): (CallArrival, CallRecorder),
    ) -> Response<Body> {
        let route = table.route(endpoint.route);
        let (head, body) = request.into_parts();
        // Pinned here, so that the futures that await it hold a pointer: each would be as large
        // again.
        let collected = {
            let collecting = pin!(collect(self, body, upload, route.item_bytes_max));
            await_unless_cancelled(&self.shutdown, collecting).await
        };
        match collected.unwrap_or(CollectResult::Refused(FailureKind::Draining)) {
            CollectResult::Whole { bytes, trailers, held } => {
                let buffered = BufferedRequest { head, bytes, trailers };
                // Boxed, like the other branches: a slow upload does not reserve the memory of
                // these futures.
                let response = Box::pin(self.submit_call(table, endpoint, lane, buffered, (arrival, recorder))).await;
                drop(held);
                response
            }
            CollectResult::TooLarge(body) => {
                let request = Request::from_parts(head, body);
                Box::pin(self.pass(lane, request, UnmergeableReason::TooLarge, recorder, endpoint.dialect)).await
            }
            CollectResult::Refused(kind) => self.respond_with_failure(kind.into(), recorder, endpoint.dialect, None),
            // The connection failed together with its body, so this response is never sent.
            CollectResult::Broken => {
                let mut response = Response::new(Body::empty());
                *response.status_mut() = StatusCode::BAD_REQUEST;
                response
            }
        }
    }

    /// Parses a call, queues it, and waits for its outcome.
    async fn submit_call(
        self: &Arc<Self>,
        table: &RoutingTable,
        endpoint: &Arc<Endpoint>,
        lane: Arc<dyn Lane>,
        mut buffered: BufferedRequest,
        (arrival, mut recorder): (CallArrival, CallRecorder),
    ) -> Response<Body> {
        let route = table.route(endpoint.route);
        let parsed = self.read_call(table, endpoint, &mut buffered, arrival.at).await;
        let prepared = self.prepare_submission(table, parsed, &buffered, arrival, &mut recorder);
        let PreparedCall { endpoint, call, submission, deadlines, reason, batches_itself } = prepared;
        let dialect = endpoint.dialect;
        let limit_name =
            |kind, sent| deadlines.limit_name(kind, (self.clock.now(), sent), route, &table.deadline_headers);
        // Wait for the batch's result, for a permit to execute unbatched, or for a failure,
        // whichever the scheduler reports.
        let submitted = {
            let submitting = pin!(self.submit(submission, &buffered));
            self.await_until(deadlines.caller, submitting).await
        };
        let (result, details) = match submitted {
            Err(kind) => {
                return self.respond_with_failure(kind.into(), recorder, dialect, limit_name(kind, None).as_deref());
            }
            Ok(SubmitOutcome::Failed(failure, details)) => (Err(failure), details),
            // `submit` handles this outcome itself, so it is never returned.
            Ok(SubmitOutcome::Divide(..)) => (Err(FailureKind::Internal.into()), ExecutionDetails::default()),
            Ok(SubmitOutcome::Reply(answer, details)) => {
                self.verify_sample(table, &endpoint, &call, (&buffered, &answer.reply), &details);
                (Ok(self.write_reply(*answer)), details)
            }
            Ok(SubmitOutcome::Streamed(response, details)) => (Ok(*response), details),
            Ok(SubmitOutcome::Unbatched(permit)) => {
                if let Some(reason) =
                    reason.or_else(|| unbatched_reason(permit.details.unbatched_reason, batches_itself))
                {
                    recorder.on_passthrough(reason);
                }
                let details = permit.details;
                let sent = (&endpoint, &call);
                let lane = Some(lane);
                let forwarding = pin!(self.forward_unbatched(lane, buffered, permit, sent, route.timeout));
                let response = self.await_until(deadlines.caller, forwarding).await.flatten();
                (response.map_err(Failure::from), details)
            }
        };
        let result = result.map(|response| match endpoint.generates_text() {
            true => self.meter_tokens(&recorder, (&endpoint, &call), response),
            false => response,
        });
        recorder.on_execution(&details);
        match result {
            Ok(mut response) => {
                recorder.end(CallOutcome::Served, &mut response);
                response
            }
            Err(failure) => {
                let limit = limit_name(failure.kind, details.sent);
                self.respond_with_failure(failure, recorder, dialect, limit.as_deref())
            }
        }
    }

    /// Writes the response of a batch, and measures the time that this takes.
    fn write_reply(&self, reply: BufferedReply) -> Response<Body> {
        let start = self.clock.now();
        let response = to_response(reply);
        self.metrics.record_overhead(OverheadStage::Write, self.clock.now().since(start));
        response
    }

    /// Answers a call that was rejected because the memory budget is exhausted.
    pub(super) fn reject_buffers_full(&self, routing: PendingRouting) -> Response<Body> {
        let (recorder, dialect) = match routing {
            PendingRouting::Pass(_, recorder, dialect) => (recorder, dialect),
            PendingRouting::Recognised(call) => (call.recorder, call.endpoint.dialect),
        };
        self.respond_with_failure(FailureKind::BytesFull.into(), recorder, dialect, None)
    }

    /// Answers a call with a failure. `limit` is the key of the policy, or the header, that ended
    /// the call.
    fn respond_with_failure(
        &self,
        failure: Failure,
        recorder: CallRecorder,
        dialect: Dialect,
        limit: Option<&str>,
    ) -> Response<Body> {
        tracing::debug!(
            code = failure.kind.code(),
            reason = failure.kind.reason(),
            "the proxy answers the call itself"
        );
        let mut response = self.failure_response(dialect, &failure, limit);
        recorder.fail(&failure, &mut response);
        response
    }

    /// Awaits `work`, at most until the caller's own deadline or the end of the drain.
    async fn await_until<T>(&self, deadline: Option<Tick>, work: impl Future<Output = T>) -> Result<T, FailureKind> {
        // Pinned here, so that the future is stored once and not again inside each branch that
        // awaits it.
        let work = pin!(work);
        let in_time = pin!(timeout_until(deadline.map(|at| self.clock.instant(at)), work));
        let ended = await_unless_cancelled(&self.shutdown, in_time).await.ok_or(FailureKind::Draining)?;
        ended.map_err(|_| FailureKind::Deadline)
    }
}

/// Awaits `work`, or returns `None` once the token is cancelled. In contrast to
/// [`CancellationToken::run_until_cancelled`], `work` is polled first even if the token is already
/// cancelled, so that a call that does not have to wait is still answered. The caller pins `work`,
/// so that it is stored once.
async fn await_unless_cancelled<T>(token: &CancellationToken, work: impl Future<Output = T> + Unpin) -> Option<T> {
    tokio::select! {
        biased;
        value = work => Some(value),
        () = token.cancelled() => None,
    }
}

/// Returns the reason why the scheduler had a mergeable call executed unbatched.
fn unbatched_reason(reason: Option<UnbatchedReason>, batches_itself: Option<bool>) -> Option<UnmergeableReason> {
    match reason {
        Some(UnbatchedReason::ClientBatchFull) => Some(UnmergeableReason::ClientBatchFull),
        Some(UnbatchedReason::Quarantined) => Some(UnmergeableReason::Quarantined),
        Some(UnbatchedReason::Different) => Some(UnmergeableReason::VerifyFailed),
        Some(UnbatchedReason::Refused | UnbatchedReason::BudgetEmpty) => Some(UnmergeableReason::MergeRefused),
        Some(UnbatchedReason::NoGain) => Some(UnmergeableReason::NoGain),
        // Under policies other than `Adaptive`, the core gives no reason for calls that are sent
        // unbatched because the server batches by itself.
        None => batches_itself.filter(|batches| *batches).map(|_| UnmergeableReason::NoGain),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn cancellation_ends_waits_and_keeps_completed_results() {
        let cut = CancellationToken::new();
        let waiting = await_unless_cancelled(&cut, std::future::pending::<()>());
        let (waited, ()) = tokio::join!(waiting, async { cut.cancel() });
        assert_eq!(waited, None);
        assert_eq!(await_unless_cancelled(&cut, std::future::pending::<()>()).await, None);
        assert_eq!(await_unless_cancelled(&cut, std::future::ready(1)).await, Some(1));
    }
}
