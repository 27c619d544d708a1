//! Arrival of a call: its ids, the facts about the server that it carries, and its place in the
//! queue.

use std::sync::atomic::Ordering;

use tokio::sync::oneshot;

use super::super::{ExecutionDetails, Submission, SubmitOutcome};
use super::{Driver, QueuedCall, send_outcome};
use crate::batching::{CallId, DispatchPolicy, Rejection, RejectionReason};
use crate::error::{Failure, FailureKind};
use crate::protocol::MergeEligibility;

// === impl Driver ===

impl Driver<'_> {
    /// Queues a call. If that is impossible, its caller is answered at once.
    pub(super) fn enqueue(
        &mut self,
        id: CallId,
        mut submission: Box<Submission>,
        reply: oneshot::Sender<SubmitOutcome>,
    ) {
        if reply.is_closed() {
            return;
        }
        let now = self.now();
        if let Some(batches_itself) = submission.batches_itself {
            self.set_batches_itself(batches_itself);
            // Policies other than `Adaptive` have no pass-through detection.
            submission.unbatched |=
                batches_itself && !matches!(self.supervisor.config.limits.policy, DispatchPolicy::Adaptive { .. });
        }
        submission.unbatched |= submission.pending_limits.is_some() && !self.can_defer_merging();
        let (call, is_new_key) = self.ids.intern_call(id, &submission);
        let cost_class = call.cost_class;
        if let (true, MergeEligibility::With(key)) = (is_new_key, &submission.call.merge) {
            self.key_diversity.on_new_key(now, cost_class, &submission.endpoint, key);
        }
        if let Some(source) = submission.pending_limits.take()
            && !submission.unbatched
        {
            self.defer_merging(now, cost_class, source, &submission.endpoint);
        }
        self.apply_published(now, cost_class, (submission.published_items_max, submission.published_weight_max));
        if let Some(limits) = submission.division.and_then(|division| self.core.part_limits(&call, &division)) {
            self.ids.release(&submission);
            send_outcome(reply, SubmitOutcome::Divide(submission, limits));
            return;
        }
        let items = call.items;
        self.queued.insert(id, QueuedCall { submission, reply, arrival: self.rounds.arrival(now) });
        if let Err(rejection) = self.core.enqueue(now, call)
            && let Some(queued) = self.remove_call(id)
        {
            send_outcome(
                queued.reply,
                SubmitOutcome::Failed(rejection_failure(rejection), ExecutionDetails::default()),
            );
        } else {
            self.supervisor.metrics.stats.items_accepted.fetch_add(u64::from(items), Ordering::Relaxed);
        }
        self.supervisor.metrics.stats.offered.fetch_add(1, Ordering::Relaxed);
    }
}

fn rejection_failure(rejection: Rejection) -> Failure {
    let kind = match rejection.reason {
        RejectionReason::QueueFull => FailureKind::QueueFull,
        RejectionReason::BytesFull => FailureKind::BytesFull,
        RejectionReason::TenantShare => FailureKind::TenantShare,
    };
    Failure::retry(kind, rejection.retry_after)
}
