//! The driver task: receives events, polls the batching core and executes its decisions. `dispatch`
//! executes those that send a batch.

mod dispatch;
mod merging_log;

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::AbortHandle;

use super::execution::Completion;
use super::exported_cap::ExportedCap;
use super::ids::IdInterner;
use super::key_diversity::{DecisionReport, KeyDiversity};
use super::stream_tokens::ClassTokens;
use super::{
    COMPLETIONS_MAX, DriverEvent, ExecutionDetails, LearnedState, SLOTS_UNLIMITED, SchedulerConfig, Submission,
    SubmitOutcome,
};
use crate::backend::{Backend, LimitsLookUp};
use crate::batching::{
    BatchId, BatchOutcome, Batcher, CallId, CostClassId, Decision, DispatchPolicy, ExpiryReason, PlanInput, Rejection,
    RejectionReason, ScopeId, Tick, solve,
};
use crate::clock::{Alarm, Clock};
use crate::error::{Failure, FailureKind};
use crate::protocol::{LimitsSource, MergeEligibility};
use crate::telemetry::Metrics;

/// Capacity retained by an empty queue. Additional capacity from a peak is freed.
const RETAINED_CAPACITY_MAX: usize = 1024;
/// Maximum number of events received from the channel at once.
const EVENT_BATCH_MAX: usize = 256;
/// Maximum number of cost classes that wait for limits of the server. A server has few kinds of calls
/// that are new at the same time; beyond it, calls are sent unbatched.
const PENDING_LIMITS_MAX: usize = 256;
/// Number of panics within [`PANIC_WINDOW`] that end the process.
const PANICS_MAX: usize = 3;
const PANIC_WINDOW: Duration = Duration::from_secs(60);

/// Restarts the driver after a panic, and holds the state that survives it.
#[derive(Debug)]
pub(super) struct Supervisor {
    config: SchedulerConfig,
    clock: Clock,
    backend: Arc<dyn Backend>,
    metrics: Arc<Metrics>,
    events: mpsc::WeakSender<DriverEvent>,
    alarm: Alarm,
    /// The scheduler drains, so no call is held back.
    draining: bool,
}

/// One run of the driver, from its start to its end or panic.
struct Driver<'a> {
    supervisor: &'a mut Supervisor,
    /// Number of this run. Plans and completions of an earlier run are ignored.
    generation: u64,
    core: Batcher,
    ids: IdInterner,
    /// The smallest caps on items and weight that are learned or published, as exported by the
    /// gauges.
    items_cap: ExportedCap,
    weight_cap: ExportedCap,
    /// The server advertises that it batches by itself.
    batches_itself: bool,
    /// Cost classes of calls that arrived before the limits that the server publishes were known, with
    /// the document that has them. Their calls leave one by one until then.
    pending_limits: Vec<(CostClassId, LimitsSource)>,
    queued: HashMap<CallId, QueuedCall>,
    in_flight: HashMap<BatchId, InFlightExecution>,
    /// Differences between the merge keys of each cost class.
    key_diversity: KeyDiversity,
    /// Number of upstream changes already added to the counter.
    counted_changes: u64,
    completion_sender: mpsc::Sender<Completion>,
    stream_tokens: ClassTokens,
}

/// An execution in flight.
struct InFlightExecution {
    /// `None`: the execution is sent by the task of its caller.
    task: Option<AbortHandle>,
    /// Scope of the route of its first member.
    scope: ScopeId,
}

struct QueuedCall {
    submission: Box<Submission>,
    reply: oneshot::Sender<SubmitOutcome>,
    arrived: Tick,
}

// === impl Supervisor ===

impl Supervisor {
    pub(super) fn new(
        config: SchedulerConfig,
        clock: Clock,
        backend: Arc<dyn Backend>,
        metrics: Arc<Metrics>,
        events: mpsc::WeakSender<DriverEvent>,
    ) -> std::io::Result<Self> {
        Ok(Self { config, clock, backend, metrics, events, alarm: Alarm::new(clock)?, draining: false })
    }

