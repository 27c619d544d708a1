//! What a call takes with nothing else in flight: the time that an SLO is held against.
//!
//! The cost curve is also learned from executions that overlapped others, where a server that
//! shares its processor, or queues, answers each of them later. An SLO is impossible only where a
//! call that has the server for itself misses it. So executions during which nothing else was in
//! flight correct the curve here; where there were none, the base latency of the concurrency
//! limiter stands for them.

use super::super::math::float;

/// The weight of a new one in the mean, once there are some.
const WEIGHT: f64 = 0.2;

/// The mean ratio of executions that had the server for themselves to what the cost curve expected
/// of them.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LoneTime {
    ratio: f64,
    count: u32,
}

// === impl LoneTime ===

impl LoneTime {
    /// Takes an execution during which nothing else was in flight.
    pub(super) fn observe(&mut self, took: u64, expected: u64) {
        self.count = self.count.saturating_add(1);
        let weight = (1.0 / f64::from(self.count)).max(WEIGHT);
        self.ratio += weight * (float(took) / float(expected.max(1)) - self.ratio);
    }

    /// Nanoseconds of a lone call, by what the cost curve expects and by the limiter's base latency
    /// (0: not known); `None` where neither executions alone nor a base latency support it. Never
    /// more than the curve expects.
    pub(super) fn nanos(self, expected: u64, base: u64) -> Option<u64> {
        if self.count > 0 {
            let alone = super::super::math::whole(float(expected) * self.ratio);
            return Some(alone.min(expected));
        }
        (base > 0).then(|| base.min(expected))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executions_alone_correct_a_curve_that_was_learned_from_overlapped_ones() {
        let mut lone = LoneTime::default();
        assert_eq!(lone.nanos(110, 0), None, "nothing ran alone, and no base latency is known");
        assert_eq!(lone.nanos(110, 60), Some(60));
        lone.observe(60, 110);
        let found = lone.nanos(110, 0).unwrap();
        assert!((59..=61).contains(&found), "{found}");
        for _ in 0..40 {
            lone.observe(200, 110);
        }
        assert_eq!(lone.nanos(110, 0), Some(110), "the curve is the upper bound");
    }
}
