//! Execution of a batch as a whole ([`part`](super::part)), and in parts if it fails
//! ([`isolation`](super::isolation)).
//!
//! A batch response is validated completely before any member is answered. If the call fails or the
//! response is invalid, the members are sent again alone in their original form, in the slot of the
//! batch. Each member is entitled to this one unbatched retry at any cost; the replay budget limits
//! only the smaller batches in between. If a retry is not allowed, the members receive 502.
//!
//! A streamed response is split as it arrives ([`stream`](super::stream)).

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use super::Inner;
use super::isolation::Isolation;
use super::part::{deliver_all, fail_part, try_part};
use super::part_result::{PartResult, outcome_without_retry};
use super::published::{self, published_limits};
use super::stream::OpenStreams;
use crate::backend::{Backend, BatchOutputs, BatchRequest, LimitsLookUp};
use crate::batching::{BatchOutcome, Observation};
use crate::protocol::{Call, LimitsSource, ResponseMismatch};

/// Time for which a mismatch is a cause of an empty replay budget: the window of that budget.
const RECENT: Duration = Duration::from_secs(10);

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

    fn recent_mismatch(&self) -> Option<ResponseMismatch> {
        let last = self.0.last_mismatch.lock().ok()?.clone();
        last.filter(|(at, _)| self.0.clock.now().since(*at) < RECENT).map(|(_, mismatch)| mismatch)
    }

    fn published_limits(&self, source: &LimitsSource) -> LimitsLookUp {
        published_limits(&self.0, source)
    }

    fn publishes_info(&self) -> bool {
        self.0.identity.publishes_info()
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
        PartResult::Split(replies) => {
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
        PartResult::Retry { outcome, observed, refusal, allowed: true, .. } => {
            let isolation = Isolation::new((inner, &request), outcome, outputs, &mut streams);
            let evidence = isolation.run().await;
            streams.wait_end().await;
            match refusal {
                Some(refusal) if evidence.is_refusing_batches() => BatchOutcome::Refused(refusal),
                _ => observed,
            }
        }
    };
    Observation { duration: inner.clock.now().since(started), first_byte, outcome }
}
