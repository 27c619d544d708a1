//! What events teach: arrivals, costs, slots, and whether standing aside is better; and what of it is kept or shown.
//!
//! It decides nothing. What it leaves out: how a curve is fitted (`cost`), how a plan is solved (`plan`).

use std::collections::BTreeMap;
use std::time::Duration;

use super::super::arrivals::{Arrivals, Rate};
use super::super::batch::{BatchId, Observed, ObservedOutcome};
use super::super::call::{Call, CostClassId, KeyId, Weight};
use super::super::ceiling::{Bounded, Extent};
use super::super::cost::{Base, Cost, Report as CostReport, Sample as CostSample, Snapshot};
use super::super::flow::{Completion, Departure, FlightMark, Flow, FlowMode, FlowReport, FlowSnapshot, Permit};
use super::super::plan::{Due, Plan, PlanInput, SIZES_MAX_ITEMS};
use super::super::slots::{Flight, Sample, Slots, UpstreamSnapshot};
use super::super::tally::Hold;
use super::super::tick::{Tick, nanos};
use super::Adaptive;
use super::explore::Deadlines;
use super::lone::LoneTime;
use super::rejoin::Rejoin;

/// Samples from which on the cost curve says what a batch is expected to take.
const EXPECTED_SAMPLES: u32 = 6;
/// Weight of a new execution in T, as one part in so many.
const MEAN_TIME_PARTS: u64 = 10;
/// T as it may be read from a file: bounds for arithmetic, as those of `cost`.
const MEAN_TIME_MIN: u64 = 1_000;
const MEAN_TIME_MAX: u64 = 1_000_000_000_000_000;
/// Cost classes with a curve of their own (`scheduling.md` §1).
const MODELS_MAX: usize = 64;
/// Batches in flight that are looked through at each arrival.
const FLIGHTS_MAX: usize = 16;
/// Merge keys whose arrivals are watched: more than commonly share one upstream; beyond it the one unused for longest goes.
const KEYS_MAX: usize = 64;

/// What was learned of an upstream by this policy, to be shown.
#[derive(Debug, Clone)]
pub(in super::super) struct Curves {
    pub(in super::super) slots: u32,
    pub(in super::super) lead_nanos: u64,
    pub(in super::super) mean_nanos: u64,
    pub(in super::super) classes: Vec<(CostClassId, CostReport)>,
    pub(in super::super) flows: Vec<(CostClassId, FlowReport)>,
    pub(in super::super) exploration_nanos: u64,
}

/// What is learned of a cost class.
#[derive(Debug, Clone)]
pub(super) struct Model {
    pub(super) cost: Cost,
    /// Corrects it for executions alone.
    pub(super) lone: LoneTime,
    pub(super) flow: Flow,
    /// The lead under a limit, and refinements of it by one.
    pub(super) slots: Slots,
    /// The last dispatch left a full batch behind.
    pub(super) backlog: bool,
    /// When it was made, in uses: what left before is not its own.
    pub(super) born: u64,
    pub(super) plan: Option<Plan>,
    /// When the plan was made, and after how many batches.
    pub(super) planned: Option<(Tick, u64)>,
    pub(super) due: Due,
    pub(super) batches: u64,
    /// When the request left that was sent last of those that were answered.
    pub(super) answered_sent: Tick,
    /// Most items that were answered together.
    pub(super) worked: u32,
    pub(super) used: u64,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Watched {
    pub(super) arrivals: Arrivals,
    pub(super) class: Option<CostClassId>,
    /// What its line was last kept waiting for, since its last batch.
    pub(super) held: Option<Hold>,
    /// Requests in flight with calls of this key.
    pub(super) out: u32,
    pub(super) rejoin: Rejoin,
    pub(super) used: u64,
}

/// A batch in flight.
#[derive(Debug, Clone)]
pub(super) struct Sent {
    pub(super) flight: Flight,
    /// The model that it counts for, by its birth.
    pub(super) born: u64,
    pub(super) mark: FlightMark,
    pub(super) due: Tick,
    pub(super) alone: u64,
    /// With nothing in flight: how many had been sent by then.
    pub(super) first_of: Option<u64>,
    pub(super) batch: Leaving,
    /// Sent in this size to learn.
    pub(super) trial: bool,
}

/// A batch that leaves.
#[derive(Debug, Clone)]
pub(in super::super) struct Leaving {
    pub(in super::super) key: KeyId,
    pub(in super::super) class: CostClassId,
    pub(in super::super) items: u32,
    pub(in super::super) weight: Weight,
    pub(in super::super) kind: Kind,
    /// Its calls, and when the first and the last of them arrived.
    pub(in super::super) calls: u32,
    pub(in super::super) first: Tick,
    pub(in super::super) last: Tick,
    /// It shares no batch, whatever waits.
    pub(in super::super) alone: bool,
    /// Items of its class that stay queued.
    pub(in super::super) queued: u64,
    /// Items of its line that stay queued.
    pub(in super::super) left: u64,
    pub(in super::super) deadlines: Deadlines,
    /// It asks a ceiling again.
    pub(in super::super) asks: bool,
}

/// Why a batch was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Kind {
    /// To be answered.
    Batch,
    /// Beyond the limit, to see whether the server has room.
    Probe,
    /// Two calls together while the limiter is open, to learn what that costs.
    Pair,
    /// A single call as it came.
    Forward,
    /// By another policy, or while draining: it teaches only what it costs alone.
    Plain,
}

