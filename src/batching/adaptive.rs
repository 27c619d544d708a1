//! The policy that learns: what a batch of each size costs, how many run side by side, who comes next; and decides by it.
//!
//! [`Adaptive`] owns what is learned and is told of every event; [`Adaptive::next`] decides. Its parts decide one thing each: `want` how large, `gather`
//! whether company is worth a hold, `choose` what deadlines allow. The rules and constants are those of `scheduling.md` §2.
//!
//! What it leaves out: the walls and who of a line fits together (`decide`), ceilings (`class`), and solving plans, which is for a thread that may block.

mod choose;
mod fair;
mod gather;
mod group;
mod want;

use std::collections::BTreeMap;
use std::time::Duration;

use super::arrivals::Arrivals;
use super::batch::{BatchId, Cause, Expiry, Observed, ObservedOutcome};
use super::call::{Call, CallId, CostClassId, DeadlineSource, KeyId, Weight};
use super::class::Class;
use super::cost::{Cost, Report as CostReport, Sample as CostSample, Snapshot};
use super::draw::Draw;
use super::guard::{AsideReport, Chance, Ended, Guard, Mode, Part};
use super::limits::Limits;
use super::plan::{Due, Plan, PlanInput};
use super::queue::{Queue, Queued};
use super::slots::{Flight, Sample, Slot, Slots, View as SlotView};
use super::tick::{Tick, nanos};

use choose::Chosen;
use fair::Clocks;
use want::Want;

/// T before anything was seen (`scheduling.md` §1).
const MEAN_TIME_FIRST: u64 = 5_000_000;
/// Weight of a new execution in T, as one part in so many.
const MEAN_TIME_PARTS: u64 = 10;
/// Cost classes with a curve of their own (`scheduling.md` §1).
const MODELS_MAX: usize = 64;
/// Lines asked for one decision: more than commonly are open at once, and a bound.
const LINES_MAX: usize = 256;
/// Merge keys whose arrivals are watched: more than commonly share one upstream; beyond it the one unused for longest goes.
const KEYS_MAX: usize = 64;

/// What is learned of one upstream.
#[derive(Debug, Clone)]
pub(super) struct Adaptive {
    draw: Draw,
    slots: Slots,
    /// T: the running mean of execution times, in nanoseconds.
    mean_time: u64,
    flights: BTreeMap<BatchId, Sent>,
    models: BTreeMap<CostClassId, Model>,
    keys: BTreeMap<KeyId, Watched>,
    /// The last dispatch left a full batch behind.
    backlog: bool,
    /// Heads given up for more served behind them.
    given_up: Vec<CallId>,
    /// Who [`Next::Chosen`] names.
    chosen: Vec<CallId>,
    /// The parts of a probe that are still to be sent.
    probing: Vec<(Part, Vec<CallId>)>,
    guard: Guard,
    clocks: Clocks,
    /// When the last `next` that said nothing wants to look again.
    wake: Option<Tick>,
    uses: u64,
}

/// What was learned of an upstream, to be shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// C: batches in flight that the upstream runs side by side.
    pub slots: u32,
    /// By how many nanoseconds the next batch may leave before one comes back.
    pub lead_nanos: u64,
    /// T: the running mean of execution times, in nanoseconds.
    pub mean_nanos: u64,
    /// Whether calls are passed one by one, and the last comparison.
    pub aside: AsideReport,
    /// The cost curves.
    pub classes: Vec<(CostClassId, CostReport)>,
}

/// What is learned of a cost class.
#[derive(Debug, Clone)]
struct Model {
    cost: Cost,
    plan: Option<Plan>,
    due: Due,
    batches: u64,
    /// Most items that were answered together.
    worked: u32,
    used: u64,
}

#[derive(Debug, Clone, Default)]
struct Watched {
    arrivals: Arrivals,
    used: u64,
}

/// A batch in flight.
#[derive(Debug, Clone)]
struct Sent {
    flight: Flight,
    due: Tick,
    alone: u64,
    batch: Leaving,
}

/// A batch that leaves.
#[derive(Debug, Clone)]
pub(super) struct Leaving {
    pub(super) key: KeyId,
    pub(super) class: CostClassId,
    pub(super) items: u32,
    pub(super) weight: Weight,
    pub(super) kind: Kind,
    /// Arrivals, items and SLOs of its calls, while [`Adaptive::compares`].
    pub(super) calls: Vec<(Tick, u32, Option<Duration>)>,
    /// Items of its line that stay queued.
    pub(super) left: u64,
}

