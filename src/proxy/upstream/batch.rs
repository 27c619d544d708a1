//! Execution of a batch: write the shared call, send it, validate and split the response, and
//! isolate failures.
//!
//! A batch response is validated completely before any member is answered. If the call fails or the
//! response is invalid, the members are sent again alone in their original form, in the slot of the
//! batch. Each member is entitled to this one unbatched retry at any cost; the replay budget limits
//! only the smaller batches in between. If a retry is not allowed, the members receive 502.
//!
//! A streamed response is split as it arrives ([`stream`](super::stream)).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::{Request, Version};

use super::Inner;
use super::exchange::{UnbatchedResponse, UpstreamResponse};
use super::head::prepare_upstream_head;
use super::part_result::{
    PartResult, judge_error_status, judge_failure, judge_mismatch, judge_too_large, outcome_without_retry,
    report_mismatch,
};
use super::published::{self, published_limits};
use super::stream::{OpenStreams, StreamedBatch};
use crate::backend::{Backend, BatchOutputs, BatchRequest, LimitsLookUp};
use crate::batching::{BatchOutcome, IsolationPlan, MemberRange, Observation, PartOutcome};
use crate::body::Body;
use crate::bounded_body::MinRate;
use crate::error::FailureKind;
use crate::protocol::{BatchResponse, Call, LimitsSource, Reply, SharedRequest, headers, is_overload};
use crate::telemetry::names::OverheadStage;

/// Minimum rate of a response to a shared call, since all members wait for it. A slower response is
/// abandoned and the batch is isolated. The rate is 1 KiB/s, measured over windows that allow for
/// pauses in which the server computes.
const SHARED_FLOOR: MinRate = MinRate { bytes: 10 << 10, window: Duration::from_secs(10) };

/// Observations about the server during isolation.
#[derive(Debug, Default)]
struct IsolationEvidence {
    /// Members that were answered successfully alone.
    answered: Vec<usize>,
    /// Parts with several members that failed.
    failed: Vec<MemberRange>,
    /// The server answered a part with several members as a whole, so it accepts batches.
    merged: bool,
}

// === impl IsolationEvidence ===

impl IsolationEvidence {
    /// Returns `true` if all members of a failed part succeeded one by one, and no part with
    /// several members was accepted.
    fn is_refusing_batches(&self) -> bool {
        let answered_alone = |part: &MemberRange| part.clone().all(|member| self.answered.contains(&member));
        !self.merged && self.failed.iter().any(answered_alone)
    }
}

/// The interface for batches.
#[derive(Debug)]
pub(super) struct BatchExecutor(pub(super) Arc<Inner>);

impl Backend for BatchExecutor {
    fn execute<'a>(&'a self, request: BatchRequest, outputs: &'a mut dyn BatchOutputs) -> BoxFuture<'a, Observation> {
        execute(&self.0, request, outputs).boxed()
    }

    fn is_merging_unsafe(&self, call: &Call) -> bool {
        self.0.evidence.is_unbatched(self.0.clock.now(), call)
    }

    fn take_replay(&self) -> bool {
        let now = self.0.clock.now();
        self.0.budget.lock().is_ok_and(|mut budget| budget.try_take_replay(now))
    }

    fn published_limits(&self, source: &LimitsSource) -> LimitsLookUp {
        published_limits(&self.0, source)
    }

    fn batches_text(&self) -> Option<bool> {
        published::batches_text(&self.0)
    }
}

async fn execute(inner: &Arc<Inner>, request: BatchRequest, outputs: &mut dyn BatchOutputs) -> Observation {
    let started = inner.clock.now();
    let whole = 0..request.members.len();
    if let Ok(mut budget) = inner.budget.lock() {
        for _ in &request.members {
            budget.record_client_call(started);
        }
        budget.record_first_send(started);
    }
    let mut first_byte = None;
    let mut streams = OpenStreams::default();
    let judged = try_part(inner, &request, whole.clone(), outputs, &mut first_byte, &mut streams).await;
    let outcome = match judged {
        PartResult::Split(replies, _held) => {
            let outcome = BatchOutcome::Ok;
            let observed = Observation { duration: inner.clock.now().since(started), first_byte, outcome };
            outputs.release_slot(observed);
            // Yield first, so that the next batch is dispatched before the members are answered:
            // delivering the replies wakes one task for each member.
            tokio::task::yield_now().await;
            deliver_all(outputs, whole, replies);
            return observed;
        }
        PartResult::Answered(outcome) => outcome,
        PartResult::Retry { or, observed, refusal, allowed: false, .. } => {
            fail_part(outputs, whole, or);
            outcome_without_retry(observed, refusal)
        }
        PartResult::Retry { verdict, observed, refusal, allowed: true, .. } => {
            let evidence = isolate(inner, &request, verdict, outputs, &mut streams).await;
            streams.wait_end().await;
            match refusal {
                Some(refusal) if evidence.is_refusing_batches() => BatchOutcome::Refused(refusal),
                _ => observed,
            }
        }
    };
    Observation { duration: inner.clock.now().since(started), first_byte, outcome }
}

