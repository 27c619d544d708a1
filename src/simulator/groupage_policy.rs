//! The Groupage core as a policy: the real [`Batcher`], driven as the proxy drives it.
//!
//! It includes a small version of the failure handling of the proxy: a batch that was too large or
//! failed is isolated on its own slot, within the replay budget, and its completion is reported to
//! the core afterwards. Left out: the bytes of merge keys, sockets, and timeouts of executions.

mod control_loop;
mod tuning;

use std::collections::BTreeMap;

use crate::batching::{
    BatchId, BatchOutcome, Batcher, CallId, Decision, DispatchCause, IsolationPlan, Limits, Observation, PartOutcome,
    ReplayBudget, Tick,
};

use super::batch::{BatchCompletion, ResponseStatus, SimBatchId};
use super::event_log::{CoreRecorder, EventLog};
use super::policy::SimPolicy;
use super::proxy::SimProxy;
use control_loop::ControlLoop;

/// Maximum number of members of a failed batch that are replayed one by one; a larger batch is
/// bisected (`failure.isolateAbove`).
const ISOLATE_ABOVE: u32 = 4;
/// Replays allowed in addition to the client calls, in millionths of them
/// (`failure.replayBudget`).
const REPLAY_PPM: u32 = 100_000;

/// A policy that drives a core under some limits.
#[derive(Debug)]
pub struct GroupagePolicy {
    name: String,
    core: CoreRecorder,
    /// Slow control loop around the core, if the policy has one.
    control_loop: Option<ControlLoop>,
    budget: ReplayBudget,
    /// Batch of the core, or part of one, by the id under which it was sent.
    in_flight: BTreeMap<SimBatchId, BatchExecution>,
    /// Instants of the events at which a limit or the cost of a batch was tested, if recorded.
    tests: Option<Vec<Tick>>,
}

/// A batch of the core, or a part of one that failed.
#[derive(Debug)]
struct BatchExecution {
    batch: BatchId,
    /// Instant at which the whole batch was sent.
    started: Tick,
    /// All members of the batch.
    members: Vec<CallId>,
    /// Instant of the response to the whole batch, if parts of it were sent afterwards.
    answered: Option<Tick>,
    /// `None` while the whole batch is in flight.
    isolation: Option<IsolationState>,
}

/// The isolation of a failed batch.
#[derive(Debug)]
struct IsolationState {
    plan: IsolationPlan,
    /// The part in flight, as a range of the members of the batch.
    part: std::ops::Range<usize>,
    /// Outcome of the whole batch, which is reported to the core at the end.
    outcome: BatchOutcome,
}

// === impl GroupagePolicy ===

impl GroupagePolicy {
    /// Creates a policy with a fresh core.
    #[must_use]
    pub fn new(name: impl Into<String>, limits: Limits, seed: u64) -> Self {
        Self::from_batcher(name, Batcher::new(limits, seed))
    }

    /// Creates a policy with an existing core.
    #[must_use]
    pub fn from_batcher(name: impl Into<String>, batcher: Batcher) -> Self {
        Self {
            name: name.into(),
            core: CoreRecorder::new(batcher),
            control_loop: None,
            budget: ReplayBudget::new(REPLAY_PPM),
            in_flight: BTreeMap::new(),
            tests: None,
        }
    }

    /// Enables the log of the inputs and outputs of the core.
    #[must_use]
    pub fn with_log(mut self) -> Self {
        self.core.enable_log();
        self
    }

    /// Enables the record of the instants at which something is tested.
    #[must_use]
    pub fn with_test_record(mut self) -> Self {
        self.tests = Some(Vec::new());
        self
    }

    /// Returns the instants at which something was tested, one per event.
    #[must_use]
    pub fn test_instants(&self) -> &[Tick] {
        self.tests.as_deref().unwrap_or_default()
    }

    /// Returns the log, if it is enabled.
    #[must_use]
    pub fn log(&self) -> Option<&EventLog> {
        self.core.log()
    }

    /// Returns the core, to inspect what it has learned.
    #[must_use]
    pub fn batcher(&self) -> &Batcher {
        &self.core.batcher
    }

    /// Solves due plans, applies all decisions of the core, and requests the next tick.
    fn apply_decisions(&mut self, proxy: &mut SimProxy) {
        self.core.solve_due_plans(proxy.now());
        let mut tested = self.tests.is_some() && self.core.batcher.is_testing();
        while let Some(decision) = self.core.poll(proxy.now()) {
            match decision {
                Decision::Dispatch(batch) => {
                    tested |= batch.cause == DispatchCause::Probe;
                    let members: Vec<CallId> = batch.members.iter().map(|member| member.id).collect();
                    members.iter().for_each(|_| self.budget.record_client_call(proxy.now()));
                    self.budget.record_first_send(proxy.now());
                    let sent = proxy.send(members.clone());
                    let execution = BatchExecution {
                        batch: batch.id,
                        started: proxy.now(),
                        members,
                        answered: None,
                        isolation: None,
                    };
                    self.in_flight.insert(sent, execution);
                }
                Decision::Expire { id, .. } => proxy.expire(id),
                Decision::Abort(batch) => self.abort(proxy, batch),
            }
        }
        if let Some(tests) = self.tests.as_mut().filter(|_| tested) {
            tests.push(proxy.now());
        }
        proxy.set_wakeup(self.core.next_wakeup());
    }

