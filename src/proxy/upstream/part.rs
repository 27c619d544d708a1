//! Execution of one part of a batch: write the shared call, send it, validate and split the
//! response. A part of one member is sent in its original form.

use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response, Version};

use super::Inner;
use super::exchange::{PendingResponse, UnbatchedResponse};
use super::head::prepare_upstream_head;
use super::part_result::{
    PartResult, judge_error_status, judge_failure, judge_mismatch, judge_too_large, report_mismatch,
};
use super::stream::{OpenStreams, StreamedBatch};
use crate::backend::{BatchOutputs, BatchRequest, BufferedReply};
use crate::batching::{BatchOutcome, MemberRange};
use crate::body::Body;
use crate::bounded_body::MinRate;
use crate::error::FailureKind;
use crate::memory::BufferGuard;
use crate::protocol::{BatchResponse, Call, Reply, SharedRequest, headers, is_overload};
use crate::telemetry::names::OverheadStage;

/// Minimum rate of a response to a shared call, since all members wait for it. A slower response is
/// abandoned and the batch is isolated. The rate is 1 KiB/s, measured over windows that allow for
/// pauses in which the server computes.
const SHARED_FLOOR: MinRate = MinRate { bytes: 10 << 10, window: Duration::from_secs(10) };

/// Makes one upstream call for a part of the batch: the original call for a single member, and a
/// shared one otherwise. `first_byte` is set to the time of the first byte of the response to a
/// shared call. Streamed responses of single members are added to `streams`.
pub(super) async fn try_part(
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
    inner.metrics.record_overhead(OverheadStage::Merge, clock.now().since(began));
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
    let answer = match inner.read_shared(pending, SHARED_FLOOR).await {
        Ok(answer) => answer,
        Err(kind) => return judge_failure(endpoint, kind),
    };
    let BufferedReply { reply: Reply { status, headers, body, trailers }, held } = answer;
    let (status, body) = endpoint.response_status(status, (&headers, trailers.as_ref()), &body);
    let shared = BatchResponse { status, headers: &headers, body: &body };
    // Servers may report a lack of memory with 503. It is then caused by the size of this batch
    // rather than by their load.
    let out_of_memory = !status.is_success() && endpoint.is_out_of_memory(status, &body);
    if is_overload(status) && !out_of_memory {
        let replies = endpoint.overload_replies(&members, &sent, shared, &inner.evidence);
        let charged = replies.into_iter().map(|reply| BufferedReply::new(reply, &inner.buffers)).collect();
        deliver_all(outputs, part, charged);
        return PartResult::Answered(BatchOutcome::Overloaded { retry_after: headers::parse_retry_after(&headers) });
    }
    if !status.is_success() {
        return judge_error_status(endpoint, status, &body, out_of_memory);
    }
    split_response((inner, request), (&members, &sent), shared, held)
}

/// Splits the response to a batch into one reply for each member. `held` is the charge of the
/// response and of the replies, which are copies.
fn split_response(
    (inner, request): (&Inner, &BatchRequest),
    (members, sent): (&[&Call], &SharedRequest),
    shared: BatchResponse<'_>,
    mut held: BufferGuard,
) -> PartResult {
    let (endpoint, began) = (&request.endpoint, inner.clock.now());
    let split = endpoint.split_batch(members, sent, shared, Some((began, &inner.evidence)));
    inner.metrics.record_overhead(OverheadStage::Split, inner.clock.now().since(began));
    match split {
        Ok(replies) => {
            endpoint.observe_tokens(members, shared, &inner.tokens);
            PartResult::Split(replies.into_iter().map(|reply| BufferedReply::from_reserved(reply, &mut held)).collect())
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
    let answer = match begin_unbatched(inner, call, request.timeout).await {
        Ok(pending) => inner.read_unbatched(pending, call.is_mergeable_stream()).await,
        Err(kind) => Err(kind),
    };
    PartResult::Answered(deliver_unbatched((inner, request), member, answer, outputs, streams))
}

/// Sends the original call of a member, and reads the head of its response.
pub(super) async fn begin_unbatched(
    inner: &Arc<Inner>,
    call: &Call,
    timeout: Option<Duration>,
) -> Result<PendingResponse, FailureKind> {
    let http = original_request(call).ok_or(FailureKind::Internal)?;
    inner.begin(http, timeout).await
}

/// Delivers the response to the original call of a member, and returns the outcome.
pub(super) fn deliver_unbatched(
    (inner, request): (&Arc<Inner>, &BatchRequest),
    member: usize,
    answer: Result<UnbatchedResponse, FailureKind>,
    outputs: &mut dyn BatchOutputs,
    streams: &mut OpenStreams,
) -> BatchOutcome {
    let Some(call) = request.members.get(member) else { return BatchOutcome::Failed };
    let is_answered = match answer {
        Ok(UnbatchedResponse::Streamed(response)) => {
            let (mut head, body) = response.into_parts();
            let body = inner.observe_stream((&request.endpoint, call), (head.status, &head.headers), body);
            headers::strip_hop_by_hop(&mut head.headers);
            let is_answered = head.status.is_success();
            outputs.deliver_streamed(member, streams.hold(call, Response::from_parts(head, body)));
            is_answered
        }
        Ok(UnbatchedResponse::Whole(BufferedReply { mut reply, held })) => {
            let heads = (&reply.headers, reply.trailers.as_ref());
            let (status, body) = request.endpoint.response_status(reply.status, heads, &reply.body);
            let unbatched = BatchResponse { status, headers: &reply.headers, body: &body };
            request.endpoint.observe_unbatched(call, unbatched, &inner.evidence);
            headers::strip_hop_by_hop(&mut reply.headers);
            // The framing is generated again, with the actual length of the body.
            reply.headers.remove(http::header::CONTENT_LENGTH);
            outputs.deliver(member, Ok(BufferedReply { reply, held }));
            status.is_success()
        }
        Err(kind) => {
            outputs.deliver(member, Err(kind.into()));
            false
        }
    };
    if is_answered { BatchOutcome::Ok } else { BatchOutcome::Failed }
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

pub(super) fn fail_part(outputs: &mut dyn BatchOutputs, part: MemberRange, kind: FailureKind) {
    for member in part {
        outputs.deliver(member, Err(kind.into()));
    }
}

/// Answers each member of a part with its reply.
pub(super) fn deliver_all(outputs: &mut dyn BatchOutputs, part: MemberRange, replies: Vec<BufferedReply>) {
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
