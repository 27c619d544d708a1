//! The batching state machine of one upstream. It owns the queues, the learned models and the
//! record of executions in flight, and combines their decisions.

mod late_calls;
mod dispatch;
mod in_flight;
mod class_limits;
mod displacement;
mod division;
mod measures;
mod pause;
mod policy;
mod admission;
mod retest;
mod report;
mod selected_batch;
mod statistics;

use std::collections::BTreeMap;

use super::ablation::Feature;
use super::adaptive::{Adaptive, DispatchKind, LearnedSteps};
use super::batch::{BatchId, Decision, ExpiryReason};
use super::call::{Call, CallId, CallOrigin, CostClassId, KeyId, Rejection, ScopeId};
use super::class::ClassTable;
use super::limits::{DispatchPolicy, Limits};
use super::plan::{Plan, PlanInput};
use super::queue::{Queue, QueuedCall};
use super::rng::SplitMix64;
use super::select::{DecisionView, Readiness, ready};
use super::sorted_deque::SortedDeque;
use super::stats::DispatchStats;
use super::tick::Tick;
use displacement::DisplacedCalls;
use in_flight::InFlightBatch;
use late_calls::LateCalls;
use measures::{DrainRate, FreeTime};
use pause::PausedKeys;
use report::RequestedSlos;
use selected_batch::MemberChoice;

pub use division::{DivisionLimits, PartLimits};
pub use pause::PauseStats;
pub use report::{BatcherReport, CeilingInForce, ClassSnapshot, InfeasibleSlo};
pub use statistics::{ClassDecisionStats, DecisionStats, QueueGauges};

/// The batching core of one upstream.
///
/// # Properties
/// Deterministic: the same events with the same seed lead to the same decisions. Time never runs
/// backwards; a `now` earlier than the latest one counts as the latest one.
#[derive(Debug, Clone)]
pub struct Batcher {
    limits: Limits,
    /// Queued calls, except late ones. While a batch of late calls is formed, `queue` and
    /// `late.queue` are swapped.
    queue: Queue,
    late: LateCalls,
    displaced: DisplacedCalls,
    classes: ClassTable,
    in_flight: BTreeMap<BatchId, InFlightBatch>,
    /// Batch of each call in flight that is neither cancelled nor answered.
    members: SortedDeque<CallId, BatchId>,
    /// Number of batches in flight by route. A route without any has no entry.
    scopes_in_flight: BTreeMap<ScopeId, u32>,
    /// Batches for `poll` to abort, because the last member that waited was cancelled.
    aborts: Vec<BatchId>,
    free: FreeTime,
    draining: bool,
    /// The latest `now` of any call of a method.
    now: Tick,
    /// Id of the next batch.
    next_batch: u64,
    pace: DrainRate,
    /// Random numbers for `Retry-After`.
    draw: SplitMix64,
    adaptive: Adaptive,
    /// Steps of the adaptive policy, some of which are replaced in ablation runs.
    steps: LearnedSteps,
    /// `false` only in ablation runs: calls then never expire.
    sheds: bool,
    paused: PausedKeys,
    requested_slos: RequestedSlos,
    tallies: DispatchStats,
}

// === impl Batcher ===

impl Batcher {
    /// Creates a core with these limits. The seed initializes the random numbers for `Retry-After`
    /// and, as a separate stream, those for exploration.
    ///
    /// # Panics
    /// If `limits.scopes` is empty.
    #[must_use]
    pub fn new(limits: Limits, seed: u64) -> Self {
        assert!(!limits.scopes.is_empty(), "limits must name at least one scope");
        Self {
            // A separate random stream: exploration must not depend on which calls were refused.
            adaptive: Adaptive::new(!seed, limits.stand_aside_max),
            limits,
            queue: Queue::default(),
            late: LateCalls::default(),
            displaced: DisplacedCalls::default(),
            classes: ClassTable::default(),
            in_flight: BTreeMap::new(),
            members: SortedDeque::default(),
            scopes_in_flight: BTreeMap::new(),
            aborts: Vec::new(),
            free: FreeTime::default(),
            draining: false,
            now: Tick::default(),
            next_batch: 0,
            pace: DrainRate::default(),
            draw: SplitMix64::new(seed),
            steps: LearnedSteps::default(),
            sheds: true,
            paused: PausedKeys::default(),
            requested_slos: RequestedSlos::default(),
            tallies: DispatchStats::default(),
        }
    }

    /// Returns the core with one feature disabled, to measure the contribution of that feature. For
    /// the simulator only.
    #[doc(hidden)]
    #[must_use]
    pub fn without_feature(mut self, feature: Feature) -> Self {
        self.steps = self.steps.without(feature);
        self.sheds &= feature != Feature::Shedding;
        self
    }

