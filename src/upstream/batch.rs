//! Executes a batch: write, send, validate, split, and isolate what failed.
//!
//! Nobody gets anything of a shared answer before the whole of it was validated. On any doubt the members are sent again alone, as they came, on the
//! batch's own slot. The one lone call is owed to each of them, whatever it costs; what the replay budget bounds is smaller batches in between. Where
//! nothing may be sent again they get an honest 502.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::{HeaderMap, Request, StatusCode, Version};

use super::Inner;
use super::exchange::{Answer, LoneAnswer};
use super::forward::prepare;
use super::published::look_up;
use crate::backend::{Backend, BatchRequest, Outputs};
use crate::batching::{Isolation, Observed, ObservedOutcome, Part, Refusal, Verdict};
use crate::body::Body;
use crate::error::FailureKind;
use crate::gather::RateFloor;
use crate::memory::Held;
use crate::protocol::{Call, Mismatch, MismatchKind, Published, Reply, SharedAnswer, headers, is_overload};
use crate::telemetry::names::Stage;

/// The least rate of a shared answer, all of which every member waits for: an answer that drips is
/// left, and its members are sent alone. 1 KiB/s over windows in which a server may compute on.
const SHARED_FLOOR: RateFloor = RateFloor { bytes: 10 << 10, window: Duration::from_secs(10) };

/// What came of one upstream call for a part of the batch.
enum Judged {
    /// The answer was cut into one for each member.
    Split(Vec<Reply>, Held),
    /// Every member of the part has its answer.
    Answered(ObservedOutcome),
    /// The part may be tried again in smaller parts; `or` is the answer where that is not allowed.
    Again { verdict: Verdict, or: FailureKind, observed: ObservedOutcome, refusal: Option<Refusal>, allowed: bool },
}

/// What isolation has shown of the server.
#[derive(Debug, Default)]
struct Shown {
    /// Members that were answered with success alone.
    answered: Vec<usize>,
    /// Parts of several members that failed.
    failed: Vec<Part>,
    /// A part of several members was answered whole: the server takes batches.
    merged: bool,
}

// === impl Shown ===

impl Shown {
    /// Whether members failed together that succeeded one by one, and none succeeded together.
    fn refuses_batches(&self) -> bool {
        let alone = |part: &Part| part.clone().all(|member| self.answered.contains(&member));
        !self.merged && self.failed.iter().any(alone)
    }
}

/// The port for batches.
#[derive(Debug)]
pub(super) struct Executor(pub(super) Arc<Inner>);

impl Backend for Executor {
    fn execute<'a>(&'a self, request: BatchRequest, outputs: &'a mut dyn Outputs) -> BoxFuture<'a, Observed> {
        execute(&self.0, request, outputs).boxed()
    }

    fn is_apart(&self, call: &Call) -> bool {
        self.0.evidence.is_apart(self.0.clock.now(), call)
    }

    fn published(&self) -> BoxFuture<'_, Option<Published>> {
        look_up(&self.0).boxed()
    }
}

async fn execute(inner: &Arc<Inner>, request: BatchRequest, outputs: &mut dyn Outputs) -> Observed {
    let started = inner.clock.now();
    let whole = 0..request.members.len();
    if let Ok(mut budget) = inner.budget.lock() {
        for _ in &request.members {
            budget.client(started);
        }
        budget.upstream(started);
    }
    let mut first_byte = None;
    let judged = try_part(inner, &request, whole.clone(), outputs, &mut first_byte, request.timeout).await;
    let outcome = match judged {
        Judged::Split(replies, _held) => {
            let outcome = ObservedOutcome::Ok;
            let observed = Observed { duration: inner.clock.now().since(started), first_byte, outcome };
            outputs.free(observed);
            // The next batch leaves first: handing out these answers wakes as many tasks as there are members.
            tokio::task::yield_now().await;
            deliver_all(outputs, whole, replies);
            return observed;
        }
        Judged::Answered(outcome) => outcome,
        Judged::Again { or, observed, allowed: false, .. } => {
            fail(outputs, whole, or);
            observed
        }
        Judged::Again { verdict, observed, refusal, allowed: true, .. } => {
            let shown = isolate(inner, &request, verdict, outputs).await;
            match refusal {
                Some(refusal) if shown.refuses_batches() => ObservedOutcome::Refused(refusal),
                _ => observed,
            }
        }
    };
    Observed { duration: inner.clock.now().since(started), first_byte, outcome }
}

