//! Preparation of a recognised call for the scheduler: it is parsed, weighed and prepared by the
//! backend, and its priority, its deadlines and the reason against merging it are determined.

use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;

use super::super::deadline::{CallDeadlines, resolve_deadlines};
use super::super::recorder::CallRecorder;
use super::super::unbatched::BufferedRequest;
use super::super::{Proxy, RouteSettings, RoutingTable};
use super::{CallArrival, await_unless_cancelled};
use crate::backend::LimitsLookUp;
use crate::batching::{CallOrigin, PriorityId, Tick};
use crate::protocol::{Call, Endpoint, MergeEligibility, UnmergeableReason};
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
    /// Parses and weighs a call, and has the backend prepare it.
    pub(super) async fn read_call(
        &self,
        table: &RoutingTable,
        endpoint: &Arc<Endpoint>,
        buffered: &mut BufferedRequest,
    ) -> (Arc<Endpoint>, Arc<Call>) {
        let start = self.clock.now();
        let (endpoint, call) = self.parse_call(table, endpoint, buffered);
        let call = self.weigh_call(call);
        self.metrics.record_overhead(OverheadStage::Read, self.clock.now().since(start));
        let call = self.prepare_for_backend(call).await;
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
        let source = endpoint.limits_source(&call);
        let look_up = source.as_ref().map(|source| self.backend.published_limits(source));
        let published = look_up.and_then(LimitsLookUp::limits);
        let batches_itself = published.filter(|_| endpoint.needs_info).map(|limits| limits.batches_itself);
        let reason = self.unmergeable_reason(table, &call, buffered.trailers.is_some(), batches_itself);
        let reason = reason.or_else(|| endpoint.unmergeable_model(published));
        // Before a server that batches by itself, the parts of a call are sent one by one.
        let is_divided = reason.is_none_or(|reason| reason == UnmergeableReason::NoGain)
            && endpoint.is_divisible(&call)
            && !self.undivided.contains(self.clock.now(), &call.cost_class);
        let submission = Submission {
            division: is_divided.then_some(route.division),
            call: call.clone(),
            endpoint: endpoint.clone(),
            scope: route.scope,
            priority,
            tenant_weight: table.tenant_weights.of(headers),
            alone: reason.is_some(),
            origin: CallOrigin::Client,
            client: Some(arrival.client),
            batches_itself: batches_itself.map(|batches| batches && !table.names_protocol),
            deadline: core_deadlines.first,
            later: core_deadlines.fallback,
            slo,
            caller_deadline: core_deadlines.caller,
            timeout: route.timeout,
            pending_limits: source.filter(|_| reason.is_none() && look_up == Some(LimitsLookUp::Pending)),
            published_items_max: published.and_then(|limits| limits.items_max),
            published_weight_max: published.and_then(|limits| limits.weight_max),
        };
        PreparedCall { endpoint, call, submission, deadlines: core_deadlines, reason, batches_itself }
    }

    /// Returns a call with the weight and the attachment that its backend determines.
    pub(in super::super) async fn prepare_for_backend(&self, mut call: Call) -> Call {
        let Some(preparing) = self.backend.prepare_call(&call) else { return call };
        // At the end of a drain, the call is queued as it is, and answered there.
        let prepared = await_unless_cancelled(&self.cut, preparing).await.unwrap_or_default();
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
            MergeEligibility::Alone(reason) => Some(*reason),
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