    /// Runs the driver until every handle is dropped, and restarts it after a panic.
    pub(super) async fn run(mut self, mut inbox: mpsc::Receiver<DriverEvent>, failed: watch::Sender<bool>) {
        let capacity = usize::try_from(COMPLETIONS_MAX).unwrap_or(usize::MAX);
        let (completion_sender, mut completions) = mpsc::channel(capacity);
        let mut panics: Vec<Tick> = Vec::new();
        for generation in 0.. {
            let run = Driver::new(&mut self, generation, completion_sender.clone()).run(&mut inbox, &mut completions);
            if AssertUnwindSafe(run).catch_unwind().await.is_ok() {
                return;
            }
            let now = self.clock.now();
            panics.retain(|at| now.since(*at) < PANIC_WINDOW);
            panics.push(now);
            tracing::error!(panics = panics.len(), "the scheduler panicked and restarts with an empty queue");
            if panics.len() >= PANICS_MAX {
                // Sending fails only if the process is already shutting down.
                failed.send(true).ok();
                return;
            }
        }
    }
}

// === impl Driver ===

impl<'a> Driver<'a> {
    fn new(supervisor: &'a mut Supervisor, generation: u64, completion_sender: mpsc::Sender<Completion>) -> Self {
        // Taken, so that a run after a panic starts without it, in case that it caused the panic.
        let learned_state = std::mem::take(&mut supervisor.config.learned_state);
        let mut driver = Self {
            core: Batcher::new(supervisor.config.limits.clone(), supervisor.config.seed),
            supervisor,
            generation,
            ids: IdInterner::new(),
            queued: HashMap::new(),
            in_flight: HashMap::new(),
            items_cap: ExportedCap::default(),
            weight_cap: ExportedCap::default(),
            batches_itself: false,
            pending_limits: Vec::new(),
            key_diversity: KeyDiversity::default(),
            counted_changes: 0,
            completion_sender,
            stream_tokens: ClassTokens::default(),
        };
        if driver.supervisor.draining {
            driver.core.drain(driver.now());
        }
        driver.restore(&learned_state);
        if generation > 0 {
            // Resets the gauges that the previous run exported.
            let metrics = &driver.supervisor.metrics;
            for limit in ["batch_items_max", "batch_weight_max"] {
                metrics.set_port_limit(limit, "learned", f64::INFINITY);
                metrics.set_port_limit(limit, "published", f64::NAN);
            }
        }
        driver.export_caps();
        driver
    }

    async fn run(mut self, inbox: &mut mpsc::Receiver<DriverEvent>, completions: &mut mpsc::Receiver<Completion>) {
        let mut events = Vec::with_capacity(EVENT_BATCH_MAX);
        loop {
            self.execute_decisions();
            self.supervisor.alarm.set(self.core.next_wakeup());
            tokio::select! {
                // Drain completions before new events: a completion frees the slot that queued
                // calls are waiting for.
                biased;
                Some(completion) = completions.recv() => {
                    self.on_completion(completion);
                    while let Ok(completion) = completions.try_recv() {
                        self.on_completion(completion);
                    }
                }
                count = inbox.recv_many(&mut events, EVENT_BATCH_MAX) => {
                    if count == 0 {
                        return;
                    }
                    for event in events.drain(..) {
                        self.handle_event(event);
                    }
                }
                () = self.supervisor.alarm.wait() => {}
            }
        }
    }

    fn now(&self) -> Tick {
        self.supervisor.clock.now()
    }

