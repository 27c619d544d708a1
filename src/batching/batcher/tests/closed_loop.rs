//! Clients that call again once they are answered, in front of a simulated server.

use std::collections::{BTreeMap, VecDeque};

use super::super::super::call::PriorityId;
use super::super::super::priority::PriorityClass;
use super::*;

/// Service time of an unbatched call in nanoseconds, and its ratio to that of each further item of
/// a batch.
const UNBATCHED: u64 = 20_000_000;
const ITEM_PARTS: u64 = 20;
/// Time after which the server refuses a list.
const REFUSES: u64 = 1_000_000;

/// Closed-loop clients in front of a server that runs this many requests at once.
pub(super) struct ClosedLoop {
    pub(super) batcher: Batcher,
    pub(super) workers: usize,
    /// Outcome of a batch of this merge key, if it is refused. Its members are answered alone.
    pub(super) refusal: fn(KeyId) -> Option<BatchOutcome>,
    /// Number of batches refused.
    pub(super) refused: usize,
    pub(super) now: Tick,
    /// Batches at the server, with the instant of their dispatch.
    waiting: VecDeque<(Tick, Batch)>,
    /// The same with the instant of their end.
    running: Vec<(Tick, Tick, Batch)>,
    calls: u64,
    /// Tenant of each merge key.
    tenants: BTreeMap<KeyId, TenantId>,
    /// Priority class of a merge key, if it is not the default one.
    pub(super) priorities: BTreeMap<KeyId, PriorityId>,
    /// Weight of the calls of a merge key that are charged by weight.
    pub(super) weights: BTreeMap<KeyId, u64>,
    /// Arrivals of the calls that are not answered yet, and the longest time to an answer.
    arrived: BTreeMap<CallId, Tick>,
    pub(super) longest: Duration,
}

// === impl ClosedLoop ===

impl ClosedLoop {
    /// Creates clients of one merge key.
    pub(super) fn new(workers: usize, callers: u64) -> Self {
        let mut clients = Self::without_clients(workers, false);
        clients.add(callers, 0, 0);
        clients
    }

    /// Creates a server without clients. `ordered`: the policy orders calls.
    pub(super) fn without_clients(workers: usize, ordered: bool) -> Self {
        let policy = DispatchPolicy::Adaptive { hold_permille: 0 };
        Self {
            batcher: Batcher::new(limits(|l| (l.policy, l.slots, l.ordered) = (policy, 256, ordered)), 0),
            workers,
            refusal: |_| None,
            refused: 0,
            now: Tick(0),
            waiting: VecDeque::new(),
            running: Vec::new(),
            calls: 0,
            tenants: BTreeMap::new(),
            priorities: BTreeMap::new(),
            weights: BTreeMap::new(),
            arrived: BTreeMap::new(),
            longest: Duration::ZERO,
        }
    }

    /// Sets the priority classes.
    pub(super) fn set_priorities(&mut self, classes: Vec<PriorityClass>) {
        let policy = DispatchPolicy::Adaptive { hold_permille: 0 };
        self.batcher.set_limits(limits(|l| (l.policy, l.slots, l.priorities) = (policy, 256, classes)));
    }

    /// Adds clients of a tenant, with a merge key in common.
    pub(super) fn add(&mut self, callers: u64, key: u64, tenant: u64) {
        self.tenants.insert(KeyId(key), TenantId(tenant));
        (0..callers).for_each(|_| self.call(KeyId(key)));
    }

    fn call(&mut self, key: KeyId) {
        self.calls += 1;
        self.arrived.insert(CallId(self.calls), self.now);
        let (tenant, priority) = (self.tenants[&key], self.priorities.get(&key).copied().unwrap_or_default());
        let mut call = Call { key, tenant, priority, ..call(self.calls) };
        if let Some(weight) = self.weights.get(&key) {
            (call.weight, call.charged_by_weight) = (Weight { sum: *weight, max: *weight }, true);
        }
        self.batcher.enqueue(self.now, call).unwrap();
    }

    fn refusal(&self, batch: &Batch) -> Option<BatchOutcome> {
        (self.refusal)(batch.key).filter(|_| batch.members.len() > 1)
    }

    /// Dispatches what may leave, and starts what the server has room for.
    fn send(&mut self) {
        while let Some(decision) = self.batcher.poll(self.now) {
            let Decision::Dispatch(batch) = decision else { panic!("unexpected {decision:?}") };
            self.waiting.push_back((self.now, batch));
        }
        while self.running.len() < self.workers {
            let Some((sent, batch)) = self.waiting.pop_front() else { break };
            let takes = match self.refusal(&batch) {
                Some(_) => REFUSES + UNBATCHED * u64::from(batch.items),
                None => UNBATCHED + UNBATCHED / ITEM_PARTS * u64::from(batch.items - 1) + batch.id.0 % 7 * 50_000,
            };
            self.running.push((Tick(self.now.0 + takes), sent, batch));
        }
    }

    fn complete(&mut self, sent: Tick, batch: &Batch) {
        let mut observed = ok(self.now.since(sent));
        if let Some(outcome) = self.refusal(batch) {
            self.refused += 1;
            observed = Observation { outcome, first_byte: Some(MS), ..observed };
        }
        for member in &batch.members {
            let arrived = self.arrived.remove(&member.id).unwrap();
            self.longest = self.longest.max(self.now.since(arrived));
        }
        self.batcher.complete(self.now, batch.id, observed);
    }

    /// Runs for this long and returns the number of calls answered meanwhile.
    pub(super) fn run(&mut self, millis: u64) -> usize {
        self.run_counting(millis, |_| true)
    }

    /// The same for calls of the merge keys that satisfy the predicate.
    pub(super) fn run_counting(&mut self, millis: u64, mut counts: impl FnMut(KeyId) -> bool) -> usize {
        let until = Tick(self.now.0 + ms(millis).0);
        let mut answered = 0;
        loop {
            self.send();
            let end = self.running.iter().map(|(end, ..)| *end).min();
            let next = [end, self.batcher.next_wakeup()].into_iter().flatten().min();
            let Some(next) = next.filter(|next| *next <= until) else { break };
            self.now = self.now.max(next);
            while let Some(ended) = self.running.iter().position(|(end, ..)| *end <= self.now) {
                let (_, sent, batch) = self.running.swap_remove(ended);
                self.complete(sent, &batch);
                answered += if counts(batch.key) { batch.members.len() } else { 0 };
                self.send();
                (0..batch.members.len()).for_each(|_| self.call(batch.key));
            }
        }
        self.now = until;
        answered
    }
}