/// Retries the members in smaller parts, one after the other, until each member is answered.
async fn isolate(
    inner: &Arc<Inner>,
    request: &BatchRequest,
    verdict: PartOutcome,
    outputs: &mut dyn BatchOutputs,
    streams: &mut OpenStreams,
) -> IsolationEvidence {
    tracing::debug!(batch = request.id.0, members = request.members.len(), ?verdict, "isolating a failed batch");
    let items = request.members.iter().map(|call| call.items).collect();
    let mut plan = IsolationPlan::new(items, inner.isolate_above.load(Ordering::Relaxed), verdict);
    let mut evidence = IsolationEvidence::default();
    evidence.failed.push(0..request.members.len());
    outputs.on_isolation();
    while let Some(part) = plan.next_part() {
        // No retry is needed if every client of the part has left.
        if !part.clone().any(|member| outputs.is_waiting(member)) {
            continue;
        }
        // A smaller batch of streams would end with its longest one, and delay all that follow.
        if request.is_stream() && part.len() > 1 {
            plan.split(part);
            continue;
        }
        if !take_replay(inner, &part) {
            tracing::debug!(batch = request.id.0, "replay budget empty: each member is sent alone");
            plan.split(part);
            continue;
        }
        inner.metrics.isolation_execution();
        let isolated = part.clone().map(|member| request.members.get(member).map_or(0, |call| call.items)).sum();
        // A retry gets the time of an unbatched call; the time that the batch has used is not
        // deducted.
        match try_part(inner, request, part.clone(), outputs, &mut None, streams).await {
            PartResult::Answered(outcome) if part.len() == 1 && outcome == BatchOutcome::Ok => {
                evidence.answered.push(part.start);
            }
            PartResult::Answered(_) => {}
            PartResult::Split(replies, _held) => {
                evidence.merged = true;
                deliver_all(outputs, part, replies);
            }
            PartResult::Retry { verdict, or, observed, allowed, .. } => {
                // A response that must not be delivered shows that the server accepts batches.
                evidence.merged |= observed == BatchOutcome::Withheld;
                if allowed {
                    evidence.failed.push(part.clone());
                    plan.record_outcome(part, verdict);
                    continue;
                }
                fail_part(outputs, part, or);
            }
        }
        inner.metrics.items_isolated(isolated);
    }
    evidence
}

/// Takes a replay from the budget, and returns `true` if the part may be sent. An unbatched retry
/// is recorded but never refused. A smaller batch is made only if the budget allows it.
fn take_replay(inner: &Inner, part: &MemberRange) -> bool {
    let now = inner.clock.now();
    let is_lone = part.len() == 1;
    match inner.budget.lock() {
        Ok(mut budget) if is_lone => {
            budget.record_replay(now);
            true
        }
        Ok(mut budget) => budget.try_take_replay(now),
        Err(_) => is_lone,
    }
}

fn fail_part(outputs: &mut dyn BatchOutputs, part: MemberRange, kind: FailureKind) {
    for member in part {
        outputs.deliver(member, Err(kind.into()));
    }
}

