//! Calls that are too large for the server or the policy: their parts are queued like calls of their
//! own, may share batches with others, and their responses are joined in order.
//!
//! The response is complete or an error: the first part that fails ends the call with its error, and
//! the parts that are not sent yet are withdrawn. If the responses cannot be joined exactly, the call
//! is sent whole, and so are later ones of its cost class.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::stream::{self, StreamExt};

use super::Proxy;
use super::unbatched::BufferedRequest;
use crate::batching::PartLimits;
use crate::error::{Failure, FailureKind};
use crate::memory::BufferGuard;
use crate::protocol::{Call, PartAnswer, Reply};
use crate::scheduler::{ExecutionDetails, Submission, SubmitOutcome};

/// Maximum number of cost classes that are not divided: the number that the batching core
/// remembers. Beyond it, all of them are divided again.
const UNDIVIDED_MAX: usize = 256;

/// Cost classes that are not divided, because responses to their parts could not be joined.
#[derive(Debug, Default)]
pub(super) struct UndividedClasses(Mutex<HashSet<Box<[u8]>>>);

/// The successful response to a part.
struct PartReply {
    reply: Reply,
    details: ExecutionDetails,
    /// Memory charge of the response.
    _held: BufferGuard,
}

// === impl UndividedClasses ===

impl UndividedClasses {
    pub(super) fn contains(&self, class: &[u8]) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(class)
    }

    /// Adds a class. Returns `true` if it is new.
    fn insert(&self, class: &[u8]) -> bool {
        let mut classes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if classes.len() >= UNDIVIDED_MAX {
            classes.clear();
        }
        classes.insert(class.into())
    }
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

    async fn submit_divided(
        self: &Arc<Self>,
        whole: Submission,
        limits: PartLimits,
        buffered: &BufferedRequest,
    ) -> SubmitOutcome {
        let whole = Submission { division: None, ..whole };
        let Some(parts) = whole.endpoint.divide_call(&whole.call, &buffered.head, &limits, &self.secret) else {
            return self.scheduler.submit(whole).await;
        };
        let mut held = self.buffers.empty();
        if held.grow(parts.iter().map(|part| part.body.len()).sum()).is_err() {
            return SubmitOutcome::Failed(FailureKind::BytesFull.into(), ExecutionDetails::default());
        }
        self.metrics.call_divided(parts.len());
        let parts: Vec<Arc<Call>> = parts.into_iter().map(Arc::new).collect();
        let replies = match self.execute_parts(&whole, &parts, &limits, buffered).await {
            Ok(replies) => replies,
            Err(outcome) => return *outcome,
        };
        let answers: Vec<PartAnswer<'_>> =
            parts.iter().zip(&replies).map(|(call, part)| PartAnswer { call, reply: &part.reply }).collect();
        match whole.endpoint.join_answers(&answers) {
            Ok(reply) => SubmitOutcome::Reply(Box::new(reply), join_details(&replies)),
            Err(mismatch) => {
                if self.undivided.insert(&whole.call.cost_class) {
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

    /// Executes all parts. The error is the outcome of the first part that failed, in their order.
    async fn execute_parts(
        self: &Arc<Self>,
        whole: &Submission,
        parts: &[Arc<Call>],
        limits: &PartLimits,
        buffered: &BufferedRequest,
    ) -> Result<Vec<PartReply>, Box<SubmitOutcome>> {
        let concurrent = usize::try_from(limits.concurrent).unwrap_or(usize::MAX);
        let answer_max = self.config.answer_bytes_max.min(self.buffers.answer_max());
        let executions: Vec<_> = parts
            .iter()
            .map(|part| {
                let submission = Submission { call: part.clone(), ..whole.clone() };
                Box::pin(self.clone().execute_part(submission, buffered.of_part(part)))
            })
            .collect();
        // Dropping the stream withdraws the parts that are queued, and aborts those in flight.
        let mut executions = stream::iter(executions).buffered(concurrent);
        let (mut replies, mut bytes) = (Vec::with_capacity(parts.len()), 0_usize);
        while let Some(part) = executions.next().await {
            let part = part?;
            bytes = bytes.saturating_add(part.reply.body.len());
            if bytes > answer_max {
                return Err(Box::new(SubmitOutcome::Failed(FailureKind::AnswerTooLarge.into(), part.details)));
            }
            replies.push(part);
        }
        Ok(replies)
    }

    /// Executes a part. The error is its outcome if it has no successful response.
    async fn execute_part(
        self: Arc<Self>,
        submission: Submission,
        buffered: BufferedRequest,
    ) -> Result<PartReply, Box<SubmitOutcome>> {
        let (call, endpoint, timeout) = (submission.call.clone(), submission.endpoint.clone(), submission.timeout);
        let (reply, details, held) = match self.scheduler.submit(submission).await {
            SubmitOutcome::Reply(reply, details) => {
                let held = self.buffers.charge_unchecked(reply.body.len());
                (*reply, details, held)
            }
            SubmitOutcome::Alone(permit) => {
                let details = permit.details;
                let failed = |kind| Box::new(SubmitOutcome::Failed(Failure::from(kind), details));
                let response = self.forward_unbatched(None, buffered, permit, (&endpoint, &call), timeout).await;
                let (reply, held) = self.read_reply(response.map_err(failed)?).await.map_err(failed)?;
                (reply, details, held)
            }
            // Its response is too large to be buffered. A stream is not requested by a part.
            SubmitOutcome::Streamed(_, details) => {
                return Err(Box::new(SubmitOutcome::Failed(FailureKind::AnswerTooLarge.into(), details)));
            }
            outcome @ (SubmitOutcome::Failed(..) | SubmitOutcome::Divide(..)) => return Err(Box::new(outcome)),
        };
        if !reply.status.is_success() {
            return Err(Box::new(SubmitOutcome::Reply(Box::new(reply), details)));
        }
        Ok(PartReply { reply, details, _held: held })
    }
}

/// Returns the details of the execution that was dispatched first, with the delays of the part that
/// was last.
fn join_details(parts: &[PartReply]) -> ExecutionDetails {
    let first = parts.iter().map(|part| part.details).min_by_key(|details| details.sent).unwrap_or_default();
    ExecutionDetails {
        queue_delay: parts.iter().map(|part| part.details.queue_delay).max().unwrap_or_default(),
        answered: parts.iter().map(|part| part.details.answered).max().flatten(),
        ..first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_that_are_not_divided_are_bounded() {
        let classes = UndividedClasses::default();
        assert!(classes.insert(b"a"));
        assert!(!classes.insert(b"a"));
        assert!(classes.contains(b"a") && !classes.contains(b"b"));
        for class in 0..1000_u16 {
            classes.insert(&class.to_be_bytes());
        }
        assert!(classes.0.lock().unwrap().len() <= UNDIVIDED_MAX);
    }
}
