//! Two running measures of the state machine: how long a slot has been free, and how fast the queue drains.

use std::time::Duration;

use super::super::tick::{Tick, nanos};

/// How long a slot has been free in all: what a hold beside a free slot is measured by.
#[derive(Debug, Clone, Copy)]
pub(super) struct FreeTime {
    past: Duration,
    /// Since when a slot is free; `None` while all are busy.
    since: Option<Tick>,
}

/// How fast the queue drains, for `Retry-After`: running means of the last executions.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Pace {
    execution_ns: u64,
    items: u64,
}

// === impl FreeTime ===

impl Default for FreeTime {
    /// At the start every slot is free.
    fn default() -> Self {
        Self { past: Duration::ZERO, since: Some(Tick::default()) }
    }
}

impl FreeTime {
    pub(super) fn total(self, now: Tick) -> Duration {
        self.past + self.since.map_or(Duration::ZERO, |since| now.since(since))
    }

    pub(super) fn note(&mut self, now: Tick, free: bool) {
        self.past = self.total(now);
        self.since = free.then_some(now);
    }
}

// === impl Pace ===

impl Pace {
    /// Weight 1/8 for the newest: a few batches and it follows.
    pub(super) fn observe(&mut self, duration: Duration, items: u32) {
        let mean = |old: u64, new: u64| if old == 0 { new } else { old - old / 8 + new / 8 };
        self.execution_ns = mean(self.execution_ns, nanos(duration));
        // Items count in 1/256 so that the mean of small batches does not stick.
        self.items = mean(self.items, u64::from(items) << 8);
    }

    pub(super) fn drain_ns(&self, queued: u64, slots: u32) -> u64 {
        let batches = (queued << 8).div_ceil(self.items.max(1 << 8));
        batches.saturating_mul(self.execution_ns) / u64::from(slots.max(1))
    }
}
