//! Execution time of a call with nothing else in flight, against which an SLO is checked.
//!
//! The cost curve is also learned from executions that overlapped others, and a server that shares
//! its processor or queues answers each of those later. An SLO is infeasible only if a call that
//! has the server for itself misses it. Executions during which nothing else was in flight
//! therefore correct the curve here. Without any, the base latency of the concurrency limiter is
//! used.

use super::super::math::{round_to_u64, to_f64};

/// Minimum weight of a new sample in the running mean.
const WEIGHT: f64 = 0.2;

/// Mean ratio of the measured to the predicted time of executions that had the server for
/// themselves.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct UnloadedTime {
    ratio: f64,
    count: u32,
}

// === impl UnloadedTime ===

impl UnloadedTime {
    /// Records an execution during which nothing else was in flight.
    pub(super) fn observe(&mut self, took: u64, expected: u64) {
        self.count = self.count.saturating_add(1);
        let weight = (1.0 / f64::from(self.count)).max(WEIGHT);
        self.ratio += weight * (to_f64(took) / to_f64(expected.max(1)) - self.ratio);
    }

    /// Returns the nanoseconds of an unloaded call, from the prediction of the cost curve and the
    /// limiter's base latency (0: unknown). Returns `None` if neither an execution alone nor a base
    /// latency supports a value. Never exceeds the prediction.
    pub(super) fn nanos(self, expected: u64, base: u64) -> Option<u64> {
        if self.count > 0 {
            return Some(round_to_u64(to_f64(expected) * self.ratio).min(expected));
        }
        (base > 0).then(|| base.min(expected))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lone_executions_correct_a_curve_that_was_learned_from_overlapped_ones() {
        let mut time = UnloadedTime::default();
        assert_eq!(time.nanos(110, 0), None, "nothing ran alone, and no base latency is known");
        assert_eq!(time.nanos(110, 60), Some(60));
        time.observe(60, 110);
        let found = time.nanos(110, 0).unwrap();
        assert!((59..=61).contains(&found), "{found}");
        for _ in 0..40 {
            time.observe(200, 110);
        }
        assert_eq!(time.nanos(110, 0), Some(110), "the curve is the upper bound");
    }
}