/// Why a batch was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// To be answered.
    Batch,
    /// Also to ask whether the server batches by itself.
    Probe(Part),
    /// A single call, for the server to batch.
    Pass,
    /// By another policy, or while draining: it teaches only what it costs alone.
    Plain,
}

/// What the decision looks at.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ctx<'a> {
    pub(super) now: Tick,
    pub(super) limits: &'a Limits,
    pub(super) queue: &'a Queue,
    /// How long in all a slot has been free.
    pub(super) free: Duration,
    /// The share of an SLO that may pass beside an idle upstream, in thousandths.
    pub(super) hold_permille: u32,
}

/// What to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// Send up to so many items from the front of this line.
    Send { key: KeyId, items: u32, cause: Cause, kind: Kind },
    /// Send those of [`Adaptive::chosen`].
    Chosen { key: KeyId, cause: Cause, kind: Kind },
    /// This queued call will be late, or was given up for others.
    Expire { id: CallId, reason: Expiry },
    /// Nothing before [`Adaptive::wake`].
    Nothing,
}

/// One line, as a decision sees it.
#[derive(Debug, Clone, Copy)]
struct Line<'a> {
    ctx: Ctx<'a>,
    key: KeyId,
    head: &'a Queued,
    /// Items queued.
    items: u32,
    /// Most items in a batch now.
    cap: u32,
    /// What a batch sent now is expected to wait upstream.
    wait: u64,
}

/// One line's answer.
enum Answer {
    Do(Next),
    Hold(Tick),
    Skip,
}

// === impl Adaptive ===

impl Adaptive {
    pub(super) fn new(seed: u64, stand_aside_max: u32) -> Self {
        Self {
            draw: Draw::new(seed),
            slots: Slots::new(),
            mean_time: MEAN_TIME_FIRST,
            flights: BTreeMap::new(),
            models: BTreeMap::new(),
            keys: BTreeMap::new(),
            backlog: false,
            given_up: Vec::new(),
            chosen: Vec::new(),
            probing: Vec::new(),
            guard: Guard::new(stand_aside_max, false),
            clocks: Clocks::default(),
            wake: None,
            uses: 0,
        }
    }

    pub(super) fn set_known_batching(&mut self, known: bool) {
        self.guard.set_known_batching(known);
    }

    pub(super) fn report(&self) -> Report {
        Report {
            slots: self.slots(),
            lead_nanos: self.slots.lead(),
            mean_nanos: self.mean_time,
            aside: self.guard.report(),
            classes: self.models.iter().map(|(id, model)| (*id, model.cost.report())).collect(),
        }
    }

    pub(super) fn snapshot(&self) -> Vec<(CostClassId, Snapshot)> {
        self.models.iter().map(|(id, model)| (*id, model.cost.snapshot())).collect()
    }

    pub(super) fn restore(&mut self, class: CostClassId, snapshot: &Snapshot) {
        self.learn_of(class);
        if let Some(model) = self.models.get_mut(&class) {
            model.cost = Cost::restore(snapshot);
            model.worked = model.cost.largest().max(1);
        }
    }

    /// Time goes on: a comparison may begin or end. Before every [`Adaptive::next`].
    pub(super) fn tick(&mut self, now: Tick) {
        self.guard.tick(now, Duration::from_nanos(self.mean_time));
    }

    /// Whether calls are passed one by one.
    pub(super) fn passing(&self) -> bool {
        self.guard.mode() == Mode::Pass
    }

    pub(super) fn set_stand_aside_max(&mut self, stand_aside_max: u32) {
        self.guard.set_stand_aside_max(stand_aside_max);
    }

    /// C: the slots in use.
    pub(super) fn slots(&self) -> u32 {
        self.slots.in_use()
    }

    /// When to look again, after [`Next::Nothing`].
    pub(super) const fn wake(&self) -> Option<Tick> {
        self.wake
    }

    /// A call was queued; `idle`: nothing was queued or in flight before it.
    pub(super) fn came(&mut self, now: Tick, call: &Call, idle: bool) {
        // It has a key of its own that nobody will have again.
        if call.alone {
            return;
        }
        self.uses += 1;
        if !self.keys.contains_key(&call.key) && self.keys.len() >= KEYS_MAX {
            forget_oldest(&mut self.keys, |watched| watched.used);
        }
        let watched = self.keys.entry(call.key).or_default();
        watched.used = self.uses;
        watched.arrivals.came(now, call.items, idle, self.mean_time);
    }

