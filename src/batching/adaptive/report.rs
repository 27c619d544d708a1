//! Reports of the adaptive policy for status and gauges: the operating point of each cost class,
//! the reasons for holds, and the age of plans. Nothing is decided here.

use super::super::call::{CostClassId, KeyId};
use super::super::cost::CostReport;
use super::super::limiter::{FlowMode, FlowReport, OpenReason};
use super::super::stats::HoldReason;
use super::super::tick::Tick;
use super::batch_size::most_efficient_size;
use super::models::ClassModel;
use super::state::Adaptive;

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

/// Operating point of a cost class on its cost curve. Times are for typical weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OperatingPoint {
    /// Most efficient size, in items per time, among the sizes that were answered and are allowed.
    pub best_items: u32,
    /// Execution time of that size.
    pub best_nanos: u64,
    /// Execution time of twice that size.
    pub double_nanos: u64,
    /// Execution time of one item.
    pub lone_nanos: u64,
    /// 98th percentile of the time of one item with nothing else in flight. An SLO below it cannot
    /// be met. 0: nothing was alone in flight yet.
    pub lone_late_nanos: u64,
    /// Execution time of a batch as large as the last one.
    pub last_nanos: u64,
    /// Arrival rate λ, in thousandths of an item per second.
    pub rate_milli: u64,
    /// Most items in one answered batch.
    pub largest_answered: u32,
}

/// Age of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlanAge {
    /// Instant at which the plan was installed.
    pub made: Tick,
    /// Batches since then.
    pub batches: u64,
    /// Largest batch that the plan covers.
    pub items_max: u32,
}

/// Values of the gauges after every batch. The curve is that of the class of the last batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LearnedGauges {
    /// Number of slots.
    pub slots: u32,
    /// The lead: how early a batch leaves before another one returns.
    pub lead_nanos: u64,
    /// `true` if calls are forwarded one by one.
    pub standing_aside: bool,
    /// `true` while the limit of the class of the last batch is being found or tested.
    pub settling: bool,
    /// Constant term of the linear fit: cost of a batch.
    pub batch_nanos: u64,
    /// Linear term of the fit: cost of an item.
    pub item_nanos: u64,
    /// Running relative error of the linear fit.
    pub error_permille: u64,
    /// Tail ratio, the 98th percentile of observed over predicted time; 0 before the first batch.
    pub tail_permille: u64,
    /// Number of times that a change of the upstream was detected.
    pub changes: u64,
    /// Total execution time of batches that were sent in another size than the best known one, to
    /// learn, in nanoseconds.
    pub exploration_nanos: u64,
}

// === impl Adaptive ===

impl Adaptive {
    /// Records that a key queue is held. Counted once per batch and reason.
    pub(super) fn note_hold(&mut self, key: KeyId, hold: HoldReason) {
        if let Some(watched) = self.keys.get_mut(&key)
            && watched.held.replace(hold) != Some(hold)
            && let Some(at) = HoldReason::ALL.iter().position(|known| *known == hold)
        {
            self.holds[at] += 1;
        }
    }

    /// Returns the holds since the start, in the order of [`HoldReason::ALL`].
    pub(in super::super) fn holds(&self) -> [u64; HoldReason::ALL.len()] {
        self.holds
    }

    /// Returns the number of detected changes of the upstream, and the instant of the last one.
    pub(in super::super) fn detected_changes(&self) -> (u64, Option<Tick>) {
        (self.changes, self.changed)
    }

    /// Returns the mode of the concurrency limiter of a class; `None` before its first call.
    pub(in super::super) fn flow_mode(&self, class: CostClassId) -> Option<FlowMode> {
        self.models.get(&class).map(|model| model.flow.mode())
    }

    /// Returns `true` if calls of a class are forwarded because merging them was measured not to
    /// pay.
    pub(in super::super) fn finds_no_gain(&self, class: CostClassId) -> bool {
        matches!(
            self.flow_mode(class),
            Some(FlowMode::Open(OpenReason::NoGain { .. } | OpenReason::NoQueue | OpenReason::ServerBatches))
        )
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

    /// Returns the model of the class that was updated last.
    fn last_model(&self) -> Option<&ClassModel> {
        self.models.get(&self.last_class?)
    }

    fn lead_nanos(&self) -> u64 {
        self.last_model().map_or(0, |model| model.slots.lead())
    }

    pub(in super::super) fn learned(&self) -> LearnedGauges {
        let model = self.last_model();
        let line = model.map(|model| model.cost.gauges()).unwrap_or_default();
        LearnedGauges {
            slots: self.slots(),
            lead_nanos: self.lead_nanos(),
            standing_aside: model.is_some_and(|model| is_standing_aside(model.flow.mode())),
            settling: model.is_some_and(|model| model.flow.is_settling()),
            batch_nanos: line.batch_nanos,
            item_nanos: line.item_nanos,
            error_permille: line.error_permille,
            tail_permille: line.tail_permille,
            changes: self.changes,
            exploration_nanos: self.exploration.spent_nanos(),
        }
    }

    /// Returns the operating point of a class with `last` items in its last batch and at most `cap`
    /// in a batch; `None` before the first answer.
    pub(in super::super) fn operating_point(
        &self,
        now: Tick,
        class: CostClassId,
        last: u32,
        cap: u32,
    ) -> Option<OperatingPoint> {
        let model = self.measured_model(class)?;
        let cost = &model.cost;
        // Beyond the sizes that were answered the curve is an extrapolation.
        let best = most_efficient_size(cost, cap.min(model.largest_answered).max(1));
        let rates = self.keys.iter().filter(|(_, watched)| watched.class == Some(class));
        Some(OperatingPoint {
            best_items: best,
            best_nanos: cost.time(best),
            double_nanos: cost.time(best.saturating_mul(2)),
            lone_nanos: cost.time(1),
            lone_late_nanos: model.unloaded_nanos().map_or(0, |lone| cost.tail_time(lone)),
            last_nanos: cost.time(last.max(1)),
            rate_milli: rates.map(|(key, _)| self.rate(*key, now).0).fold(0, u64::saturating_add),
            largest_answered: model.largest_answered,
        })
    }

    /// Returns the age of the plan of a class.
    pub(in super::super) fn plan_age(&self, class: CostClassId) -> Option<PlanAge> {
        let model = self.models.get(&class)?;
        let (made, at) = model.planned?;
        let items_max = model.plan.as_ref()?.largest_size();
        Some(PlanAge { made, batches: model.batches.saturating_sub(at), items_max })
    }
}

/// Returns `true` if calls are forwarded by a conclusion about merging: not while the server is
/// being learned, nor because its calls have nothing to merge with.
const fn is_standing_aside(mode: FlowMode) -> bool {
    match mode {
        FlowMode::Open(OpenReason::Learning | OpenReason::NothingToMerge) | FlowMode::Limited(_) => false,
        FlowMode::Open(_) => true,
    }
}