/// Tries the members in smaller parts, one after the other, until each has an answer.
async fn isolate(inner: &Arc<Inner>, request: &BatchRequest, verdict: Verdict, outputs: &mut dyn Outputs) -> Shown {
    tracing::debug!(batch = request.id.0, members = request.members.len(), ?verdict, "isolating a failed batch");
    let items = request.members.iter().map(|call| call.items).collect();
    let mut plan = Isolation::new(items, inner.isolate_above.load(Ordering::Relaxed), verdict);
    let mut shown = Shown::default();
    shown.failed.push(0..request.members.len());
    outputs.isolating();
    while let Some(part) = plan.next_part() {
        if !part.clone().any(|member| outputs.is_waiting(member)) {
            continue;
        }
        let now = inner.clock.now();
        if part.len() == 1 {
            if let Ok(mut budget) = inner.budget.lock() {
                budget.replay(now);
            }
        } else if !inner.budget.lock().is_ok_and(|mut budget| budget.take(now)) {
            tracing::debug!(batch = request.id.0, "replay budget empty: each member alone");
            plan.split(part);
            continue;
        }
        inner.metrics.isolation_execution();
        let isolated = part.clone().map(|member| request.members.get(member).map_or(0, |call| call.items)).sum();
        // A lone call has the time that it has without a batch: the batch's own time is no part of it.
        match try_part(inner, request, part.clone(), outputs, &mut None, request.timeout).await {
            Judged::Answered(outcome) if part.len() == 1 && outcome == ObservedOutcome::Ok => {
                shown.answered.push(part.start);
            }
            Judged::Answered(_) => {}
            Judged::Split(replies, _held) => {
                shown.merged = true;
                deliver_all(outputs, part, replies);
            }
            Judged::Again { verdict, allowed: true, .. } => {
                shown.failed.push(part.clone());
                plan.refine(part, verdict);
                continue;
            }
            Judged::Again { or, .. } => fail(outputs, part, or),
        }
        inner.metrics.items_isolated(isolated);
    }
    shown
}

fn fail(outputs: &mut dyn Outputs, part: Part, kind: FailureKind) {
    for member in part {
        outputs.deliver(member, Err(kind.into()));
    }
}

/// One upstream call for a part of the batch: alone and as it came for a single member, written together for more.
async fn try_part(
    inner: &Arc<Inner>,
    request: &BatchRequest,
    part: Part,
    outputs: &mut dyn Outputs,
    first_byte: &mut Option<Duration>,
    left: Option<Duration>,
) -> Judged {
    if part.len() == 1 {
        return alone(inner, request, part, outputs, left).await;
    }
    let endpoint = &request.endpoint;
    let members: Vec<&Call> = request.members.get(part.clone()).unwrap_or_default().iter().map(AsRef::as_ref).collect();
    let clock = inner.clock;
    let began = clock.now();
    let sent = endpoint.write_batch(&members, request.deadline_ms);
    inner.metrics.overhead(Stage::Merge, clock.now().since(began));
    let Some(http) = to_http(&sent.method, &sent.target, &sent.headers, Body::full(sent.body.clone())) else {
        fail(outputs, part, FailureKind::Internal);
        return Judged::Answered(ObservedOutcome::Failed);
    };
    let answer = match inner.exchange(http, left, Some(SHARED_FLOOR)).await {
        Ok(answer) => answer,
        Err(kind) => {
            // Refused: nothing was sent, and alone it would be refused too. A timeout is never sent again.
            // Answers that cannot be kept together may fit one by one.
            let parts_may_succeed =
                matches!(kind, FailureKind::UpstreamBroken | FailureKind::AnswerTooLarge | FailureKind::BytesFull);
            return Judged::Again {
                verdict: Verdict::Failed,
                or: kind,
                observed: match kind {
                    // Answers that fit alone and not together: the next batch is smaller.
                    FailureKind::AnswerTooLarge => ObservedOutcome::TooLarge { limit: None },
                    FailureKind::UpstreamTimeout => ObservedOutcome::TimedOut,
                    _ => ObservedOutcome::Failed,
                },
                refusal: (kind == FailureKind::UpstreamBroken).then_some(Refusal::Reset),
                allowed: parts_may_succeed && endpoint.idempotent,
            };
        }
    };
    *first_byte = Some(answer.first_byte);
    let Answer { status, headers, body, .. } = &answer;
    let shared = SharedAnswer { status: *status, headers, body };
    // Said with 503 too, and then it is about this batch and not about load.
    let out_of_memory = !status.is_success() && endpoint.out_of_memory(*status, body);
    if is_overload(*status) && !out_of_memory {
        deliver_all(outputs, part, endpoint.answer_overload(&members, &sent, shared, &inner.evidence));
        return Judged::Answered(ObservedOutcome::Overloaded { retry_after: headers::retry_after(headers) });
    }
    if !status.is_success() {
        if let Some(too_large) = endpoint.too_large(*status, body) {
            // Refused for its size as a whole, so nothing of it has run: the parts are no replay of anything.
            let limit = too_large.limit;
            return Judged::Again {
                verdict: Verdict::TooLarge { limit },
                or: FailureKind::BatchFailed,
                observed: ObservedOutcome::TooLarge { limit },
                // A limit that is named is kept from then on.
                refusal: limit.is_none().then_some(Refusal::TooLarge(status.as_u16())),
                allowed: true,
            };
        }
        // The credential and the method are one for all members: parts would be answered likewise.
        let is_keyed = matches!(*status, StatusCode::UNAUTHORIZED | StatusCode::METHOD_NOT_ALLOWED);
        return Judged::Again {
            verdict: if is_keyed { Verdict::Inseparable } else { Verdict::Failed },
            or: FailureKind::BatchFailed,
            observed: if out_of_memory { ObservedOutcome::OutOfMemory } else { ObservedOutcome::Failed },
            refusal: (!out_of_memory).then_some(Refusal::Status(status.as_u16())),
            allowed: endpoint.idempotent,
        };
    }
    let began = clock.now();
    let split = endpoint.split_batch(&members, &sent, shared, Some((clock.now(), &inner.evidence)));
    inner.metrics.overhead(Stage::Split, clock.now().since(began));
    match split {
        Ok(replies) => Judged::Split(replies, answer.held),
        Err(Mismatch { what: MismatchKind::Undeclared, member }) => {
            if let Some(member) = member {
                tracing::warn!(
                    member,
                    path = request.members.first().map(|call| call.head.uri.path()),
                    "answers differ in a member outside the results: such calls go alone for a while; if every caller \
                     may see it, name it in respondWith.fields"
                );
            }
            inner.metrics.mismatch(MismatchKind::Undeclared.as_str());
            Judged::Again {
                // Parts would be answered likewise, and lone answers show what is constant.
                verdict: Verdict::Inseparable,
                or: FailureKind::Mismatch,
                observed: ObservedOutcome::Failed,
                refusal: None,
                allowed: endpoint.idempotent,
            }
        }
        Err(mismatch) => {
            tracing::warn!(batch = request.id.0, members = members.len(), %mismatch, "the answer to a batch cannot be split");
            inner.metrics.mismatch(mismatch.what.as_str());
            Judged::Again {
                verdict: Verdict::Failed,
                or: FailureKind::Mismatch,
                observed: if mismatch.quarantines() { ObservedOutcome::Mismatched } else { ObservedOutcome::Failed },
                // What starts a quarantine by itself needs no other evidence.
                refusal: (!mismatch.quarantines()).then_some(Refusal::Mismatch),
                allowed: endpoint.idempotent && endpoint.on_mismatch_isolates,
            }
        }
    }
}

