//! The state machine that ties the parts together.

mod late;
mod leave;
mod pace;
mod pause;
mod refuse;
mod retest;
mod shown;
mod why;

use std::collections::BTreeMap;

use super::adaptive::{Adaptive, Kind};
use super::batch::{BatchId, Cause, Decision, Expiry, Lone, Observed, ObservedOutcome};
use super::call::{Call, CallId, CostClassId, KeyId, Rejection, ScopeId};
use super::ceiling::Bounded;
use super::class::merging::{Bound, Ended, MergingChange};
use super::class::{BatchSize, Classes};
use super::decide::{Ready, View, ready};
use super::draw::Draw;
use super::limits::{Limits, Policy};
use super::plan::{Plan, PlanInput};
use super::queue::{Queue, Queued};
use super::shelf::Shelf;
use super::skill::{Missing, Skill};
use super::slots::UpstreamSnapshot;
use super::tally::Tallies;
use super::tick::Tick;
use late::LateCalls;
use leave::Who;
use pace::{FreeTime, Pace};
use pause::Paused;
use shown::Asked;

pub use pause::Pauses;
pub use shown::{CeilingInForce, ClassSnapshot, Infeasible, Report};
pub use why::{ClassWhy, Why};

/// The core of one upstream.
///
/// # Properties
/// Deterministic: the same events with the same seed give the same decisions. Time never runs back; an earlier `now` counts as the latest one seen.
#[derive(Debug, Clone)]
pub struct Batcher {
    limits: Limits,
    queue: Queue,
    late: LateCalls,
    classes: Classes,
    in_flight: BTreeMap<BatchId, InFlight>,
    members: Shelf<BatchId>,
    scopes_in_flight: BTreeMap<ScopeId, u32>,
    aborts: Vec<BatchId>,
    free: FreeTime,
    draining: bool,
    now: Tick,
    next_batch: u64,
    pace: Pace,
    draw: Draw,
    adaptive: Adaptive,
    missing: Missing,
    paused: Paused,
    asked: Asked,
    tallies: Tallies,
}

#[derive(Debug, Clone)]
struct InFlight {
    /// None for a call that goes alone: nobody else will have its key.
    key: Option<KeyId>,
    replayable: bool,
    cost_class: CostClassId,
    scope: ScopeId,
    size: BatchSize,
    members: Vec<CallId>,
    /// Members that have neither gone nor been answered.
    waiting: usize,
}

/// What the core holds, for gauges.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Calls queued.
    pub queue_calls: usize,
    /// Items queued.
    pub queue_items: u64,
    /// Bytes queued.
    pub queue_bytes: u64,
    /// Since when the oldest call has been queued.
    pub oldest: Option<Tick>,
    /// Batches in flight.
    pub in_flight: usize,
    /// Batches that may be in flight.
    pub slots: u32,
}

// === impl Batcher ===

impl Batcher {
    /// A core with these limits. The seed draws `Retry-After`, and apart from it what is tried to learn.
    ///
    /// # Panics
    /// If `limits.scopes` is empty.
    #[must_use]
    pub fn new(limits: Limits, seed: u64) -> Self {
        assert!(!limits.scopes.is_empty(), "limits must name at least one scope");
        Self {
            // A stream of its own: what is drawn to explore must not depend on who was refused.
            adaptive: Adaptive::new(!seed, limits.stand_aside_max),
            limits,
            queue: Queue::default(),
            late: LateCalls::default(),
            classes: Classes::default(),
            in_flight: BTreeMap::new(),
            members: Shelf::default(),
            scopes_in_flight: BTreeMap::new(),
            aborts: Vec::new(),
            free: FreeTime::default(),
            draining: false,
            now: Tick::default(),
            next_batch: 0,
            pace: Pace::default(),
            draw: Draw::new(seed),
            missing: Missing::default(),
            paused: Paused::default(),
            asked: Asked::default(),
            tallies: Tallies::default(),
        }
    }

