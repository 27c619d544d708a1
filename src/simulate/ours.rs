//! Our own core as a policy: the real [`Batcher`], driven as the proxy drives it.
//!
//! What the proxy's shell does around the core stands here in small: a batch that was too large or failed is taken apart on its own slot, within
//! the replay budget, and only then is the core told. It leaves out merge keys' bytes, sockets and time limits of executions.

mod steer;
mod tuning;

use std::collections::BTreeMap;

use crate::batching::{
    BatchId, Batcher, CallId, Cause, Decision, Isolation, Limits, Observed, ObservedOutcome, ReplayBudget, Tick,
    Verdict,
};

use super::desk::Desk;
use super::policy::{Done, Policy, SentId, Status};
use super::record::{Log, Recorder};
use steer::Steering;
pub use tuning::Tuning;

/// Batches of up to this many members are replayed one by one, larger ones in halves (`failure.isolateAbove`).
const ISOLATE_ABOVE: u32 = 4;
/// Replays allowed beyond the client calls, in thousandths (`failure.replayBudget`).
const REPLAY_PERMILLE: u32 = 100;

/// The core under some limits.
#[derive(Debug)]
pub struct Ours {
    name: String,
    core: Recorder,
    steering: Option<Steering>,
    budget: ReplayBudget,
    in_flight: BTreeMap<SentId, Execution>,
    /// When something was being tested, if that is watched.
    tests: Option<Vec<Tick>>,
}

/// A batch of the core, or a part of one that failed.
#[derive(Debug)]
struct Execution {
    batch: BatchId,
    started: Tick,
    members: Vec<CallId>,
    /// When the whole batch was answered, if parts of it were sent after that.
    answered: Option<Tick>,
    isolation: Option<Isolating>,
}

#[derive(Debug)]
struct Isolating {
    plan: Isolation,
    part: std::ops::Range<usize>,
    /// What the core is told at the end: how the whole batch ended.
    outcome: ObservedOutcome,
}

// === impl Ours ===

impl Ours {
    /// A fresh core.
    #[must_use]
    pub fn new(name: impl Into<String>, limits: Limits, seed: u64) -> Self {
        Self::with(name, Batcher::new(limits, seed))
    }

    /// A core that has lived before.
    #[must_use]
    pub fn with(name: impl Into<String>, batcher: Batcher) -> Self {
        Self {
            name: name.into(),
            core: Recorder::new(batcher),
            steering: None,
            budget: ReplayBudget::new(REPLAY_PERMILLE),
            in_flight: BTreeMap::new(),
            tests: None,
        }
    }

    /// The same, keeping what the core is told and says.
    #[must_use]
    pub fn recorded(mut self) -> Self {
        self.core.keep();
        self
    }

    /// The same, noting when something is tested.
    #[must_use]
    pub fn watched(mut self) -> Self {
        self.tests = Some(Vec::new());
        self
    }

    /// When something was tested, event by event.
    #[must_use]
    pub fn tests(&self) -> &[Tick] {
        self.tests.as_deref().unwrap_or_default()
    }

    /// What was kept.
    #[must_use]
    pub fn log(&self) -> Option<&Log> {
        self.core.log()
    }

    /// The core, to look at what it learned.
    #[must_use]
    pub fn batcher(&self) -> &Batcher {
        &self.core.batcher
    }

    fn pump(&mut self, desk: &mut Desk) {
        self.core.plan(desk.now());
        let mut tested = self.tests.is_some() && self.core.batcher.is_testing();
        while let Some(decision) = self.core.poll(desk.now()) {
            match decision {
                Decision::Dispatch(batch) => {
                    tested |= batch.cause == Cause::Probe;
                    let members: Vec<CallId> = batch.members.iter().map(|member| member.id).collect();
                    members.iter().for_each(|_| self.budget.client(desk.now()));
                    self.budget.upstream(desk.now());
                    let sent = desk.send(members.clone());
                    let execution =
                        Execution { batch: batch.id, started: desk.now(), members, answered: None, isolation: None };
                    self.in_flight.insert(sent, execution);
                }
                Decision::Expire { id, .. } => desk.expire(id),
                Decision::Abort(batch) => self.abort(desk, batch),
            }
        }
        if let Some(tests) = self.tests.as_mut().filter(|_| tested) {
            tests.push(desk.now());
        }
        desk.wake(self.core.next_wakeup());
    }

    fn abort(&mut self, desk: &mut Desk, batch: BatchId) {
        let sent = self.in_flight.iter().find(|(_, execution)| execution.batch == batch).map(|(sent, _)| *sent);
        if let Some((sent, execution)) = sent.and_then(|sent| self.in_flight.remove_entry(&sent)) {
            desk.abort(sent);
            self.complete(desk, &execution, ObservedOutcome::Cancelled);
        }
    }

