//! The path of a recognised call: its body is read, the call is queued, and it is answered with the
//! result of its batch, of an unbatched execution, or with a failure.

use std::future::Future;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use http::header::CONNECTION;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use tokio_util::sync::CancellationToken;

use super::collect::{CollectResult, collect};
use super::deadline::{CallDeadlines, resolve_deadlines};
use super::debug::take_debug_header;
use super::recorder::CallRecorder;
use super::response::to_response;
use super::unbatched::BufferedRequest;
use super::upload::UploadGuard;
use super::{Proxy, RouteMode, RouteSettings, RoutingTable};
use crate::backend::{BufferedReply, Lane, LimitsLookUp};
use crate::batching::{CallOrigin, PriorityId, Tick, UnbatchedReason};
use crate::body::Body;
use crate::error::{Failure, FailureKind};
use crate::protocol::{Call, Dialect, Endpoint, MergeEligibility, UnmergeableReason, UnrecognisedCall};
use crate::scheduler::{ExecutionDetails, Submission, SubmitOutcome};
use crate::telemetry::names::{Outcome as CallOutcome, OverheadStage};

/// Priority and deadlines of a call, from its headers and its route.
#[derive(Debug)]
pub(super) struct CallRequirements {
    pub(super) priority: PriorityId,
    pub(super) slo: Option<Duration>,
    /// The deadlines as configured and requested.
    requested_deadlines: CallDeadlines,
    /// The deadlines passed to the batching core. That of an SLO is earlier by the part of the
    /// latency that the core cannot measure.
    pub(super) core_deadlines: CallDeadlines,
}

/// Arrival time of a call, and the address of its client.
#[derive(Debug, Clone, Copy)]
pub(super) struct CallArrival {
    pub(super) at: Tick,
    pub(super) client: IpAddr,
}

/// A parsed call, ready for the scheduler.
struct PreparedCall {
    endpoint: Arc<Endpoint>,
    call: Arc<Call>,
    submission: Submission,
    /// The deadlines passed to the batching core.
    deadlines: CallDeadlines,
    /// The reason why the call cannot be merged.
    reason: Option<UnmergeableReason>,
    /// `true` if the upstream published that it batches by itself, `false` if that it does not.
    batches_itself: Option<bool>,
}

/// Routing decision for a call.
pub(super) enum CallRouting {
    /// The call is answered without reading its body.
    Answered(Response<Body>),
    /// The call proceeds.
    Open(PendingRouting),
}

/// Routing decision for a call that is not answered yet.
pub(super) enum PendingRouting {
    /// The call passes through, for this reason.
    Pass(UnmergeableReason, CallRecorder, Dialect),
    /// The call is parsed for batching, or observed while it passes through.
    Recognised(Box<RecognisedCall>),
}

/// A call that an adapter recognised.
pub(super) struct RecognisedCall {
    table: Arc<RoutingTable>,
    endpoint: Arc<Endpoint>,
    arrival: CallArrival,
    recorder: CallRecorder,
}

// === impl Proxy ===

