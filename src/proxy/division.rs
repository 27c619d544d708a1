//! Calls that are too large for the server or the policy: their parts are queued like calls of
//! their own, may share batches with others, and their responses are joined in order.
//!
//! The response is complete or an error: the first part that fails ends the call with its error,
//! and the parts that are not sent yet are withdrawn. If the responses cannot be joined exactly,
//! the call is sent whole, and so are later ones of its cost class.

mod undivided;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::stream::{self, StreamExt};
use http::HeaderValue;

use super::Proxy;
use super::deadline::expiry;
use super::unbatched::BufferedRequest;
use crate::backend::BufferedReply;
use crate::batching::{DeadlineSource, LateTreatment, PartLimits};
use crate::error::{Failure, FailureKind};
use crate::protocol::{Call, PartAnswer, headers};
use crate::scheduler::{ExecutionDetails, Submission, SubmitOutcome};

pub(super) use undivided::UndividedClasses;

/// Maximum time for which a part waits for room in the queue: the responses to the other parts
/// occupy memory meanwhile. A queue that takes longer to drain is overloaded.
const PART_WAIT_MAX: Duration = Duration::from_secs(30);

/// The successful response to a part.
struct PartReply {
    answer: BufferedReply,
    details: ExecutionDetails,
}

// === impl Proxy ===

impl Proxy {
    /// Submits a call, in parts if it is too large.
    pub(super) async fn submit(self: &Arc<Self>, submission: Submission, buffered: &BufferedRequest) -> SubmitOutcome {
        match self.scheduler.submit(submission).await {
            // Boxed, so that the other calls do not reserve its memory.
            SubmitOutcome::Divide(whole, limits) => Box::pin(self.submit_divided(*whole, limits, buffered)).await,
            outcome => outcome,
        }
    }

    /// Executes a call in parts and joins their responses, or submits the whole call if it cannot
    /// be divided or the responses cannot be joined.
    async fn submit_divided(
        self: &Arc<Self>,
        whole: Submission,
        limits: PartLimits,
        buffered: &BufferedRequest,
    ) -> SubmitOutcome {
        let whole = Submission { division: None, ..whole };
        let Some(plan) = whole.endpoint.plan_division(&whole.call, &limits) else {
            return self.scheduler.submit(whole).await;
        };
        let mut held = self.buffers.empty();
        if held.grow(plan.bytes).is_err() {
            return SubmitOutcome::Failed(FailureKind::BytesFull.into(), ExecutionDetails::default());
        }
        let Some(parts) = whole.endpoint.divide_call(&whole.call, &buffered.head, &plan, &self.secret) else {
            drop(held);
            return self.scheduler.submit(whole).await;
        };
        self.metrics.record_division(parts.len());
        // The parts of a call that is late by its SLO are queued like it.
        let ends_at = expiry([whole.deadline, whole.later], LateTreatment::Serve);
        let prepared = parts.into_iter().map(|part| self.prepare_for_backend(self.weigh_call(part), move || ends_at));
        let parts: Vec<Arc<Call>> = join_all(prepared).await.into_iter().map(Arc::new).collect();
        let replies = match self.execute_parts(&whole, &parts, &limits, buffered).await {
            Ok(replies) => replies,
            Err((place, outcome)) => return with_items(*outcome, plan.ranges.get(place)),
        };
        let answers: Vec<PartAnswer<'_>> =
            parts.iter().zip(&replies).map(|(call, part)| PartAnswer { call, reply: &part.answer.reply }).collect();
        match whole.endpoint.join_answers(&answers) {
            Ok(reply) => {
                let joined = BufferedReply::new(reply, &self.buffers);
                SubmitOutcome::Reply(Box::new(joined), join_details(&replies))
            }
            Err(mismatch) => {
                if self.undivided.on_mismatch(self.clock.now(), &whole.call.cost_class, mismatch.what) {
                    tracing::warn!(
                        %mismatch,
                        route = whole.endpoint.route_path(),
                        parts = parts.len(),
                        "the responses to the parts of a large call cannot be joined: such calls are sent whole; if \
                         the responses have a member that every caller may see, add it to respondWith.fields"
                    );
                }
                self.scheduler.submit(whole).await
            }
        }
    }