// === impl Model ===

impl Model {
    /// Nanoseconds of a lone call with nothing else in flight; `None` where nothing supports it.
    pub(super) fn lone_nanos(&self) -> Option<u64> {
        self.lone.nanos(self.cost.time(1), self.flow.base_nanos())
    }
}

// === impl Adaptive ===

impl Adaptive {
    /// A call was queued; `idle`: nothing was queued or in flight before it.
    /// `queued`: items of its line that are queued already.
    pub(in super::super) fn came(&mut self, now: Tick, call: &Call, idle: bool, queued: u64) {
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
        watched.class = Some(call.cost_class);
        watched.arrivals.came(now, call.items, idle, self.mean_time);
        // While calls are passed there are many flights, and nothing is held.
        if self.flights.len() <= FLIGHTS_MAX {
            let out = out(&self.flights, call.key);
            watched.arrivals.here(queued.saturating_add(u64::from(call.items)).saturating_add(out));
        }
    }

    /// A call came that a limit of the policy holds.
    pub(in super::super) fn held_at(&mut self, now: Tick, class: CostClassId, wall: u32) {
        self.learn_of(class);
        if let Some(model) = self.models.get_mut(&class) {
            model.flow.hold_at(now, wall);
        }
    }

    /// A batch leaves; in how many nanoseconds it is expected back, if anything is known of its cost.
    pub(in super::super) fn sent(&mut self, now: Tick, id: BatchId, batch: Leaving) -> Option<u64> {
        self.learn_of(batch.class);
        let earliest_due = self.earliest_due(batch.class);
        let partner = self.keys.get_mut(&batch.key).is_some_and(|watched| {
            watched.held = None;
            watched.rejoin.sent(batch.items);
            watched.out += 1;
            watched.out > 1 || batch.left > 0
        });
        let model = self.models.get_mut(&batch.class)?;
        let others = model.flow.flights();
        let wait = match batch.kind {
            Kind::Batch | Kind::Plain if !model.flow.is_open() => model.slots.wait(others, earliest_due, now),
            _ => 0,
        };
        let alone = model.cost.time_of(batch.items, batch.weight);
        let known = model.cost.samples() > 0;
        let due = Tick(now.0.saturating_add(wait).saturating_add(alone));
        let flight = model.slots.sent(now, others);
        let permit = match batch.kind {
            Kind::Batch | Kind::Plain => Permit::Share(batch.items),
            Kind::Probe => Permit::Probe(batch.items),
            Kind::Pair if batch.calls > 1 => Permit::Pair,
            Kind::Pair | Kind::Forward => Permit::Forward,
        };
        let lonely = batch.alone || batch.calls < 2 && !partner;
        let expected = if model.cost.samples() >= EXPECTED_SAMPLES { alone } else { 0 };
        let departure =
            Departure { items: batch.items, calls: batch.calls, alone: lonely, permit, queued: batch.queued, expected };
        let mark = model.flow.on_send(now, &departure);
        model.backlog = batch.left >= u64::from(batch.items.max(1)) && others + 1 >= model.slots.in_use();
        let trial = std::mem::take(&mut self.trial) && batch.kind == Kind::Batch;
        let trial = trial || batch.asks || matches!(batch.kind, Kind::Probe | Kind::Pair);
        let born = model.born;
        self.sends += 1;
        let first_of = self.flights.is_empty().then_some(self.sends);
        self.flights.insert(id, Sent { flight, born, mark, due, alone, first_of, batch, trial });
        known.then_some(due.0.saturating_sub(now.0))
    }