    /// The same without one of its parts, to see what that part is worth. For the simulator only.
    #[doc(hidden)]
    #[must_use]
    pub fn without(mut self, skill: Skill) -> Self {
        self.missing = self.missing.and(skill);
        self
    }

    /// The walls that hold now.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// New walls. What is queued stays, what is in flight is untouched; a smaller queue refuses new calls only. Another policy may order its lines
    /// otherwise: nobody may stand behind all who come later.
    ///
    /// # Panics
    /// If `limits.scopes` is empty.
    pub fn set_limits(&mut self, limits: Limits) {
        assert!(!limits.scopes.is_empty(), "limits must name at least one scope");
        self.adaptive.set_stand_aside_max(limits.stand_aside_max);
        let by_deadline = |limits: &Limits| matches!(limits.policy, Policy::Adaptive { .. });
        if by_deadline(&limits) != by_deadline(&self.limits) {
            self.queue.reorder(by_deadline(&limits));
            self.late.queue.reorder(by_deadline(&limits));
        }
        self.limits = limits;
        self.asked.limits_since = self.now;
        self.free.note(self.now, self.slot_is_free());
    }

    /// Takes the most items that the server itself publishes for a cost class.
    pub fn publish(&mut self, now: Tick, class: CostClassId, items_max: u32) {
        let now = self.advance(now);
        self.classes.publish(now, class, items_max);
    }

    /// Takes the most weight that the server itself publishes for a cost class.
    pub fn publish_weight(&mut self, now: Tick, class: CostClassId, weight_max: u64) {
        let now = self.advance(now);
        let bounded = if self.is_padded(class) { Bounded::PaddedWeight } else { Bounded::Weight };
        self.classes.publish_weight(now, class, bounded, weight_max);
    }

    /// Accepts a call, or says what is full.
    ///
    /// # Errors
    /// [`Rejection`] when the queue, the route's share of it or the tenant's share of it is full. A call that finds the queue empty is always accepted,
    /// so that one larger than the queue is not refused for ever.
    pub fn offer(&mut self, now: Tick, call: Call) -> Result<(), Rejection> {
        let now = self.advance(now);
        if let Some(reason) = self.refuse(&call, true).and_then(|reason| self.displace(&call, reason)) {
            self.tallies.rejected(call.cost_class, reason, call.items);
            return Err(Rejection { reason, retry_after: self.retry_after() });
        }
        self.asked.came(now, &call);
        let adaptive = matches!(self.limits.policy, Policy::Adaptive { .. });
        let mut order = Tick(0);
        if adaptive {
            let queued = self.queue.line_held(call.key).items;
            self.adaptive.came(now, &call, self.queue.is_empty() && self.in_flight.is_empty(), queued);
            order = call.deadline.map_or(Tick(u64::MAX), |deadline| deadline.at);
            let wall = self.limits.slots.min(self.limits.scope(call.scope).slots_max);
            let held = self.in_flight.len() >= self.limits.slots as usize || !self.scope_is_free(call.scope);
            if held && !call.alone {
                self.adaptive.held_at(now, call.cost_class, wall);
            }
        }
        let id = call.id;
        self.queue.push(now, self.free.total(now), order, call);
        if adaptive && let Some(queued) = self.queue.get(id) {
            self.adaptive.joined(&self.queue, &queued.call);
        }
        Ok(())
    }

    /// The caller of a call has gone. A queued call leaves at once; a batch whose members have all gone is aborted by the next `poll`.
    pub fn cancel(&mut self, now: Tick, id: CallId) -> bool {
        self.advance(now);
        if self.queue.remove(id).is_some() || self.late.cancel(id) {
            return true;
        }
        let Some(batch) = self.members.remove(id) else { return false };
        if let Some(in_flight) = self.in_flight.get_mut(&batch) {
            in_flight.waiting -= 1;
            if in_flight.waiting == 0 {
                self.aborts.push(batch);
            }
        }
        true
    }

