//! Snapshots of the slot estimate across restarts.
//!
//! The number of slots, the lead and the exploration rate are kept. The doubts are not: a slot that
//! vanished meanwhile is detected like any other.

use super::super::math::{round_to_u64, to_f64};
use super::{COUNT_MAX, EXPLORE_MIN, EXPLORE_START, SlotEstimator};

/// State of the slot estimate from which a later process starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UpstreamSnapshot {
    /// Number of batches that the upstream runs side by side; 0: nothing was learned.
    pub slots: u32,
    /// The lead: nanoseconds by which the next batch may leave before another one returns.
    pub lead_nanos: u64,
    /// Mean execution time T, in nanoseconds.
    pub mean_nanos: u64,
    /// Probability that a completion is followed by an exploring batch, in thousandths.
    pub explore_permille: u32,
}

// === impl SlotEstimator ===

impl SlotEstimator {
    pub(in super::super) fn snapshot(&self, mean_nanos: u64) -> UpstreamSnapshot {
        let explore_permille = u32::try_from(round_to_u64(self.explore * 1000.0)).unwrap_or(1000);
        UpstreamSnapshot { slots: self.in_use(), lead_nanos: self.lead(), mean_nanos, explore_permille }
    }

    pub(in super::super) fn restore(&mut self, snapshot: UpstreamSnapshot) {
        if snapshot.slots == 0 {
            return;
        }
        *self = Self {
            slots_max: self.slots_max,
            count: snapshot.slots.min(COUNT_MAX),
            // A snapshot from another source is clamped to values that could have been learned.
            lead: to_f64(snapshot.lead_nanos.min(snapshot.mean_nanos)),
            explore: (f64::from(snapshot.explore_permille) / 1000.0).clamp(EXPLORE_MIN, EXPLORE_START),
            ..Self::new()
        };
    }
}
