//! `verify`: sampled members of batches are also sent unbatched, and the two responses are
//! compared.
//!
//! The client has its response by then, and never waits for the comparison. The additional call is
//! queued like any other, so that it occupies a slot, and it is taken from the replay budget. If
//! the responses differ by more than rounding explains, the merge key is put in quarantine.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::header::{ACCEPT_ENCODING, CONTENT_LENGTH};
use tokio::sync::Semaphore;

use super::unbatched::BufferedRequest;
use super::{Proxy, RoutingTable};
use crate::backend::BufferedReply;
use crate::batching::{CallOrigin, Deadline, DeadlineSource};
use crate::memory::BufferGuard;
use crate::protocol::headers::GRPC_ACCEPT_ENCODING;
use crate::protocol::{AnswerComparison, AnswerContent, Call, DifferenceKind, Endpoint, Reply};
use crate::scheduler::{ExecutionDetails, Submission, SubmitOutcome};
use crate::telemetry::names::VerifyResult;

/// Maximum number of verifications at a time. They share the server with the calls of clients, and
/// a sample needs no more.
const VERIFICATIONS_MAX: usize = 4;
/// Maximum time in the queue, and for the response, of a call that no client waits for: that of
/// `groupage validate`, since a cold model may have to be loaded.
const VERIFY_TIMEOUT: Duration = Duration::from_secs(60);

/// Bounds the verifications, and holds the largest difference.
#[derive(Debug)]
pub(super) struct VerificationPermits {
    permits: Arc<Semaphore>,
    /// The bits of the largest difference so far. Those of positive numbers are in their order.
    largest: AtomicU64,
}

/// A member of a batch that is sent again, unbatched.
struct VerifiedMember {
    endpoint: Arc<Endpoint>,
    call: Arc<Call>,
    submission: Submission,
    buffered: BufferedRequest,
    /// The response that its client received.
    merged: Reply,
    _held: BufferGuard,
}

// === impl VerificationPermits ===

impl Default for VerificationPermits {
    fn default() -> Self {
        Self { permits: Arc::new(Semaphore::new(VERIFICATIONS_MAX)), largest: AtomicU64::new(0) }
    }
}

impl VerificationPermits {
    /// Records a difference, and returns the largest one so far.
    fn record(&self, difference: f64) -> f64 {
        let bits = difference.to_bits();
        f64::from_bits(self.largest.fetch_max(bits, Ordering::Relaxed).max(bits))
    }
}

// === impl Proxy ===

impl Proxy {
    /// Verifies the response to a member of a batch in the background, if the member is drawn.
    pub(super) fn verify_sample(
        self: &Arc<Self>,
        table: &RoutingTable,
        endpoint: &Arc<Endpoint>,
        call: &Arc<Call>,
        (buffered, reply): (&BufferedRequest, &Reply),
        details: &ExecutionDetails,
    ) {
        // A divided call is larger than the server accepts at once.
        let may_verify = details.calls > 1
            && !details.is_divided
            && endpoint.is_success(reply)
            && endpoint.idempotent
            && call.unbatched_reason().is_none()
            && endpoint.is_comparable(call);
        if table.verify_ppm == 0 || !may_verify || rand::random_range(0..1_000_000) >= table.verify_ppm {
            return;
        }
        let mut held = self.buffers.empty();
        let Ok(permit) = self.verifications.permits.clone().try_acquire_owned() else {
            return self.metrics.record_verification(VerifyResult::Skipped);
        };
        if held.grow(call.body.len() + reply.body.len()).is_err() || !self.backend.take_replay() {
            return self.metrics.record_verification(VerifyResult::Skipped);
        }
        let route = table.route(endpoint.route);
        let deadline = Deadline { at: self.clock.now().after(VERIFY_TIMEOUT), source: DeadlineSource::Timeout };
        let submission = Submission {
            call: call.clone(),
            endpoint: endpoint.clone(),
            scope: route.scope,
            priority: table.priorities.resolve(&buffered.head.headers),
            tenant_weight: table.tenant_weights.of(&buffered.head.headers),
            unbatched: true,
            origin: CallOrigin::Proxy,
            client: None,
            batches_itself: None,
            deadline: Some(deadline),
            later: None,
            slo: None,
            caller_deadline: None,
            timeout: route.timeout.or(Some(VERIFY_TIMEOUT)),
            pending_limits: None,
            published_items_max: None,
            published_weight_max: None,
            division: None,
        };
        let mut buffered = buffered.clone();
        // The responses are compared as they are.
        let left_out = [ACCEPT_ENCODING, CONTENT_LENGTH, GRPC_ACCEPT_ENCODING];
        left_out.iter().for_each(|name| _ = buffered.head.headers.remove(name));
        let merged = reply.clone();
        let (endpoint, call) = (endpoint.clone(), call.clone());
        let member = VerifiedMember { endpoint, call, submission, buffered, merged, _held: held };
        let proxy = self.clone();
        tokio::spawn(async move {
            let shutdown = proxy.shutdown.clone();
            shutdown.run_until_cancelled(proxy.verify(member)).await;
            drop(permit);
        });
    }

    /// Sends a member unbatched, and compares the response with the one that its client received.
    async fn verify(self: &Arc<Self>, member: VerifiedMember) {
        let VerifiedMember { endpoint, call, submission, buffered, merged, _held } = member;
        let timeout = submission.timeout;
        let unbatched = match self.scheduler.submit(submission).await {
            SubmitOutcome::Unbatched(permit) => {
                self.fetch_unbatched(buffered, permit, (&endpoint, &call), timeout).await.ok()
            }
            _ => None,
        };
        let Some(BufferedReply { reply, held: _held }) = unbatched.filter(|answer| endpoint.is_success(&answer.reply))
        else {
            return self.metrics.record_verification(VerifyResult::Unanswered);
        };
        let [own, other] = [&merged, &reply].map(|reply| AnswerContent { headers: &reply.headers, body: &reply.body });
        match endpoint.compare_answers(&call, own, other) {
            AnswerComparison::Equal => self.metrics.record_verification(VerifyResult::Equal),
            AnswerComparison::Rounded(difference) => {
                self.metrics.record_verification(VerifyResult::Rounded);
                self.metrics.set_verify_difference(self.verifications.record(difference));
            }
            AnswerComparison::Different(found) => {
                self.metrics.record_verification(VerifyResult::Different);
                let difference = match found.kind {
                    DifferenceKind::Number(difference) => {
                        self.metrics.set_verify_difference(self.verifications.record(difference));
                        Some(difference)
                    }
                    DifferenceKind::Structure | DifferenceKind::Value => None,
                };
                // The place may contain names from the response, so it is not logged.
                tracing::warn!(
                    route = endpoint.route_path(),
                    protocol = endpoint.label.as_str(),
                    kind = found.kind.as_str(),
                    difference,
                    "a response to a batch differs from the response to the same call alone: calls of this merge key \
                     are sent alone for `failure.quarantine`, longer each time"
                );
                self.scheduler.quarantine(call).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_difference_is_kept() {
        let permits = VerificationPermits::default();
        assert_eq!(permits.record(1e-7).to_bits(), 1e-7_f64.to_bits());
        assert_eq!(permits.record(0.5).to_bits(), 0.5_f64.to_bits());
        assert_eq!(permits.record(1e-3).to_bits(), 0.5_f64.to_bits());
    }
}