impl Proxy {
    /// Decides from the head of a call how it is handled. `client` is the address of its client.
    pub(super) fn route_call(self: &Arc<Self>, client: IpAddr, request: &mut Request<Incoming>) -> CallRouting {
        let arrived = self.clock.now();
        self.metrics.stats.seen.fetch_add(1, Ordering::Relaxed);
        let mut recorder = CallRecorder::begin(self, arrived);
        if take_debug_header(request.headers_mut()) {
            recorder.enable_debug();
        }
        // For HTTP/1 such a head was already rejected (`connection`). An HTTP/2 head may refer to
        // one entry of the peer's dynamic table a thousand times at one byte each. Nothing of it is
        // retained.
        if has_more_lines(request.headers(), self.config.client.headers_max) {
            let mut response = Response::new(Body::empty());
            *response.status_mut() = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
            recorder.end(CallOutcome::Rejected, &mut response);
            return CallRouting::Answered(response);
        }
        let table = self.table();
        if let Some(tenant) = &table.tenant_header {
            protect_tenant_header(request.headers_mut(), tenant);
        }
        if request.method() == Method::CONNECT {
            let mut response = Response::new(Body::empty());
            *response.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
            // The following bytes belong to a tunnel that does not exist.
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            recorder.end(CallOutcome::Rejected, &mut response);
            return CallRouting::Answered(response);
        }
        let Some(endpoint) = table.routes.recognise(request.method(), request.uri().path()) else {
            let path = request.uri().path();
            let reason = UnmergeableReason::NotRecognised;
            let UnrecognisedCall { cause, route } = table.routes.unrecognised(request.method(), path);
            recorder.on_unrecognised(reason, cause, route.map(|route| table.route(route)));
            return CallRouting::Open(PendingRouting::Pass(reason, recorder, Dialect::Problem));
        };
        let endpoint = self.choose_endpoint(&table, endpoint, request);
        let route = table.route(endpoint.route);
        recorder.on_recognised(endpoint.label.as_str(), route);
        recorder.set_slo(route.slo);
        let length = content_length(request);
        let pass_reason = if route.mode == RouteMode::Passthrough {
            Some(UnmergeableReason::PolicyOff)
        } else if endpoint.is_generation() && !table.admits_generation {
            Some(UnmergeableReason::Generation)
        } else if request.headers().contains_key(http::header::UPGRADE) {
            Some(UnmergeableReason::Header)
        } else if route.mode == RouteMode::Batch && length.is_some_and(|length| length > route.item_bytes_max as u64) {
            Some(UnmergeableReason::TooLarge)
        } else {
            None
        };
        CallRouting::Open(match pass_reason {
            Some(reason) => PendingRouting::Pass(reason, recorder, endpoint.dialect),
            None => {
                let arrival = CallArrival { at: arrived, client };
                PendingRouting::Recognised(Box::new(RecognisedCall { table, endpoint, arrival, recorder }))
            }
        })
    }

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
            let request = request.map(|body| Body::from(body).with_upload_watch(watch));
            return Box::pin(self.observe(&table, &endpoint, lane, request, (arrival, recorder))).await;
        }
        self.serve_recognised(&table, &endpoint, lane, (request, upload), (arrival, recorder)).await
    }

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
            await_unless_cancelled(&self.cut, collecting).await
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

    async fn submit_call(
        self: &Arc<Self>,
        table: &RoutingTable,
        endpoint: &Arc<Endpoint>,
        lane: Arc<dyn Lane>,
        buffered: BufferedRequest,
        (arrival, mut recorder): (CallArrival, CallRecorder),
    ) -> Response<Body> {
        let route = table.route(endpoint.route);
        let prepared = self.prepare_call(table, endpoint, &buffered, arrival, &mut recorder);
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
            // `submit` has divided the call.
            Ok(SubmitOutcome::Divide(..)) => (Err(FailureKind::Internal.into()), ExecutionDetails::default()),
            Ok(SubmitOutcome::Reply(answer, details)) => {
                self.verify_sample(table, &endpoint, &call, (&buffered, &answer.reply), &details);
                (Ok(self.write_reply(*answer)), details)
            }
            Ok(SubmitOutcome::Streamed(response, details)) => (Ok(*response), details),
            Ok(SubmitOutcome::Alone(permit)) => {
                if let Some(reason) =
                    reason.or_else(|| unbatched_reason(permit.details.unbatched_reason, batches_itself))
                {
                    recorder.on_passthrough(reason);
                }
                let details = permit.details;
                let sent = (endpoint.as_ref(), call.as_ref());
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
        self.metrics.overhead(OverheadStage::Write, self.clock.now().since(start));
        response
    }

    /// Parses a call, derives its priority and deadlines, and finds out whether it may be merged.
    fn prepare_call(
        &self,
        table: &RoutingTable,
        endpoint: &Arc<Endpoint>,
        buffered: &BufferedRequest,
        arrival: CallArrival,
        recorder: &mut CallRecorder,
    ) -> PreparedCall {
        let route = table.route(endpoint.route);
        let headers = &buffered.head.headers;
        let start = self.clock.now();
        let (endpoint, call) = self.parse_call(table, endpoint, buffered);
        let call = Arc::new(self.weigh_call(call));
        self.metrics.overhead(OverheadStage::Read, self.clock.now().since(start));
        let CallRequirements { priority, slo, requested_deadlines, core_deadlines } =
            self.resolve_requirements(table, route, headers, arrival.at);
        recorder.set_slo(slo);
        recorder.on_parsed(
            &endpoint,
            &call,
            table.priorities.class(priority),
            requested_deadlines.first.map(|deadline| deadline.at),
        );
        // The limits that a server publishes are looked up in the background. A call that arrives
        // before they are known does not wait for them.
        let source = endpoint.limits_source(&call);
        let look_up = source.as_ref().map(|source| self.backend.published_limits(source));
        let published = look_up.and_then(LimitsLookUp::limits);
        let batches_itself = published.filter(|_| endpoint.needs_info).map(|limits| limits.batches_itself);
        let reason = self.unmergeable_reason(table, &call, buffered.trailers.is_some(), batches_itself);
        let reason = reason.or_else(|| endpoint.unmergeable_model(published));
        // Before a server that batches by itself, the parts of a call are sent one by one.
        let is_divided = reason.is_none_or(|reason| reason == UnmergeableReason::NoGain)
            && endpoint.is_divisible(&call)
            && !self.undivided.contains(start, &call.cost_class);
        let submission = Submission {
            division: is_divided.then_some(route.division),
            call: call.clone(),
            endpoint: endpoint.clone(),
            scope: route.scope,
            priority,
            tenant_weight: table.tenant_weights.of(headers),
            alone: reason.is_some(),
            origin: CallOrigin::Client,
            client: Some(arrival.client),
            batches_itself: batches_itself.map(|batches| batches && !table.names_protocol),
            deadline: core_deadlines.first,
            later: core_deadlines.fallback,
            slo,
            caller_deadline: core_deadlines.caller,
            timeout: route.timeout,
            pending_limits: source.filter(|_| reason.is_none() && look_up == Some(LimitsLookUp::Pending)),
            published_items_max: published.and_then(|limits| limits.items_max),
            published_weight_max: published.and_then(|limits| limits.weight_max),
        };
        PreparedCall { endpoint, call, submission, deadlines: core_deadlines, reason, batches_itself }
    }

    /// Returns a call with its weight at the rates that were learned for its model.
    pub(super) fn weigh_call(&self, mut call: Call) -> Call {
        call.weight = self.tokens.weigh(&call).unwrap_or(call.weight);
        call
    }

    /// Returns the reason why a call cannot be merged, if there is one.
    fn unmergeable_reason(
        &self,
        table: &RoutingTable,
        call: &Call,
        has_trailers: bool,
        batches_itself: Option<bool>,
    ) -> Option<UnmergeableReason> {
        match &call.merge {
            MergeEligibility::Alone(reason) => Some(*reason),
            MergeEligibility::With(_) if has_trailers => Some(UnmergeableReason::Header),
            // In front of a server that batches by itself, calls are merged only where a route
            // names its protocol. That property is recorded for the upstream as a whole and cannot
            // hold for some routes only, so next to such a route these calls are executed unbatched
            // on slots.
            MergeEligibility::With(_) if batches_itself == Some(true) && table.names_protocol => {
                Some(UnmergeableReason::NoGain)
            }
            MergeEligibility::With(_) if self.backend.is_merging_unsafe(call) => Some(UnmergeableReason::AnswerVaries),
            MergeEligibility::With(_) => None,
        }
    }

    /// Resolves the priority, SLO and deadlines of a call from its headers and its route.
    pub(super) fn resolve_requirements(
        &self,
        table: &RoutingTable,
        route: &RouteSettings,
        headers: &HeaderMap,
        arrived: Tick,
    ) -> CallRequirements {
        let priority = table.priorities.resolve(headers);
        let slo = table.priorities.class(priority).and_then(|class| class.slo).or(route.slo);
        let deadlines = |slo| resolve_deadlines(arrived, headers, &table.deadline_headers, (slo, route.timeout));
        let requested_deadlines = deadlines(slo);
        let shift = slo.map(|slo| self.shifts.get(slo).max(table.min_deadline_shift(slo))).unwrap_or_default();
        let core_deadlines = if shift.is_zero() { requested_deadlines } else { deadlines(slo.map(|slo| slo - shift)) };
        CallRequirements { priority, slo, requested_deadlines, core_deadlines }
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
        let in_time = pin!(async {
            match deadline {
                None => Ok(work.await),
                Some(at) => {
                    tokio::time::timeout_at(self.clock.instant(at), work).await.map_err(|_| FailureKind::Deadline)
                }
            }
        });
        await_unless_cancelled(&self.cut, in_time).await.unwrap_or(Err(FailureKind::Draining))
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
        // The policy has no pass-through detection.
        None => batches_itself.filter(|batches| *batches).map(|_| UnmergeableReason::NoGain),
    }
}

