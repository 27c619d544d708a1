//! What is learned, as people and gauges want it: where on its curve each cost class works, and what keeps its lines.
//!
//! It decides nothing.

use super::super::call::{CostClassId, KeyId};
use super::super::flow::{FlowMode, OpenReason};
use super::super::tally::Hold;
use super::super::tick::Tick;
use super::Adaptive;
use super::want::most_efficient;

/// Where on its curve a cost class works. Times are for typical weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OperatingPoint {
    /// The size with the most items per time, of those that have worked and are allowed.
    pub best_items: u32,
    /// What it takes.
    pub best_nanos: u64,
    /// What twice as many would take.
    pub double_nanos: u64,
    /// What one item takes.
    pub lone_nanos: u64,
    /// What one item takes, with nothing else in flight, no longer than in 49 of 50 cases: an SLO
    /// below it cannot be met. 0: nothing was alone in flight yet.
    pub lone_late_nanos: u64,
    /// What a batch as large as the last one takes.
    pub last_nanos: u64,
    /// λ: thousandths of an item a second that come.
    pub rate_milli: u64,
    /// Most items that were answered together.
    pub worked: u32,
}

/// How old a plan is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlanAge {
    /// When it was made.
    pub made: Tick,
    /// Batches since then.
    pub batches: u64,
    /// The largest batch that it plans for.
    pub items_max: u32,
}

/// What the gauges show after every batch; the curve is that of the class of the last batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Learned {
    /// C.
    pub slots: u32,
    /// The lead.
    pub lead_nanos: u64,
    /// Calls are passed one by one.
    pub standing_aside: bool,
    /// The limit of the class of the last batch is still being found, or tried.
    pub settling: bool,
    /// a.
    pub batch_nanos: u64,
    /// b.
    pub item_nanos: u64,
    /// The running error of the line.
    pub error_permille: u64,
    /// q; 0 before the first batch.
    pub tail_permille: u64,
    /// How often the upstream was judged to be another one.
    pub changes: u64,
    /// Execution time in all of batches that were sent in another size than seemed best, to learn, in nanoseconds.
    pub exploration_nanos: u64,
}

// === impl Adaptive ===

impl Adaptive {
    /// A line waits. Counted once for each batch and reason.
    pub(super) fn note_hold(&mut self, key: KeyId, hold: Hold) {
        if let Some(watched) = self.keys.get_mut(&key)
            && watched.held.replace(hold) != Some(hold)
            && let Some(at) = Hold::ALL.iter().position(|known| *known == hold)
        {
            self.holds[at] += 1;
        }
    }

    /// Waits since the start, by [`Hold::ALL`].
    pub(in super::super) fn holds(&self) -> [u64; Hold::ALL.len()] {
        self.holds
    }

    /// How often the upstream was judged to be another one, and when last.
    pub(in super::super) fn changes(&self) -> (u64, Option<Tick>) {
        (self.changes, self.changed)
    }

    /// What the concurrency limiter of a class does; `None` before its first call.
    pub(in super::super) fn flow_mode(&self, class: CostClassId) -> Option<FlowMode> {
        self.models.get(&class).map(|model| model.flow.mode())
    }

    /// Whether calls of a class are forwarded because merging them was found not to pay.
    pub(in super::super) fn finds_no_gain(&self, class: CostClassId) -> bool {
        let mode = self.models.get(&class).map(|model| model.flow.mode());
        matches!(
            mode,
            Some(FlowMode::Open(OpenReason::NoGain { .. } | OpenReason::NoQueue | OpenReason::ServerBatches))
        )
    }

    /// For the gauges.
    pub(in super::super) fn learned(&self) -> Learned {
        let line = self.last_class.and_then(|id| self.models.get(&id)).map(|model| model.cost.gauges());
        Learned {
            slots: self.slots(),
            lead_nanos: self.lead_nanos(),
            standing_aside: self.last_class.and_then(|id| self.models.get(&id)).is_some_and(
                |model| matches!(model.flow.mode(), FlowMode::Open(reason) if reason != OpenReason::Learning),
            ),
            settling: self.last_class.and_then(|id| self.models.get(&id)).is_some_and(|model| model.flow.is_settling()),
            batch_nanos: line.map_or(0, |line| line.batch_nanos),
            item_nanos: line.map_or(0, |line| line.item_nanos),
            error_permille: line.map_or(0, |line| line.error_permille),
            tail_permille: line.map_or(0, |line| line.tail_permille),
            changes: self.changes,
            exploration_nanos: self.exploration.spent_nanos(),
        }
    }

    /// Where a class works whose last batch had so many items and whose batches may have at most `cap`; `None` before the first answer.
    pub(in super::super) fn operating_point(
        &self,
        now: Tick,
        class: CostClassId,
        last: u32,
        cap: u32,
    ) -> Option<OperatingPoint> {
        let model = self.models.get(&class).filter(|model| model.cost.samples() > 0)?;
        let cost = &model.cost;
        // Beyond what has worked the curve is a guess.
        let best = most_efficient(cost, cap.min(model.worked).max(1));
        let rates = self.keys.iter().filter(|(_, watched)| watched.class == Some(class));
        Some(OperatingPoint {
            best_items: best,
            best_nanos: cost.time(best),
            double_nanos: cost.time(best.saturating_mul(2)),
            lone_nanos: cost.time(1),
            lone_late_nanos: model.lone_nanos().map_or(0, |lone| cost.late(lone)),
            last_nanos: cost.time(last.max(1)),
            rate_milli: rates.map(|(key, _)| self.rate(*key, now).0).fold(0, u64::saturating_add),
            worked: model.worked,
        })
    }

    /// How old the plan of a class is.
    pub(in super::super) fn plan_age(&self, class: CostClassId) -> Option<PlanAge> {
        let model = self.models.get(&class)?;
        let (made, at) = model.planned?;
        let items_max = model.plan.as_ref()?.sizes();
        Some(PlanAge { made, batches: model.batches.saturating_sub(at), items_max })
    }
}
