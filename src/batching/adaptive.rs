//! The policy that learns: what a batch of each size costs, how many run side by side, who comes next; and decides by it.
//!
//! [`Adaptive`] owns what is learned and is told of every event; [`Adaptive::next`] decides. Its parts decide one thing each: `want` how large, `gather`
//! whether company is worth a hold, `rejoin` whether callers who take turns are brought together, `choose` what deadlines allow, `group` and `fair` who, `turns` which line first; `learn` takes in what events teach. The rules and constants are those of `scheduling.md` §2.
//!
//! What it leaves out: the walls and who of a line fits together (`decide`), ceilings (`class`), and solving plans, which is for a thread that may block.

mod choose;
mod explore;
mod fair;
mod gather;
mod group;
mod learn;
mod line;
mod rejoin;
mod show;
mod turns;
mod want;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::batch::{BatchId, Cause, Expiry};
use super::call::{Call, CallId, CostClassId, KeyId};
use super::class::merging::Bound;
use super::class::{Class, Classes};
use super::cost::Base;
use super::decide::Walls;
use super::draw::Draw;
use super::guard::{Alone, Chance, Ended, Guard, Mode, Part};
use super::limits::Limits;
use super::queue::{Queue, Queued};
use super::skill::{Missing, Skill};
use super::slots::{Slot, Slots, View as SlotView};
use super::tally::Hold;
use super::tick::Tick;

pub(super) use explore::Deadlines;
pub(super) use fair::Size as BatchWork;
pub(super) use learn::{Curves, Kind, Leaving};
pub(super) use line::{slack_of, slo_of};
pub use show::{Learned, OperatingPoint, PlanAge};

use choose::Chosen;
use explore::Exploration;
use fair::{Clocks, Room};
use learn::{Model, Sent, Watched};
use line::Line;
use turns::Order;
use want::Want;

/// T before anything was seen (`scheduling.md` §1).
const MEAN_TIME_FIRST: u64 = 5_000_000;
/// Lines asked for one decision: more than commonly are open at once, and a bound.
const LINES_MAX: usize = 256;
/// Parts of a probe, which are in flight at once.
const PARTS: u32 = 3;

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
    /// Room for turns, kept so that a decision takes no new memory.
    order: Order,
    room: Room,
    /// Lines that were held beside a free slot since they last sent something: what leaves then has waited on purpose. At most [`LINES_MAX`].
    held: BTreeSet<KeyId>,
    exploration: Exploration,
    /// The batch that is about to leave has this size to learn.
    trial: bool,
    /// When the last `next` that said nothing wants to look again.
    wake: Option<Tick>,
    uses: u64,
    /// How often a line was kept waiting, by [`Hold::ALL`].
    holds: [u64; Hold::ALL.len()],
    /// How often the upstream was judged to be another one, and when last.
    changes: u64,
    changed: Option<Tick>,
    /// The class that was learned of last.
    last_class: Option<CostClassId>,
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
    /// Parts to go without.
    pub(super) missing: Missing,
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

