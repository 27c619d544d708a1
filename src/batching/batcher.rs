//! The state machine that ties the parts together.

mod pace;
mod pause;
mod retest;
mod shown;
mod why;

use std::collections::BTreeMap;
use std::time::Duration;

use super::adaptive::{Adaptive, BatchWork, Ctx, Deadlines, Kind, Leaving, Next, slo_of};
use super::batch::{Batch, BatchId, Cause, Decision, Expiry, Lone, Member, Observed, ObservedOutcome};
use super::budget::ReplayBudget;
use super::call::{Call, CallId, CostClassId, DeadlineSource, KeyId, Rejection, RejectionReason, ScopeId, Weight};
use super::ceiling::{Bounded, Extent};
use super::class::{BatchSize, Classes};
use super::decide::{Choice, Ready, View, choose, ready};
use super::draw::Draw;
use super::invariant::{InvariantId, check_invariant};
use super::limits::{Limits, Policy};
use super::plan::{Plan, PlanInput};
use super::queue::Queue;
use super::shelf::Shelf;
use super::skill::{Missing, Skill};
use super::slots::UpstreamSnapshot;
use super::tally::{Sent, Tallies};
use super::tick::Tick;
use pace::{FreeTime, Pace};
use pause::Paused;
use shown::Asked;

pub use shown::{CeilingInForce, ClassSnapshot, Infeasible, Report};
pub use why::{ClassWhy, Why};

/// Lines looked at to see whether calls of other keys wait beside a batch.
const BESIDE_MAX: usize = 16;

/// The core of one upstream.
///
/// # Properties
/// Deterministic: the same events with the same seed give the same decisions. Time never runs back; an earlier `now` counts as the latest one seen.
#[derive(Debug, Clone)]
pub struct Batcher {
    limits: Limits,
    queue: Queue,
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
    /// Replays that isolation may still make, as far as can be told from here: without the policy's share, and every failed batch counted as if each of
    /// its members had been sent again.
    replays: ReplayBudget,
    asked: Asked,
    tallies: Tallies,
}

/// Who leaves.
#[derive(Debug, Clone, Copy)]
enum Who {
    /// From the front of the line, up to so many items if it is said.
    Front(Option<u32>),
    /// Those that were chosen.
    Chosen,
}

