//! Preparation of a recognised call for the scheduler: it is parsed, weighed and prepared by the
//! backend, and its priority, its deadlines and the reason against merging it are determined.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::super::deadline::{CallDeadlines, expiry, resolve_deadlines};
use super::super::recorder::CallRecorder;
use super::super::unbatched::BufferedRequest;
use super::super::{Proxy, RouteSettings, RoutingTable};
use super::{CallArrival, await_unless_cancelled};
use crate::backend::{CallPreparation, LimitsLookUp};
use crate::batching::{CallOrigin, PriorityId, Tick};
use crate::bounded_body::timeout_until;
use crate::protocol::{Call, Endpoint, LimitsSource, MergeEligibility, UnmergeableReason};
use crate::scheduler::Submission;
use crate::telemetry::names::OverheadStage;

/// A parsed call, ready for the scheduler.
pub(super) struct PreparedCall {
    pub(super) endpoint: Arc<Endpoint>,
    pub(super) call: Arc<Call>,
    pub(super) submission: Submission,
    /// The deadlines passed to the batching core.
    pub(super) deadlines: CallDeadlines,
    /// The reason why the call cannot be merged.
    pub(super) reason: Option<UnmergeableReason>,
    /// `true` if the upstream published that it batches by itself, `false` if that it does not.
    pub(super) batches_itself: Option<bool>,
}

/// Priority and deadlines of a call, from its headers and its route.
#[derive(Debug)]
pub(in super::super) struct CallRequirements {
    pub(in super::super) priority: PriorityId,
    pub(in super::super) slo: Option<Duration>,
    /// The deadlines as configured and requested.
    requested_deadlines: CallDeadlines,
    /// The deadlines passed to the batching core. That of an SLO is earlier by the part of the
    /// latency that the core cannot measure.
    pub(in super::super) core_deadlines: CallDeadlines,
}

// === impl Proxy ===

impl Proxy {
    /// Parses and weighs a call that arrived at `arrived`, and has the backend prepare it. Returns
    /// its endpoint, which the body may determine, and the call.
    pub(super) async fn read_call(
        &self,
        table: &RoutingTable,
        endpoint: &Arc<Endpoint>,
        buffered: &mut BufferedRequest,
        arrived: Tick,
    ) -> (Arc<Endpoint>, Arc<Call>) {
        let start = self.clock.now();
        let (endpoint, call) = self.parse_call(table, endpoint, buffered);
        let call = self.weigh_call(call);
        self.metrics.record_overhead(OverheadStage::Read, self.clock.now().since(start));
        let route = table.route(endpoint.route);
        let ends_at = || {
            let CallRequirements { core_deadlines: CallDeadlines { first, fallback, .. }, .. } =
                self.resolve_requirements(table, route, &buffered.head.headers, arrived);
            expiry([first, fallback], route.late)
        };
        let call = self.prepare_for_backend(call, ends_at).await;
        buffered.attach(&call);
        (endpoint, Arc::new(call))
    }

    /// Derives the priority and deadlines of a call, and finds out whether it may be merged.
    pub(super) fn prepare_submission(
        &self,
        table: &RoutingTable,
        (endpoint, call): (Arc<Endpoint>, Arc<Call>),
        buffered: &BufferedRequest,
        arrival: CallArrival,
        recorder: &mut CallRecorder,
    ) -> PreparedCall {
        let route = table.route(endpoint.route);
        let headers = &buffered.head.headers;
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
        let source = endpoint.limits_source(&call, self.backend.publishes_info());
        let look_up = source.as_ref().map(|source| self.backend.published_limits(source));
        let published = look_up.and_then(LimitsLookUp::limits);
        let batches_itself = published.filter(|_| endpoint.needs_info).map(|limits| limits.batches_itself);
        let reason = self.unmergeable_reason(table, &call, buffered.trailers.is_some(), batches_itself);
        let reason = reason.or_else(|| endpoint.unmergeable_model(published));
        let pending = source.filter(|_| look_up == Some(LimitsLookUp::Pending));
        let submission = Submission {
            division: self.may_divide(&endpoint, &call, reason, pending.as_ref()).then_some(route.division),
            call: call.clone(),
            endpoint: endpoint.clone(),
            scope: route.scope,
            priority,
            tenant_weight: table.tenant_weights.of(headers),
            unbatched: reason.is_some(),
            origin: CallOrigin::Client,
            client: Some(arrival.client),
            batches_itself: batches_itself.map(|batches| batches && !table.names_protocol),
            deadline: core_deadlines.first,
            later: core_deadlines.fallback,
            slo,
            caller_deadline: core_deadlines.caller,
            timeout: route.timeout,
            pending_limits: pending.filter(|_| reason.is_none()),
            published_items_max: published.and_then(|limits| endpoint.published_items_max(limits)),
            published_weight_max: published.and_then(|limits| limits.weight_max),
        };
        PreparedCall { endpoint, call, submission, deadlines: core_deadlines, reason, batches_itself }
    }

