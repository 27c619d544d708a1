//! The task of the shadow simulation: parses the observed calls, feeds them to the simulated core,
//! and counts its predictions.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use super::super::benefit::CountWindows;
use super::super::ids::IdInterner;
use super::super::{SchedulerConfig, Submission};
use super::{EVENTS_MAX, ObservedCall, ObservedEnd, ResponseOrder, ShadowEvent, ShadowReport};
use crate::backend::{Backend, LimitsLookUp};
use crate::batching::{
    CallId, CallOrigin, CostClassId, PlanInput, PublishedMax, Shadow, ShadowArrival, ShadowEnd, ShadowOutcome, Tick,
    solve,
};
use crate::clock::Clock;
use crate::protocol::{Call, Endpoint, LimitsSource, MergeEligibility, PublishedLimits};
use crate::telemetry::names::{Outcome, UnpredictedReason};
use crate::telemetry::{CompletedCall, Metrics};

pub(super) struct ShadowTask {
    shadow: Shadow,
    ids: IdInterner,
    /// Calls in the shadow queue.
    queued: BTreeMap<CallId, Submission>,
    /// Calls in flight, with the instant at which they began.
    in_flight: BTreeMap<CallId, Tick>,
    report: ShadowReport,
    windows: CountWindows,
    /// The limits that the server publishes, as last known.
    published: Option<PublishedLimits>,
    backend: Arc<dyn Backend>,
    metrics: Arc<Metrics>,
    clock: Clock,
    events: mpsc::WeakSender<ShadowEvent>,
}

// === impl ShadowTask ===

impl ShadowTask {
    pub(super) fn new(
        config: &SchedulerConfig,
        clock: Clock,
        backend: Arc<dyn Backend>,
        metrics: Arc<Metrics>,
        events: mpsc::WeakSender<ShadowEvent>,
    ) -> Self {
        Self {
            shadow: Shadow::new(config.limits.clone(), config.seed),
            ids: IdInterner::new(),
            queued: BTreeMap::new(),
            in_flight: BTreeMap::new(),
            report: ShadowReport::default(),
            windows: CountWindows::new(clock.now()),
            published: None,
            backend,
            metrics,
            clock,
            events,
        }
    }

    /// Handles events until all recorders are dropped.
    pub(super) async fn run(mut self, mut inbox: mpsc::Receiver<ShadowEvent>) {
        while let Some(event) = inbox.recv().await {
            match event {
                ShadowEvent::BodyComplete(id, at, observed, read, answered) => {
                    self.on_body((id, at), *observed, (read.0)(), answered);
                }
                ShadowEvent::Ended(id, at, end) => self.on_end(id, at, end),
                ShadowEvent::Plan(class, plan) => self.shadow.set_plan(class, plan),
                ShadowEvent::Limits(limits) => self.shadow.set_limits(*limits),
                // The requester may have stopped waiting.
                ShadowEvent::Report(reply) => _ = reply.send(self.report()),
            }
            self.record_predictions();
            while let Some((class, input)) = self.shadow.take_due_plan_input() {
                self.plan(class, input);
            }
        }
    }

    /// Simulates a call after its body is complete.
    fn on_body(&mut self, (id, at): (CallId, Tick), observed: ObservedCall, call: Call, answered: ResponseOrder) {
        let ObservedCall { endpoint, scope, priority, tenant_weight, client, began, .. } = observed;
        let (published, is_unbatched) = self.look_up_limits(&endpoint, &call, observed.names_protocol);
        let published = published
            .map(|limits| PublishedMax { items: endpoint.published_items_max(limits), weight: limits.weight_max });
        let unbatched = is_unbatched || matches!(call.merge, MergeEligibility::Unbatched(_));
        let submission = Submission {
            call: Arc::new(call),
            endpoint,
            scope,
            priority,
            tenant_weight,
            unbatched,
            origin: CallOrigin::Client,
            client: Some(client),
            batches_itself: None,
            deadline: observed.deadline,
            later: observed.later,
            slo: observed.slo,
            caller_deadline: None,
            timeout: None,
            pending_limits: None,
            published_items_max: None,
            published_weight_max: None,
            division: None,
        };
        let (offered, _) = self.ids.intern_call(id, &submission);
        if let Some(published) = published {
            self.shadow.set_published_limits(at, offered.cost_class, published);
        }
        self.queued.insert(id, submission);
        let arrival = self.shadow.on_arrival(at, began, &offered);
        if arrival != ShadowArrival::Simulated {
            // The simulation does not refer to it any more.
            self.forget(id);
        }
        if arrival == ShadowArrival::Unlearned {
            self.metrics.record_unpredicted(UnpredictedReason::Unlearned);
        } else {
            self.report.calls += 1;
            self.windows.window_at(at).calls += 1;
            if self.in_flight.len() >= EVENTS_MAX {
                self.in_flight.pop_first();
            }
            self.in_flight.insert(id, began);
        }
        if answered == ResponseOrder::BeforeBody {
            // Its latency is unknown, because the response arrived first.
            self.in_flight.remove(&id);
            self.shadow.on_response(at, id, false);
        }
    }

