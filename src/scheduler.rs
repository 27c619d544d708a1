//! The shell of the core: one task that feeds events in and carries decisions out.
//!
//! [`Handle::submit`] waits for the outcome of one call; dropping its future cancels the call. The task itself (`driver`) sleeps on a timerfd until the
//! core's next wake-up. If it panics, its calls get `internal`, and it starts again with an empty queue; three panics in a minute are the end
//! ([`Scheduler::failed`]).

mod apart;
mod driver;
mod execution;
mod holds;
mod interner;
mod numbers;
mod onlooker;
mod recent;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, mpsc, oneshot, watch};

pub use self::apart::{ClassApart, Why};
pub use self::execution::Grant;
pub use self::onlooker::{Awaited, Coming, Onlooker, Passing, Reading, Seen};
pub use self::recent::{Benefit, Recent};
use crate::backend::{Backend, StreamedAnswer};
use crate::batching::{
    BatchId, CallId, Cause, ClassSnapshot, CostClassId, Deadline, FlowMode, Limits, Lone, Plan, PriorityId, Report,
    ScopeId, UpstreamSnapshot,
};
use crate::clock::Clock;
use crate::error::{Failure, FailureKind};
use crate::protocol::{Call, Endpoint, Reply};
use crate::telemetry::Metrics;
use crate::telemetry::names::HoldReason;

/// Events waiting for the driver. A driver that is this far behind is stuck, and the answer is `queue_full`: larger than the default queue, so the
/// queue's own limit speaks first.
const EVENTS_MAX: usize = 8192;

/// Executions that may end at once without waiting. At most half as many are in flight where no policy sets a wall: far above what one model server
/// runs, and a few megabytes of channel and tasks.
pub const SLOTS_BOUND: u32 = 4096;

/// What the scheduler needs.
#[derive(Debug, Clone)]
pub struct Config {
    /// The walls.
    pub limits: Limits,
    /// Draws `Retry-After`.
    pub seed: u64,
    /// What an earlier process learned.
    pub kept: Kept,
    /// Told whenever an execution has ended: that is when something is learned.
    pub learned: Option<Arc<Notify>>,
}

/// What was learned, as far as a later process may begin with it.
#[derive(Debug, Clone, Default)]
pub struct Kept {
    /// Of the upstream as a whole.
    pub upstream: UpstreamSnapshot,
    /// By the names of cost classes ([`Call::cost_class`]), which mean the same to every process, as numbers do not.
    pub classes: Vec<(Box<[u8]>, ClassSnapshot)>,
}

/// A call for the queue.
#[derive(Debug)]
pub struct Submission {
    /// The call.
    pub call: Arc<Call>,
    /// How it is written and split.
    pub endpoint: Arc<Endpoint>,
    /// Whose limits hold.
    pub scope: ScopeId,
    /// Its priority class.
    pub priority: PriorityId,
    /// What its tenant weighs beside others.
    pub tenant_weight: u32,
    /// It must go alone, whatever its key.
    pub alone: bool,
    /// Whether the server says that it batches by itself; `None` where it was not asked. Under `Adaptive` its calls are then passed one by one.
    pub batches_itself: Option<bool>,
    /// When its answer becomes useless.
    pub deadline: Option<Deadline>,
    /// The deadline that holds instead once an SLO cannot be met at all.
    pub later: Option<Deadline>,
    /// The SLO as the policy has it, to be shown.
    pub slo: Option<Duration>,
    /// The deadline that the caller itself set: sent on with a shared call.
    pub caller_deadline: Option<crate::batching::Tick>,
    /// From dispatch to the last byte of the answer (of a stream: the first); `None`: no limit.
    pub timeout: Option<Duration>,
    /// The most items that the server itself publishes for such calls.
    pub published_items_max: Option<u32>,
    /// The most weight in a batch that the server itself publishes.
    pub published_weight_max: Option<u64>,
}

/// What is known of the execution that a call was part of.
#[derive(Debug, Clone, Copy, Default)]
pub struct Ticket {
    /// Which execution.
    pub batch: Option<BatchId>,
    /// Items in it.
    pub batch_items: u32,
    /// Calls in it.
    pub calls: u32,
    /// Why it left.
    pub cause: Option<Cause>,
    /// From acceptance to dispatch.
    pub queue_delay: Duration,
    /// What it waited for, if it did.
    pub held: Option<HoldReason>,
    /// What the concurrency limiter of its cost class did then; `None` under a policy that has
    /// none.
    pub mode: Option<FlowMode>,
    /// Why a mergeable call went alone.
    pub lone: Option<Lone>,
    /// How long after dispatch the answer was expected; `None` while nothing was known of its cost.
    pub predicted: Option<Duration>,
    /// When it left.
    pub sent: Option<crate::batching::Tick>,
    /// When the answer to its batch was there; what follows is not seen by the core.
    pub answered: Option<crate::batching::Tick>,
}

/// How a submitted call ended.
#[derive(Debug)]
pub enum Outcome {
    /// It holds a slot and is sent by its own caller, as it came.
    Alone(Grant),
    /// Its part of a batch's answer.
    Reply(Box<Reply>, Ticket),
    /// An answer of its own, of a batch that failed, which is too large to be held.
    Streamed(Box<StreamedAnswer>, Ticket),
    /// Ended by us.
    Failed(Failure, Ticket),
}