    /// Returns a call with the weight and the attachment that its backend determines. `ends_at`
    /// returns the instant from which on the call is refused.
    pub(in super::super) async fn prepare_for_backend(
        &self,
        mut call: Call,
        ends_at: impl FnOnce() -> Option<Tick>,
    ) -> Call {
        let Some(preparing) = self.backend.prepare_call(&call) else { return call };
        let deadline = ends_at().map(|at| self.clock.instant(at));
        let prepared = await_preparation(preparing, deadline, &self.shutdown).await;
        call.weight = prepared.weight.unwrap_or(call.weight);
        call.attachment = prepared.attachment;
        call
    }

    /// Returns a call with its weight at the rates that were learned for its model.
    pub(in super::super) fn weigh_call(&self, mut call: Call) -> Call {
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
            MergeEligibility::Unbatched(reason) => Some(*reason),
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

    /// Returns `true` if a call is divided if it is too large. `reason` is the one why it cannot be
    /// merged, and `pending` the document with its limits while that is being looked up.
    fn may_divide(
        &self,
        endpoint: &Endpoint,
        call: &Call,
        reason: Option<UnmergeableReason>,
        pending: Option<&LimitsSource>,
    ) -> bool {
        // Tensors are divided along their first dimension, which may turn out not to be the batch.
        let may_have_no_batch = pending.is_some_and(LimitsSource::is_model_config);
        // With the reason `NoGain`, the server batches by itself. A call that is too large is
        // divided nevertheless, and its parts are sent one by one.
        reason.is_none_or(|reason| reason == UnmergeableReason::NoGain)
            && !may_have_no_batch
            && endpoint.is_divisible(call)
            && !self.undivided.contains(self.clock.now(), &call.cost_class)
    }

    /// Resolves the priority, SLO and deadlines of a call from its headers and its route.
    pub(in super::super) fn resolve_requirements(
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
}

/// Awaits the preparation of a call, at most until its deadline or the end of the drain. After
/// that, the call is queued without it, and ended like a call that has waited in the queue.
async fn await_preparation(
    preparing: impl Future<Output = CallPreparation> + Unpin,
    deadline: Option<Instant>,
    cut: &CancellationToken,
) -> CallPreparation {
    let in_time = pin!(timeout_until(deadline, preparing));
    await_unless_cancelled(cut, in_time).await.and_then(Result::ok).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batching::Weight;
    use crate::clock::Clock;

    #[tokio::test]
    async fn a_preparation_ends_at_the_deadline_of_its_call() {
        let (clock, cut) = (Clock::start(), CancellationToken::new());
        let passed = Some(clock.instant(clock.now()));
        let never = await_preparation(std::future::pending(), passed, &cut).await;
        assert!(never.weight.is_none() && never.attachment.is_none());
        let weight = Some(Weight { sum: 7, max: 4 });
        let done = || std::future::ready(CallPreparation { weight, attachment: None });
        for deadline in [None, passed] {
            let prepared = await_preparation(done(), deadline, &cut).await;
            assert_eq!(prepared.weight, weight, "what is ready is used");
        }
        cut.cancel();
        assert!(await_preparation(std::future::pending(), None, &cut).await.weight.is_none());
    }
}
