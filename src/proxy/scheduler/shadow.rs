//! The shadow simulation of mode `Observe`: follows the calls that pass through and reports the
//! effect that batching would have had on them.
//!
//! It is a task that owns a [`Shadow`] and receives the start and end of calls as events. Calls are
//! parsed in this task and not in the task of the caller; calls that arrive faster than they are
//! parsed are skipped and counted. Copying bodies belongs to `proxy`, and publishing the counts to
//! `app`.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use super::benefit::{CountWindows, RecentCounts};
use super::ids::IdInterner;
use super::{SchedulerConfig, Submission};
use crate::backend::{Backend, LimitsLookUp};
use crate::batching::{
    CallId, CallOrigin, CostClassId, Deadline, Limits, Plan, PlanInput, PriorityId, ScopeId, Shadow, ShadowArrival,
    ShadowEnd, ShadowOutcome, Tick, solve,
};
use crate::clock::Clock;
use crate::protocol::{Call, Endpoint, LimitsSource, MergeEligibility, PublishedLimits};
use crate::telemetry::names::{Outcome, UnpredictedReason};
use crate::telemetry::{CompletedCall, Metrics};

/// Capacity of the event channel. Bodies held by events are charged to the memory budget. A task
/// that is this far behind skips calls.
const EVENTS_MAX: usize = 4096;

/// A handle that reports pass-through calls to the shadow simulation.
#[derive(Debug, Clone)]
pub struct ShadowRecorder {
    events: mpsc::Sender<ShadowEvent>,
    next_id: Arc<AtomicU64>,
    metrics: Arc<Metrics>,
    clock: Clock,
}

/// Deferred parsing of a pass-through call.
pub struct DeferredParse(pub Box<dyn FnOnce() -> Call + Send>);

/// Properties of a pass-through call that are known before it is parsed.
#[derive(Debug)]
pub struct ObservedCall {
    /// The endpoint by which it would be merged.
    pub endpoint: Arc<Endpoint>,
    /// Scope of the limits that would apply.
    pub scope: ScopeId,
    /// Its priority class.
    pub priority: PriorityId,
    /// Fair-queueing weight of its tenant.
    pub tenant_weight: u32,
    /// Address of its client.
    pub client: IpAddr,
    /// Instant at which its head was read.
    pub began: Tick,
    /// The deadline of the call.
    pub deadline: Option<Deadline>,
    /// The deadline that replaces an SLO that cannot be met at all.
    pub later: Option<Deadline>,
    /// The SLO as configured.
    pub slo: Option<Duration>,
    /// A route names its protocol, so calls would be merged also in front of a server that batches
    /// by itself.
    pub names_protocol: bool,
}

/// A call with an incomplete body.
#[derive(Debug)]
pub struct PendingBody {
    recorder: ShadowRecorder,
    id: CallId,
    ended: EndFlag,
}

/// A call that waits for its response. If dropped without one, the call counts as cancelled by the
/// client.
#[derive(Debug)]
pub struct PendingResponse {
    recorder: ShadowRecorder,
    id: CallId,
    ended: EndFlag,
}

/// `true` once the end of a call is reported. The lock is held while either of the two events is
/// sent, so that their order in the channel matches the order in which the flag was read and set.
type EndFlag = Arc<Mutex<bool>>;

/// Counts of the shadow simulation since the process started.
#[derive(Debug, Clone, Default)]
pub struct ShadowReport {
    /// Calls with a prediction.
    pub calls: u64,
    /// Calls without a prediction, by reason.
    pub left_out: Vec<(UnpredictedReason, u64)>,
    /// Upstream executions that batching would have caused.
    pub executions: u64,
    /// Calls and items in those executions.
    pub carried: (u64, u64),
    /// Calls that would have been answered.
    pub answered: u64,
    /// Calls that would have been rejected.
    pub rejected: u64,
    /// Calls that would have expired in the queue.
    pub expired: u64,
    /// Total latency, from arrival to response, of the calls that would have been answered.
    pub latency: Duration,
    /// Calls that were answered as they passed through, and their total latency.
    pub passed: (u64, Duration),
    /// Number of calls that the server was observed to execute concurrently.
    pub side_by_side: u32,
    /// `true` if the latency of an unbatched call cannot be determined for some cost class, because
    /// the load does not vary.
    pub steady_load: bool,
    /// Latency of an unbatched call by cost class, and the largest number of items per call from
    /// which it was learned.
    pub classes: Vec<(Box<[u8]>, Duration, u32)>,
    /// The same counts over the last one to two minutes.
    pub recent: RecentCounts,
}

