//! Event handlers of the adaptive policy: they update arrival profiles, cost curves, slot counts,
//! concurrency limiters and admission, and produce snapshots and reports.
//!
//! Nothing is decided here. Curve fitting is in `cost`, plan solving in `plan`.

use std::collections::BTreeMap;
use std::time::Duration;

use super::super::arrivals::{ArrivalEstimator, ArrivalRate};
use super::super::batch::{BatchId, BatchOutcome, Observation};
use super::super::call::{Call, CostClassId, KeyId, Weight};
use super::super::ceiling::{BatchExtent, SizeMeasure};
use super::super::cost::{CostMeasure, CostModel, CostReport, CostSample, CostSnapshot};
use super::super::limiter::{
    Completion, ConcurrencyLimiter, Departure, FlightRecord, FlowMode, FlowReport, FlowSnapshot, Permit,
};
use super::super::plan::{Plan, PlanInput, PlanSchedule, SIZES_MAX_ITEMS};
use super::super::slots::{SampleUse, SlotEstimator, SlotFlight, UpstreamSnapshot};
use super::super::stats::HoldReason;
use super::super::tick::{Tick, nanos};
use super::Adaptive;
use super::cohort::CohortMerge;
use super::exploration::DeadlineSpread;
use super::lone_time::LoneTime;

/// Minimum number of samples before the cost curve predicts the duration of a batch.
const EXPECTED_SAMPLES: u32 = 6;
/// Inverse weight of a new execution in the mean execution time T, an EWMA.
const MEAN_TIME_PARTS: u64 = 10;
/// Bounds of a T that is read from a snapshot. They keep the arithmetic in range, as the bounds in
/// `cost` do.
const MEAN_TIME_MIN: u64 = 1_000;
const MEAN_TIME_MAX: u64 = 1_000_000_000_000_000;
/// Maximum number of cost classes with a cost curve of their own.
const MODELS_MAX: usize = 64;
/// Maximum number of batches in flight that are scanned at each arrival.
const FLIGHTS_MAX: usize = 16;
/// Maximum number of merge keys with tracked arrivals: more than commonly share one upstream.
/// Beyond it the least recently used key is evicted.
const KEYS_MAX: usize = 64;

/// Learned state of an upstream under the adaptive policy, for reports.
#[derive(Debug, Clone)]
pub(in super::super) struct AdaptiveReport {
    pub(in super::super) slots: u32,
    pub(in super::super) lead_nanos: u64,
    pub(in super::super) mean_nanos: u64,
    pub(in super::super) classes: Vec<(CostClassId, CostReport)>,
    pub(in super::super) flows: Vec<(CostClassId, FlowReport)>,
    pub(in super::super) exploration_nanos: u64,
}

/// Learned state of a cost class.
#[derive(Debug, Clone)]
pub(super) struct ClassModel {
    pub(super) cost: CostModel,
    /// Correction of `cost` for executions that had the server for themselves.
    pub(super) lone: LoneTime,
    pub(super) flow: ConcurrencyLimiter,
    /// Estimator of the lead under a concurrency limit, which also refines the limit by one.
    pub(super) slots: SlotEstimator,
    /// `true` if the last dispatch took the last slot and left at least another batch of its size
    /// in the line.
    pub(super) backlog: bool,
    /// Value of `Adaptive::uses` at creation. Batches dispatched before it belong to an earlier
    /// model of the class.
    pub(super) born: u64,
    pub(super) plan: Option<Plan>,
    /// Instant at which the plan was installed, and the number of batches answered by then.
    pub(super) planned: Option<(Tick, u64)>,
    pub(super) due: PlanSchedule,
    pub(super) batches: u64,
    /// Latest dispatch instant among the requests that were answered.
    pub(super) answered_sent: Tick,
    /// Most items in one answered batch.
    pub(super) worked: u32,
    pub(super) used: u64,
}

#[derive(Debug, Clone, Default)]
pub(super) struct KeyModel {
    pub(super) arrivals: ArrivalEstimator,
    pub(super) class: Option<CostClassId>,
    /// Reason for which the line was last held since its last batch.
    pub(super) held: Option<HoldReason>,
    /// Number of requests in flight that carry calls of this key.
    pub(super) out: u32,
    pub(super) rejoin: CohortMerge,
    pub(super) used: u64,
}