    fn complete(&mut self, desk: &Desk, execution: &Execution, outcome: ObservedOutcome) {
        let now = desk.now();
        let first_byte = execution.answered.map(|at| at.since(execution.started));
        let observed = Observed { duration: now.since(execution.started), first_byte, outcome };
        self.core.complete(now, execution.batch, observed);
    }

    fn settle(&mut self, desk: &mut Desk, mut execution: Execution, done: &Done) {
        let verdict = match done.status {
            Status::Ok => None,
            Status::TooLarge { limit } => Some(Verdict::TooLarge { limit }),
            Status::OutOfMemory => Some(Verdict::Failed),
            // It holds for all of them alike: each gets the answer as it is.
            Status::Overloaded => {
                self.refuse(desk, &done.members);
                None
            }
        };
        let whole = 0..execution.members.len();
        match (&mut execution.isolation, verdict) {
            (None, None) => {
                let outcome = observed(done.status);
                return self.complete(desk, &execution, outcome);
            }
            // A call alone gets its own answer.
            (None, Some(_)) if whole.len() < 2 => {
                self.refuse(desk, &done.members);
                return self.complete(desk, &execution, observed(done.status));
            }
            (None, Some(verdict)) => {
                let items = execution.members.iter().map(|id| desk.arrival(*id).call.items).collect();
                let plan = Isolation::new(items, ISOLATE_ABOVE, verdict);
                execution.answered = Some(desk.now());
                execution.isolation = Some(Isolating { plan, part: whole, outcome: observed(done.status) });
            }
            (Some(isolating), verdict) => {
                let part = isolating.part.clone();
                match verdict {
                    Some(verdict) if part.len() > 1 => isolating.plan.refine(part, verdict),
                    Some(_) => self.refuse(desk, &done.members),
                    None => execution.members[part].iter().for_each(|id| self.core.answered(*id)),
                }
            }
        }
        self.isolate(desk, execution);
    }

    /// Sends the next part that somebody still waits for, or tells the core that the batch is over.
    fn isolate(&mut self, desk: &mut Desk, mut execution: Execution) {
        let Some(isolating) = &mut execution.isolation else { return };
        let outcome = isolating.outcome;
        while let Some(part) = isolating.plan.next_part() {
            let waiting = |part: &std::ops::Range<usize>, desk: &Desk| -> Vec<CallId> {
                execution.members[part.clone()].iter().copied().filter(|id| desk.is_queued(*id)).collect()
            };
            let members = waiting(&part, desk);
            if members.is_empty() {
                continue;
            }
            if part.len() == 1 {
                // Owed, whatever the budget holds.
                self.budget.replay(desk.now());
            } else if !self.budget.take(desk.now()) {
                isolating.plan.split(part);
                continue;
            }
            isolating.part = part;
            let sent = desk.send(members);
            self.in_flight.insert(sent, execution);
            return;
        }
        self.complete(desk, &execution, outcome);
    }

    fn refuse(&mut self, desk: &mut Desk, members: &[CallId]) {
        for id in members {
            desk.refuse(*id);
            self.core.answered(*id);
        }
    }
}

impl Policy for Ours {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn arrival(&mut self, desk: &mut Desk, id: CallId) {
        let now = desk.now();
        let call = self.steered(desk.arrival(id).call.clone());
        if self.core.offer(now, call).is_err() {
            desk.reject(id);
        }
        self.pump(desk);
    }

    fn done(&mut self, desk: &mut Desk, done: &Done) {
        if self.steering.is_some() && done.status == Status::Ok {
            let now = desk.now();
            let answered = done.members.iter().map(|id| now.since(desk.arrival(*id).at));
            self.steer(now, desk.slo(), answered);
        }
        if let Some(execution) = self.in_flight.remove(&done.id) {
            self.settle(desk, execution, done);
        }
        self.pump(desk);
    }

    fn tick(&mut self, desk: &mut Desk) {
        self.pump(desk);
    }

    fn cancel(&mut self, desk: &mut Desk, id: CallId) {
        self.core.cancel(desk.now(), id);
        self.pump(desk);
    }
}

fn observed(status: Status) -> ObservedOutcome {
    match status {
        Status::Ok => ObservedOutcome::Ok,
        Status::TooLarge { limit } => ObservedOutcome::TooLarge { limit },
        Status::OutOfMemory => ObservedOutcome::OutOfMemory,
        Status::Overloaded => ObservedOutcome::Overloaded { retry_after: None },
    }
}
