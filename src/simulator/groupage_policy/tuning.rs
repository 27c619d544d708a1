//! Construction of the Groupage policy for a row, with the deviations of the row from its defaults.

use crate::batching::{Batcher, DispatchPolicy as Rule, Tick};
use crate::scenario::{PolicyOverrides, Scenario};

use super::GroupagePolicy;

// === impl GroupagePolicy ===

impl GroupagePolicy {
    /// Creates a cold core for a row.
    #[must_use]
    pub fn for_scenario(scenario: &Scenario, seed: u64) -> Self {
        Self::with_cap_only(scenario.cap, seed).with_overrides(&scenario.tuning)
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
    pub fn with_overrides(mut self, tuning: &PolicyOverrides) -> Self {
        if let Some(feature) = tuning.disabled_feature {
            self.core.batcher = self.core.batcher.without_feature(feature);
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