/// A batch in flight.
#[derive(Debug, Clone)]
pub(super) struct InFlight {
    pub(super) flight: SlotFlight,
    /// `ClassModel::born` of the model that the batch counts for.
    pub(super) born: u64,
    pub(super) mark: FlightRecord,
    pub(super) due: Tick,
    pub(super) alone: u64,
    /// Number of requests sent by then, this one included, if nothing else was in flight at
    /// dispatch.
    pub(super) first_of: Option<u64>,
    pub(super) batch: Dispatch,
    /// `true` if the batch was sent to learn, so that its time is charged to the exploration
    /// budget.
    pub(super) trial: bool,
}

/// A batch at dispatch.
#[derive(Debug, Clone)]
pub(in super::super) struct Dispatch {
    pub(in super::super) key: KeyId,
    pub(in super::super) class: CostClassId,
    pub(in super::super) items: u32,
    pub(in super::super) weight: Weight,
    pub(in super::super) kind: DispatchKind,
    /// Number of calls, and the arrival times of the first and the last of them.
    pub(in super::super) calls: u32,
    pub(in super::super) first: Tick,
    pub(in super::super) last: Tick,
    /// `true` if the call may share no batch.
    pub(in super::super) alone: bool,
    /// Items of its cost class that stay queued.
    pub(in super::super) queued: u64,
    /// Items of its merge key that stay queued.
    pub(in super::super) left: u64,
    pub(in super::super) deadlines: DeadlineSpread,
    /// `true` if the batch retests a ceiling.
    pub(in super::super) asks: bool,
}

/// Purpose of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum DispatchKind {
    /// A regular batch.
    Batch,
    /// A request beyond the limit, to measure whether the server has room.
    Probe,
    /// Two calls together while the limiter is open, to measure the cost of a pair.
    Pair,
    /// A single call, forwarded as it arrived.
    Forward,
    /// A batch of another policy, or of a drain. It is a cost sample only if it did not overlap
    /// others.
    Plain,
}

// === impl ClassModel ===

impl ClassModel {
    /// Returns the nanoseconds that a lone call takes with nothing else in flight, or `None` if no
    /// measurement supports a value.
    pub(super) fn lone_nanos(&self) -> Option<u64> {
        self.lone.nanos(self.cost.time(1), self.flow.base_nanos())
    }
}

// === impl Adaptive ===

impl Adaptive {
    /// Records that a call was queued. `idle`: nothing was queued or in flight before it. `queued`:
    /// items of its line that were queued already.
    pub(in super::super) fn came(&mut self, now: Tick, call: &Call, idle: bool, queued: u64) {
        // Such a call has a merge key of its own that no later call shares.
        if call.alone {
            return;
        }
        self.uses += 1;
        if !self.keys.contains_key(&call.key) && self.keys.len() >= KEYS_MAX {
            evict_oldest(&mut self.keys, |watched| watched.used);
        }
        let watched = self.keys.entry(call.key).or_default();
        watched.used = self.uses;
        watched.class = Some(call.cost_class);
        watched.arrivals.came(now, call.items, idle, self.mean_time);
        // In pass-through many requests are in flight and nothing is held, so the peak is not
        // needed.
        if self.flights.len() <= FLIGHTS_MAX {
            let out = out(&self.flights, call.key);
            watched.arrivals.here(queued.saturating_add(u64::from(call.items)).saturating_add(out));
        }
    }

    /// Records an arrival that is held by a limit of the policy. `wall`: the requests it allows.
    pub(in super::super) fn on_policy_hold(&mut self, now: Tick, class: CostClassId, wall: u32) {
        self.learn_of(class);
        if let Some(model) = self.models.get_mut(&class) {
            model.flow.on_policy_limit(now, wall);
        }
    }

