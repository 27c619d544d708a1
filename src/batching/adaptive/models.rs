//! Learned state of the adaptive policy by cost class and by merge key, and the record of the
//! batches in flight.
//!
//! The fields are updated in `events` and read by the steps of a decision.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use super::super::arrivals::ArrivalEstimator;
use super::super::batch::BatchId;
use super::super::call::{CostClassId, KeyId, Weight};
use super::super::cost::CostModel;
use super::super::limiter::{ConcurrencyLimiter, InFlightExecution, Permit};
use super::super::plan::{Plan, PlanSchedule};
use super::super::slots::{SlotEstimator, SlotFlight};
use super::super::stats::HoldReason;
use super::super::tick::Tick;
use super::cohort_merge::CohortMerge;
use super::decision::{DispatchKind, KeyDecision};
use super::exploration::DeadlineSpread;
use super::unloaded_time::UnloadedTime;

/// Learned state of a cost class.
#[derive(Debug, Clone)]
pub(super) struct ClassModel {
    pub(super) cost: CostModel,
    /// Correction of `cost` for executions that had the server for themselves.
    pub(super) unloaded: UnloadedTime,
    pub(super) flow: ConcurrencyLimiter,
    /// Estimator of the lead under a concurrency limit, which also refines the limit by one.
    pub(super) slots: SlotEstimator,
    /// `true` if the last dispatch took the last slot and left at least another batch of its size
    /// in the key queue.
    pub(super) backlog: bool,
    /// Value of `Adaptive::uses` at creation. Batches dispatched before it belong to an earlier
    /// model of the class.
    pub(super) created_use: u64,
    pub(super) plan: Option<Plan>,
    /// Instant at which the plan was installed, and the number of batches answered by then.
    pub(super) planned: Option<(Tick, u64)>,
    pub(super) due: PlanSchedule,
    pub(super) batches: u64,
    /// Latest dispatch instant among the requests that were answered.
    pub(super) answered_sent: Tick,
    /// Most items in one answered batch.
    pub(super) largest_answered: u32,
    /// Value of `Adaptive::uses` at the last use, by which the oldest is evicted.
    pub(super) last_use: u64,
}

/// Learned state of a merge key.
#[derive(Debug, Clone, Default)]
pub(super) struct KeyModel {
    pub(super) arrivals: ArrivalEstimator,
    pub(super) class: Option<CostClassId>,
    /// Reason for which the key queue was last held since its last batch.
    pub(super) held: Option<HoldReason>,
    /// Number of requests in flight that carry calls of this key.
    pub(super) requests_in_flight: u32,
    pub(super) cohort_merge: CohortMerge,
    /// Value of `Adaptive::uses` at the last use, by which the oldest is evicted.
    pub(super) last_use: u64,
}

/// A batch in flight.
#[derive(Debug, Clone)]
pub(super) struct InFlight {
    pub(super) flight: SlotFlight,
    /// `ClassModel::created_use` of the model that the batch counts for.
    pub(super) created_use: u64,
    pub(super) mark: InFlightExecution,
    pub(super) due: Tick,
    pub(super) predicted: u64,
    /// Number of requests sent by then, this one included, if nothing else was in flight at
    /// dispatch.
    pub(super) lone_at_send: Option<u64>,
    pub(super) batch: Dispatch,
    /// `true` if the batch was sent to learn, so that its time is charged to the exploration
    /// budget.
    pub(super) explores: bool,
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
    pub(in super::super) unbatched: bool,
    /// Items of its cost class that stay queued.
    pub(in super::super) queued: u64,
    /// Items of its merge key that stay queued.
    pub(in super::super) left: u64,
    pub(in super::super) deadlines: DeadlineSpread,
    /// `true` if the batch retests a ceiling.
    pub(in super::super) is_retest: bool,
}

// === impl ClassModel ===

