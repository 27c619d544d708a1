//! Latency of executions under a limit, modelled as a line through unbatched calls and recent
//! batches.

use super::super::math::to_f64;
use super::super::tick::Tick;

/// Minimum weight of a new batch in the means of recent batches.
const WEIGHT: f64 = 0.2;
/// Weight of an unbatched call in the running mean from which holds are derived.
const UNBATCHED_WEIGHT: f64 = 0.1;
/// Weight of an unbatched call in the running mean of the last few.
const NEAR_WEIGHT: f64 = 0.35;
/// Bounds of the ratio of measured to expected time, and the number of consecutive ratios outside
/// of them that shows a change of the server.
const OFF_ABOVE: f64 = 1.6;
const OFF_BELOW: f64 = 0.6;
const OFF_MAX: u32 = 3;
/// Bounds on the cost of an additional item in a batch, as a part of an unbatched call, which is
/// derived from pairs if no unbatched call was measured.
const ITEM_COST: (f64, f64) = (0.02, 1.0);

/// Latency model. Times are in nanoseconds.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LatencyModel {
    /// Latency of an unbatched call below the limit; 0 before one was measured.
    pub(super) unbatched: f64,
    /// Items of that call.
    pub(super) unbatched_items: f64,
    /// Limit to which that latency belongs; 0 if it was measured without one.
    unbatched_limit: f64,
    /// Mean latency of recent batches.
    pub(super) batch: f64,
    /// Mean number of items of recent batches.
    pub(super) batch_items: f64,
    /// Number of batches in these means.
    pub(super) batches: u32,
    /// Number of consecutive batches with a time outside of the expected bounds.
    off: u32,
    /// Running mean of the expected service time of unbatched calls; 0 before it is known.
    service: f64,
    /// Running mean of the latency of unbatched calls while open, queueing included.
    pub(super) recent_unbatched: f64,
    /// The same mean over the last few calls, which rises earlier when a queue grows.
    pub(super) near_unbatched: f64,
}

// === impl LatencyModel ===

impl LatencyModel {
    pub(super) fn reset_batches(&mut self) {
        self.batches = 0;
        self.off = 0;
    }

    /// Sets the latency of an unbatched call of this many items under a limit.
    pub(super) fn set_unbatched(&mut self, latency: f64, items: f64, limit: f64) {
        (self.unbatched, self.unbatched_items, self.unbatched_limit) = (latency, items, limit);
    }

    /// Discards the latency of an unbatched call, because none was measured under the new limit.
    pub(super) fn clear_unbatched(&mut self) {
        self.set_unbatched(0.0, 1.0, 0.0);
    }

    /// Reduces the latency of an unbatched call to a lower limit, because part of it was spent in a
    /// queue that no longer exists. `previous`: the limit before, which may have been raised
    /// without a queue since the latency was measured.
    pub(super) fn lower_unbatched(&mut self, previous: f64, limit: f64) {
        let from = if self.unbatched_limit > 0.0 { previous.min(self.unbatched_limit) } else { previous };
        if limit < from {
            self.unbatched *= limit / from;
            self.unbatched_limit = limit;
        }
    }

    /// Records the expected service time of an unbatched call, if it is known, and returns the
    /// running mean.
    pub(super) fn observe_service(&mut self, expected: u64) -> f64 {
        if expected > 0 {
            let weight = if self.service == 0.0 { 1.0 } else { UNBATCHED_WEIGHT };
            self.service += weight * (to_f64(expected) - self.service);
        }
        self.service
    }

    /// Records an unbatched call that was sent while open.
    pub(super) fn observe_unbatched(&mut self, latency: f64) {
        let weight = if self.recent_unbatched == 0.0 { 1.0 } else { UNBATCHED_WEIGHT };
        self.recent_unbatched += weight * (latency - self.recent_unbatched);
        let weight = if self.near_unbatched == 0.0 { 1.0 } else { NEAR_WEIGHT };
        self.near_unbatched += weight * (latency - self.near_unbatched);
    }

    /// Records a batch that was sent under the limit. `expected`: its time with an idle slot, 0 if
    /// unknown. Returns `true` if the times of the server have changed.
    pub(super) fn observe_batch(&mut self, items: f64, latency: f64, expected: u64) -> bool {
        let ratio = if expected > 0 { latency / to_f64(expected) } else { 1.0 };
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

    /// Returns the predicted time of a batch of this many items.
    pub(super) fn predict(&self, items: f64, pair_cost: f64) -> f64 {
        if self.unbatched == 0.0 {
            let item = (pair_cost - 1.0).clamp(ITEM_COST.0, ITEM_COST.1);
            return self.batch * (1.0 + item * (items - 1.0)) / (1.0 + item * (self.batch_items - 1.0));
        }
        // The line through an unbatched call and the mean batch, unless the two are too close for a
        // slope.
        let unbatched_items = self.unbatched_items.max(1.0);
        if self.batch_items > 1.5 * unbatched_items {
            self.unbatched
                + (self.batch - self.unbatched) * (items - unbatched_items) / (self.batch_items - unbatched_items)
        } else {
            self.batch.max(self.unbatched)
        }
    }
}

/// Returns the nanoseconds between two instants.
pub(super) fn nanos_between(from: Tick, to: Tick) -> f64 {
    to_f64(to.0.saturating_sub(from.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_that_was_raised_and_lowered_again_leaves_the_latency_of_an_unbatched_call() {
        let mut level = LatencyModel::default();
        level.set_unbatched(40e6, 1.0, 8.0);
        level.lower_unbatched(8.0, 2.0);
        assert!((level.unbatched - 10e6).abs() < 1.0);
        level.lower_unbatched(3.0, 2.0);
        assert!((level.unbatched - 10e6).abs() < 1.0);
        level.lower_unbatched(3.0, 1.0);
        assert!((level.unbatched - 5e6).abs() < 1.0);
    }
}