    /// Removes a call that left between the decision to send its batch and the sending. A batch of
    /// which one call remains shows nothing about merging.
    pub fn withdraw(&mut self, now: Tick, id: CallId) {
        let batch = self.members.get(id).copied();
        self.cancel(now, id);
        if let Some(in_flight) = batch.and_then(|batch| self.in_flight.get_mut(&batch)) {
            in_flight.size.shared &= in_flight.waiting > 1;
        }
    }

    /// A member of a batch in flight has its answer and waits no more, though the batch is not over.
    pub fn answered(&mut self, id: CallId) {
        let Some(batch) = self.members.remove(id) else { return };
        // No abort even if it was the last one: the execution is about to complete with what it learned.
        if let Some(in_flight) = self.in_flight.get_mut(&batch) {
            in_flight.waiting -= 1;
        }
    }

    /// Nothing waits from now on.
    pub fn drain(&mut self, now: Tick) {
        self.advance(now);
        self.draining = true;
    }

    /// It goes on after all: the policy decides again who waits.
    pub fn resume(&mut self, now: Tick) {
        self.advance(now);
        self.draining = false;
    }

    /// The next thing to do, until `None`. Call it after every event and at `next_wakeup`.
    pub fn poll(&mut self, now: Tick) -> Option<Decision> {
        let now = self.advance(now);
        if let Some(batch) = self.aborts.pop() {
            return Some(Decision::Abort(batch));
        }
        if let Some(id) = self.late.pop_displaced() {
            return Some(Decision::Expire { id, reason: Expiry::QueueFull });
        }
        if let Some(expired) = self.expire(now) {
            return Some(expired);
        }
        self.in_time_first(now, |core| match core.limits.policy {
            Policy::Adaptive { hold_permille } if !core.draining => core.next_adaptive(now, hold_permille),
            _ => core.pick(now).and_then(|(key, cause)| core.dispatch(now, key, cause, Who::Front(None), Kind::Plain)),
        })
    }

    /// When `poll` has something to do again if no event comes first. After `poll` said `None` it is later than that `now`.
    #[must_use]
    pub fn next_wakeup(&self) -> Option<Tick> {
        if !self.aborts.is_empty() || self.late.has_displaced() {
            return Some(self.now);
        }
        let deadlines = self.first_deadline().into_iter().chain(self.late.queue.first_deadline());
        let deadline = deadlines.map(|(at, _)| at).min();
        if let Policy::Adaptive { .. } = self.limits.policy
            && !self.draining
        {
            let queues = [&self.queue, &self.late.queue];
            let waits = |key| queues.iter().any(|queue| queue.line_held(key).items > 0);
            let paused = self.paused.all(self.now).filter(|(key, ..)| waits(*key));
            let paused = paused.map(|(.., until)| until);
            return deadline.into_iter().chain(self.adaptive.wake()).chain(paused).min();
        }
        let hold = if self.slot_is_free() {
            let lines = |queue| Queue::lines(queue).map(move |(key, head)| (queue, key, head));
            lines(&self.queue)
                .chain(self.may_serve_late().then(|| lines(&self.late.queue)).into_iter().flatten())
                .filter(|(.., head)| self.scope_is_free(head.call.scope))
                .map(|(queue, key, head)| {
                    let at = match self.ready(queue, key, head) {
                        Ready::Now(_) => self.now,
                        Ready::At(at) => at,
                    };
                    self.paused_until(key).map_or(at, |until| at.max(until))
                })
                .min()
        } else {
            None
        };
        deadline.into_iter().chain(hold).min()
    }