impl ClassModel {
    /// Creates the model of a class of which nothing is known. `known_batching`: the server is
    /// known to batch by itself.
    pub(super) fn new(created_use: u64, known_batching: bool) -> Self {
        let mut flow = ConcurrencyLimiter::new();
        flow.pin_open(Tick(0), known_batching);
        Self {
            cost: CostModel::default(),
            unloaded: UnloadedTime::default(),
            flow,
            slots: SlotEstimator::new(),
            backlog: false,
            created_use,
            plan: None,
            planned: None,
            due: PlanSchedule::new(),
            batches: 0,
            answered_sent: Tick::default(),
            largest_answered: 1,
            last_use: created_use,
        }
    }

    /// Returns the nanoseconds that a lone call takes with nothing else in flight, or `None` if no
    /// measurement supports a value.
    pub(super) fn unloaded_nanos(&self) -> Option<u64> {
        self.unloaded.nanos(self.cost.time(1), self.flow.base_nanos())
    }

    /// Returns the earliest expected completion among the requests of the class, `own`, if the
    /// class is limited.
    pub(super) fn earliest_due<'a>(&self, own: impl Iterator<Item = &'a InFlight>) -> Option<Tick> {
        if self.flow.is_open() {
            return None;
        }
        own.map(|sent| sent.due).min()
    }

    /// Corrects the expected completions of the other requests of the class, `others`, after one
    /// has returned. While the class has no limit, nothing is expected.
    pub(super) fn on_return<'a>(&self, others: impl Iterator<Item = &'a mut InFlight>, now: Tick) {
        if self.flow.is_open() {
            return;
        }
        for other in others {
            other.due = self.slots.due_after_return(&other.flight, other.due, now, other.predicted);
            other.flight.on_other_return(now);
        }
    }

    /// Discards what was derived from the cost curve, because the server was replaced. The curve
    /// itself has already been replaced.
    pub(super) fn on_server_change(&mut self) {
        self.unloaded = UnloadedTime::default();
        self.slots.forget();
        self.plan = None;
        self.planned = None;
        self.due.on_server_change(self.batches);
    }
}

// === impl Dispatch ===

impl Dispatch {
    /// Returns the permit of the limiter under which the batch was sent.
    pub(super) const fn permit(&self) -> Permit {
        match self.kind {
            DispatchKind::Batch | DispatchKind::Plain => Permit::Share(self.items),
            DispatchKind::Probe => Permit::Probe(self.items),
            DispatchKind::Pair if self.calls > 1 => Permit::Pair,
            DispatchKind::Control if self.calls == 1 => Permit::Control,
            DispatchKind::Pair | DispatchKind::Control | DispatchKind::Forward => Permit::Forward,
        }
    }

    /// Returns `true` if the batch was sent to test a ceiling, the limit, or whether merging pays.
    pub(super) const fn is_test(&self) -> bool {
        self.is_retest || matches!(self.kind, DispatchKind::Probe | DispatchKind::Pair)
    }
}

/// Returns the model of a class. Without one, nothing is decided.
pub(super) fn model_of(
    models: &BTreeMap<CostClassId, ClassModel>,
    class: CostClassId,
) -> ControlFlow<KeyDecision, &ClassModel> {
    match models.get(&class) {
        Some(model) => ControlFlow::Continue(model),
        None => ControlFlow::Break(KeyDecision::Skip),
    }
}

pub(super) fn in_flight_of(
    flights: &BTreeMap<BatchId, InFlight>,
    class: CostClassId,
) -> impl Iterator<Item = &InFlight> {
    flights.values().filter(move |sent| sent.batch.class == class)
}

pub(super) fn items_in_flight(flights: &BTreeMap<BatchId, InFlight>, key: KeyId) -> u64 {
    flights.values().filter(|sent| sent.batch.key == key).map(|sent| u64::from(sent.batch.items)).sum()
}

pub(super) fn evict_oldest<K: Ord + Copy, V>(map: &mut BTreeMap<K, V>, used: impl Fn(&V) -> u64) {
    if let Some(oldest) = map.iter().min_by_key(|(_, value)| used(value)).map(|(key, _)| *key) {
        map.remove(&oldest);
    }
}