    /// A batch ended. True if the server was judged another one by it.
    /// `queued`: items of its class that are queued; `items_max`: the largest batch that any limit allows.
    pub(in super::super) fn returned(
        &mut self,
        now: Tick,
        id: BatchId,
        observed: &Observed,
        (queued, items_max): (u64, u32),
    ) -> bool {
        let Some(Sent { flight, born, mark, first_of, batch, trial, .. }) = self.flights.remove(&id) else {
            return false;
        };
        let had_server = first_of == Some(self.sends);
        self.exploration.took(nanos(observed.duration), self.mean_time, trial);
        let (items, missed) = batch.deadlines.missed(now);
        self.exploration.ended(now, items, missed);
        if let Some(watched) = self.keys.get_mut(&batch.key) {
            watched.out = watched.out.saturating_sub(1);
        }
        let in_flight = self.in_flight();
        let Some(model) = self.models.get_mut(&batch.class).filter(|model| model.born == born) else { return false };
        if observed.outcome == ObservedOutcome::Ok {
            model.answered_sent = model.answered_sent.max(flight.sent_at());
        }
        if !model.flow.is_open() {
            for other in self.flights.values_mut().filter(|other| other.batch.class == batch.class) {
                other.due = model.slots.due_after_return(&other.flight, other.due, now, other.alone);
                other.flight.saw_return(now);
            }
        }
        let answered = observed.outcome == ObservedOutcome::Ok && batch.kind != Kind::Plain;
        let done = Completion::new(answered, batch.calls, batch.first, batch.last, queued, items_max)
            .with_first_byte(observed.first_byte);
        let before = model.flow.limit();
        model.flow.on_completion(now, &mark, done);
        if let Some(limit) = model.flow.limit().filter(|limit| before != Some(*limit)) {
            // Its own conclusion holds; what was refined before was another limit.
            model.slots.set_count(limit);
        }
        if batch.kind == Kind::Forward {
            match observed.outcome {
                ObservedOutcome::Overloaded { .. } => self.admission.on_refusal(now, flight.sent_at(), in_flight),
                ObservedOutcome::Ok => self.admission.on_success(in_flight + 1),
                _ => {}
            }
        }
        // What cannot be merged may stream, for as long as it has to say something.
        let took = observed.first_byte.filter(|_| batch.alone).unwrap_or(observed.duration);
        observed.outcome == ObservedOutcome::Ok
            && self.learn(now, (&flight, had_server), &batch, nanos(took), before.map(|_| queued))
    }

    /// What a batch that was answered well teaches; true if that is that the server is another one.
    /// `had_server`: nothing else was in flight meanwhile.
    fn learn(
        &mut self,
        now: Tick,
        (flight, had_server): (&Flight, bool),
        batch: &Leaving,
        took: u64,
        limited: Option<u64>,
    ) -> bool {
        let Some(model) = self.models.get_mut(&batch.class) else { return false };
        let mut changed = false;
        model.batches += 1;
        self.last_class = Some(batch.class);
        model.worked = model.worked.max(batch.items);
        let alone = model.cost.time_of(batch.items, batch.weight);
        let sample = match batch.kind {
            Kind::Batch | Kind::Forward if limited.is_some() => model.slots.returned(now, flight, alone),
            _ if flight.is_alone() => Sample::Alone,
            _ => Sample::No,
        };
        if let Some(queued) = limited {
            model.flow.refine(now, model.slots.in_use(), queued);
        }
        if had_server {
            // The first one is all that the curve knows.
            let expected = if model.cost.samples() > 0 { alone } else { took };
            model.lone.observe(took, expected);
        }
        if sample != Sample::No {
            changed = model.cost.observe(CostSample { items: batch.items, weight: batch.weight, nanos: took });
            if sample == Sample::Alone || limited.is_some() {
                self.mean_time = self.mean_time - self.mean_time / MEAN_TIME_PARTS + took / MEAN_TIME_PARTS;
            }
            if changed {
                model.lone = LoneTime::default();
                model.slots.forget();
                self.changes += 1;
                self.changed = Some(now);
                self.exploration.changed();
                model.plan = None;
                model.planned = None;
                model.due.changed(model.batches);
            }
        }
        if let Some(watched) = self.keys.get_mut(&batch.key) {
            watched.arrivals.answered(now, batch.items, self.mean_time);
        }
        changed
    }

