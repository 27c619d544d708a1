//! Construction of the Groupage policy for a row, and deviations from its defaults: limits for a
//! what-if, a preset, or a disabled feature.

use std::time::Duration;

use crate::batching::{Batcher, DispatchPolicy as Rule, Feature, LateTreatment, Tick};
use crate::scenario::Scenario;

use super::GroupagePolicy;

/// Deviations from the defaults.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PolicyOverrides {
    /// Share of an SLO that a call may be held beside an idle upstream for a larger batch, in
    /// thousandths: the preset.
    pub hold_permille: u32,
    /// Maximum number of batches in flight.
    pub slots_max: Option<u32>,
    /// Maximum deliberate wait beside a free slot.
    pub queue_delay_max: Option<Duration>,
    /// Maximum number of queued items.
    pub queue_items_max: Option<u32>,
    /// Treatment of late calls. They are refused unless it is set.
    pub late: Option<LateTreatment>,
    /// Feature to disable.
    pub without: Option<Feature>,
}

// === impl GroupagePolicy ===

impl GroupagePolicy {
    /// Creates a cold core for a row.
    #[must_use]
    pub fn of(scenario: &Scenario, seed: u64) -> Self {
        Self::unbounded(scenario.cap, seed).tuned(&scenario.tuning)
    }

    /// Restores what another core has learned, as a restarted proxy does.
    pub fn restore(&mut self, other: &Batcher) {
        let now = Tick::default();
        self.core.batcher.restore_upstream(now, other.upstream_snapshot());
        for (class, snapshot) in other.snapshot() {
            self.core.batcher.restore(now, class, &snapshot);
        }
    }

    /// Applies a tuning.
    #[must_use]
    pub fn tuned(mut self, tuning: &PolicyOverrides) -> Self {
        if let Some(skill) = tuning.without {
            self.core.batcher = self.core.batcher.without(skill);
        }
        let mut limits = self.core.batcher.limits().clone();
        if tuning.hold_permille > 0 {
            limits.policy = Rule::Adaptive { hold_permille: tuning.hold_permille };
        }
        limits.slots = tuning.slots_max.unwrap_or(limits.slots);
        limits.queue_items_max = tuning.queue_items_max.unwrap_or(limits.queue_items_max);
        for scope in &mut limits.scopes {
            scope.slots_max = tuning.slots_max.unwrap_or(scope.slots_max);
            scope.late = tuning.late.unwrap_or(scope.late);
            scope.queue_items_max = tuning.queue_items_max.unwrap_or(scope.queue_items_max);
            scope.queue_delay_max = tuning.queue_delay_max.unwrap_or(scope.queue_delay_max);
        }
        self.core.set_limits(limits);
        self
    }
}