/// Makes one upstream call for a part of the batch: the original call for a single member, and a
/// merged one otherwise.
async fn try_part(
    inner: &Arc<Inner>,
    request: &BatchRequest,
    part: MemberRange,
    outputs: &mut dyn BatchOutputs,
    first_byte: &mut Option<Duration>,
    streams: &mut OpenStreams,
) -> PartResult {
    if part.len() == 1 {
        return execute_unbatched(inner, request, part, outputs, streams).await;
    }
    let endpoint = &request.endpoint;
    let members: Vec<&Call> = request.members.get(part.clone()).unwrap_or_default().iter().map(AsRef::as_ref).collect();
    let clock = inner.clock;
    let began = clock.now();
    let sent = endpoint.write_batch(&members, request.deadline_ms);
    inner.metrics.overhead(OverheadStage::Merge, clock.now().since(began));
    if let Some(too_large) = endpoint.detect_oversize(&members, &sent) {
        return judge_too_large(too_large, None);
    }
    let Some(http) = to_http(&sent) else {
        fail_part(outputs, part, FailureKind::Internal);
        return PartResult::Answered(BatchOutcome::Failed);
    };
    let pending = match inner.begin(http, request.timeout).await {
        Ok(pending) => pending,
        Err(kind) => return judge_failure(endpoint, kind),
    };
    *first_byte = Some(pending.first_byte);
    if request.is_stream() && pending.head.status.is_success() {
        return StreamedBatch { inner, request, part, outputs }.run(sent, pending).await;
    }
    let answer = match inner.read_whole(pending, Some(SHARED_FLOOR)).await {
        Ok(answer) => answer,
        Err(kind) => return judge_failure(endpoint, kind),
    };
    let UpstreamResponse { headers, trailers, .. } = &answer;
    let (status, body) = endpoint.response_status(answer.status, (headers, trailers.as_ref()), &answer.body);
    let shared = BatchResponse { status, headers, body: &body };
    // Servers also report this with 503. It then concerns this batch rather than their load.
    let out_of_memory = !status.is_success() && endpoint.is_out_of_memory(status, &body);
    if is_overload(status) && !out_of_memory {
        deliver_all(outputs, part, endpoint.overload_replies(&members, &sent, shared, &inner.evidence));
        return PartResult::Answered(BatchOutcome::Overloaded { retry_after: headers::parse_retry_after(headers) });
    }
    if !status.is_success() {
        return judge_error_status(endpoint, status, &body, out_of_memory);
    }
    let began = clock.now();
    let split = endpoint.split_batch(&members, &sent, shared, Some((clock.now(), &inner.evidence)));
    inner.metrics.overhead(OverheadStage::Split, clock.now().since(began));
    match split {
        Ok(replies) => {
            endpoint.observe_tokens(&members, shared, &inner.tokens);
            PartResult::Split(replies, answer.held)
        }
        Err(mismatch) => {
            report_mismatch(inner, request, &mismatch, members.len());
            judge_mismatch(endpoint, &mismatch)
        }
    }
}

/// Sends the original call of one member, and delivers the response of the upstream.
async fn execute_unbatched(
    inner: &Arc<Inner>,
    request: &BatchRequest,
    part: MemberRange,
    outputs: &mut dyn BatchOutputs,
    streams: &mut OpenStreams,
) -> PartResult {
    let member = part.start;
    let Some(call) = request.members.get(member) else { return PartResult::Answered(BatchOutcome::Failed) };
    let answer = match original_request(call) {
        Some(http) => inner.exchange_unbatched(http, request.timeout, call.is_mergeable_stream()).await,
        None => Err(FailureKind::Internal),
    };
    let answer = match answer {
        Ok(UnbatchedResponse::Streamed(mut response)) => {
            headers::strip_hop_by_hop(response.headers_mut());
            let answered = response.status().is_success();
            outputs.deliver_streamed(member, streams.hold(call, response));
            return PartResult::Answered(if answered { BatchOutcome::Ok } else { BatchOutcome::Failed });
        }
        Ok(UnbatchedResponse::Whole(answer)) => Ok(answer),
        Err(kind) => Err(kind.into()),
    };
    let mut answered = false;
    let result = answer.map(|answer| {
        let heads = (&answer.headers, answer.trailers.as_ref());
        let (status, body) = request.endpoint.response_status(answer.status, heads, &answer.body);
        let unbatched = BatchResponse { status, headers: &answer.headers, body: &body };
        request.endpoint.observe_lone(call, unbatched, &inner.evidence);
        answered = status.is_success();
        let mut headers = answer.headers;
        headers::strip_hop_by_hop(&mut headers);
        // The framing is generated again, with the actual length of the body.
        headers.remove(http::header::CONTENT_LENGTH);
        Reply { status: answer.status, headers, body: answer.body, trailers: answer.trailers }
    });
    let outcome = if answered { BatchOutcome::Ok } else { BatchOutcome::Failed };
    outputs.deliver(member, result);
    PartResult::Answered(outcome)
}

/// Returns the original call of a member, prepared in the same way as any unbatched call.
fn original_request(call: &Call) -> Option<Request<Body>> {
    let mut request =
        Request::builder().method(&call.head.method).uri(&call.head.uri).body(Body::full(call.body.clone())).ok()?;
    request.headers_mut().clone_from(&call.head.headers);
    if call.head.uri.authority().is_some() {
        // Only HTTP/2 puts the authority into the target of such a call, and its cookies may be
        // split into several fields.
        *request.version_mut() = Version::HTTP_2;
    }
    prepare_upstream_head(&mut request, None);
    Some(request)
}

fn deliver_all(outputs: &mut dyn BatchOutputs, part: MemberRange, replies: Vec<Reply>) {
    debug_assert_eq!(part.len(), replies.len(), "one reply for each member");
    for (member, reply) in part.zip(replies) {
        outputs.deliver(member, Ok(reply));
    }
}

fn to_http(sent: &SharedRequest) -> Option<Request<Body>> {
    let builder = Request::builder().method(&sent.method).uri(&sent.target).version(sent.version);
    let mut request = builder.body(Body::full(sent.body.clone())).ok()?;
    request.headers_mut().clone_from(&sent.headers);
    Some(request)
}
