//! Arrival of a call: its ids, the limits that its server publishes, and its place in the queue.

use std::sync::atomic::Ordering;

use tokio::sync::oneshot;

use super::super::{ExecutionDetails, Submission, SubmitOutcome};
use super::{Driver, QueuedCall, send_outcome};
use crate::backend::LimitsLookUp;
use crate::batching::{CallId, CostClassId, DispatchPolicy, Rejection, RejectionReason, Tick};
use crate::error::{Failure, FailureKind};
use crate::protocol::MergeEligibility;

/// Maximum number of cost classes that wait for limits of the server. A server has few kinds of calls
/// that are new at the same time; beyond it, calls are sent unbatched.
const PENDING_LIMITS_MAX: usize = 256;

// === impl Driver ===

impl Driver<'_> {
    pub(super) fn set_batches_itself(&mut self, batches_itself: bool) {
        if self.batches_itself != batches_itself {
            self.batches_itself = batches_itself;
            self.core.set_known_batching(batches_itself);
        }
    }

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
            submission.alone |=
                batches_itself && !matches!(self.supervisor.config.limits.policy, DispatchPolicy::Adaptive { .. });
        }
        submission.alone |= submission.pending_limits.is_some() && self.pending_limits.len() >= PENDING_LIMITS_MAX;
        let (call, is_new_key) = self.ids.intern_call(id, &submission);
        let cost_class = call.cost_class;
        if let (true, MergeEligibility::With(key)) = (is_new_key, &submission.call.merge) {
            self.key_diversity.on_new_key(now, cost_class, &submission.endpoint, key);
        }
        if let Some(source) = submission.pending_limits.take()
            && !submission.alone
        {
            self.core.defer_merging(now, cost_class);
            if !self.pending_limits.iter().any(|(class, other)| (*class, other) == (cost_class, &source)) {
                self.pending_limits.push((cost_class, source));
            }
        }
        self.apply_published(now, cost_class, (submission.published_items_max, submission.published_weight_max));
        if let Some(limits) = submission.division.and_then(|division| self.core.part_limits(&call, &division)) {
            self.ids.release(&submission);
            send_outcome(reply, SubmitOutcome::Divide(submission, limits));
            return;
        }
        let items = call.items;
        self.queued.insert(id, QueuedCall { submission, reply, arrived: now });
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

    /// Applies the maxima on items and weight that the server publishes.
    fn apply_published(&mut self, now: Tick, class: CostClassId, (items, weight): (Option<u32>, Option<u64>)) {
        if let Some(items_max) = items {
            self.core.set_published_items_max(now, class, items_max);
            self.items_cap.set_published_min(items_max.into());
        }
        if let Some(weight_max) = weight {
            self.core.set_published_weight_max(now, class, weight_max);
            self.weight_cap.set_published_min(weight_max);
        }
    }

    /// Applies the published limits to the cost classes that wait for them, once they are known.
    /// This precedes every decision, so that calls that were held meanwhile are merged within the
    /// limits. Nothing else wakes the driver for them, because no call waits for them.
    pub(super) fn resolve_pending_limits(&mut self) {
        if self.pending_limits.is_empty() {
            return;
        }
        let (now, backend) = (self.now(), &self.supervisor.backend);
        let mut known = Vec::new();
        self.pending_limits.retain(|(class, source)| match backend.published_limits(source) {
            LimitsLookUp::Known(published) => {
                known.push((*class, published));
                false
            }
            LimitsLookUp::Pending => true,
        });
        for (class, published) in known {
            // The versions of a model may share a class, and have a document each.
            if self.pending_limits.iter().all(|(waiting, _)| *waiting != class) {
                self.core.end_deferral(class);
            }
            let maxima = published.map_or((None, None), |known| (known.items_max, known.weight_max));
            self.apply_published(now, class, maxima);
        }
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
