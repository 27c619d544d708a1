//! The shadow simulation of mode `Observe`: follows the calls that pass through and reports the
//! effect that batching would have had on them.
//!
//! A task (`task`) owns a simulated core and receives the start and end of calls as events. Calls
//! are parsed in this task and not in the task of the caller; calls that arrive faster than they
//! are parsed are skipped and counted. Copying bodies belongs to `proxy`, and publishing the counts
//! to `app`.

mod task;

use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use self::task::ShadowTask;
use super::SchedulerConfig;
use super::benefit::RecentCounts;
use crate::backend::Backend;
use crate::batching::{CallId, CostClassId, Deadline, Limits, Plan, PriorityId, ScopeId, Tick};
use crate::clock::Clock;
use crate::protocol::{Call, Endpoint};
use crate::telemetry::Metrics;
use crate::telemetry::names::UnpredictedReason;

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
    /// The deadline that replaces `deadline` if that is an SLO that cannot be met at all.
    pub later: Option<Deadline>,
    /// The SLO as configured.
    pub slo: Option<Duration>,
    /// `true` if a route requests merging explicitly, so that calls would be merged even if the
    /// server advertises that it batches by itself.
    pub names_protocol: bool,
}

/// The handle that reports the body of a call.
#[derive(Debug)]
pub struct PendingBody {
    recorder: ShadowRecorder,
    id: CallId,
    ended: EndFlag,
}

/// The handle that reports the response to a call. If it is dropped without a report, the call
/// counts as cancelled by the client.
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
    /// Number of calls with a prediction.
    pub calls: u64,
    /// Number of calls without a prediction, by reason.
    pub left_out: Vec<(UnpredictedReason, u64)>,
    /// Number of upstream executions that batching would have caused.
    pub executions: u64,
    /// Number of calls and number of items in those executions.
    pub carried: (u64, u64),
    /// Number of calls that would have been answered.
    pub answered: u64,
    /// Number of calls that would have been rejected.
    pub rejected: u64,
    /// Number of calls that would have expired in the queue.
    pub expired: u64,
    /// Total latency, from arrival to response, of the calls that would have been answered.
    pub latency: Duration,
    /// Number of calls that were answered successfully as they passed through, and their total
    /// latency.
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
    /// The body of a call is complete.
    BodyComplete(CallId, Tick, Box<ObservedCall>, DeferredParse, ResponseOrder),
    /// A call has ended.
    Ended(CallId, Tick, ObservedEnd),
    /// A plan was solved for a cost class.
    Plan(CostClassId, Plan),
    /// The limits are replaced.
    Limits(Box<Limits>),
    /// The counts are requested.
    Report(oneshot::Sender<ShadowReport>),
}

/// Order of the response and the end of the request body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ResponseOrder {
    /// The response was reported before the request body was complete.
    BeforeBody,
    /// The response was not reported yet when the request body was complete.
    AfterBody,
}

/// Result of a pass-through call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ObservedEnd {
    /// A successful response.
    Succeeded,
    /// Another response, or a failure.
    Failed,
    /// The client disconnected.
    Cancelled,
}

// === impl DeferredParse ===

impl fmt::Debug for DeferredParse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DeferredParse(..)")
    }
}

// === impl ShadowRecorder ===

impl ShadowRecorder {
    /// Spawns the task.
    #[must_use]
    pub fn start(config: &SchedulerConfig, clock: Clock, backend: Arc<dyn Backend>, metrics: Arc<Metrics>) -> Self {
        let (events, inbox) = mpsc::channel(EVENTS_MAX);
        let task = ShadowTask::new(config, clock, backend, metrics.clone(), events.downgrade());
        tokio::spawn(task.run(inbox));
        Self { events, next_id: Arc::new(AtomicU64::new(1)), metrics, clock }
    }

    /// Registers a pass-through call. Returns the handles that report its body and its response.
    #[must_use]
    pub fn register_call(&self) -> (PendingBody, PendingResponse) {
        let id = CallId(self.next_id.fetch_add(1, Ordering::Relaxed));
        let ended = EndFlag::default();
        let body = PendingBody { recorder: self.clone(), id, ended: ended.clone() };
        (body, PendingResponse { recorder: self.clone(), id, ended })
    }

    /// Replaces the limits.
    pub async fn set_limits(&self, limits: Limits) {
        // Ignored if the task has stopped.
        self.events.send(ShadowEvent::Limits(Box::new(limits))).await.ok();
    }

    /// Returns the counts; `None` if the task does not respond within a second.
    pub async fn report(&self) -> Option<ShadowReport> {
        let (reply, report) = oneshot::channel();
        self.events.try_send(ShadowEvent::Report(reply)).ok()?;
        tokio::time::timeout(Duration::from_secs(1), report).await.ok()?.ok()
    }
}

// === impl PendingBody ===

impl PendingBody {
    /// Reports that the body is complete. It is parsed later, in the task.
    pub fn on_body_complete(self, observed: Box<ObservedCall>, read: DeferredParse) {
        let Self { recorder, id, ended } = self;
        let ended = ended.lock().unwrap_or_else(PoisonError::into_inner);
        let answered = if *ended { ResponseOrder::BeforeBody } else { ResponseOrder::AfterBody };
        let event = ShadowEvent::BodyComplete(id, recorder.clock.now(), observed, read, answered);
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
    /// Reports the response. `succeeded` is `true` if it was successful.
    pub fn on_response(&self, succeeded: bool) {
        self.end(if succeeded { ObservedEnd::Succeeded } else { ObservedEnd::Failed });
    }

    fn end(&self, result: ObservedEnd) {
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        if !std::mem::replace(&mut *ended, true) {
            // A call with an event that is lost to a full channel eventually becomes the oldest of
            // those in flight and is removed.
            self.recorder.events.try_send(ShadowEvent::Ended(self.id, self.recorder.clock.now(), result)).ok();
        }
    }
}

impl Drop for PendingResponse {
    fn drop(&mut self) {
        self.end(ObservedEnd::Cancelled);
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
