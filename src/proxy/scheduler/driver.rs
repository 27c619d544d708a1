//! The driver task: receives events, polls the batching core and executes its decisions.
//!
//! - `supervisor`: restart after a panic, and the state that survives it.
//! - `enqueue`: arrival of a call.
//! - `published_limits`: limits that the server publishes, and calls that wait for them.
//! - `dispatch`: execution of the decisions that send a batch.
//! - `merging_log`: log lines about the end of merging.

mod dispatch;
mod enqueue;
mod merging_log;
mod published_limits;
mod supervisor;

use std::collections::HashMap;

use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;

use self::merging_log::BudgetLog;
use self::published_limits::PendingLimits;
pub(super) use self::supervisor::Supervisor;
use super::execution::Completion;
use super::exported_cap::ExportedCap;
use super::ids::IdInterner;
use super::key_diversity::{DecisionReport, KeyDiversity};
use super::stream_tokens::ClassTokens;
use super::waits::{DecisionRounds, QueueArrival};
use super::{DriverEvent, ExecutionDetails, LearnedState, SLOTS_UNLIMITED, Submission, SubmitOutcome};
use crate::batching::{
    BatchId, BatchOutcome, Batcher, CallId, CostClassId, Decision, ExpiryReason, PlanInput, ScopeId, Tick, solve,
};
use crate::error::{Failure, FailureKind};

/// Capacity retained by an empty queue. Additional capacity from a peak is freed.
const RETAINED_CAPACITY_MAX: usize = 1024;
/// Maximum number of events received from the channel at once.
const EVENT_BATCH_MAX: usize = 256;

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
    /// `true` if the server advertises that it batches by itself.
    batches_itself: bool,
    /// Cost classes of calls that leave one by one until the limits that the server publishes are
    /// known.
    pending_limits: Vec<PendingLimits>,
    queued: HashMap<CallId, QueuedCall>,
    rounds: DecisionRounds,
    in_flight: HashMap<BatchId, InFlightExecution>,
    /// Differences between the merge keys of each cost class.
    key_diversity: KeyDiversity,
    /// Number of detected changes of the upstream that are already added to the metric.
    counted_changes: u64,
    completion_sender: mpsc::Sender<Completion>,
    stream_tokens: ClassTokens,
    budget_log: BudgetLog,
}

struct InFlightExecution {
    /// The task of a batch. `None` for an unbatched call, which the task of its caller sends.
    task: Option<AbortHandle>,
    /// Scope of the route of its first member.
    scope: ScopeId,
}

struct QueuedCall {
    submission: Box<Submission>,
    reply: oneshot::Sender<SubmitOutcome>,
    arrival: QueueArrival,
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
            rounds: DecisionRounds::default(),
            in_flight: HashMap::new(),
            items_cap: ExportedCap::default(),
            weight_cap: ExportedCap::default(),
            batches_itself: false,
            pending_limits: Vec::new(),
            key_diversity: KeyDiversity::default(),
            counted_changes: 0,
            completion_sender,
            stream_tokens: ClassTokens::default(),
            budget_log: BudgetLog::default(),
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
        // Zero means that nothing was learned for a class.
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

    /// Solves a plan on a blocking thread, since it takes up to about ten milliseconds of a core.
    /// The previous plan remains in use meanwhile.
    fn spawn_solver(&self, class: CostClassId, input: PlanInput) {
        let (events, generation) = (self.supervisor.events.clone(), self.generation);
        let (metrics, clock) = (self.supervisor.metrics.clone(), self.supervisor.clock);
        tokio::task::spawn_blocking(move || {
            let start = clock.now();
            let plan = solve(&input);
            metrics.record_plan_solved(clock.now().since(start));
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
                        let details = ExecutionDetails {
                            queue_delay: now.since(queued.arrival.at),
                            ..ExecutionDetails::default()
                        };
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
        self.rounds.on_end(!self.in_flight.is_empty());
        let counts = self.core.counts();
        let slots_max = Some(counts.slots).filter(|slots| *slots < SLOTS_UNLIMITED);
        self.supervisor.metrics.set_queue_gauges(&counts, self.supervisor.config.limits.queue_items_max, slots_max);
    }

    fn on_completion(&mut self, completion: Completion) {
        if completion.generation != self.generation {
            return;
        }
        // An execution that its caller sends has no task here.
        let Some(InFlightExecution { task, scope }) = self.in_flight.remove(&completion.batch) else { return };
        self.supervisor.metrics.record_execution(
            completion.observed.duration,
            completion.observed.outcome,
            task.is_some(),
        );
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
        self.supervisor.metrics.set_learned(&learned, learned.changes.saturating_sub(self.counted_changes));
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