#[derive(Debug)]
enum ShadowEvent {
    Came(CallId, Tick, Box<ObservedCall>, DeferredParse, ResponseOrder),
    Ended(CallId, Tick, ObservedEnd),
    Plan(CostClassId, Plan),
    Limits(Box<Limits>),
    Seen(oneshot::Sender<ShadowReport>),
}

/// Order of the response and the end of the request body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ResponseOrder {
    Before,
    Not,
}

/// Result of a pass-through call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ObservedEnd {
    Well,
    Failed,
    Left,
}

/// The task of the shadow simulation.
struct ShadowTask {
    shadow: Shadow,
    numbers: IdInterner,
    /// Calls in the shadow queue.
    queued: BTreeMap<CallId, Submission>,
    /// Calls in flight, with the instant at which they began.
    passing: BTreeMap<CallId, Tick>,
    report: ShadowReport,
    windows: CountWindows,
    /// The limits that the server publishes, as last known.
    published: Option<PublishedLimits>,
    backend: Arc<dyn Backend>,
    metrics: Arc<Metrics>,
    clock: Clock,
    events: mpsc::WeakSender<ShadowEvent>,
}

// === impl DeferredParse ===

impl fmt::Debug for DeferredParse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reading(..)")
    }
}

// === impl ShadowRecorder ===

impl ShadowRecorder {
    /// Spawns the task.
    #[must_use]
    pub fn start(config: &SchedulerConfig, clock: Clock, backend: Arc<dyn Backend>, metrics: Arc<Metrics>) -> Self {
        let (events, inbox) = mpsc::channel(EVENTS_MAX);
        let look = ShadowTask {
            shadow: Shadow::new(config.limits.clone(), config.seed),
            numbers: IdInterner::new(),
            queued: BTreeMap::new(),
            passing: BTreeMap::new(),
            report: ShadowReport::default(),
            windows: CountWindows::new(clock.now()),
            published: None,
            backend,
            metrics: metrics.clone(),
            clock,
            events: events.downgrade(),
        };
        tokio::spawn(look.run(inbox));
        Self { events, next_id: Arc::new(AtomicU64::new(1)), metrics, clock }
    }

    /// Registers a pass-through call. Returns the handles that report its body and its response.
    #[must_use]
    pub fn register_call(&self) -> (PendingBody, PendingResponse) {
        let id = CallId(self.next_id.fetch_add(1, Ordering::Relaxed));
        let ended = EndFlag::default();
        let coming = PendingBody { recorder: self.clone(), id, ended: ended.clone() };
        (coming, PendingResponse { recorder: self.clone(), id, ended })
    }

    /// Replaces the limits.
    pub async fn set_limits(&self, limits: Limits) {
        // Ignored if the task has stopped.
        self.events.send(ShadowEvent::Limits(Box::new(limits))).await.ok();
    }

    /// Returns the counts; `None` if the task does not respond within a second.
    pub async fn report(&self) -> Option<ShadowReport> {
        let (reply, report) = oneshot::channel();
        self.events.try_send(ShadowEvent::Seen(reply)).ok()?;
        tokio::time::timeout(Duration::from_secs(1), report).await.ok()?.ok()
    }
}

// === impl PendingBody ===

impl PendingBody {
    /// Reports that the body is complete. It is parsed later, in the task.
    pub fn on_body_complete(self, passing: Box<ObservedCall>, read: DeferredParse) {
        let Self { recorder, id, ended } = self;
        let ended = ended.lock().unwrap_or_else(PoisonError::into_inner);
        let answered = if *ended { ResponseOrder::Before } else { ResponseOrder::Not };
        let event = ShadowEvent::Came(id, recorder.clock.now(), passing, read, answered);
        if recorder.events.try_send(event).is_err() {
            recorder.metrics.record_unpredicted(UnpredictedReason::Behind);
        }
    }

    /// Reports that the call cannot be predicted.
    pub fn skip(self, reason: UnpredictedReason) {
        self.recorder.metrics.record_unpredicted(reason);
    }
}

// === impl PendingResponse ===

impl PendingResponse {
    /// Reports the response. `well` is `true` if it was successful.
    pub fn on_response(&self, well: bool) {
        self.end(if well { ObservedEnd::Well } else { ObservedEnd::Failed });
    }

    fn end(&self, how: ObservedEnd) {
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        if !std::mem::replace(&mut *ended, true) {
            // A call with an event that is lost to a full channel eventually becomes the oldest of
            // those in flight and is removed.
            self.recorder.events.try_send(ShadowEvent::Ended(self.id, self.recorder.clock.now(), how)).ok();
        }
    }
}

