//! Two running measures of the state machine: the total free time of a slot and the drain rate of
//! the queue.

use std::time::Duration;

use super::super::tick::{Tick, nanos};

/// Total time during which a slot was free, by which a hold beside a free slot is measured.
#[derive(Debug, Clone, Copy)]
pub(super) struct FreeTime {
    past: Duration,
    /// Start of the current free period; `None` while all slots are busy.
    since: Option<Tick>,
}

/// Drain rate of the queue, for `Retry-After`: running means of the last executions.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct DrainRate {
    execution_ns: u64,
    items: u64,
}

// === impl FreeTime ===

impl Default for FreeTime {
    /// All slots are free at the start.
    fn default() -> Self {
        Self { past: Duration::ZERO, since: Some(Tick::default()) }
    }
}

impl FreeTime {
    pub(super) fn total(self, now: Tick) -> Duration {
        self.past + self.since.map_or(Duration::ZERO, |since| now.since(since))
    }

    pub(super) fn set_free(&mut self, now: Tick, free: bool) {
        self.past = self.total(now);
        self.since = free.then_some(now);
    }
}

// === impl DrainRate ===

impl DrainRate {
    /// Updates the means with weight 1/8 for the newest execution, so that they follow within a few
    /// batches.
    pub(super) fn observe(&mut self, duration: Duration, items: u32) {
        let mean = |old: u64, new: u64| if old == 0 { new } else { old - old / 8 + new / 8 };
        self.execution_ns = mean(self.execution_ns, nanos(duration));
        // Items are counted in units of 1/256, so that the integer mean of small batches keeps
        // moving.
        self.items = mean(self.items, u64::from(items) << 8);
    }

    pub(super) fn drain_ns(&self, queued: u64, slots: u32) -> u64 {
        let batches = (queued << 8).div_ceil(self.items.max(1 << 8));
        batches.saturating_mul(self.execution_ns) / u64::from(slots.max(1))
    }
}