    fn abort(&mut self, proxy: &mut SimProxy, batch: BatchId) {
        let sent = self.in_flight.iter().find(|(_, execution)| execution.batch == batch).map(|(sent, _)| *sent);
        if let Some((sent, execution)) = sent.and_then(|sent| self.in_flight.remove_entry(&sent)) {
            proxy.abort(sent);
            self.complete(proxy, &execution, BatchOutcome::Cancelled);
        }
    }

    fn complete(&mut self, proxy: &SimProxy, execution: &BatchExecution, outcome: BatchOutcome) {
        let now = proxy.now();
        let first_byte = execution.answered.map(|at| at.since(execution.started));
        let observed = Observation { duration: now.since(execution.started), first_byte, outcome };
        self.core.complete(now, execution.batch, observed);
    }

    /// Answers the members of a batch or a part, or isolates a batch that failed.
    fn on_response(&mut self, proxy: &mut SimProxy, mut execution: BatchExecution, done: &BatchCompletion) {
        let failure = match done.status {
            ResponseStatus::Ok => None,
            ResponseStatus::TooLarge { limit } => Some(PartOutcome::TooLarge { limit }),
            ResponseStatus::OutOfMemory => Some(PartOutcome::Failed),
            // An overload concerns all members alike, so each receives the response, and nothing is
            // sent again.
            ResponseStatus::Overloaded => {
                self.refuse(proxy, &done.members);
                None
            }
        };
        let whole = 0..execution.members.len();
        match (&mut execution.isolation, failure) {
            (None, None) => {
                let outcome = observed_outcome(done.status);
                return self.complete(proxy, &execution, outcome);
            }
            // An unbatched call receives its own response.
            (None, Some(_)) if whole.len() < 2 => {
                self.refuse(proxy, &done.members);
                return self.complete(proxy, &execution, observed_outcome(done.status));
            }
            // The whole batch failed: isolate its members.
            (None, Some(failure)) => {
                let items = execution.members.iter().map(|id| proxy.arrival(*id).call.items).collect();
                let plan = IsolationPlan::new(items, ISOLATE_ABOVE, failure);
                execution.answered = Some(proxy.now());
                execution.isolation =
                    Some(IsolationState { plan, part: whole, outcome: observed_outcome(done.status) });
            }
            // A part of a failed batch: refine the plan by its outcome, or answer its members.
            (Some(isolating), failure) => {
                let part = isolating.part.clone();
                match failure {
                    Some(failure) if part.len() > 1 => isolating.plan.record_outcome(part, failure),
                    Some(_) => self.refuse(proxy, &done.members),
                    None => execution.members[part].iter().for_each(|id| self.core.on_member_answered(*id)),
                }
            }
        }
        self.isolate(proxy, execution);
    }

    /// Sends the next part of which a member still waits, or reports the completion of the batch to
    /// the core.
    fn isolate(&mut self, proxy: &mut SimProxy, mut execution: BatchExecution) {
        let Some(isolating) = &mut execution.isolation else { return };
        let outcome = isolating.outcome;
        while let Some(part) = isolating.plan.next_part() {
            let waiting = |part: &std::ops::Range<usize>, proxy: &SimProxy| -> Vec<CallId> {
                execution.members[part.clone()].iter().copied().filter(|id| proxy.is_queued(*id)).collect()
            };
            let members = waiting(&part, proxy);
            if members.is_empty() {
                continue;
            }
            if part.len() == 1 {
                // The replay of a single member is always allowed; it only counts against the
                // budget.
                self.budget.record_replay(proxy.now());
            } else if !self.budget.try_take_replay(proxy.now()) {
                // The budget is empty: fall back to members one by one.
                isolating.plan.split(part);
                continue;
            }
            isolating.part = part;
            let sent = proxy.send(members);
            self.in_flight.insert(sent, execution);
            return;
        }
        self.complete(proxy, &execution, outcome);
    }

    /// Ends calls with the refusal of the upstream.
    fn refuse(&mut self, proxy: &mut SimProxy, members: &[CallId]) {
        for id in members {
            proxy.refuse(*id);
            self.core.on_member_answered(*id);
        }
    }
}

impl SimPolicy for GroupagePolicy {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn on_arrival(&mut self, proxy: &mut SimProxy, id: CallId) {
        let now = proxy.now();
        let call = self.shift_deadline(proxy.arrival(id).call.clone());
        if self.core.enqueue(now, call).is_err() {
            proxy.reject(id);
        }
        self.apply_decisions(proxy);
    }

    fn on_completion(&mut self, proxy: &mut SimProxy, done: &BatchCompletion) {
        if self.control_loop.is_some() && done.status == ResponseStatus::Ok {
            let now = proxy.now();
            let answered = done.members.iter().map(|id| now.since(proxy.arrival(*id).at));
            self.observe_latencies(now, proxy.slo(), answered);
        }
        if let Some(execution) = self.in_flight.remove(&done.id) {
            self.on_response(proxy, execution, done);
        }
        self.apply_decisions(proxy);
    }

    fn on_tick(&mut self, proxy: &mut SimProxy) {
        self.apply_decisions(proxy);
    }

    fn on_cancel(&mut self, proxy: &mut SimProxy, id: CallId) {
        self.core.cancel(proxy.now(), id);
        self.apply_decisions(proxy);
    }
}

fn observed_outcome(status: ResponseStatus) -> BatchOutcome {
    match status {
        ResponseStatus::Ok => BatchOutcome::Ok,
        ResponseStatus::TooLarge { limit } => BatchOutcome::TooLarge { limit },
        ResponseStatus::OutOfMemory => BatchOutcome::OutOfMemory,
        ResponseStatus::Overloaded => BatchOutcome::Overloaded { retry_after: None },
    }
}