    /// A plan to be solved, if one is due: on a thread that may block, then [`Adaptive::set_plan`].
    pub(in super::super) fn plan_due(&mut self, cap: u32) -> Option<(CostClassId, PlanInput)> {
        for model in self.models.values_mut() {
            if model.plan.as_ref().is_some_and(|plan| {
                let reach = model.cost.largest().saturating_add(1).min(cap).min(SIZES_MAX_ITEMS);
                plan.sizes() < reach
            }) {
                model.due.outgrown(model.batches);
            }
        }
        let (id, model) = self.models.iter_mut().find(|(_, model)| model.due.reached(model.batches))?;
        let largest = model.cost.largest().max(2).saturating_mul(2).min(cap).min(SIZES_MAX_ITEMS);
        let times: Vec<u64> = (1..=largest).map(|items| model.cost.time(items)).collect();
        if !model.due.due(model.batches, &times) {
            return None;
        }
        let input = PlanInput::new(times);
        Some((*id, model.plan.as_ref().map_or(input.clone(), |plan| input.after(plan))))
    }

    pub(in super::super) fn set_plan(&mut self, now: Tick, class: CostClassId, plan: Plan) {
        if let Some(model) = self.models.get_mut(&class) {
            model.planned = Some((now, model.batches));
            model.plan = Some(plan);
        }
    }

    pub(super) fn learn_of(&mut self, class: CostClassId) {
        self.uses += 1;
        if !self.models.contains_key(&class) && self.models.len() >= MODELS_MAX {
            forget_oldest(&mut self.models, |model| model.used);
        }
        let (now, uses) = (Tick(0), self.uses);
        let known = self.known_batching;
        let fresh = || Model {
            cost: Cost::default(),
            lone: LoneTime::default(),
            flow: {
                let mut flow = Flow::new();
                flow.pin_open(now, known);
                flow
            },
            slots: Slots::new(),
            backlog: false,
            born: uses,
            plan: None,
            planned: None,
            due: Due::new(),
            batches: 0,
            answered_sent: Tick::default(),
            worked: 1,
            used: 0,
        };
        self.models.entry(class).or_insert_with(fresh).used = self.uses;
    }

    pub(in super::super) fn report(&self) -> Curves {
        Curves {
            slots: self.slots(),
            lead_nanos: self.lead_nanos(),
            mean_nanos: self.mean_time,
            flows: self.models.iter().map(|(id, model)| (*id, model.flow.report())).collect(),
            classes: self.models.iter().map(|(id, model)| (*id, model.cost.report())).collect(),
            exploration_nanos: self.exploration.spent_nanos(),
        }
    }

    /// Whether a class pays for every item as if it were the heaviest.
    pub(in super::super) fn is_padded(&self, class: CostClassId) -> bool {
        self.models.get(&class).is_some_and(|model| model.cost.base_kind() == Base::Padded)
    }

    /// The measure that stands for a server's memory: what its cost goes by, and while weights say nothing the larger one.
    pub(in super::super) fn memory(&self, class: CostClassId) -> Bounded {
        let ragged = self.models.get(&class).is_some_and(|model| model.cost.base_kind() == Base::Ragged);
        if ragged { Bounded::Weight } else { Bounded::PaddedWeight }
    }

    /// What a batch takes but once in fifty times; `None` before anything was learned.
    pub(in super::super) fn late(&self, class: CostClassId, extent: Extent) -> Option<u64> {
        let cost = &self.models.get(&class).filter(|model| model.cost.samples() > 0)?.cost;
        let weight = Weight { sum: extent.sum, max: extent.heaviest };
        let alone = if cost.weights_matter() { cost.time_of(extent.items, weight) } else { cost.time(extent.items) };
        Some(cost.late(alone))
    }

    /// What a lone item takes but once in fifty times with nothing else in flight; `None` where
    /// nothing supports it.
    pub(in super::super) fn lone(&self, class: CostClassId) -> Option<Duration> {
        let model = self.models.get(&class).filter(|model| model.cost.samples() > 0)?;
        model.lone_nanos().map(|lone| Duration::from_nanos(model.cost.late(lone)))
    }

    /// What the cost curve expects of a lone item but once in fifty times, as decisions on a line
    /// take it.
    pub(in super::super) fn lone_expected(&self, class: CostClassId) -> Option<Duration> {
        let model = self.models.get(&class).filter(|model| model.cost.samples() > 0)?;
        Some(Duration::from_nanos(model.cost.late(model.cost.time(1))))
    }

