//! Statistics of decisions and their causes for status reports, and values for gauges.

use super::super::adaptive::{LearnedGauges, OperatingPoint, PlanAge};
use super::super::call::CostClassId;
use super::super::class::merging::Suspension;
use super::super::class::{ClassState, QuarantineReport};
use super::super::stats::{ClassStats, DispatchTotals};
use super::super::tick::Tick;
use super::Batcher;

/// Statistics of decisions and their causes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecisionStats {
    /// Totals since the start.
    pub totals: DispatchTotals,
    /// Number of times that a change of the upstream was detected.
    pub changes: u64,
    /// Instant of the last detected change.
    pub changed: Option<Tick>,
    /// Recent statistics by cost class.
    pub classes: Vec<ClassDecisionStats>,
}

/// Statistics and operating point of a cost class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClassDecisionStats {
    /// The cost class.
    pub id: CostClassId,
    /// Counts over its last batches.
    pub tally: ClassStats,
    /// Operating point on its cost curve; `None` before the first answer.
    pub point: Option<OperatingPoint>,
    /// Age of its plan; `None` if it has none.
    pub plan: Option<PlanAge>,
    /// Learned or published maximum number of items.
    pub ceiling: Option<u32>,
    /// `true` if some calls are not merged for now, because a response could not be split or
    /// batches were refused.
    pub quarantined: bool,
    /// Quarantine of merge keys: the response that caused it, and whether it ends merging.
    pub quarantine: Option<QuarantineReport>,
    /// Suspension of merging, if the server refuses batches.
    pub suspension: Option<Suspension>,
}

/// Current load of the core, for gauges.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QueueGauges {
    /// Queued calls.
    pub queue_calls: usize,
    /// Queued items.
    pub queue_items: u64,
    /// Queued bytes.
    pub queue_bytes: u64,
    /// Arrival time of the oldest queued call.
    pub oldest: Option<Tick>,
    /// Batches in flight.
    pub in_flight: usize,
    /// Maximum number of batches in flight.
    pub slots: u32,
}

// === impl Batcher ===

impl Batcher {
    /// Returns the statistics of decisions and their causes.
    #[must_use]
    pub fn decision_stats(&self, now: Tick) -> DecisionStats {
        let now = self.now.max(now);
        let classes = self.tallies.classes().map(|(id, tally)| {
            let ceiling = self.ceiling(id);
            let cap = tally.items_max.min(ceiling.unwrap_or(u32::MAX)).max(1);
            ClassDecisionStats {
                id,
                tally,
                point: self.adaptive.operating_point(now, id, tally.last_items, cap),
                plan: self.adaptive.plan_age(id),
                ceiling,
                quarantined: self.classes.is_quarantined(now, id),
                quarantine: self.classes.quarantine(now, id),
                suspension: self.classes.get(id).and_then(ClassState::suspension),
            }
        });
        let (changes, changed) = self.adaptive.detected_changes();
        DecisionStats {
            totals: DispatchTotals { holds: self.adaptive.holds(), ..self.tallies.totals() },
            changes,
            changed,
            classes: classes.collect(),
        }
    }

    /// Returns the current load, for gauges.
    #[must_use]
    pub fn counts(&self) -> QueueGauges {
        let held = self.held();
        QueueGauges {
            queue_calls: self.queue.len() + self.late.queue.len(),
            queue_items: held.items,
            queue_bytes: held.bytes,
            oldest: self.queue.oldest().into_iter().chain(self.late.queue.oldest()).min(),
            in_flight: self.in_flight.len(),
            slots: self.limits.slots,
        }
    }

    /// Returns the values of the gauges. The call is cheap enough to be made after every batch.
    #[must_use]
    pub fn learned(&self) -> LearnedGauges {
        let learned = self.adaptive.learned();
        // Other policies follow their settings, and their limiters learn nothing.
        LearnedGauges { settling: learned.settling && self.is_adaptive(), ..learned }
    }
}