/// Removes the policy's tenant header from the nominations of `Connection`, so that hop-by-hop
/// processing (RFC 9110, 7.6.1) cannot strip the identity of the caller. Nominations of the
/// well-known identity headers are ignored elsewhere.
fn protect_tenant_header(headers: &mut HeaderMap, tenant: &HeaderName) {
    let is_tenant = |token: &[u8]| token.trim_ascii().eq_ignore_ascii_case(tenant.as_str().as_bytes());
    let values: Vec<HeaderValue> = headers.get_all(CONNECTION).iter().cloned().collect();
    if !values.iter().any(|value| value.as_bytes().split(|byte| *byte == b',').any(is_tenant)) {
        return;
    }
    headers.remove(CONNECTION);
    for value in values {
        let retained: Vec<&[u8]> =
            value.as_bytes().split(|byte| *byte == b',').filter(|token| !is_tenant(token)).collect();
        if let Ok(retained) = HeaderValue::from_bytes(&retained.join(&b","[..])) {
            headers.append(CONNECTION, retained);
        }
    }
}

/// Returns `true` if the head has more than `max` lines. HTTP/2 may split a cookie into several
/// fields, which count as one line (RFC 9113, 8.2.3).
fn has_more_lines(headers: &HeaderMap, max: usize) -> bool {
    let cookie_fields = || headers.get_all(http::header::COOKIE).iter().count();
    headers.len() > max && headers.len() - cookie_fields().saturating_sub(1) > max
}

fn content_length(request: &Request<Incoming>) -> Option<u64> {
    use http_body::Body as _;
    request.body().size_hint().exact()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_connection_header_cannot_nominate_the_tenant_header() {
        let mut headers = HeaderMap::new();
        headers.append(CONNECTION, HeaderValue::from_static("x-hop, X-Acme,keep-alive"));
        headers.append(CONNECTION, HeaderValue::from_static("x-acme"));
        protect_tenant_header(&mut headers, &HeaderName::from_static("x-acme"));
        let left: Vec<_> = headers.get_all(CONNECTION).iter().map(HeaderValue::as_bytes).collect();
        assert_eq!(left, [&b"x-hop,keep-alive"[..], b""]);
    }

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