    /// Nanoseconds that a batch sent now is expected to wait upstream.
    pub(in super::super) fn wait(&self, now: Tick, class: CostClassId) -> u64 {
        let due = self.earliest_due(class);
        self.models.get(&class).map_or(0, |model| model.slots.wait(model.flow.flights(), due, now))
    }

    pub(in super::super) fn snapshot(&self) -> Vec<(CostClassId, Snapshot, FlowSnapshot)> {
        self.models.iter().map(|(id, model)| (*id, model.cost.snapshot(), model.flow.snapshot())).collect()
    }

    /// Takes up what was learned of a class. A snapshot without a limiter has one limit for all
    /// classes.
    pub(in super::super) fn restore(
        &mut self,
        now: Tick,
        class: CostClassId,
        snapshot: &Snapshot,
        flow: Option<FlowSnapshot>,
    ) {
        self.learn_of(class);
        let Some(model) = self.models.get_mut(&class) else { return };
        model.cost = Cost::restore(snapshot);
        model.worked = model.cost.largest().max(1);
        if !model.flow.is_open() || self.known_batching {
            return;
        }
        let mut kept = flow.unwrap_or(FlowSnapshot { limit: self.begin.slots, ..FlowSnapshot::default() });
        if kept.base_nanos == 0 && model.cost.samples() > 0 {
            kept.base_nanos = model.cost.time(1);
        }
        model.flow = Flow::restored(now, kept);
        if kept.limit > 0 && self.begin.slots > 0 {
            model.slots.restore(UpstreamSnapshot { slots: kept.limit, ..self.begin });
        }
    }

    pub(in super::super) fn upstream_snapshot(&self) -> UpstreamSnapshot {
        let limited = |model: &&Model| matches!(model.flow.mode(), FlowMode::Limited(_));
        if self.models.is_empty() {
            return self.begin;
        }
        let busiest = self.models.values().filter(limited).max_by_key(|model| model.batches);
        busiest.map(|model| model.slots.snapshot(self.mean_time)).unwrap_or_default()
    }

    pub(in super::super) fn restore_upstream(&mut self, snapshot: UpstreamSnapshot) {
        if snapshot.slots == 0 {
            return;
        }
        self.mean_time = snapshot.mean_nanos.clamp(MEAN_TIME_MIN, MEAN_TIME_MAX);
        self.begin = UpstreamSnapshot { mean_nanos: self.mean_time, ..snapshot };
    }

    /// The upstream is another one. What is known of arrivals is about the clients, and stays.
    pub(in super::super) fn forget(&mut self) {
        self.models.clear();
        self.begin = UpstreamSnapshot::default();
        self.exploration.changed();
        self.mean_time = super::MEAN_TIME_FIRST;
    }

    pub(super) fn in_flight(&self) -> u32 {
        u32::try_from(self.flights.len()).unwrap_or(u32::MAX)
    }

    /// When the first request of a limited class is expected back.
    pub(super) fn earliest_due(&self, class: CostClassId) -> Option<Tick> {
        self.models.get(&class).filter(|model| !model.flow.is_open())?;
        let own = self.flights.values().filter(|sent| sent.batch.class == class);
        own.map(|sent| sent.due).min()
    }

    /// The lead of the class that was learned of last.
    pub(super) fn lead_nanos(&self) -> u64 {
        self.last_class.and_then(|id| self.models.get(&id)).map_or(0, |model| model.slots.lead())
    }

    pub(super) fn rate(&self, key: KeyId, now: Tick) -> Rate {
        self.keys.get(&key).map(|watched| watched.arrivals.rate(now, self.mean_time)).unwrap_or_default()
    }
}

/// Items in flight of a line.
pub(super) fn out(flights: &BTreeMap<BatchId, Sent>, key: KeyId) -> u64 {
    flights.values().filter(|sent| sent.batch.key == key).map(|sent| u64::from(sent.batch.items)).sum()
}

/// Drops the entry unused for longest.
fn forget_oldest<K: Ord + Copy, V>(map: &mut BTreeMap<K, V>, used: impl Fn(&V) -> u64) {
    if let Some(oldest) = map.iter().min_by_key(|(_, value)| used(value)).map(|(key, _)| *key) {
        map.remove(&oldest);
    }
}