    /// Returns the limits in force.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Replaces the limits. Queued calls and executions in flight are kept; a smaller queue refuses
    /// new calls only. If the new policy sorts the queue differently, all queued calls are sorted
    /// again, so that none is stuck behind all later arrivals.
    ///
    /// # Panics
    /// If `limits.scopes` is empty.
    pub fn set_limits(&mut self, limits: Limits) {
        assert!(!limits.scopes.is_empty(), "limits must name at least one scope");
        self.adaptive.set_stand_aside_max(limits.stand_aside_max);
        let is_adaptive = |limits: &Limits| matches!(limits.policy, DispatchPolicy::Adaptive { .. });
        if (is_adaptive(&limits), limits.order, &limits.length_buckets)
            != (is_adaptive(&self.limits), self.limits.order, &self.limits.length_buckets)
        {
            self.queue.reorder(&limits);
            self.late.queue.reorder(&limits);
        }
        self.limits = limits;
        self.requested_slos.limits_since = self.now;
        self.free.set_free(self.now, self.has_free_slot());
    }

    /// Queues a call, or rejects it if there is no room.
    ///
    /// # Errors
    /// [`Rejection`] if the queue, the route's share of it or the tenant's share of it is full. A
    /// call that finds the queue empty is always accepted, so that a call larger than the queue is
    /// not refused for ever.
    pub fn enqueue(&mut self, now: Tick, mut call: Call) -> Result<(), Rejection> {
        let now = self.advance(now);
        if !self.limits.length_buckets.is_empty() {
            call.key = self.limits.bucketed_key(&call);
        }
        let refused = self.rejection_reason(&call, true).and_then(|reason| match call.origin {
            CallOrigin::Client => self.make_room(&call, reason),
            CallOrigin::Proxy => Some(reason),
        });
        if let Some(reason) = refused {
            self.tallies.on_rejection(call.cost_class, reason, call.items);
            return Err(Rejection { reason, retry_after: self.retry_after() });
        }
        self.requested_slos.on_arrival(now, &call);
        let adaptive = self.is_adaptive();
        let order = self.limits.order_key(now, &call);
        if adaptive {
            let queued = self.queue.load_of_key(call.key).items;
            self.adaptive.on_arrival(now, &call, self.queue.is_empty() && self.in_flight.is_empty(), queued);
            let limit = self.limits.slots.min(self.limits.scope(call.scope).slots_max);
            let held = self.in_flight.len() >= self.limits.slots as usize || !self.has_free_scope_slot(call.scope);
            if held && !call.unmergeable {
                self.adaptive.on_policy_hold(now, call.cost_class, limit);
            }
        }
        let id = call.id;
        self.queue.push(now, self.free.total(now), order, call);
        if adaptive && let Some(queued) = self.queue.get(id) {
            self.adaptive.on_enqueue(&self.queue, &queued.call);
        }
        Ok(())
    }

    /// Starts draining: from now on no call is held.
    pub fn drain(&mut self, now: Tick) {
        self.advance(now);
        self.draining = true;
    }

    /// Cancels a drain: from now on the policy decides again about holds.
    pub fn resume(&mut self, now: Tick) {
        self.advance(now);
        self.draining = false;
    }

    /// Returns the next action, or `None` if there is none. Call it after every event and at
    /// [`Batcher::next_wakeup`] until it returns `None`.
    pub fn poll(&mut self, now: Tick) -> Option<Decision> {
        let now = self.advance(now);
        // Aborts and expiries come first: they free slots and room in the queue.
        if let Some(batch) = self.aborts.pop() {
            return Some(Decision::Abort(batch));
        }
        if let Some(id) = self.displaced.pop() {
            return Some(Decision::Expire { id, reason: ExpiryReason::QueueFull });
        }
        if let Some(expired) = self.next_expiry(now) {
            return Some(expired);
        }
        // A drain dispatches all calls in order, without the adaptive policy.
        self.decide_by_lateness(now, |core| match core.limits.policy {
            DispatchPolicy::Adaptive { hold_permille } if !core.draining => core.next_adaptive(now, hold_permille),
            _ => core.pick(now).and_then(|(key, cause)| {
                core.dispatch(now, key, cause, MemberChoice::Front(None), DispatchKind::Plain)
            }),
        })
    }

