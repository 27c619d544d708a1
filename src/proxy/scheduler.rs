//! The async driver of the batching core: one task that feeds events into the core and executes its
//! decisions.
//!
//! [`SchedulerHandle::submit`] queues one call and resolves with its outcome; dropping its future
//! cancels the call. The task (`driver`) sleeps until an event arrives or until the core's next
//! wake-up, for which it uses a timerfd. If it panics, its calls fail with `internal` and it
//! restarts with an empty queue. Three panics within a minute are fatal ([`Scheduler::failed`]).

mod anonymous;
mod key_diversity;
mod driver;
mod execution;
mod exported_cap;
mod waits;
mod interner;
mod ids;
mod shadow;
mod stream_tokens;
mod benefit;

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, mpsc, oneshot, watch};

pub use self::benefit::{Benefit, RecentCounts};
pub use self::execution::UnbatchedPermit;
pub use self::key_diversity::{ClassDiversity, DecisionReport};
pub use self::shadow::{DeferredParse, ObservedCall, PendingBody, PendingResponse, ShadowRecorder, ShadowReport};
pub use self::stream_tokens::StreamRecorder;
use crate::backend::{Backend, BufferedReply, StreamedAnswer};
use crate::batching::{
    BatchId, BatcherReport, CallId, CallOrigin, ClassSnapshot, CostClassId, Deadline, DispatchCause, DivisionLimits,
    FlowMode, Limits, PartLimits, Plan, PriorityId, ScopeId, UnbatchedReason, UpstreamSnapshot,
};
use crate::clock::Clock;
use crate::error::{Failure, FailureKind};
use crate::protocol::{Call, Endpoint, LimitsSource};
use crate::telemetry::Metrics;
use crate::telemetry::names::WaitReason;

/// Capacity of the driver's event channel. A driver that is this far behind is stuck, and further
/// calls fail with `queue_full`. The capacity exceeds the default queue limit, so that the queue's
/// own limit applies first.
const EVENTS_MAX: usize = 8192;

/// Capacity of the channel on which executions report their end without waiting. It is far above
/// the concurrency of one model server, and costs a few megabytes of channel and tasks.
pub const COMPLETIONS_MAX: u32 = 4096;

/// Number of slots if the policy sets no limit: half of the channel's capacity. The other half is
/// for calls that are forwarded beside them. The limit of a policy is always lower.
pub const SLOTS_UNLIMITED: u32 = COMPLETIONS_MAX / 2;

/// Configuration of the scheduler.
#[derive(Debug, Clone)]
pub struct SchedulerConfig {
    /// Limits of the batching core.
    pub limits: Limits,
    /// Seed of the generator that adds jitter to `Retry-After`.
    pub seed: u64,
    /// State learned by an earlier process.
    pub learned_state: LearnedState,
    /// Notified after every execution, since its observation may change the learned state.
    pub learned: Option<Arc<Notify>>,
}

/// A snapshot of the learned state that another process can start from.
#[derive(Debug, Clone, Default)]
pub struct LearnedState {
    /// State of the upstream as a whole.
    pub upstream: UpstreamSnapshot,
    /// State per cost class, by name ([`Call::cost_class`]). Unlike ids, names have the same
    /// meaning in every process.
    pub classes: Vec<(Box<[u8]>, ClassSnapshot)>,
}

/// A call to be queued, with all that the batching core decides by.
#[derive(Debug, Clone)]
pub struct Submission {
    /// The call.
    pub call: Arc<Call>,
    /// The endpoint by which the call is merged and its response is split.
    pub endpoint: Arc<Endpoint>,
    /// Scope of the limits that apply.
    pub scope: ScopeId,
    /// Its priority class.
    pub priority: PriorityId,
    /// Fair-queueing weight of its tenant.
    pub tenant_weight: u32,
    /// `true` if the call must be executed unbatched, whatever its merge key.
    pub unbatched: bool,
    /// Origin of the call.
    pub origin: CallOrigin,
    /// Address of the client, by which a flood of calls without an identity is noticed. `None` for
    /// a call of the proxy.
    pub client: Option<IpAddr>,
    /// `true` if the server advertises that it batches by itself; `None` if this is unknown. Under
    /// the policy `Adaptive` its calls are then forwarded unbatched.
    pub batches_itself: Option<bool>,
    /// The deadline of the call.
    pub deadline: Option<Deadline>,
    /// The deadline that replaces `deadline` if that is an SLO that cannot be met at all.
    pub later: Option<Deadline>,
    /// The SLO as configured, for reports.
    pub slo: Option<Duration>,
    /// The deadline set by the caller itself, which a merged request propagates upstream.
    pub caller_deadline: Option<crate::batching::Tick>,
    /// Maximum time from dispatch to the last byte of the response (to the first byte if it is
    /// streamed). `None`: no limit.
    pub timeout: Option<Duration>,
    /// The document in which the server publishes its limits, while it is being looked up. The call
    /// shares no batch until the limits are known.
    pub pending_limits: Option<LimitsSource>,
    /// Maximum number of items of a request that the server publishes.
    pub published_items_max: Option<u32>,
    /// Maximum weight of a batch that the server publishes.
    pub published_weight_max: Option<u64>,
    /// Sizes above which the policy divides the call; `None` if it stays whole.
    pub division: Option<DivisionLimits>,
}