impl Drop for PendingResponse {
    fn drop(&mut self) {
        self.end(ObservedEnd::Left);
    }
}

// === impl ShadowReport ===

impl ShadowReport {
    /// Returns the largest number of items per call for which a latency was learned.
    #[must_use]
    pub fn measured_items(&self) -> u32 {
        self.classes.iter().map(|(.., items)| *items).max().unwrap_or(0)
    }
}

// === impl ShadowTask ===

impl ShadowTask {
    async fn run(mut self, mut inbox: mpsc::Receiver<ShadowEvent>) {
        while let Some(event) = inbox.recv().await {
            match event {
                ShadowEvent::Came(id, at, passing, read, answered) => {
                    self.on_body((id, at), *passing, (read.0)(), answered);
                }
                ShadowEvent::Ended(id, at, how) => self.on_end(id, at, how),
                ShadowEvent::Plan(class, plan) => self.shadow.set_plan(class, plan),
                ShadowEvent::Limits(limits) => self.shadow.set_limits(*limits),
                // The requester may have stopped waiting.
                ShadowEvent::Seen(reply) => _ = reply.send(self.report()),
            }
            self.record_predictions();
            while let Some((class, input)) = self.shadow.plan_due() {
                self.plan(class, input);
            }
        }
    }

    fn on_body(&mut self, (id, at): (CallId, Tick), passing: ObservedCall, call: Call, answered: ResponseOrder) {
        let ObservedCall { endpoint, scope, priority, tenant_weight, client, began, .. } = passing;
        let mut unbatched = matches!(call.merge, MergeEligibility::Alone(_));
        let published = match endpoint.limits_source(&call) {
            Some(LimitsSource::Info) => {
                if let LimitsLookUp::Known(published) = self.backend.published_limits(&LimitsSource::Info) {
                    self.published = published;
                }
                let by_itself = self.published.is_some_and(|known| endpoint.needs_info && known.batches_itself);
                self.shadow.set_known_batching(by_itself && !passing.names_protocol);
                unbatched |= by_itself && passing.names_protocol;
                self.published
            }
            Some(source) => {
                let published = self.backend.published_limits(&source).limits();
                unbatched |= endpoint.unmergeable_model(published).is_some();
                published
            }
            None => self.published,
        };
        let submission = Submission {
            call: Arc::new(call),
            endpoint,
            scope,
            priority,
            tenant_weight,
            alone: unbatched,
            origin: CallOrigin::Client,
            client: Some(client),
            batches_itself: None,
            deadline: passing.deadline,
            later: passing.later,
            slo: passing.slo,
            caller_deadline: None,
            timeout: None,
            pending_limits: None,
            published_items_max: None,
            published_weight_max: None,
            division: None,
        };
        let (offered, _) = self.numbers.intern_call(id, &submission);
        if let Some(published) = published {
            let most = (published.items_max, published.weight_max);
            self.shadow.publish(at, offered.cost_class, most);
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
            if self.passing.len() >= EVENTS_MAX {
                self.passing.pop_first();
            }
            self.passing.insert(id, began);
        }
        if answered == ResponseOrder::Before {
            // Its latency is unknown, because the response arrived first.
            self.passing.remove(&id);
            self.shadow.on_response(at, id, false);
        }
    }

    fn on_end(&mut self, id: CallId, at: Tick, how: ObservedEnd) {
        let began = self.passing.remove(&id);
        match how {
            ObservedEnd::Left => self.shadow.on_disconnect(at, id),
            ObservedEnd::Well | ObservedEnd::Failed => self.shadow.on_response(at, id, how == ObservedEnd::Well),
        }
        if let (Some(began), ObservedEnd::Well) = (began, how) {
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
        for would in self.shadow.take_outcomes() {
            self.windows.window_at(now).count(&would);
            let observer = self.metrics.predicted_observer();
            match would {
                ShadowOutcome::Leave { members, scope, items } => {
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
                ShadowOutcome::End { id, scope, items, how, latency, slo } => {
                    let outcome = match how {
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

    fn forget(&mut self, id: CallId) {
        if let Some(submission) = self.queued.remove(&id) {
            self.numbers.release(&submission);
        }
    }

    fn report(&mut self) -> ShadowReport {
        self.shadow.advance(self.clock.now());
        self.record_predictions();
        let known = self.shadow.knowledge();
        let class = |(id, nanos, items): &(CostClassId, u64, u32)| {
            Some((self.numbers.class_name(*id)?.into(), Duration::from_nanos(*nanos), *items))
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
