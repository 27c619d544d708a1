//! Access to the learned state of the adaptive policy from outside: estimates, plans and snapshots.
//!
//! Nothing is decided here. Curve fitting is in `cost`, plan solving in `plan`.

use std::time::Duration;

use super::super::call::{CostClassId, Weight};
use super::super::ceiling::{BatchExtent, SizeMeasure};
use super::super::cost::{CostMeasure, CostModel, CostSnapshot};
use super::super::limiter::{ConcurrencyLimiter, FlowMode, FlowSnapshot};
use super::super::plan::{Plan, PlanInput, SIZES_MAX_ITEMS};
use super::super::slots::UpstreamSnapshot;
use super::super::tick::Tick;
use super::models::{ClassModel, in_flight_of};
use super::state::{Adaptive, MEAN_TIME_FIRST};

/// Bounds of a T that is read from a snapshot. They keep the arithmetic in range, as the bounds in
/// `cost` do.
const MEAN_TIME_MIN: u64 = 1_000;
const MEAN_TIME_MAX: u64 = 1_000_000_000_000_000;

// === impl Adaptive ===

impl Adaptive {
    /// Returns `true` if every item of a class costs as much as the heaviest one in the batch.
    pub(in super::super) fn is_padded(&self, class: CostClassId) -> bool {
        self.models.get(&class).is_some_and(|model| model.cost.base_kind() == CostMeasure::Padded)
    }

    /// Returns the measure that approximates the server's memory use: the one that determines the
    /// cost, or the larger one while weights are not known to matter.
    pub(in super::super) fn memory_measure(&self, class: CostClassId) -> SizeMeasure {
        let ragged = self.models.get(&class).is_some_and(|model| model.cost.base_kind() == CostMeasure::Ragged);
        if ragged { SizeMeasure::Weight } else { SizeMeasure::PaddedWeight }
    }

    /// Returns the 98th percentile of a batch's execution time in nanoseconds, or `None` before the
    /// first sample.
    pub(in super::super) fn late(&self, class: CostClassId, extent: BatchExtent) -> Option<u64> {
        let cost = &self.measured_model(class)?.cost;
        Some(cost.tail_time(cost.predict(extent.items, Weight { sum: extent.sum, max: extent.heaviest })))
    }

    /// Returns the 98th percentile of the time of a lone item with nothing else in flight, or
    /// `None` if no measurement supports a value.
    pub(in super::super) fn lone(&self, class: CostClassId) -> Option<Duration> {
        let model = self.measured_model(class)?;
        model.unloaded_nanos().map(|lone| Duration::from_nanos(model.cost.tail_time(lone)))
    }

    /// Returns the 98th percentile of the time of a lone item by the cost curve, as the decisions
    /// on a line use it.
    pub(in super::super) fn predicted_lone_tail(&self, class: CostClassId) -> Option<Duration> {
        let model = self.measured_model(class)?;
        Some(Duration::from_nanos(model.cost.tail_time(model.cost.time(1))))
    }

    /// Returns the nanoseconds that a batch sent now is expected to wait upstream.
    pub(in super::super) fn wait(&self, now: Tick, class: CostClassId) -> u64 {
        self.models.get(&class).map_or(0, |model| {
            let due = model.earliest_due(in_flight_of(&self.flights, class));
            model.slots.expected_wait(model.flow.in_flight(), due, now)
        })
    }

    /// Returns the mean execution time of a batch, in nanoseconds.
    pub(in super::super) const fn mean_time(&self) -> u64 {
        self.mean_time
    }

    /// Returns the input of a plan if one is due. It is solved on a thread that may block, and the
    /// result is passed to [`Adaptive::set_plan`].
    pub(in super::super) fn plan_due(&mut self, cap: u32) -> Option<(CostClassId, PlanInput)> {
        for model in self.models.values_mut() {
            if model.plan.as_ref().is_some_and(|plan| {
                let reach = model.cost.largest().saturating_add(1).min(cap).min(SIZES_MAX_ITEMS);
                plan.largest_size() < reach
            }) {
                model.due.on_outgrown(model.batches);
            }
        }
        let (id, model) = self.models.iter_mut().find(|(_, model)| model.due.is_check_due(model.batches))?;
        let largest = model.cost.largest().max(2).saturating_mul(2).min(cap).min(SIZES_MAX_ITEMS);
        let times: Vec<u64> = (1..=largest).map(|items| model.cost.time(items)).collect();
        if !model.due.due(model.batches, &times) {
            return None;
        }
        let input = PlanInput::new(times);
        Some((*id, model.plan.as_ref().map_or(input.clone(), |plan| input.with_initial_values(plan))))
    }

    pub(in super::super) fn set_plan(&mut self, now: Tick, class: CostClassId, plan: Plan) {
        if let Some(model) = self.models.get_mut(&class) {
            model.planned = Some((now, model.batches));
            model.plan = Some(plan);
        }
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
        self.ensure_model(class);
        let Some(model) = self.models.get_mut(&class) else { return };
        model.cost = CostModel::restore(snapshot);
        model.largest_answered = model.cost.largest().max(1);
        if !model.flow.is_open() || self.known_batching {
            return;
        }
        let mut flow_snapshot = flow.unwrap_or(FlowSnapshot { limit: self.begin.slots, ..FlowSnapshot::default() });
        if flow_snapshot.base_nanos == 0 && model.cost.samples() > 0 {
            flow_snapshot.base_nanos = model.cost.time(1);
        }
        model.flow = ConcurrencyLimiter::restored(now, flow_snapshot);
        if flow_snapshot.limit > 0 && self.begin.slots > 0 {
            model.slots.restore(UpstreamSnapshot { slots: flow_snapshot.limit, ..self.begin });
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
        self.exploration.restart();
        self.mean_time = MEAN_TIME_FIRST;
    }
}