/// One line's answer.
enum Answer {
    Do(Next),
    /// On purpose.
    Hold(Tick),
    /// None is free, or none before then.
    NoSlot(Option<Tick>),
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
            order: Order::new(),
            room: Room::default(),
            held: BTreeSet::new(),
            exploration: Exploration::default(),
            trial: false,
            wake: None,
            uses: 0,
            holds: [0; Hold::ALL.len()],
            changes: 0,
            changed: None,
            last_class: None,
        }
    }

    pub(super) fn set_known_batching(&mut self, known: bool) {
        self.guard.set_known_batching(known);
    }

    /// Time goes on: a comparison may begin or end. Before every [`Adaptive::next`].
    pub(super) fn tick(&mut self, now: Tick, queue: &Queue) {
        self.guard.tick(now, Duration::from_nanos(self.mean_time), queue.oldest());
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

    /// Decides. `lines`: those whose route has a slot, in order.
    pub(super) fn next<'a>(
        &mut self,
        ctx: Ctx<'a>,
        lines: impl Iterator<Item = (KeyId, &'a Queued)>,
        classes: &Classes,
    ) -> Next {
        self.wake = None;
        self.trial = false;
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
        // Under one flow lines are asked as they stand.
        if ctx.queue.flows() <= 1 {
            return self.ask(ctx, lines.take(LINES_MAX), classes).unwrap_or(Next::Nothing);
        }
        let mut order = std::mem::take(&mut self.order);
        self.in_turn(ctx, lines, &mut order);
        let others = self.without_fillers(ctx, &mut order);
        let in_turn = order.iter().take(LINES_MAX).filter_map(|(_, key)| Some((*key, ctx.queue.head(*key)?)));
        let next = self.ask(ctx, in_turn, classes);
        self.order = order;
        if next.is_none() {
            self.wake = self.wake.into_iter().chain(others).min();
        }
        next.unwrap_or(Next::Nothing)
    }

    /// Asks line after line, until one has something to do.
    fn ask<'a>(
        &mut self,
        ctx: Ctx<'a>,
        lines: impl Iterator<Item = (KeyId, &'a Queued)>,
        classes: &Classes,
    ) -> Option<Next> {
        // Slots are the upstream's: where one line of a cost class finds none, the others need not be asked.
        let mut without = None;
        for (key, head) in lines {
            if without == Some(head.call.cost_class) {
                continue;
            }
            let merge = classes.merge_bound(ctx.now, &head.call, false);
            match self.line(ctx, key, head, (classes.get(head.call.cost_class), merge)) {
                Answer::Do(next) => return Some(next),
                Answer::Hold(until) => {
                    if self.held.len() >= LINES_MAX {
                        self.held.clear();
                    }
                    self.held.insert(key);
                    self.wake = Some(self.wake.map_or(until, |wake| wake.min(until)));
                }
                Answer::NoSlot(at) => {
                    without = Some(head.call.cost_class);
                    self.wake = self.wake.into_iter().chain(at).min();
                }
                Answer::Skip => {}
            }
        }
        None
    }

    fn line(&mut self, ctx: Ctx<'_>, key: KeyId, head: &Queued, (class, merge): (Option<&Class>, Bound)) -> Answer {
        let now = ctx.now;
        let class_id = head.call.cost_class;
        self.learn_of(class_id);
        let Some(model) = self.models.get(&class_id) else { return Answer::Skip };
        let mixed = ctx.queue.is_mixed(key);
        let scope = ctx.limits.scope(head.call.scope);
        let walls = Walls::new(scope, class, model.cost.base_kind() == Base::Padded);
        if self.passing() {
            let line = Line { ctx, key, head, items: 1, cap: 1, wait: 0, walls };
            return Answer::Do(self.single(&line, mixed, Kind::Pass));
        }
        let in_flight = self.in_flight();
        let earliest_due = self.earliest_due();
        let view = SlotView {
            in_flight,
            earliest_due,
            // A probe that matters is not kept waiting by leads and other slots.
            slots_max: if self.empties(&ctx) { 1 } else { ctx.limits.slots },
            samples: u64::from(model.cost.samples()),
            mean_time: self.mean_time,
            backlog: self.backlog,
        };
        if ctx.missing.has(Skill::Lead) && in_flight >= self.slots() {
            return Answer::Skip;
        }
        match self.slots.decide(now, view, &mut self.draw) {
            Slot::Free => {}
            Slot::At(at) => {
                self.note_hold(key, Hold::SlotBusy);
                return Answer::NoSlot(Some(at));
            }
            Slot::No => {
                self.note_hold(key, Hold::SlotBusy);
                return Answer::NoSlot(None);
            }
        }
        let send = |items, cause| Answer::Do(Next::Send { key, items, cause, kind: Kind::Batch });
        if head.call.alone || matches!(merge, Bound::Alone(_)) {
            let line = Line { ctx, key, head, items: 1, cap: 1, wait: 0, walls };
            return Answer::Do(self.single(&line, mixed && !head.call.alone, Kind::Batch));
        }
        let cap = walls.items.min(model.worked.saturating_mul(2).max(2)).max(1);
        // Where the weights of those in front end a batch before its items do, sizes up to there are what there is to choose from. Who groups by
        // weight chooses its own.
        let weighted = model.cost.weights_matter();
        let room = if weighted { cap } else { within(walls, ctx.queue.line(key), cap) };
        let (weighs, cap) = (room < cap, room);
        let items = fair::counted(ctx, key);
        let wait = self.slots.wait(in_flight, earliest_due, now);
        let line = Line { ctx, key, head, items, cap, wait, walls };
        let fillers = mixed && ctx.limits.have_fillers();
        // It looks at all who wait, so it is asked only where a hold is thought of.
        let hold_max = || {
            let held = ctx.queue.line(key).filter(|queued| !fillers || !fair::is_filler(ctx, queued));
            let first = held.map(|queued| queued.free_before).min().unwrap_or(head.free_before);
            scope.queue_delay_max.saturating_sub(ctx.free.saturating_sub(first))
        };
        let hold = |until: Tick| {
            let until = until.min(now.after(hold_max())).min(Tick(now.0.saturating_add(line.room() / 2)));
            (until > now).then_some(Answer::Hold(until))
        };
        let leading = in_flight >= self.slots();
        let together = !mixed && !weighted && !ctx.missing.has(Skill::Gather) && slo_of(head).is_some();
        if together && let Some(answer) = self.rejoin(&line, leading, hold_max, hold) {
            return answer;
        }
        let Some(model) = self.models.get(&class_id) else { return Answer::Skip };
        if let Some(late) = line.late(&model.cost) {
            return Answer::Do(Next::Expire { id: late, reason: Expiry::LatePredicted });
        }
        if in_flight + 1 >= self.slots() && !ctx.missing.has(Skill::Gather) {
            let gain = self.gather(&line, leading, hold_max);
            if gain > 0
                && let Some(held) = hold(Tick(now.0.saturating_add(gain)))
            {
                self.note_hold(key, Hold::Gather);
                return held;
            }
        }
        if in_flight == 0
            && let Some(until) = line.spend(&model.cost)
            && let Some(held) = hold(until)
        {
            self.note_hold(key, Hold::Preset);
            return held;
        }
        let waited = self.held.remove(&key);
        let groups = |model: &&Model| model.cost.weights_matter() && !mixed && !ctx.missing.has(Skill::Grouping);
        if let Some(model) = self.models.get(&class_id).filter(groups) {
            self.chosen = group::group(&line, &model.cost, self.rate(key, now), self.mean_time);
            if !self.chosen.is_empty() {
                return Answer::Do(Next::Chosen { key, cause: cause(leading, waited), kind: Kind::Batch });
            }
        }
        let want = match self.want(&line) {
            Want::Send(items) => items,
            Want::Hold { until, otherwise } => match hold(until) {
                Some(held) => {
                    self.note_hold(key, Hold::Plan);
                    return held;
                }
                None => otherwise,
            },
        };
        if mixed && let Some(model) = self.models.get(&class_id) {
            fair::choose(&line, &model.cost, &self.clocks, want, &mut self.room, &mut self.chosen);
            return Answer::Do(Next::Chosen { key, cause: cause(leading, waited), kind: Kind::Batch });
        }
        let Some(model) = self.models.get(&class_id) else { return Answer::Skip };
        match choose::choose(&line, &model.cost, self.rate(key, now), want, &mut self.draw) {
            Chosen::First(items) => {
                let cause = match () {
                    () if items < want => Cause::Deadline,
                    () if weighs && items == cap => Cause::Weight,
                    () => cause(leading, waited),
                };
                let probe = if merge == Bound::Free { self.probe(&line, items) } else { None };
                probe.map_or_else(|| send(items, cause), Answer::Do)
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

    /// One call by itself: the head, or who has the turn where several flows are queued.
    fn single(&mut self, line: &Line<'_>, mixed: bool, kind: Kind) -> Next {
        let (key, cause) = (line.key, Cause::Idle);
        let Some(model) = self.models.get(&line.head.call.cost_class).filter(|_| mixed) else {
            return Next::Send { key, items: 1, cause, kind };
        };
        fair::choose(line, &model.cost, &self.clocks, 1, &mut self.room, &mut self.chosen);
        Next::Chosen { key, cause, kind }
    }

    /// Whether what is in flight should end first, for the server is to be asked whether it batches by itself.
    fn empties(&self, ctx: &Ctx<'_>) -> bool {
        let may_ask = !ctx.missing.has(Skill::StandAside) && ctx.limits.slots >= PARTS && !self.backlog;
        may_ask && self.guard.probe_waits()
    }

    /// In place of a batch, if it is time to ask whether the server batches by itself: its first call, and then both halves of the others.
    fn probe(&mut self, line: &Line<'_>, items: u32) -> Option<Next> {
        let (in_flight, slots, backlog) = (self.flights.len(), self.slots(), self.backlog);
        let scope_max = line.ctx.limits.scope(line.head.call.scope).slots_max;
        // Its three parts are sent at once.
        if line.ctx.missing.has(Skill::StandAside) {
            return None;
        }
        if in_flight > 0 || line.ctx.limits.slots < PARTS || scope_max < PARTS {
            return None;
        }
        let mut room = items;
        let fitting = line.ctx.queue.line(line.key).take_while(|queued| {
            let fits = queued.call.items <= room && !queued.call.alone;
            room = room.saturating_sub(queued.call.items);
            fits
        });
        let chance = Chance { calls: fitting.count(), in_flight, slots, backlog };
        let (single, first, second) = self.guard.probe_due(chance)?;
        let model = self.models.get(&line.head.call.cost_class)?;
        let half = model.cost.time(u32::try_from(second).unwrap_or(u32::MAX));
        let alone = Alone { single: Duration::from_nanos(model.cost.time(1)), half: Duration::from_nanos(half) };
        self.guard.probe_sent(line.ctx.now, alone);
        let parts = line.ctx.queue.line(line.key).take(single + first + second);
        let mut calls: Vec<CallId> = parts.map(|queued| queued.call.id).collect();
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
        if let Some(watched) = self.keys.get_mut(&queued.call.key) {
            watched.arrivals.ended_early(queued.call.items);
        }
        let items = u64::from(queued.call.items);
        self.exploration.ended(now, items, items);
    }

    /// A call that weighs `share` leaves in a batch of this size. `alone`: no other flow is queued.
    pub(super) fn charge(&mut self, call: &Call, batch: BatchWork, share: u64, alone: bool) {
        if alone && self.clocks.is_empty() {
            return;
        }
        let (mut work, mut time) = (0, 0);
        if let Some(Model { cost, .. }) = self.models.get(&call.cost_class) {
            (work, time) = (fair::charge(cost, batch, call, share), cost.time(batch.items));
        }
        self.clocks.charge(call.flow(), work, time, alone);
    }

    /// A call was queued. Where its flow is one of several, what others get from now on counts for it.
    pub(super) fn joined(&mut self, queue: &Queue, call: &Call) {
        if queue.flows() == 2 {
            queue.flow_items().for_each(|(flow, _)| self.clocks.accompanied(flow));
        }
        if queue.flows() > 1 && queue.held_by_flow(call.flow()) == u64::from(call.items) {
            self.clocks.joined(call.flow());
        }
    }
}

/// Why a batch leaves that nothing cuts short.
const fn cause(leading: bool, waited: bool) -> Cause {
    match (leading, waited) {
        (true, _) => Cause::Lead,
        (false, true) => Cause::Delay,
        (false, false) => Cause::Idle,
    }
}

/// How many items from the front of a line leave together at most: `cap`, or less where the walls of weight end a batch before.
fn within<'a>(walls: Walls, line: impl Iterator<Item = &'a Queued>, cap: u32) -> u32 {
    if !walls.bound_weight() {
        return cap;
    }
    let (mut items, mut sum, mut heaviest) = (0_u32, 0_u64, 0_u64);
    for queued in line {
        let call = &queued.call;
        let more = items.saturating_add(call.items);
        sum = sum.saturating_add(call.weight.sum);
        heaviest = heaviest.max(call.weight.max);
        if more > cap {
            return cap;
        }
        if !walls.hold_weight(sum, more, heaviest) {
            return items.max(1);
        }
        items = more;
    }
    cap
}