    /// Records the dispatch of a batch. Returns the nanoseconds until it is expected back, or
    /// `None` if nothing is known of its cost.
    pub(in super::super) fn sent(&mut self, now: Tick, id: BatchId, batch: Dispatch) -> Option<u64> {
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
            DispatchKind::Batch | DispatchKind::Plain if !model.flow.is_open() => {
                model.slots.wait(others, earliest_due, now)
            }
            _ => 0,
        };
        let alone = model.cost.predict_weighted(batch.items, batch.weight);
        let known = model.cost.samples() > 0;
        let due = Tick(now.0.saturating_add(wait).saturating_add(alone));
        let flight = model.slots.sent(now, others);
        let permit = match batch.kind {
            DispatchKind::Batch | DispatchKind::Plain => Permit::Share(batch.items),
            DispatchKind::Probe => Permit::Probe(batch.items),
            DispatchKind::Pair if batch.calls > 1 => Permit::Pair,
            DispatchKind::Pair | DispatchKind::Forward => Permit::Forward,
        };
        let lonely = batch.alone || batch.calls < 2 && !partner;
        let expected = if model.cost.samples() >= EXPECTED_SAMPLES { alone } else { 0 };
        let departure =
            Departure { items: batch.items, calls: batch.calls, alone: lonely, permit, queued: batch.queued, expected };
        let mark = model.flow.on_send(now, &departure);
        model.backlog = batch.left >= u64::from(batch.items.max(1)) && others + 1 >= model.slots.in_use();
        let trial = std::mem::take(&mut self.trial) && batch.kind == DispatchKind::Batch;
        let trial = trial || batch.asks || matches!(batch.kind, DispatchKind::Probe | DispatchKind::Pair);
        let born = model.born;
        self.sends += 1;
        let first_of = self.flights.is_empty().then_some(self.sends);
        self.flights.insert(id, InFlight { flight, born, mark, due, alone, first_of, batch, trial });
        known.then_some(due.0.saturating_sub(now.0))
    }

    /// Records the end of a batch. Returns `true` if its sample showed that the server was
    /// replaced. `queued`: items of its class that are queued; `items_max`: the largest batch that
    /// the limits allow.
    pub(in super::super) fn returned(
        &mut self,
        now: Tick,
        id: BatchId,
        observed: &Observation,
        (queued, items_max): (u64, u32),
    ) -> bool {
        let Some(InFlight { flight, born, mark, first_of, batch, trial, .. }) = self.flights.remove(&id) else {
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
        if observed.outcome == BatchOutcome::Ok {
            model.answered_sent = model.answered_sent.max(flight.sent_at());
        }
        if !model.flow.is_open() {
            for other in self.flights.values_mut().filter(|other| other.batch.class == batch.class) {
                other.due = model.slots.due_after_return(&other.flight, other.due, now, other.alone);
                other.flight.on_other_return(now);
            }
        }
        let answered = observed.outcome == BatchOutcome::Ok && batch.kind != DispatchKind::Plain;
        let done = Completion::new(answered, batch.calls, batch.first, batch.last, queued, items_max)
            .with_first_byte(observed.first_byte);
        let before = model.flow.limit();
        model.flow.on_completion(now, &mark, done);
        if let Some(limit) = model.flow.limit().filter(|limit| before != Some(*limit)) {
            // A new limit found by the limiter is kept. The refinements in `slots` belong to the
            // old one.
            model.slots.set_count(limit);
        }
        if batch.kind == DispatchKind::Forward {
            match observed.outcome {
                BatchOutcome::Overloaded { .. } => self.admission.on_refusal(now, flight.sent_at(), in_flight),
                BatchOutcome::Ok => self.admission.on_success(in_flight + 1),
                _ => {}
            }
        }
        // A call that cannot be merged may stream its response for an unbounded time, so only the
        // time to its first byte counts.
        let took = observed.first_byte.filter(|_| batch.alone).unwrap_or(observed.duration);
        observed.outcome == BatchOutcome::Ok
            && self.learn(now, (&flight, had_server), &batch, nanos(took), before.map(|_| queued))
    }

    /// Updates the model with a batch that was answered successfully. Returns `true` if the sample
    /// shows that the server was replaced. `had_server`: nothing else was in flight meanwhile.
    /// `limited`: items queued, if the class was limited.
    fn learn(
        &mut self,
        now: Tick,
        (flight, had_server): (&SlotFlight, bool),
        batch: &Dispatch,
        took: u64,
        limited: Option<u64>,
    ) -> bool {
        let Some(model) = self.models.get_mut(&batch.class) else { return false };
        let mut changed = false;
        model.batches += 1;
        self.last_class = Some(batch.class);
        model.worked = model.worked.max(batch.items);
        let alone = model.cost.predict_weighted(batch.items, batch.weight);
        let sample = match batch.kind {
            DispatchKind::Batch | DispatchKind::Forward if limited.is_some() => {
                model.slots.returned(now, flight, alone)
            }
            _ if flight.is_alone() => SampleUse::Alone,
            _ => SampleUse::No,
        };
        if let Some(queued) = limited {
            model.flow.refine(now, model.slots.in_use(), queued);
        }
        if had_server {
            // Before the first sample the curve predicts nothing, so the measured time is also the
            // expected one.
            let expected = if model.cost.samples() > 0 { alone } else { took };
            model.lone.observe(took, expected);
        }
        if sample != SampleUse::No {
            changed = model.cost.observe(CostSample { items: batch.items, weight: batch.weight, nanos: took });
            if sample == SampleUse::Alone || limited.is_some() {
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

    /// Returns the input of a plan if one is due. It is solved on a thread that may block, and the
    /// result is passed to [`Adaptive::set_plan`].
    pub(in super::super) fn plan_due(&mut self, cap: u32) -> Option<(CostClassId, PlanInput)> {
        for model in self.models.values_mut() {
            if model.plan.as_ref().is_some_and(|plan| {
                let reach = model.cost.largest().saturating_add(1).min(cap).min(SIZES_MAX_ITEMS);
                plan.sizes() < reach
            }) {
                model.due.on_outgrown(model.batches);
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
            evict_oldest(&mut self.models, |model| model.used);
        }
        let (now, uses) = (Tick(0), self.uses);
        let known = self.known_batching;
        let fresh = || ClassModel {
            cost: CostModel::default(),
            lone: LoneTime::default(),
            flow: {
                let mut flow = ConcurrencyLimiter::new();
                flow.pin_open(now, known);
                flow
            },
            slots: SlotEstimator::new(),
            backlog: false,
            born: uses,
            plan: None,
            planned: None,
            due: PlanSchedule::new(),
            batches: 0,
            answered_sent: Tick::default(),
            worked: 1,
            used: 0,
        };
        self.models.entry(class).or_insert_with(fresh).used = self.uses;
    }

    pub(in super::super) fn report(&self) -> AdaptiveReport {
        AdaptiveReport {
            slots: self.slots(),
            lead_nanos: self.lead_nanos(),
            mean_nanos: self.mean_time,
            flows: self.models.iter().map(|(id, model)| (*id, model.flow.report())).collect(),
            classes: self.models.iter().map(|(id, model)| (*id, model.cost.report())).collect(),
            exploration_nanos: self.exploration.spent_nanos(),
        }
    }

    /// Returns `true` if every item of a class costs as much as the heaviest one in the batch.
    pub(in super::super) fn is_padded(&self, class: CostClassId) -> bool {
        self.models.get(&class).is_some_and(|model| model.cost.base_kind() == CostMeasure::Padded)
    }

    /// Returns the measure that approximates the server's memory use: the one that determines the
    /// cost, or the larger one while weights are not known to matter.
    pub(in super::super) fn memory(&self, class: CostClassId) -> SizeMeasure {
        let ragged = self.models.get(&class).is_some_and(|model| model.cost.base_kind() == CostMeasure::Ragged);
        if ragged { SizeMeasure::Weight } else { SizeMeasure::PaddedWeight }
    }

    /// Returns the 98th percentile of a batch's execution time in nanoseconds, or `None` before the
    /// first sample.
    pub(in super::super) fn late(&self, class: CostClassId, extent: BatchExtent) -> Option<u64> {
        let cost = &self.models.get(&class).filter(|model| model.cost.samples() > 0)?.cost;
        let weight = Weight { sum: extent.sum, max: extent.heaviest };
        let alone =
            if cost.weights_matter() { cost.predict_weighted(extent.items, weight) } else { cost.time(extent.items) };
        Some(cost.late(alone))
    }

    /// Returns the 98th percentile of the time of a lone item with nothing else in flight, or
    /// `None` if no measurement supports a value.
    pub(in super::super) fn lone(&self, class: CostClassId) -> Option<Duration> {
        let model = self.models.get(&class).filter(|model| model.cost.samples() > 0)?;
        model.lone_nanos().map(|lone| Duration::from_nanos(model.cost.late(lone)))
    }

    /// Returns the 98th percentile of the time of a lone item by the cost curve, as the decisions
    /// on a line use it.
    pub(in super::super) fn predicted_lone_tail(&self, class: CostClassId) -> Option<Duration> {
        let model = self.models.get(&class).filter(|model| model.cost.samples() > 0)?;
        Some(Duration::from_nanos(model.cost.late(model.cost.time(1))))
    }

    /// Returns the nanoseconds that a batch sent now is expected to wait upstream.
    pub(in super::super) fn wait(&self, now: Tick, class: CostClassId) -> u64 {
        let due = self.earliest_due(class);
        self.models.get(&class).map_or(0, |model| model.slots.wait(model.flow.flights(), due, now))
    }

    pub(in super::super) fn snapshot(&self) -> Vec<(CostClassId, CostSnapshot, FlowSnapshot)> {
        self.models.iter().map(|(id, model)| (*id, model.cost.snapshot(), model.flow.snapshot())).collect()
    }

    /// Restores the learned state of a class. If its snapshot has no limiter, the limit of the
    /// upstream snapshot is used for every class.
    pub(in super::super) fn restore(
        &mut self,
        now: Tick,
        class: CostClassId,
        snapshot: &CostSnapshot,
        flow: Option<FlowSnapshot>,
    ) {
        self.learn_of(class);
        let Some(model) = self.models.get_mut(&class) else { return };
        model.cost = CostModel::restore(snapshot);
        model.worked = model.cost.largest().max(1);
        if !model.flow.is_open() || self.known_batching {
            return;
        }
        let mut kept = flow.unwrap_or(FlowSnapshot { limit: self.begin.slots, ..FlowSnapshot::default() });
        if kept.base_nanos == 0 && model.cost.samples() > 0 {
            kept.base_nanos = model.cost.time(1);
        }
        model.flow = ConcurrencyLimiter::restored(now, kept);
        if kept.limit > 0 && self.begin.slots > 0 {
            model.slots.restore(UpstreamSnapshot { slots: kept.limit, ..self.begin });
        }
    }

    pub(in super::super) fn upstream_snapshot(&self) -> UpstreamSnapshot {
        let limited = |model: &&ClassModel| matches!(model.flow.mode(), FlowMode::Limited(_));
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

    /// Resets the learned state of the upstream because it was replaced. Arrival profiles describe
    /// the clients and are kept.
    pub(in super::super) fn forget(&mut self) {
        self.models.clear();
        self.begin = UpstreamSnapshot::default();
        self.exploration.changed();
        self.mean_time = super::MEAN_TIME_FIRST;
    }

    pub(super) fn in_flight(&self) -> u32 {
        u32::try_from(self.flights.len()).unwrap_or(u32::MAX)
    }

    /// Returns the earliest expected completion among the requests of a limited class.
    pub(super) fn earliest_due(&self, class: CostClassId) -> Option<Tick> {
        self.models.get(&class).filter(|model| !model.flow.is_open())?;
        let own = self.flights.values().filter(|sent| sent.batch.class == class);
        own.map(|sent| sent.due).min()
    }

    /// Returns the lead of the class that was updated last.
    pub(super) fn lead_nanos(&self) -> u64 {
        self.last_class.and_then(|id| self.models.get(&id)).map_or(0, |model| model.slots.lead())
    }

    pub(super) fn rate(&self, key: KeyId, now: Tick) -> ArrivalRate {
        self.keys.get(&key).map(|watched| watched.arrivals.rate(now, self.mean_time)).unwrap_or_default()
    }
}

/// Returns the items in flight of a merge key.
pub(super) fn out(flights: &BTreeMap<BatchId, InFlight>, key: KeyId) -> u64 {
    flights.values().filter(|sent| sent.batch.key == key).map(|sent| u64::from(sent.batch.items)).sum()
}

/// Evicts the least recently used entry.
fn evict_oldest<K: Ord + Copy, V>(map: &mut BTreeMap<K, V>, used: impl Fn(&V) -> u64) {
    if let Some(oldest) = map.iter().min_by_key(|(_, value)| used(value)).map(|(key, _)| *key) {
        map.remove(&oldest);
    }
}