/// Details of the execution that a call was part of.
#[derive(Debug, Clone, Copy, Default)]
pub struct ExecutionDetails {
    /// Id of the execution.
    pub batch: Option<BatchId>,
    /// Number of items in the execution.
    pub batch_items: u32,
    /// Number of calls in the execution.
    pub calls: u32,
    /// `true` if the call was executed in parts. `queue_delay` and `answered` are then the latest
    /// of all parts, and the other values are those of the part that was dispatched first.
    pub is_divided: bool,
    /// Reason for the dispatch at that instant.
    pub cause: Option<DispatchCause>,
    /// Time from acceptance to dispatch.
    pub queue_delay: Duration,
    /// Reason for which the call waited, if it did.
    pub held: Option<WaitReason>,
    /// State of the concurrency limiter of its cost class at dispatch. `None` under a policy
    /// without a limiter.
    pub mode: Option<FlowMode>,
    /// Reason for which a mergeable call was executed unbatched.
    pub unbatched_reason: Option<UnbatchedReason>,
    /// `true` if the call has to be sent over a connection of its own, as a batch is.
    pub own_connection: bool,
    /// Predicted time from dispatch to the response. `None` while the cost is unknown.
    pub predicted: Option<Duration>,
    /// Instant of dispatch.
    pub sent: Option<crate::batching::Tick>,
    /// Arrival of the response to the batch. Later delays are not visible to the core.
    pub answered: Option<crate::batching::Tick>,
}

/// The outcome of a submitted call.
#[derive(Debug)]
pub enum SubmitOutcome {
    /// The call holds a slot and is sent unbatched, in its original form, by its own task.
    Unbatched(UnbatchedPermit),
    /// The call's part of a batch response.
    Reply(Box<BufferedReply>, ExecutionDetails),
    /// A streamed response: the call's part of that of a batch or, after the batch failed, one of
    /// its own.
    Streamed(Box<StreamedAnswer>, ExecutionDetails),
    /// The call is too large, and was not queued: it is to be submitted in parts within these
    /// limits.
    Divide(Box<Submission>, PartLimits),
    /// Ended by the proxy.
    Failed(Failure, ExecutionDetails),
}

/// A handle to submit calls and to control the scheduler.
#[derive(Debug, Clone)]
pub struct SchedulerHandle {
    events: mpsc::Sender<DriverEvent>,
    next_id: Arc<AtomicU64>,
}

/// The running scheduler.
#[derive(Debug)]
pub struct Scheduler {
    /// Submits calls and controls the scheduler.
    pub handle: SchedulerHandle,
    failed: watch::Receiver<bool>,
}

#[derive(Debug)]
enum DriverEvent {
    Submit(CallId, Box<Submission>, oneshot::Sender<SubmitOutcome>),
    Cancel(CallId),
    /// A member of a batch was answered before the others.
    MemberAnswered(CallId),
    /// A plan was solved for a cost class, in the run of the driver with this number.
    Plan(u64, CostClassId, Plan),
    Report(oneshot::Sender<BatcherReport>),
    Decisions(oneshot::Sender<DecisionReport>),
    SetLimits(Box<Limits>, oneshot::Sender<()>),
    Snapshot(oneshot::Sender<LearnedState>),
    Seed(Box<LearnedState>),
    Quarantine(Arc<Call>),
    Reset,
    Drain,
    Resume,
    #[cfg(test)]
    Panic,
}

/// Cancels a call when its caller stops waiting.
struct CancelOnDrop<'a> {
    events: &'a mpsc::Sender<DriverEvent>,
    id: Option<CallId>,
}

// === impl Scheduler ===