/// Sends one member's original call, and gives it whatever the upstream answers.
async fn alone(
    inner: &Arc<Inner>,
    request: &BatchRequest,
    part: Part,
    outputs: &mut dyn Outputs,
    left: Option<Duration>,
) -> Judged {
    let member = part.start;
    let Some(call) = request.members.get(member) else { return Judged::Answered(ObservedOutcome::Failed) };
    let answer = match original(call) {
        Some(http) => inner.exchange_alone(http, left).await,
        None => Err(FailureKind::Internal),
    };
    let answer = match answer {
        Ok(LoneAnswer::Streamed(mut response)) => {
            headers::strip_hop_by_hop(response.headers_mut());
            let answered = response.status().is_success();
            outputs.deliver_streamed(member, response);
            return Judged::Answered(if answered { ObservedOutcome::Ok } else { ObservedOutcome::Failed });
        }
        Ok(LoneAnswer::Whole(answer)) => Ok(answer),
        Err(kind) => Err(kind.into()),
    };
    let result = answer.map(|answer| {
        let shown = SharedAnswer { status: answer.status, headers: &answer.headers, body: &answer.body };
        request.endpoint.observe_lone(call, shown, &inner.evidence);
        let mut headers = answer.headers;
        headers::strip_hop_by_hop(&mut headers);
        // The framing is made anew: the length is that of the bytes that are there.
        headers.remove(http::header::CONTENT_LENGTH);
        Reply { status: answer.status, headers, body: answer.body, trailers: answer.trailers }
    });
    let answered = result.as_ref().is_ok_and(|reply: &Reply| reply.status.is_success());
    let outcome = if answered { ObservedOutcome::Ok } else { ObservedOutcome::Failed };
    outputs.deliver(member, result);
    Judged::Answered(outcome)
}

/// A member's call as it came, made fit to be sent on as any call that goes alone.
fn original(call: &Call) -> Option<Request<Body>> {
    let mut request =
        Request::builder().method(&call.head.method).uri(&call.head.uri).body(Body::full(call.body.clone())).ok()?;
    request.headers_mut().clone_from(&call.head.headers);
    if call.head.uri.authority().is_some() {
        // Only HTTP/2 names the authority in the target of such a call; its cookies may come in pieces.
        *request.version_mut() = Version::HTTP_2;
    }
    prepare(&mut request, None);
    Some(request)
}

fn deliver_all(outputs: &mut dyn Outputs, part: Part, replies: Vec<Reply>) {
    debug_assert_eq!(part.len(), replies.len(), "one reply for each member");
    for (member, reply) in part.zip(replies) {
        outputs.deliver(member, Ok(reply));
    }
}

fn to_http(method: &http::Method, target: &str, headers: &HeaderMap, body: Body) -> Option<Request<Body>> {
    let mut request = Request::builder().method(method).uri(target).version(Version::HTTP_11).body(body).ok()?;
    *request.headers_mut() = headers.clone();
    Some(request)
}