    /// An execution ended: its slot is free.
    pub fn complete(&mut self, now: Tick, batch: BatchId, observed: Observed) {
        let now = self.advance(now);
        let Some(in_flight) = self.in_flight.remove(&batch) else { return };
        let class = in_flight.cost_class;
        let here = (self.held_by_class(class), self.walls(class, in_flight.scope).items);
        let changed = self.adaptive.returned(now, batch, &observed, here);
        if changed && matches!(self.limits.policy, Policy::Adaptive { .. }) {
            self.classes.changed(now, in_flight.cost_class);
        }
        self.free.note(now, self.slot_is_free());
        self.aborts.retain(|id| *id != batch);
        for id in &in_flight.members {
            self.members.remove(*id);
        }
        if let Some(count) = self.scopes_in_flight.get_mut(&in_flight.scope) {
            *count -= 1;
            if *count == 0 {
                self.scopes_in_flight.remove(&in_flight.scope);
            }
        }
        let ended =
            Ended { batch, key: in_flight.key, shared: in_flight.size.shared, replayable: in_flight.replayable };
        self.classes.observe(now, in_flight.cost_class, &self.limits, (ended, &in_flight.size), &observed);
        match observed.outcome {
            ObservedOutcome::Ok => self.pace.observe(observed.duration, in_flight.size.extent.items),
            // The callers' answer as it is, or nobody's: nothing is sent again.
            ObservedOutcome::Overloaded { retry_after } => {
                if let (Some(key), Some(after)) = (in_flight.key, retry_after) {
                    self.paused.pause(now, key, in_flight.cost_class, after);
                }
            }
            ObservedOutcome::Cancelled | ObservedOutcome::TimedOut => {}
            _ if in_flight.size.shared => self.classes.replayed(now, in_flight.members.len()),
            _ => {}
        }
    }

    /// For which cost classes merging ended or began again since the last time this was asked.
    pub fn take_merging_changes(&mut self) -> Vec<MergingChange> {
        self.classes.take_changes()
    }

    /// How many cost classes are not merged, since the server refused their batches.
    #[must_use]
    pub fn suspended(&self) -> usize {
        self.classes.suspended()
    }

    /// Extra upstream calls that failed batches may still cost at this instant. For models that predict decisions.
    #[doc(hidden)]
    #[must_use]
    pub fn replay_room(&self, now: Tick) -> u64 {
        self.classes.replay_room(self.now.max(now))
    }

    /// Whether a limit, or what a batch costs, is being tested: some calls take longer for it. For
    /// models that compare latencies.
    #[must_use]
    pub fn is_testing(&self) -> bool {
        self.adaptive.is_testing()
    }

    /// The most calls of a call's line that may leave together at this instant, and why it is one, if that is reported. For models that predict decisions.
    #[doc(hidden)]
    #[must_use]
    pub fn merge_limit(&self, now: Tick, call: &Call) -> (usize, Option<Lone>) {
        let eager = !matches!(self.limits.policy, Policy::Adaptive { .. });
        match self.classes.merge_bound(self.now.max(now), call, eager) {
            Bound::Alone(lone) => (1, lone),
            Bound::Trial => (2, None),
            Bound::Free => (usize::MAX, None),
        }
    }

    /// How many calls of this call's line may leave together.
    fn merge_bound(&self, call: &Call) -> Bound {
        let eager = !matches!(self.limits.policy, Policy::Adaptive { .. });
        self.classes.merge_bound(self.now, call, eager)
    }

    fn ready(&self, queue: &Queue, key: KeyId, head: &Queued) -> Ready {
        let class = self.classes.get(head.call.cost_class);
        ready(self.view(), queue, (key, head), class, self.merge_bound(&head.call))
    }