    /// Executes all parts. The error is the place and the outcome of the first part that failed.
    async fn execute_parts(
        self: &Arc<Self>,
        whole: &Submission,
        parts: &[Arc<Call>],
        limits: &PartLimits,
        buffered: &BufferedRequest,
    ) -> Result<Vec<PartReply>, (usize, Box<SubmitOutcome>)> {
        let concurrent = usize::try_from(limits.concurrent).unwrap_or(usize::MAX);
        let answer_max = self.config.answer_bytes_max.min(self.buffers.answer_max());
        let executions: Vec<_> = parts
            .iter()
            .enumerate()
            .map(|(place, part)| {
                let submission = Submission { call: part.clone(), ..whole.clone() };
                // A call of which no part has a place in the queue is refused like any other.
                Box::pin(self.clone().execute_part(submission, buffered.of_part(part), place > 0))
            })
            .collect();
        // Dropping the stream withdraws the parts that are queued, and aborts those in flight.
        let mut executions = stream::iter(executions).buffered(concurrent);
        let (mut replies, mut bytes) = (Vec::with_capacity(parts.len()), 0_usize);
        while let Some(part) = executions.next().await {
            let place = replies.len();
            let part = part.map_err(|outcome| (place, outcome))?;
            bytes = bytes.saturating_add(part.answer.reply.body.len());
            if bytes > answer_max {
                let failed = SubmitOutcome::Failed(FailureKind::AnswerTooLarge.into(), part.details);
                return Err((place, Box::new(failed)));
            }
            replies.push(part);
        }
        Ok(replies)
    }

    /// Executes a part. The error is its outcome if it has no successful response. If `waits` is
    /// `true`, the part waits for room in a full queue.
    async fn execute_part(
        self: Arc<Self>,
        submission: Submission,
        buffered: BufferedRequest,
        waits: bool,
    ) -> Result<PartReply, Box<SubmitOutcome>> {
        let (call, endpoint, timeout) = (submission.call.clone(), submission.endpoint.clone(), submission.timeout);
        let (answer, details) = match self.queue_part(submission, waits).await {
            SubmitOutcome::Reply(answer, details) => (*answer, details),
            SubmitOutcome::Unbatched(permit) => {
                let details = permit.details;
                let failed = |kind| Box::new(SubmitOutcome::Failed(Failure::from(kind), details));
                let sent = (&endpoint, &call);
                (self.fetch_unbatched(buffered, permit, sent, timeout).await.map_err(failed)?, details)
            }
            // Its response is too large to be buffered. A stream is not requested by a part.
            SubmitOutcome::Streamed(_, details) => {
                return Err(Box::new(SubmitOutcome::Failed(FailureKind::AnswerTooLarge.into(), details)));
            }
            outcome @ (SubmitOutcome::Failed(..) | SubmitOutcome::Divide(..)) => return Err(Box::new(outcome)),
        };
        if !endpoint.is_success(&answer.reply) {
            return Err(Box::new(SubmitOutcome::Reply(Box::new(answer), details)));
        }
        Ok(PartReply { answer, details })
    }

    /// Queues a part. If the queue has no room for it and `waits` is `true`, it is queued again
    /// after the `Retry-After` of the rejection, which is the predicted time to drain the queue,
    /// unless the call would be too late then.
    async fn queue_part(&self, submission: Submission, waits: bool) -> SubmitOutcome {
        let now = self.clock.now();
        // An SLO ends no call on a route that serves late calls.
        let hard = submission.later.or(submission.deadline.filter(|deadline| deadline.source != DeadlineSource::Slo));
        let end = hard.map_or(now.after(PART_WAIT_MAX), |hard| hard.at.min(now.after(PART_WAIT_MAX)));
        loop {
            let outcome = self.scheduler.submit(submission.clone()).await;
            let SubmitOutcome::Failed(failure, _) = &outcome else { return outcome };
            let again = self.clock.now().after(failure.retry_after.unwrap_or(Duration::from_secs(1)));
            if !waits || again >= end || !is_without_room(failure.kind) {
                return outcome;
            }
            tokio::time::sleep_until(self.clock.instant(again)).await;
        }
    }
}

const fn is_without_room(kind: FailureKind) -> bool {
    matches!(kind, FailureKind::QueueFull | FailureKind::BytesFull | FailureKind::TenantShare)
}

/// Returns the outcome of a call of which a part failed. The error of the server may name items by
/// their index in the part, so a header has the range of the part in the call: the indices of its
/// first and its last item.
fn with_items(outcome: SubmitOutcome, items: Option<&Range<usize>>) -> SubmitOutcome {
    match (outcome, items) {
        (SubmitOutcome::Reply(mut answer, details), Some(items)) => {
            let name = format!("{}-{}", items.start, items.end.saturating_sub(1));
            if let Ok(value) = HeaderValue::try_from(name) {
                answer.reply.headers.insert(headers::ITEMS, value);
            }
            SubmitOutcome::Reply(answer, details)
        }
        (outcome, _) => outcome,
    }
}

/// Returns the details of the execution that was dispatched first, with the delays of the part that
/// was last.
fn join_details(parts: &[PartReply]) -> ExecutionDetails {
    let first = parts.iter().map(|part| part.details).min_by_key(|details| details.sent).unwrap_or_default();
    ExecutionDetails {
        queue_delay: parts.iter().map(|part| part.details.queue_delay).max().unwrap_or_default(),
        answered: parts.iter().map(|part| part.details.answered).max().flatten(),
        is_divided: true,
        ..first
    }
}
