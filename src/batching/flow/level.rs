//! The time that requests take under a limit: a line through lone calls and recent batches.

use super::super::math::float;
use super::super::tick::Tick;

/// The weight of a recent batch in its means, once there are some.
const WEIGHT: f64 = 0.2;
/// The weight of a lone call in the running mean that holds are measured by.
const LONE_WEIGHT: f64 = 0.1;
/// The same for the last few.
const NEAR_WEIGHT: f64 = 0.35;
/// A ratio of measured to expected outside these bounds so often in a row means that the server has
/// changed.
const OFF_ABOVE: f64 = 1.6;
const OFF_BELOW: f64 = 0.6;
const OFF_MAX: u32 = 3;
/// The cost of one item more in a batch, as a part of a lone call, where no lone call was measured:
/// bounds for what pairs have shown.
const ITEM_COST: (f64, f64) = (0.02, 1.0);

/// Latencies in nanoseconds.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Level {
    /// A lone call below the limit; 0 before one was measured.
    pub(super) lone: f64,
    /// Its items.
    pub(super) lone_items: f64,
    /// Recent batches: latency, items, count.
    pub(super) batch: f64,
    pub(super) batch_items: f64,
    pub(super) batches: u32,
    off: u32,
    /// A running mean of the expected service of lone calls; 0 before it is known.
    service: f64,
    /// A running mean of lone calls while open, queueing included.
    pub(super) recent_lone: f64,
    /// The same of the last few: a queue that grows has longer ones.
    pub(super) near_lone: f64,
}

// === impl Level ===

impl Level {
    pub(super) fn restart(&mut self) {
        self.batches = 0;
        self.off = 0;
    }

    /// Takes what a lone call was expected to take in service, where that is known; returns the
    /// running mean.
    pub(super) fn observe_service(&mut self, expected: u64) -> f64 {
        if expected > 0 {
            let weight = if self.service == 0.0 { 1.0 } else { LONE_WEIGHT };
            self.service += weight * (float(expected) - self.service);
        }
        self.service
    }

    /// Takes a lone call that was sent while open.
    pub(super) fn observe_lone(&mut self, latency: f64) {
        let weight = if self.recent_lone == 0.0 { 1.0 } else { LONE_WEIGHT };
        self.recent_lone += weight * (latency - self.recent_lone);
        let weight = if self.near_lone == 0.0 { 1.0 } else { NEAR_WEIGHT };
        self.near_lone += weight * (latency - self.near_lone);
    }

    /// Takes a batch that was sent under the limit; `expected`: what it takes with its slot idle, 0
    /// where that is not known. True if the server takes another time than it did.
    pub(super) fn observe_batch(&mut self, items: f64, latency: f64, expected: u64) -> bool {
        let ratio = if expected > 0 { latency / float(expected) } else { 1.0 };
        self.off = if (OFF_BELOW..=OFF_ABOVE).contains(&ratio) { 0 } else { self.off + 1 };
        let changed = self.off >= OFF_MAX;
        if changed {
            self.off = 0;
        }
        self.batches += 1;
        let weight = (1.0 / f64::from(self.batches)).max(WEIGHT);
        self.batch += weight * (latency - self.batch);
        self.batch_items += weight * (items - self.batch_items);
        changed
    }

    /// The time that a batch of this many items takes.
    pub(super) fn predict(&self, items: f64, pair_cost: f64) -> f64 {
        if self.lone == 0.0 {
            let item = (pair_cost - 1.0).clamp(ITEM_COST.0, ITEM_COST.1);
            return self.batch * (1.0 + item * (items - 1.0)) / (1.0 + item * (self.batch_items - 1.0));
        }
        let unit = self.lone_items.max(1.0);
        if self.batch_items > 1.5 * unit {
            self.lone + (self.batch - self.lone) * (items - unit) / (self.batch_items - unit)
        } else {
            self.batch.max(self.lone)
        }
    }
}

/// Nanoseconds between two instants.
pub(super) fn span(from: Tick, to: Tick) -> f64 {
    float(to.0.saturating_sub(from.0))
}