    /// Returns the limits that the server publishes for a call, and `true` if they show that it
    /// would not be merged.
    fn look_up_limits(
        &mut self,
        endpoint: &Endpoint,
        call: &Call,
        names_protocol: bool,
    ) -> (Option<PublishedLimits>, bool) {
        let mut unbatched = false;
        let published = match endpoint.limits_source(call, self.backend.publishes_info()) {
            Some(LimitsSource::Info) => {
                if let LimitsLookUp::Known(published) = self.backend.published_limits(&LimitsSource::Info) {
                    self.published = published;
                }
                let by_itself = self.published.is_some_and(|known| endpoint.needs_info && known.batches_itself);
                self.shadow.set_known_batching(by_itself && !names_protocol);
                unbatched |= by_itself && names_protocol;
                self.published
            }
            Some(source) => {
                let published = self.backend.published_limits(&source).limits();
                unbatched |= endpoint.unmergeable_model(published).is_some();
                published
            }
            None => self.published,
        };
        (published, unbatched)
    }

    /// Records the end of a call that passed through.
    fn on_end(&mut self, id: CallId, at: Tick, end: ObservedEnd) {
        let began = self.in_flight.remove(&id);
        match end {
            ObservedEnd::Succeeded => self.shadow.on_response(at, id, true),
            ObservedEnd::Failed => self.shadow.on_response(at, id, false),
            ObservedEnd::Cancelled => self.shadow.on_disconnect(at, id),
        }
        if let (Some(began), ObservedEnd::Succeeded) = (began, end) {
            let took = at.since(began);
            for passed in [&mut self.report.passed, &mut self.windows.window_at(at).passed] {
                passed.0 += 1;
                passed.1 += took;
            }
        }
    }

    /// Counts the predictions up to now.
    fn record_predictions(&mut self) {
        let now = self.clock.now();
        for predicted in self.shadow.take_outcomes() {
            self.windows.window_at(now).count(&predicted);
            let observer = self.metrics.predicted_observer();
            match predicted {
                ShadowOutcome::Dispatched { members, scope, items } => {
                    self.report.executions += 1;
                    self.report.carried.0 += members.len() as u64;
                    self.report.carried.1 += u64::from(items);
                    self.metrics.record_predicted_dispatch(items, members.iter().map(|(_, delay)| *delay));
                    if let Some(observer) = observer {
                        observer.on_dispatch(scope, items, &mut members.iter().map(|(_, delay)| *delay));
                    }
                    for (id, _) in members {
                        self.forget(id);
                    }
                }
                ShadowOutcome::End { id, scope, items, end, latency, slo } => {
                    let outcome = match end {
                        ShadowEnd::Answered => {
                            self.report.answered += 1;
                            self.report.latency += latency;
                            Outcome::Served
                        }
                        ShadowEnd::Rejected => {
                            self.report.rejected += 1;
                            Outcome::Rejected
                        }
                        ShadowEnd::Expired => {
                            self.report.expired += 1;
                            Outcome::Expired
                        }
                        ShadowEnd::Cancelled => Outcome::Cancelled,
                    };
                    self.metrics.record_predicted_completion(outcome, latency);
                    if let Some(observer) = observer {
                        observer
                            .on_completion(scope, &CompletedCall { outcome, latency, items, slo, server_error: false });
                    }
                    self.forget(id);
                }
            }
        }
    }

    /// Removes a call from the shadow queue, and releases its ids.
    fn forget(&mut self, id: CallId) {
        if let Some(submission) = self.queued.remove(&id) {
            self.ids.release(&submission);
        }
    }

    fn report(&mut self) -> ShadowReport {
        self.shadow.advance(self.clock.now());
        self.record_predictions();
        let known = self.shadow.knowledge();
        let class = |(id, nanos, items): &(CostClassId, u64, u32)| {
            Some((self.ids.class_name(*id)?.into(), Duration::from_nanos(*nanos), *items))
        };
        ShadowReport {
            side_by_side: known.side_by_side,
            steady_load: known.steady_load,
            classes: known.classes.iter().filter_map(class).collect(),
            left_out: self.metrics.unpredicted_counts(),
            recent: self.windows.sum(self.clock.now()),
            ..self.report.clone()
        }
    }

    /// Solves a plan on a blocking thread.
    fn plan(&self, class: CostClassId, input: PlanInput) {
        let events = self.events.clone();
        tokio::task::spawn_blocking(move || {
            let plan = solve(&input);
            if let Some(events) = events.upgrade() {
                // A plan lost to a full channel is superseded by the next one.
                events.try_send(ShadowEvent::Plan(class, plan)).ok();
            }
        });
    }
}