    fn handle_event(&mut self, event: DriverEvent) {
        match event {
            DriverEvent::Submit(id, submission, reply) => self.enqueue(id, submission, reply),
            DriverEvent::Cancel(id) => {
                self.core.cancel(self.now(), id);
                self.remove_call(id);
            }
            DriverEvent::MemberAnswered(id) => self.core.on_member_answered(id),
            DriverEvent::Plan(generation, class, plan) if generation == self.generation => {
                self.core.set_plan(self.now(), class, plan);
            }
            // A plan from a previous run: the ids of cost classes differ now.
            DriverEvent::Plan(..) => {}
            // Sending fails if the requester has stopped waiting, which is ignored here and below.
            DriverEvent::Report(reply) => _ = reply.send(self.core.report()),
            DriverEvent::Decisions(reply) => _ = reply.send(self.decision_report()),
            DriverEvent::SetLimits(limits, reply) => {
                self.supervisor.config.limits = (*limits).clone();
                self.core.set_limits(*limits);
                // The requester may have stopped waiting.
                reply.send(()).ok();
            }
            DriverEvent::Snapshot(reply) => _ = reply.send(self.learned_state()),
            DriverEvent::Seed(state) => self.seed(&state),
            DriverEvent::Quarantine(call) => {
                if let Some(key) = self.ids.key_of(&call) {
                    let class = self.ids.intern_class(&call.cost_class);
                    self.core.quarantine_different(self.now(), class, key);
                }
            }
            DriverEvent::Reset => {
                self.core.reset(self.now());
                self.report_merging_changes();
                self.items_cap.clear_published();
                self.weight_cap.clear_published();
                // The next call carries the value that the new upstream advertises.
                self.set_batches_itself(false);
            }
            DriverEvent::Drain => {
                self.supervisor.draining = true;
                self.core.drain(self.now());
            }
            DriverEvent::Resume => {
                self.supervisor.draining = false;
                self.core.resume(self.now());
            }
            #[cfg(test)]
            DriverEvent::Panic => panic!("requested by a test"),
        }
    }

    fn learned_state(&self) -> LearnedState {
        let named = |(id, snapshot): (CostClassId, _)| Some((self.ids.class_name(id)?.into(), snapshot));
        LearnedState {
            upstream: self.core.upstream_snapshot(),
            classes: self.core.snapshot().into_iter().filter_map(named).collect(),
        }
    }

    /// Restores the snapshot unless a cost was already learned here, since local observations take
    /// precedence.
    fn seed(&mut self, state: &LearnedState) {
        if self.core.snapshot().iter().all(|(_, class)| class.cost.first_nanos == 0) {
            self.restore(state);
        }
    }

    fn restore(&mut self, state: &LearnedState) {
        let now = self.now();
        self.core.restore_upstream(now, state.upstream);
        for (name, snapshot) in &state.classes {
            self.core.restore(now, self.ids.intern_class(name), snapshot);
        }
    }

    fn set_batches_itself(&mut self, batches_itself: bool) {
        if self.batches_itself != batches_itself {
            self.batches_itself = batches_itself;
            self.core.set_known_batching(batches_itself);
        }
    }