    /// What is held, for gauges.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let held = self.held();
        Counts {
            queue_calls: self.queue.len() + self.late.queue.len(),
            queue_items: held.items,
            queue_bytes: held.bytes,
            oldest: self.queue.oldest().into_iter().chain(self.late.queue.oldest()).min(),
            in_flight: self.in_flight.len(),
            slots: self.limits.slots,
        }
    }

    /// The most items that was learned or published for a cost class.
    #[must_use]
    pub fn ceiling(&self, class: CostClassId) -> Option<u32> {
        self.classes.get(class).map(super::class::Class::ceiling).filter(|ceiling| *ceiling < u32::MAX)
    }

    /// The least of all ceilings, for a gauge.
    #[must_use]
    pub fn least_ceiling(&self) -> Option<u32> {
        self.classes.least_ceiling().filter(|ceiling| *ceiling < u32::MAX)
    }

    /// The least of all ceilings on weight, for a gauge.
    #[must_use]
    pub fn least_weight_ceiling(&self) -> Option<u64> {
        let least = self.classes.least(Bounded::Weight).min(self.classes.least(Bounded::PaddedWeight));
        (least < u64::MAX).then_some(least)
    }

    /// Whether the server is known to batch by itself: then calls are passed one by one, and it is not asked.
    pub fn set_known_batching(&mut self, known: bool) {
        self.adaptive.set_known_batching(self.now, known);
    }

    /// What was learned of the upstream's slots, as far as it can be kept for a restart.
    #[must_use]
    pub fn upstream_snapshot(&self) -> UpstreamSnapshot {
        self.adaptive.upstream_snapshot()
    }

    /// Takes up what was learned of the slots before. A slot that is gone by now is noticed like any that vanishes.
    pub fn restore_upstream(&mut self, now: Tick, snapshot: UpstreamSnapshot) {
        let now = self.advance(now);
        self.adaptive.restore_upstream(snapshot);
        self.free.note(now, self.slot_is_free());
    }

    /// The upstream is another one: what was learned of it is forgotten.
    pub fn forget(&mut self, now: Tick) {
        let now = self.advance(now);
        self.adaptive.forget();
        self.classes.forget();
        self.tallies.forget();
        self.free.note(now, self.slot_is_free());
    }

    /// A plan that is to be solved: on a thread that may block, then [`Batcher::set_plan`].
    pub fn plan_due(&mut self) -> Option<(CostClassId, PlanInput)> {
        // Nobody else decides by one.
        let planless = self.missing.has(Skill::Plan) || self.missing.has(Skill::Cost);
        if planless || !matches!(self.limits.policy, Policy::Adaptive { .. }) {
            return None;
        }
        let most = self.limits.scopes.iter().map(|scope| scope.batch_items_max).max().unwrap_or(1);
        self.adaptive.plan_due(most)
    }

    /// Decides by this plan from now on.
    pub fn set_plan(&mut self, now: Tick, class: CostClassId, plan: Plan) {
        let now = self.advance(now);
        self.adaptive.set_plan(now, class, plan);
    }

    fn advance(&mut self, now: Tick) -> Tick {
        self.now = self.now.max(now);
        self.now
    }

    fn view(&self) -> View<'_> {
        View { now: self.now, limits: &self.limits, draining: self.draining, free: self.free.total(self.now) }
    }

    fn slot_is_free(&self) -> bool {
        let slots = match self.limits.policy {
            Policy::Adaptive { .. } if !self.adaptive.has_room() => 0,
            _ => self.limits.slots,
        };
        self.in_flight.len() < slots as usize
    }

    /// Until when the upstream wants nothing of this key; while draining nothing waits.
    fn paused_until(&self, key: KeyId) -> Option<Tick> {
        self.paused.until(self.now, key).filter(|_| !self.draining)
    }

    fn scope_is_free(&self, scope: ScopeId) -> bool {
        self.scopes_in_flight.get(&scope).copied().unwrap_or(0) < self.limits.scope(scope).slots_max
    }

    fn first_deadline(&self) -> Option<(Tick, CallId)> {
        self.queue.first_deadline().filter(|_| !self.missing.has(Skill::Shedding))
    }
}

#[cfg(test)]
mod tests;