#[derive(Debug, Clone)]
struct InFlight {
    /// None for a call that goes alone: nobody else will have its key.
    key: Option<KeyId>,
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
            replays: ReplayBudget::new(0),
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
        if let Some(reason) = self.refuse(&call) {
            self.tallies.rejected(call.cost_class, reason, call.items);
            return Err(Rejection { reason, retry_after: self.retry_after() });
        }
        self.asked.came(now, &call);
        let adaptive = matches!(self.limits.policy, Policy::Adaptive { .. });
        let mut order = Tick(0);
        if adaptive {
            self.adaptive.came(now, &call, self.queue.is_empty() && self.in_flight.is_empty());
            order = call.deadline.map_or(Tick(u64::MAX), |deadline| deadline.at);
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
        if self.queue.remove(id).is_some() {
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

    /// The next thing to do, until `None`. Call it after every event and at `next_wakeup`.
    pub fn poll(&mut self, now: Tick) -> Option<Decision> {
        let now = self.advance(now);
        if let Some(batch) = self.aborts.pop() {
            return Some(Decision::Abort(batch));
        }
        if let Some(expired) = self.expire(now) {
            return Some(expired);
        }
        match self.limits.policy {
            Policy::Adaptive { hold_permille } if !self.draining => self.next_adaptive(now, hold_permille),
            _ => self.pick(now).and_then(|(key, cause)| self.dispatch(now, key, cause, Who::Front(None), Kind::Plain)),
        }
    }

    /// When `poll` has something to do again if no event comes first. After `poll` said `None` it is later than that `now`.
    #[must_use]
    pub fn next_wakeup(&self) -> Option<Tick> {
        if !self.aborts.is_empty() {
            return Some(self.now);
        }
        let deadline = self.first_deadline().map(|(at, _)| at);
        if let Policy::Adaptive { .. } = self.limits.policy
            && !self.draining
        {
            let paused = self.paused.all(self.now).filter(|(key, ..)| self.queue.line_held(*key).items > 0);
            let paused = paused.map(|(.., until)| until);
            return deadline.into_iter().chain(self.adaptive.wake()).chain(paused).min();
        }
        let hold = if self.slot_is_free() {
            self.queue
                .lines()
                .filter(|(_, head)| self.scope_is_free(head.call.scope))
                .map(|(key, head)| {
                    let at = match ready(self.view(), &self.queue, key, head, self.classes.get(head.call.cost_class)) {
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
        let changed = self.adaptive.returned(now, batch, &observed);
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
        self.classes.observe(now, in_flight.cost_class, &self.limits, &in_flight.size, &observed);
        match observed.outcome {
            ObservedOutcome::Ok => self.pace.observe(observed.duration, in_flight.size.extent.items),
            // The callers' answer as it is, or nobody's: nothing is sent again.
            ObservedOutcome::Overloaded { retry_after } => {
                if let (Some(key), Some(after)) = (in_flight.key, retry_after) {
                    self.paused.pause(now, key, in_flight.cost_class, after);
                }
            }
            ObservedOutcome::Cancelled => {}
            _ if in_flight.size.shared => in_flight.members.iter().for_each(|_| self.replays.upstream(now)),
            _ => {}
        }
    }

    /// What is held, for gauges.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let held = self.queue.held();
        Counts {
            queue_calls: self.queue.len(),
            queue_items: held.items,
            queue_bytes: held.bytes,
            oldest: self.queue.oldest(),
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
        self.adaptive.set_known_batching(known);
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
        self.classes.forget_ceilings();
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
            Policy::Adaptive { .. } => self.adaptive.slots().min(self.limits.slots),
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

    fn refuse(&self, call: &Call) -> Option<RejectionReason> {
        let items = u64::from(call.items);
        let (held, scope_held, scope) =
            (self.queue.held(), self.queue.held_by_scope(call.scope), self.limits.scope(call.scope));
        let over = |held: u64, more: u64, max: u64| held > 0 && held + more > max;
        let items_max = u64::from(self.limits.queue_items_max);
        if over(held.items, items, items_max) || over(scope_held.items, items, u64::from(scope.queue_items_max)) {
            return Some(RejectionReason::QueueFull);
        }
        let bytes_full = |held: u64, max: u64| !self.queue.is_empty() && held + call.bytes > max;
        if bytes_full(held.bytes, self.limits.queue_bytes_max)
            || (scope_held.items > 0 && bytes_full(scope_held.bytes, scope.queue_bytes_max))
        {
            return Some(RejectionReason::BytesFull);
        }
        // Half of the queue each once it is half full, and only while somebody else is queued.
        let half = items_max / 2;
        let own = self.queue.held_by_tenant(call.tenant);
        let others = self.queue.tenants() - usize::from(own > 0);
        if others > 0 && own > 0 && held.items >= half && own + items > half {
            return Some(RejectionReason::TenantShare);
        }
        None
    }

    fn first_deadline(&self) -> Option<(Tick, CallId)> {
        self.queue.first_deadline().filter(|_| !self.missing.has(Skill::Shedding))
    }

    fn expire(&mut self, now: Tick) -> Option<Decision> {
        while let Some((at, id)) = self.first_deadline() {
            if at > now {
                return None;
            }
            let queued = self.queue.get(id)?;
            let slo =
                queued.call.deadline.filter(|d| d.source == DeadlineSource::Slo).map(|d| d.at.since(queued.arrived));
            let least = match self.limits.policy {
                Policy::Adaptive { .. } => self.adaptive.lone(queued.call.cost_class),
                _ => self.classes.get(queued.call.cost_class).and_then(super::class::Class::fastest),
            };
            if let (Some(slo), Some(least)) = (slo, least)
                && least > slo
            {
                // No shedding can save an SLO that is shorter than one execution: serve as well as we can.
                self.queue.give_up_deadline(id);
                continue;
            }
            return Some(self.end_early(now, id, Expiry::Deadline));
        }
        None
    }

    fn end_early(&mut self, now: Tick, id: CallId, reason: Expiry) -> Decision {
        if let Some(queued) = self.queue.remove(id) {
            self.adaptive.expired(now, &queued);
            self.tallies.expired(queued.call.cost_class, reason, queued.call.items);
        }
        Decision::Expire { id, reason }
    }

    /// The first line, by the arrival of its head, that may leave now: a line that is held keeps no other from leaving.
    fn pick(&self, now: Tick) -> Option<(KeyId, Cause)> {
        if !self.slot_is_free() {
            return None;
        }
        debug_assert_eq!(now, self.now);
        let lines = self.queue.lines().filter(|(_, head)| self.scope_is_free(head.call.scope));
        lines.filter(|(key, _)| self.paused_until(*key).is_none()).find_map(|(key, head)| {
            match ready(self.view(), &self.queue, key, head, self.classes.get(head.call.cost_class)) {
                Ready::Now(cause) => Some((key, cause)),
                Ready::At(_) => None,
            }
        })
    }

    fn next_adaptive(&mut self, now: Tick, hold_permille: u32) -> Option<Decision> {
        let free = self.free.total(now);
        let missing = self.missing;
        let ctx = Ctx { now, limits: &self.limits, queue: &self.queue, free, hold_permille, missing };
        self.adaptive.tick(now);
        let (scopes, passing) = (&self.scopes_in_flight, self.adaptive.passing());
        let scope_is_free =
            |scope: ScopeId| passing || scopes.get(&scope).copied().unwrap_or(0) < self.limits.scope(scope).slots_max;
        let (paused, draining) = (&self.paused, self.draining);
        let lines = self.queue.lines().filter(|(_, head)| scope_is_free(head.call.scope));
        let lines = lines.filter(|(key, _)| draining || paused.until(now, *key).is_none());
        match self.adaptive.next(ctx, lines, &self.classes) {
            Next::Send { key, items, cause, kind } => self.dispatch(now, key, cause, Who::Front(Some(items)), kind),
            Next::Chosen { key, cause, kind } => self.dispatch(now, key, cause, Who::Chosen, kind),
            Next::Expire { id, reason } => Some(self.end_early(now, id, reason)),
            Next::Nothing => None,
        }
    }

    fn dispatch(&mut self, now: Tick, key: KeyId, cause: Cause, who: Who, kind: Kind) -> Option<Decision> {
        let head = &self.queue.line(key).next()?.call;
        let (cost_class, scope, shareable) = (head.cost_class, head.scope, !head.alone);
        let class = self.classes.get(cost_class);
        let walls = self.walls(cost_class, scope);
        let cut = match who {
            Who::Front(want) => choose(self.view(), self.queue.line(key), class, walls, want)?,
            Who::Chosen => {
                let chosen = self.adaptive.chosen().iter().filter_map(|id| self.queue.get(*id));
                choose(self.view(), chosen, class, walls, None)?
            }
        };
        let (choice, retest) = match self.ask_again(now, key, who, kind, &cut) {
            Some((larger, bounded)) => (larger, Some(bounded)),
            None => (cut, None),
        };
        let Choice { ids, items, weight, heaviest: max, bytes, bound, mut lone } = choice;
        if kind == Kind::Pass {
            lone = lone.or(Some(Lone::NoGain));
        }
        let compares = self.adaptive.compares();
        let mut compared = Vec::new();
        let mut deadlines = Deadlines::default();
        let most = if kind == Kind::Pass { self.limits.stand_aside_max } else { self.limits.slots };
        check_invariant!(InvariantId::WithinSlots, self.in_flight.len() < most as usize);
        let id = BatchId(self.next_batch);
        self.next_batch += 1;
        let mut members = Vec::with_capacity(ids.len());
        let mut start = 0;
        let (mut waited, mut slo) = (Duration::ZERO, None);
        let adaptive = matches!(self.limits.policy, Policy::Adaptive { .. });
        let alone = self.queue.flows() <= 1;
        for &call in &ids {
            let Some(queued) = self.queue.remove(call) else { continue };
            check_invariant!(InvariantId::OneKey, queued.call.key == key);
            let late = queued.call.deadline.is_some_and(|deadline| deadline.at <= now);
            check_invariant!(InvariantId::NotLate, !late || self.missing.has(Skill::Shedding));
            waited = waited.saturating_add(now.since(queued.arrived));
            slo = slo_of(&queued).or(slo);
            if adaptive {
                let share = self.limits.share(&queued.call);
                self.adaptive.charge(&queued.call, BatchWork { items, weight }, share, alone);
            }
            if let Some(deadline) = queued.call.deadline.filter(|deadline| deadline.source != DeadlineSource::Timeout) {
                deadlines.add(queued.call.items, deadline.at);
            }
            if compares {
                compared.push((queued.arrived, queued.call.items, slo_of(&queued)));
            }
            self.members.insert(call, id);
            members.push(Member { id: call, items: start..start + queued.call.items });
            start += queued.call.items;
        }
        check_invariant!(InvariantId::Balanced, start == items);
        if members.len() > 1 {
            members.iter().for_each(|_| self.replays.client(now));
            self.replays.upstream(now);
        }
        if let Some(bounded) = retest {
            self.classes.testing(cost_class, bounded);
        }
        let size = BatchSize {
            extent: Extent { items, sum: weight, heaviest: max },
            shared: members.len() > 1,
            full: items >= walls.items,
            memory: if adaptive { self.adaptive.memory(cost_class) } else { Bounded::PaddedWeight },
            retest,
        };
        self.in_flight.insert(
            id,
            InFlight { key: shareable.then_some(key), cost_class, scope, size, members: ids, waiting: members.len() },
        );
        *self.scopes_in_flight.entry(scope).or_default() += 1;
        // Also under another policy: what is in flight counts when the policy changes, and what runs alone teaches what it costs.
        let left = self.queue.line_held(key).items;
        let in_all = Weight { sum: weight, max };
        let leaving = Leaving {
            key,
            class: cost_class,
            items,
            weight: in_all,
            kind,
            calls: compared,
            left,
            deadlines,
            asks: retest.is_some(),
        };
        let predicted = self.adaptive.sent(now, id, leaving).map(Duration::from_nanos);
        self.free.note(now, self.slot_is_free());
        // What cut the batch short names it; only the drain names every batch of its own (`scheduling.md` §2.1).
        let cause = match cause {
            Cause::Drain => cause,
            _ if retest.is_some() => Cause::Probe,
            _ => bound.unwrap_or(cause),
        };
        let other = |(other, head): (KeyId, &super::queue::Queued)| {
            other != key && head.call.cost_class == cost_class && !head.call.alone
        };
        self.tallies.sent(Sent {
            now,
            class: cost_class,
            cause,
            lone,
            alone: !shareable,
            calls: members.len(),
            items,
            items_max: self.limits.scope(scope).batch_items_max,
            beside: self.in_flight.len() > 1,
            apart: items < walls.items && self.queue.lines().take(BESIDE_MAX).any(other),
            waited,
            slo,
        });
        Some(Decision::Dispatch(Batch { id, key, cost_class, members, items, weight, bytes, cause, lone, predicted }))
    }

    /// Whole seconds between the predicted drain time and 1.5 times that, at least 1 (README R14).
    fn retry_after(&mut self) -> Duration {
        let slots = match self.limits.policy {
            Policy::Adaptive { .. } => self.adaptive.slots().min(self.limits.slots),
            _ => self.limits.slots,
        };
        let drain = self.pace.drain_ns(self.queue.held().items, slots);
        let drawn = drain.saturating_add(self.draw.bits() % (drain / 2 + 1));
        Duration::from_secs(drawn.div_ceil(1_000_000_000).clamp(1, 3600))
    }
}

#[cfg(test)]
mod tests;