    /// Returns the instant at which `poll` has something to do if no event occurs before. After
    /// `poll` has returned `None`, it is later than the `now` of that call.
    #[must_use]
    pub fn next_wakeup(&self) -> Option<Tick> {
        if !self.aborts.is_empty() || !self.displaced.is_empty() {
            return Some(self.now);
        }
        let deadlines = self.first_deadline().into_iter().chain(self.late.queue.first_deadline());
        let deadline = deadlines.map(|(at, _)| at).min();
        // The adaptive policy has determined in `poll` when to decide again (`Adaptive::wake`). The
        // end of a pause of a queued key is added to that.
        if self.is_adaptive() && !self.draining {
            let queues = [&self.queue, &self.late.queue];
            let is_queued = |key| queues.iter().any(|queue| queue.load_of_key(key).items > 0);
            let waits = |key| self.limits.keys_of_buckets(key).any(is_queued);
            let paused = self.paused.all(self.now).filter(|(key, ..)| waits(*key));
            let paused = paused.map(|(.., until)| until);
            return deadline.into_iter().chain(self.adaptive.wake()).chain(paused).min();
        }
        // Under the other policies a key queue becomes due at a time that follows from its head,
        // provided that a slot is free. Otherwise it waits for a completion.
        let hold = if self.has_free_slot() {
            let heads = |queue| Queue::heads(queue).map(move |(key, head)| (queue, key, head));
            heads(&self.queue)
                .chain(self.may_serve_late().then(|| heads(&self.late.queue)).into_iter().flatten())
                .filter(|(.., head)| self.has_free_scope_slot(head.call.scope))
                .map(|(queue, key, head)| {
                    let at = match self.ready(queue, key, head) {
                        Readiness::Now(_) => self.now,
                        Readiness::At(at) => at,
                    };
                    self.paused_until(key).map_or(at, |until| at.max(until))
                })
                .min()
        } else {
            None
        };
        deadline.into_iter().chain(hold).min()
    }

    /// Returns `true` if a limit or the cost of a batch is being tested, which delays some calls.
    /// For models that compare latencies.
    #[must_use]
    pub fn is_testing(&self) -> bool {
        self.adaptive.is_testing()
    }

    fn ready(&self, queue: &Queue, key: KeyId, head: &QueuedCall) -> Readiness {
        let class = self.classes.get(head.call.cost_class);
        ready(self.view(), queue, (key, head), class, self.merge_bound(&head.call))
    }

    /// Sets whether the server is known to batch by itself. If it is, calls are forwarded one by
    /// one and the server is not probed.
    pub fn set_known_batching(&mut self, known: bool) {
        self.adaptive.set_known_batching(self.now, known);
    }

    /// Discards everything that was learned of the upstream, because it has been replaced.
    pub fn reset(&mut self, now: Tick) {
        let now = self.advance(now);
        self.adaptive.forget();
        self.classes.forget();
        self.tallies.forget();
        self.free.set_free(now, self.has_free_slot());
    }

    /// Returns the input of a plan that is due. Solve it with [`solve`](super::solve) on a thread
    /// that may block, then call [`Batcher::set_plan`].
    pub fn take_due_plan_input(&mut self) -> Option<(CostClassId, PlanInput)> {
        // No other policy uses plans.
        if !self.is_adaptive() {
            return None;
        }
        let most = self.limits.scopes.iter().map(|scope| scope.batch_items_max).max().unwrap_or(1);
        (self.steps.take_plan_input)(&mut self.adaptive, most)
    }

    /// Applies a solved plan to the decisions from now on.
    pub fn set_plan(&mut self, now: Tick, class: CostClassId, plan: Plan) {
        let now = self.advance(now);
        self.adaptive.set_plan(now, class, plan);
    }

    fn advance(&mut self, now: Tick) -> Tick {
        self.now = self.now.max(now);
        self.now
    }

    fn view(&self) -> DecisionView<'_> {
        DecisionView { now: self.now, limits: &self.limits, draining: self.draining, free: self.free.total(self.now) }
    }

    fn has_free_slot(&self) -> bool {
        self.in_flight.len() < self.limits.slots as usize && (!self.is_adaptive() || self.adaptive.has_room())
    }

    /// Returns the end of the pause that the upstream requested for this key. A drain ignores
    /// pauses.
    fn paused_until(&self, key: KeyId) -> Option<Tick> {
        self.paused.until(self.now, key).filter(|_| !self.draining)
    }

    fn has_free_scope_slot(&self, scope: ScopeId) -> bool {
        self.scopes_in_flight.get(&scope).copied().unwrap_or(0) < self.limits.scope(scope).slots_max
    }

    fn first_deadline(&self) -> Option<(Tick, CallId)> {
        self.queue.first_deadline().filter(|_| self.sheds)
    }
}

#[cfg(test)]
mod tests;