    /// Decides. `lines`: those whose route has a slot, in order.
    pub(super) fn next<'a>(
        &mut self,
        ctx: Ctx<'a>,
        lines: impl Iterator<Item = (KeyId, &'a Queued, Option<&'a Class>)>,
    ) -> Next {
        self.wake = None;
        while let Some(id) = self.given_up.pop() {
            if ctx.queue.get(id).is_some() {
                return Next::Expire { id, reason: Expiry::LatePredicted };
            }
        }
        if let Some((part, calls)) = self.probing.pop() {
            let here: Vec<CallId> = calls.into_iter().filter(|id| ctx.queue.get(*id).is_some()).collect();
            if let Some(first) = here.first().and_then(|id| ctx.queue.get(*id)) {
                let key = first.call.key;
                self.chosen = here;
                return Next::Chosen { key, cause: Cause::Probe, kind: Kind::Probe(part) };
            }
            self.guard.probe_lost();
        }
        if self.passing() && self.in_flight() >= self.guard.pass_max() {
            return Next::Nothing;
        }
        for (key, head, class) in self.in_turn(ctx.queue, lines) {
            match self.line(ctx, key, head, class) {
                Answer::Do(next) => return next,
                Answer::Hold(until) => self.wake = Some(self.wake.map_or(until, |wake| wake.min(until))),
                Answer::Skip => {}
            }
        }
        Next::Nothing
    }

    /// Lines in the order in which they are asked: by deadline, or while several tenants are queued by whose turn it is.
    fn in_turn<'a, C>(
        &self,
        queue: &Queue,
        lines: impl Iterator<Item = (KeyId, &'a Queued, C)>,
    ) -> Vec<(KeyId, &'a Queued, C)> {
        let mut lines: Vec<_> = lines.take(LINES_MAX).collect();
        if queue.tenants() > 1 && lines.len() > 1 {
            let turn = |key| queue.tenant_lines(key).map(|(tenant, _)| self.clocks.start(tenant)).min();
            lines.sort_by_cached_key(|(key, head, _)| (turn(*key), head.order, head.call.id));
        }
        lines
    }

    fn line(&mut self, ctx: Ctx<'_>, key: KeyId, head: &Queued, class: Option<&Class>) -> Answer {
        let now = ctx.now;
        let class_id = head.call.cost_class;
        self.learn_of(class_id);
        let Some(model) = self.models.get(&class_id) else { return Answer::Skip };
        if self.passing() {
            return Answer::Do(Next::Send { key, items: 1, cause: Cause::Idle, kind: Kind::Pass });
        }
        let in_flight = self.in_flight();
        let earliest_due = self.earliest_due();
        let view = SlotView {
            in_flight,
            earliest_due,
            // Both arms of a trial use one slot, and a probe that was half convincing is not kept waiting by leads.
            slots_max: if self.compares() || self.guard.probe_waits() { 1 } else { ctx.limits.slots },
            samples: u64::from(model.cost.samples()),
            mean_time: self.mean_time,
            backlog: self.backlog,
        };
        match self.slots.decide(now, view, &mut self.draw) {
            Slot::Free => {}
            Slot::At(at) => return Answer::Hold(at),
            Slot::No => return Answer::Skip,
        }
        let send = |items, cause| Answer::Do(Next::Send { key, items, cause, kind: Kind::Batch });
        if head.call.alone || class.is_some_and(|class| class.quarantined(now)) {
            return send(1, Cause::Idle);
        }
        let scope = ctx.limits.scope(head.call.scope);
        let ceiling = class.map_or(u32::MAX, Class::ceiling);
        let cap = scope.batch_items_max.min(ceiling).min(model.worked.saturating_mul(2).max(2)).max(1);
        let items = u32::try_from(ctx.queue.line_held(key).items).unwrap_or(u32::MAX);
        let wait = self.slots.wait(in_flight, earliest_due, now);
        let line = Line { ctx, key, head, items, cap, wait };
        if let Some(late) = line.late(&model.cost) {
            return Answer::Do(Next::Expire { id: late, reason: Expiry::LatePredicted });
        }
        let leading = in_flight >= self.slots();
        let hold = |until: Tick| {
            let first = ctx.queue.line(key).map(|queued| queued.free_before).min().unwrap_or(head.free_before);
            let hold_max = scope.queue_delay_max.saturating_sub(ctx.free.saturating_sub(first));
            let until = until.min(now.after(hold_max)).min(Tick(now.0.saturating_add(line.room() / 2)));
            (until > now).then_some(Answer::Hold(until))
        };
        if in_flight + 1 >= self.slots() {
            let gain = self.gather(&line, leading);
            if gain > 0
                && let Some(held) = hold(Tick(now.0.saturating_add(gain)))
            {
                return held;
            }
        }
        if in_flight == 0
            && let Some(until) = line.spend(&model.cost)
            && let Some(held) = hold(until)
        {
            return held;
        }
        let shared = ctx.queue.tenants() > 1;
        if let Some(model) = self.models.get(&class_id).filter(|model| model.cost.weights_matter() && !shared) {
            self.chosen = group::group(&line, &model.cost, self.rate(key, now), self.mean_time);
            if !self.chosen.is_empty() {
                let cause = if leading { Cause::Lead } else { Cause::Idle };
                return Answer::Do(Next::Chosen { key, cause, kind: Kind::Batch });
            }
        }
        let want = match self.want(&line) {
            Want::Send(items) => items,
            Want::Hold { until, otherwise } => match hold(until) {
                Some(held) => return held,
                None => otherwise,
            },
        };
        if shared && let Some(model) = self.models.get(&class_id) {
            self.chosen = fair::choose(&line, &model.cost, &self.clocks, want);
            let cause = if leading { Cause::Lead } else { Cause::Idle };
            return Answer::Do(Next::Chosen { key, cause, kind: Kind::Batch });
        }
        let Some(model) = self.models.get(&class_id) else { return Answer::Skip };
        let waited = now.since(head.arrived) > Duration::ZERO && ctx.free > head.free_before;
        match choose::choose(&line, &model.cost, self.rate(key, now), want, &mut self.draw) {
            Chosen::First(items) => {
                let cause = match () {
                    () if items < want => Cause::Deadline,
                    () if leading => Cause::Lead,
                    () if waited => Cause::Delay,
                    () => Cause::Idle,
                };
                self.probe(&line, items).map_or_else(|| send(items, cause), Answer::Do)
            }
            Chosen::GiveUp(heads) => {
                self.given_up = ctx.queue.line(key).take(heads).map(|queued| queued.call.id).collect();
                match self.given_up.pop() {
                    Some(id) => Answer::Do(Next::Expire { id, reason: Expiry::LatePredicted }),
                    None => send(want, Cause::Idle),
                }
            }
        }
    }

    /// In place of a batch, if it is time to ask whether the server batches by itself: its first call, and then both halves of the others.
    fn probe(&mut self, line: &Line<'_>, items: u32) -> Option<Next> {
        let (in_flight, slots, backlog) = (self.flights.len(), self.slots(), self.backlog);
        let scope_max = line.ctx.limits.scope(line.head.call.scope).slots_max;
        let mut room = items;
        let mut calls: Vec<CallId> = Vec::new();
        // Its three parts are sent at once.
        if in_flight == 0 && slots == 1 && line.ctx.limits.slots >= 3 && scope_max >= 3 {
            for queued in line.ctx.queue.line(line.key) {
                if queued.call.items > room || queued.call.alone {
                    break;
                }
                room -= queued.call.items;
                calls.push(queued.call.id);
            }
        }
        let chance = Chance { calls: calls.len(), in_flight, slots, backlog };
        let (single, first, second) = self.guard.probe_due(chance)?;
        let model = self.models.get(&line.head.call.cost_class)?;
        let half = model.cost.time(u32::try_from(second).unwrap_or(u32::MAX));
        self.guard.probe_sent(line.ctx.now, Duration::from_nanos(half));
        calls.truncate(single + first + second);
        let last = calls.split_off((single + first).min(calls.len()));
        let middle = calls.split_off(single.min(calls.len()));
        self.probing = vec![(Part::Second, last), (Part::First, middle)];
        self.chosen = calls;
        Some(Next::Chosen { key: line.key, cause: Cause::Probe, kind: Kind::Probe(Part::Single) })
    }

    /// The calls of the last [`Next::Chosen`], the most urgent first.
    pub(super) fn chosen(&self) -> &[CallId] {
        &self.chosen
    }

    /// Whether batching and standing aside are being compared: what leaves then carries its calls.
    pub(super) fn compares(&self) -> bool {
        self.guard.report().trying
    }

    /// A queued call ended without an answer.
    pub(super) fn expired(&mut self, now: Tick, queued: &Queued) {
        let ended = Ended { arrived: queued.arrived, items: queued.call.items, expired: true, slo: slo_of(queued) };
        self.guard.ended(now, ended);
    }

    /// A call leaves in a batch of so many items. `alone`: no other tenant is queued.
    pub(super) fn charge(&mut self, call: &Call, batch: u32, alone: bool) {
        if alone && self.clocks.is_empty() {
            return;
        }
        let work = self.models.get(&call.cost_class).map_or(0, |model| fair::work(&model.cost, batch, call.items));
        self.clocks.charge(call.tenant, work, alone);
    }

    /// A batch leaves.
    pub(super) fn sent(&mut self, now: Tick, id: BatchId, batch: Leaving) {
        self.learn_of(batch.class);
        let others = self.in_flight();
        let wait = if matches!(batch.kind, Kind::Batch | Kind::Plain) {
            self.slots.wait(others, self.earliest_due(), now)
        } else {
            0
        };
        let alone = self.models.get(&batch.class).map_or(0, |model| model.cost.time_of(batch.items, batch.weight));
        let due = Tick(now.0.saturating_add(wait).saturating_add(alone));
        let flight = self.slots.sent(now, others);
        self.backlog = batch.left >= u64::from(batch.items.max(1)) && others + 1 >= self.slots();
        self.flights.insert(id, Sent { flight, due, alone, batch });
    }

    /// A batch ended.
    pub(super) fn returned(&mut self, now: Tick, id: BatchId, observed: &Observed) {
        let Some(Sent { flight, batch, .. }) = self.flights.remove(&id) else { return };
        for other in self.flights.values_mut() {
            other.due = self.slots.due_after_return(&other.flight, other.due, now, other.alone);
            other.flight.saw_return(now);
        }
        let in_flight = self.flights.len();
        if observed.outcome != ObservedOutcome::Ok {
            match batch.kind {
                Kind::Probe(_) => self.guard.probe_lost(),
                Kind::Pass if matches!(observed.outcome, ObservedOutcome::Overloaded { .. }) => {
                    self.guard.overloaded(in_flight);
                }
                Kind::Pass | Kind::Batch | Kind::Plain => {}
            }
            return;
        }
        for (arrived, items, slo) in &batch.calls {
            self.guard.ended(now, Ended { arrived: *arrived, items: *items, expired: false, slo: *slo });
        }
        match batch.kind {
            Kind::Pass => self.guard.call_passed(in_flight + 1),
            Kind::Batch => self.guard.batch_done(),
            Kind::Plain => {}
            Kind::Probe(part) => {
                self.guard.probe_returned(part, now);
                self.guard.batch_done();
            }
        }
        self.learn(now, &flight, &batch, nanos(observed.duration));
    }

    /// What a batch that was answered well teaches.
    fn learn(&mut self, now: Tick, flight: &Flight, batch: &Leaving, took: u64) {
        let Some(model) = self.models.get_mut(&batch.class) else { return };
        model.batches += 1;
        model.worked = model.worked.max(batch.items);
        let alone = model.cost.time_of(batch.items, batch.weight);
        let sample = match batch.kind {
            Kind::Batch => self.slots.returned(now, flight, alone),
            Kind::Probe(_) | Kind::Plain if flight.is_alone() => Sample::Alone,
            Kind::Probe(_) | Kind::Plain | Kind::Pass => Sample::No,
        };
        if sample != Sample::No {
            let changed = model.cost.observe(CostSample { items: batch.items, weight: batch.weight, nanos: took });
            if sample == Sample::Alone {
                self.mean_time = self.mean_time - self.mean_time / MEAN_TIME_PARTS + took / MEAN_TIME_PARTS;
            }
            if changed {
                self.slots.forget();
                self.guard.changed();
                model.plan = None;
                model.due.changed(model.batches);
            }
        }
        if let Some(watched) = self.keys.get_mut(&batch.key) {
            watched.arrivals.answered(now, batch.items, self.mean_time);
        }
    }

    /// A plan to be solved, if one is due: on a thread that may block, then [`Adaptive::set_plan`].
    pub(super) fn plan_due(&mut self, cap: u32) -> Option<(CostClassId, PlanInput)> {
        for model in self.models.values_mut() {
            if model.plan.as_ref().is_some_and(|plan| {
                let reach = model.cost.largest().saturating_add(1).min(cap).min(super::plan::SIZES_MAX_ITEMS);
                plan.sizes() < reach
            }) {
                model.due.outgrown(model.batches);
            }
        }
        let (id, model) = self.models.iter_mut().find(|(_, model)| model.due.reached(model.batches))?;
        let largest = model.cost.largest().max(2).saturating_mul(2).min(cap).min(super::plan::SIZES_MAX_ITEMS);
        let times: Vec<u64> = (1..=largest).map(|items| model.cost.time(items)).collect();
        if !model.due.due(model.batches, &times) {
            return None;
        }
        let input = PlanInput::new(times);
        Some((*id, model.plan.as_ref().map_or(input.clone(), |plan| input.after(plan))))
    }

    pub(super) fn set_plan(&mut self, class: CostClassId, plan: Plan) {
        if let Some(model) = self.models.get_mut(&class) {
            model.plan = Some(plan);
        }
    }

    fn learn_of(&mut self, class: CostClassId) {
        self.uses += 1;
        if !self.models.contains_key(&class) && self.models.len() >= MODELS_MAX {
            forget_oldest(&mut self.models, |model| model.used);
        }
        let fresh = || Model { cost: Cost::default(), plan: None, due: Due::new(), batches: 0, worked: 1, used: 0 };
        self.models.entry(class).or_insert_with(fresh).used = self.uses;
    }

    fn in_flight(&self) -> u32 {
        u32::try_from(self.flights.len()).unwrap_or(u32::MAX)
    }

    fn earliest_due(&self) -> Option<Tick> {
        self.flights.values().map(|sent| sent.due).min()
    }

    fn rate(&self, key: KeyId, now: Tick) -> super::arrivals::Rate {
        self.keys.get(&key).map(|watched| watched.arrivals.rate(now, self.mean_time)).unwrap_or_default()
    }
}