impl Scheduler {
    /// Spawns the driver.
    ///
    /// # Errors
    /// Returns an error if the system provides no timer.
    pub fn start(
        config: SchedulerConfig,
        clock: Clock,
        backend: Arc<dyn Backend>,
        metrics: Arc<Metrics>,
    ) -> std::io::Result<Self> {
        let (events, inbox) = mpsc::channel(EVENTS_MAX);
        let (failed_sender, failed) = watch::channel(false);
        let supervisor = driver::Supervisor::new(config, clock, backend, metrics, events.downgrade())?;
        tokio::spawn(supervisor.run(inbox, failed_sender));
        Ok(Self { handle: SchedulerHandle { events, next_id: Arc::new(AtomicU64::new(1)) }, failed })
    }

    /// Resolves when the driver has panicked too often to be restarted.
    pub async fn failed(&self) {
        let mut failed = self.failed.clone();
        // A closed channel means that the driver ended together with the runtime, which is no
        // failure.
        if failed.wait_for(|failed| *failed).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

// === impl SchedulerHandle ===

impl SchedulerHandle {
    /// Queues a call and waits for its outcome.
    pub async fn submit(&self, submission: Submission) -> SubmitOutcome {
        let id = CallId(self.next_id.fetch_add(1, Ordering::Relaxed));
        let (reply, outcome) = oneshot::channel();
        if self.events.try_send(DriverEvent::Submit(id, Box::new(submission), reply)).is_err() {
            return SubmitOutcome::Failed(
                Failure::retry(FailureKind::QueueFull, Duration::from_secs(1)),
                ExecutionDetails::default(),
            );
        }
        let mut cancel = CancelOnDrop { events: &self.events, id: Some(id) };
        let outcome = outcome.await;
        cancel.id = None;
        outcome.unwrap_or_else(|_| SubmitOutcome::Failed(FailureKind::Internal.into(), ExecutionDetails::default()))
    }

    /// Returns a report of the learned state, for status and metrics; `None` if the driver does not
    /// respond within a second.
    pub async fn report(&self) -> Option<BatcherReport> {
        let (reply, report) = oneshot::channel();
        self.events.try_send(DriverEvent::Report(reply)).ok()?;
        tokio::time::timeout(Duration::from_secs(1), report).await.ok()?.ok()
    }

    /// Returns the current decisions and their reasons; `None` if the driver does not respond
    /// within a second.
    pub async fn decision_report(&self) -> Option<DecisionReport> {
        let (reply, report) = oneshot::channel();
        self.events.try_send(DriverEvent::Decisions(reply)).ok()?;
        tokio::time::timeout(Duration::from_secs(1), report).await.ok()?.ok()
    }

    /// Replaces the limits. Returns `false` if the driver has stopped.
    ///
    /// Queued calls stay queued and are dispatched under the new limits; executions in flight are
    /// not affected. Once this returns, a call may name any scope of the new limits.
    pub async fn set_limits(&self, limits: Limits) -> bool {
        let (reply, applied) = oneshot::channel();
        self.events.send(DriverEvent::SetLimits(Box::new(limits), reply)).await.is_ok() && applied.await.is_ok()
    }

    /// Returns a snapshot of the learned state, from which another process can start; `None` if the
    /// driver has stopped.
    pub async fn snapshot(&self) -> Option<LearnedState> {
        let (reply, state) = oneshot::channel();
        self.events.send(DriverEvent::Snapshot(reply)).await.ok()?;
        state.await.ok()
    }

    /// Seeds the learned state with a snapshot from elsewhere, unless something was already learned
    /// here.
    pub async fn seed(&self, state: LearnedState) {
        // Ignored if the driver has stopped.
        self.events.send(DriverEvent::Seed(Box::new(state))).await.ok();
    }

    /// Puts the merge key of a call in quarantine, because the call received another response from
    /// a batch than unbatched.
    pub async fn quarantine(&self, call: Arc<Call>) {
        // Ignored if the driver has stopped.
        self.events.send(DriverEvent::Quarantine(call)).await.ok();
    }

    /// Resets the learned state, because the upstream was replaced by another.
    pub async fn reset(&self) {
        // Ignored if the driver has stopped.
        self.events.send(DriverEvent::Reset).await.ok();
    }

    /// Starts a drain: no call is held back from now on.
    pub async fn drain(&self) {
        // Ignored if the driver has stopped.
        self.events.send(DriverEvent::Drain).await.ok();
    }

    /// Cancels a drain.
    pub async fn resume(&self) {
        // Ignored if the driver has stopped.
        self.events.send(DriverEvent::Resume).await.ok();
    }

    #[cfg(test)]
    async fn panic(&self) {
        self.events.send(DriverEvent::Panic).await.unwrap();
    }
}

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            // A full channel loses this event; the driver checks every call again before it is sent
            // (`oneshot::Sender::is_closed`).
            self.events.try_send(DriverEvent::Cancel(id)).ok();
        }
    }
}

#[cfg(test)]
mod tests;