    fn enqueue(&mut self, id: CallId, mut submission: Box<Submission>, reply: oneshot::Sender<SubmitOutcome>) {
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
    fn resolve_pending_limits(&mut self) {
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

    /// Solves a plan on a blocking thread, since it takes up to about ten milliseconds of a core.
    /// The previous plan remains in use meanwhile.
    fn spawn_solver(&self, class: CostClassId, input: PlanInput) {
        let (events, generation) = (self.supervisor.events.clone(), self.generation);
        let (metrics, clock) = (self.supervisor.metrics.clone(), self.supervisor.clock);
        tokio::task::spawn_blocking(move || {
            let start = clock.now();
            let plan = solve(&input);
            metrics.plan_solved(clock.now().since(start));
            if let Some(events) = events.upgrade() {
                // A plan lost to a full channel is superseded by the next one.
                events.try_send(DriverEvent::Plan(generation, class, plan)).ok();
            }
        });
    }

    fn decision_report(&self) -> DecisionReport {
        DecisionReport {
            core: self.core.decision_stats(self.now()),
            now: self.now(),
            names: self.ids.classes().map(|(id, name)| (id, name.into())).collect(),
            key_diversity: self.key_diversity.report(),
            slots_max: self.supervisor.config.limits.slots,
            policy: self.supervisor.config.limits.policy,
        }
    }

    /// Removes a call that leaves the queue, and releases its ids.
    fn remove_call(&mut self, id: CallId) -> Option<QueuedCall> {
        let queued = self.queued.remove(&id)?;
        if self.queued.is_empty() && self.queued.capacity() > RETAINED_CAPACITY_MAX {
            self.queued = HashMap::new();
        }
        self.ids.release(&queued.submission);
        Some(queued)
    }

    fn execute_decisions(&mut self) {
        self.resolve_pending_limits();
        loop {
            // `poll` may return a cancelled call if its `Cancel` event was lost to a full channel.
            // `dispatch` detects and withdraws it.
            let now = self.now();
            let Some(decision) = self.core.poll(now) else { break };
            match decision {
                Decision::Dispatch(batch) => self.dispatch(&batch, now),
                Decision::Expire { id, reason } => {
                    let failure = match reason {
                        ExpiryReason::Deadline => FailureKind::Deadline.into(),
                        ExpiryReason::LatePredicted => FailureKind::LatePredicted.into(),
                        ExpiryReason::QueueFull => Failure::retry(FailureKind::QueueFull, self.core.retry_after()),
                    };
                    if let Some(queued) = self.remove_call(id) {
                        let details =
                            ExecutionDetails { queue_delay: now.since(queued.arrived), ..ExecutionDetails::default() };
                        send_outcome(queued.reply, SubmitOutcome::Failed(failure, details));
                    }
                }
                Decision::Abort(batch) => {
                    if let Some(InFlightExecution { task: Some(task), .. }) = self.in_flight.get(&batch) {
                        task.abort();
                    }
                }
            }
        }
        let counts = self.core.counts();
        let slots_max = Some(counts.slots).filter(|slots| *slots < SLOTS_UNLIMITED);
        self.supervisor.metrics.held(&counts, self.supervisor.config.limits.queue_items_max, slots_max);
    }

    fn on_completion(&mut self, completion: Completion) {
        if completion.generation != self.generation {
            return;
        }
        // An execution that its caller sends has no task here.
        let Some(InFlightExecution { task, scope }) = self.in_flight.remove(&completion.batch) else { return };
        self.supervisor.metrics.executed(completion.observed.duration, completion.observed.outcome, task.is_some());
        if let Some(observer) = self.supervisor.metrics.observer()
            && completion.observed.outcome != BatchOutcome::Cancelled
        {
            observer.on_execution(scope, completion.observed.duration, completion.observed.outcome == BatchOutcome::Ok);
        }
        let (now, batch, observed) = (self.now(), completion.batch, completion.observed);
        match completion.stream_tokens {
            Some(tokens) => self.core.complete_stream(now, batch, observed, tokens),
            None => self.core.complete(now, batch, observed),
        }
        self.report_merging_changes();
        if let Some(notify) = &self.supervisor.config.learned {
            notify.notify_one();
        }
        while let Some((class, input)) = self.core.take_due_plan_input() {
            self.spawn_solver(class, input);
        }
        let learned = self.core.learned();
        self.supervisor.metrics.learned(&learned, learned.changes.saturating_sub(self.counted_changes));
        self.counted_changes = learned.changes;
        self.export_caps();
    }

    fn export_caps(&mut self) {
        let metrics = &self.supervisor.metrics;
        self.items_cap.export(metrics, "batch_items_max", self.core.min_ceiling().map(u64::from));
        self.weight_cap.export(metrics, "batch_weight_max", self.core.min_weight_ceiling());
    }
}

/// Sends an outcome to a caller. If the caller has gone, the outcome is dropped, and a permit in it
/// releases its slot.
fn send_outcome(reply: oneshot::Sender<SubmitOutcome>, outcome: SubmitOutcome) {
    reply.send(outcome).ok();
}

fn rejection_failure(rejection: Rejection) -> Failure {
    let kind = match rejection.reason {
        RejectionReason::QueueFull => FailureKind::QueueFull,
        RejectionReason::BytesFull => FailureKind::BytesFull,
        RejectionReason::TenantShare => FailureKind::TenantShare,
    };
    Failure::retry(kind, rejection.retry_after)
}