// === impl Line ===

impl Line<'_> {
    /// Nanoseconds until a call's deadline; `u64::MAX` without one.
    fn slack(&self, queued: &Queued) -> u64 {
        let useful = queued.call.deadline.filter(|deadline| deadline.source != DeadlineSource::Timeout);
        useful.map_or(u64::MAX, |deadline| deadline.at.0.saturating_sub(self.ctx.now.0))
    }

    /// Nanoseconds for which a hold may last at most: a call that is held must still be there to be sent.
    fn room(&self) -> u64 {
        self.head.call.deadline.map_or(u64::MAX, |deadline| deadline.at.0.saturating_sub(self.ctx.now.0))
    }

    /// The head's whole budget, where a user or its caller set one.
    fn budget(&self) -> Option<u64> {
        let deadline = self.head.call.deadline.filter(|deadline| deadline.source != DeadlineSource::Timeout)?;
        Some(deadline.at.0.saturating_sub(self.head.arrived.0))
    }

    /// Whether the SLO is shorter than one execution: then no shedding can save it.
    fn infeasible(&self, cost: &Cost) -> bool {
        let slo = self.head.call.deadline.filter(|deadline| deadline.source == DeadlineSource::Slo);
        let alone = self.wait.saturating_add(cost.time(1));
        slo.is_some_and(|slo| slo.at.0.saturating_sub(self.head.arrived.0) < cost.late(alone))
    }

    /// The head, if even alone it would be answered too late.
    fn late(&self, cost: &Cost) -> Option<CallId> {
        if cost.samples() == 0 || self.infeasible(cost) {
            return None;
        }
        let call = &self.head.call;
        let alone = if cost.weights_matter() { cost.time_of(call.items, call.weight) } else { cost.time(call.items) };
        (self.slack(self.head) < self.wait.saturating_add(alone)).then_some(call.id)
    }

    /// Under a preset that spends slack on size: until when an idle upstream may wait.
    fn spend(&self, cost: &Cost) -> Option<Tick> {
        let share = u64::from(self.ctx.hold_permille);
        if share == 0 || self.items >= self.cap {
            return None;
        }
        let patience = self.head.arrived.0.saturating_add(self.budget()? / 1000 * share);
        let next = cost.late(cost.time((self.items + 1).min(self.cap)));
        let deadline = self.head.call.deadline?.at.0;
        Some(Tick(patience.min(deadline.saturating_sub(next + next / 10))))
    }
}

/// The SLO of a call, if it has one.
pub(super) fn slo_of(queued: &Queued) -> Option<Duration> {
    let slo = queued.call.deadline.filter(|deadline| deadline.source == DeadlineSource::Slo)?;
    Some(slo.at.since(queued.arrived))
}

/// Drops the entry unused for longest.
fn forget_oldest<K: Ord + Copy, V>(map: &mut BTreeMap<K, V>, used: impl Fn(&V) -> u64) {
    if let Some(oldest) = map.iter().min_by_key(|(_, value)| used(value)).map(|(key, _)| *key) {
        map.remove(&oldest);
    }
}
