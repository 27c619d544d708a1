//! What is kept of the slots across restarts.
//!
//! The number, the lead and how much is still explored; not the doubts: a slot that is gone by then is found out like any that vanishes.

use super::super::math::{float, whole};
use super::{COUNT_MAX, EXPLORE_MIN, EXPLORE_START, Slots};

/// What a later process may begin with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UpstreamSnapshot {
    /// C: batches in flight that the upstream runs side by side; 0: nothing was learned.
    pub slots: u32,
    /// By how many nanoseconds the next batch may leave before one comes back.
    pub lead_nanos: u64,
    /// T: the running mean of execution times, in nanoseconds.
    pub mean_nanos: u64,
    /// How often a completion is followed by an exploring batch, in thousandths.
    pub explore_permille: u32,
}

// === impl Slots ===

impl Slots {
    pub(in super::super) fn snapshot(&self, mean_nanos: u64) -> UpstreamSnapshot {
        let explore_permille = u32::try_from(whole(self.explore * 1000.0)).unwrap_or(1000);
        UpstreamSnapshot { slots: self.in_use(), lead_nanos: self.lead(), mean_nanos, explore_permille }
    }

    pub(in super::super) fn restore(&mut self, kept: UpstreamSnapshot) {
        if kept.slots == 0 {
            return;
        }
        *self = Self {
            slots_max: self.slots_max,
            count: kept.slots.min(COUNT_MAX),
            // What was written by somebody else is held to what could have been learned.
            lead: float(kept.lead_nanos.min(kept.mean_nanos)),
            explore: (f64::from(kept.explore_permille) / 1000.0).clamp(EXPLORE_MIN, EXPLORE_START),
            ..Self::new()
        };
    }
}