/// Where calls are submitted.
#[derive(Debug, Clone)]
pub struct Handle {
    events: mpsc::Sender<Event>,
    next_id: Arc<AtomicU64>,
}

/// The running scheduler.
#[derive(Debug)]
pub struct Scheduler {
    /// Where calls are submitted.
    pub handle: Handle,
    failed: watch::Receiver<bool>,
}

#[derive(Debug)]
enum Event {
    Offer(CallId, Box<Submission>, oneshot::Sender<Outcome>),
    Cancel(CallId),
    Answered(CallId),
    Plan(u64, CostClassId, Plan),
    Report(oneshot::Sender<Report>),
    Why(oneshot::Sender<Why>),
    Limits(Box<Limits>, oneshot::Sender<()>),
    Keep(oneshot::Sender<Kept>),
    Begin(Box<Kept>),
    Forget,
    Drain,
    Resume,
    #[cfg(test)]
    Panic,
}

/// Cancels a call whose caller stops waiting.
struct CancelOnDrop<'a> {
    events: &'a mpsc::Sender<Event>,
    id: Option<CallId>,
}

// === impl Scheduler ===

impl Scheduler {
    /// Starts the driver.
    ///
    /// # Errors
    /// When the system gives no timer.
    pub fn start(
        config: Config,
        clock: Clock,
        backend: Arc<dyn Backend>,
        metrics: Arc<Metrics>,
    ) -> std::io::Result<Self> {
        let (events, inbox) = mpsc::channel(EVENTS_MAX);
        let (failed_tx, failed) = watch::channel(false);
        let driver = driver::Shell::new(config, clock, backend, metrics, events.downgrade())?;
        tokio::spawn(driver.run(inbox, failed_tx));
        Ok(Self { handle: Handle { events, next_id: Arc::new(AtomicU64::new(1)) }, failed })
    }

    /// Resolves when the driver cannot be kept running.
    pub async fn failed(&self) {
        let mut failed = self.failed.clone();
        // A closed channel means that the driver ended with the runtime: nothing to report.
        if failed.wait_for(|failed| *failed).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

// === impl Handle ===

impl Handle {
    /// Queues a call and waits for its outcome.
    pub async fn submit(&self, submission: Submission) -> Outcome {
        let id = CallId(self.next_id.fetch_add(1, Ordering::Relaxed));
        let (reply, outcome) = oneshot::channel();
        if self.events.try_send(Event::Offer(id, Box::new(submission), reply)).is_err() {
            return Outcome::Failed(Failure::retry(FailureKind::QueueFull, Duration::from_secs(1)), Ticket::default());
        }
        let mut cancel = CancelOnDrop { events: &self.events, id: Some(id) };
        let outcome = outcome.await;
        cancel.id = None;
        outcome.unwrap_or_else(|_| Outcome::Failed(FailureKind::Internal.into(), Ticket::default()))
    }

    /// What was learned; `None` when the driver does not answer within a second.
    pub async fn report(&self) -> Option<Report> {
        let (reply, report) = oneshot::channel();
        self.events.try_send(Event::Report(reply)).ok()?;
        tokio::time::timeout(Duration::from_secs(1), report).await.ok()?.ok()
    }

    /// What was decided and why; `None` when the driver does not answer within a second.
    pub async fn why(&self) -> Option<Why> {
        let (reply, why) = oneshot::channel();
        self.events.try_send(Event::Why(reply)).ok()?;
        tokio::time::timeout(Duration::from_secs(1), why).await.ok()?.ok()
    }

    /// Decides within these walls from now on. False when the driver has ended.
    ///
    /// What is queued stays and leaves under the new ones, what is in flight is untouched. A call may name one of their scopes once this has returned.
    pub async fn set_limits(&self, limits: Limits) -> bool {
        let (done, taken) = oneshot::channel();
        self.events.send(Event::Limits(Box::new(limits), done)).await.is_ok() && taken.await.is_ok()
    }

    /// What a later process may begin with; `None` when the driver has ended.
    pub async fn keep(&self) -> Option<Kept> {
        let (reply, kept) = oneshot::channel();
        self.events.send(Event::Keep(reply)).await.ok()?;
        kept.await.ok()
    }

    /// Takes up what others learned of such an upstream, if nothing was learned here yet.
    pub async fn begin(&self, kept: Kept) {
        // A driver that has ended learns nothing any more.
        self.events.send(Event::Begin(Box::new(kept))).await.ok();
    }

    /// The upstream is another one than what was kept is about.
    pub async fn forget(&self) {
        // A driver that has ended knows nothing any more.
        self.events.send(Event::Forget).await.ok();
    }

    /// Nothing waits from now on.
    pub async fn drain(&self) {
        // A driver that has ended has nothing left to send.
        self.events.send(Event::Drain).await.ok();
    }

    /// It goes on after all.
    pub async fn resume(&self) {
        // As above.
        self.events.send(Event::Resume).await.ok();
    }

    #[cfg(test)]
    async fn panic(&self) {
        self.events.send(Event::Panic).await.unwrap();
    }
}

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            // A full channel loses this; the driver looks again before it sends anything (`oneshot::Sender::is_closed`).
            self.events.try_send(Event::Cancel(id)).ok();
        }
    }
}

#[cfg(test)]
mod tests;
