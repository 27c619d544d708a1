//! A token bucket, used to limit the frames and bytes of a stream and the number of `TokenReview`
//! requests.
//!
//! It is pure: the time is an argument. The reaction to an exhausted bucket is left to the caller.

use std::time::Duration;

use crate::batching::Tick;

/// A token bucket with integer arithmetic.
///
/// # Properties
/// In any time span, at most `capacity` + `per_second` × span tokens are taken.
#[derive(Debug, Clone)]
pub struct TokenBucket {
    per_second: u64,
    capacity: u64,
    /// Available tokens, in billionths of a token.
    tokens_nano: u128,
    refilled_at: Tick,
}

const BILLION: u128 = 1_000_000_000;

// === impl TokenBucket ===

impl TokenBucket {
    /// Creates a full bucket with a burst of `capacity` tokens and a refill rate of `per_second`.
    #[must_use]
    pub fn new(now: Tick, per_second: u64, capacity: u64) -> Self {
        Self { per_second, capacity, tokens_nano: u128::from(capacity) * BILLION, refilled_at: now }
    }

    /// Takes `amount` tokens if they are available. Otherwise it takes none and returns `false`.
    pub fn try_take(&mut self, now: Tick, amount: u64) -> bool {
        self.refill(now);
        let required = u128::from(amount) * BILLION;
        let enough = required <= self.tokens_nano;
        if enough {
            self.tokens_nano -= required;
        }
        enough
    }

    /// Returns the time until `amount` tokens are available, at most the time to fill the whole
    /// bucket.
    #[must_use]
    pub fn time_until(&mut self, now: Tick, amount: u64) -> Duration {
        self.refill(now);
        let missing = (u128::from(amount.min(self.capacity)) * BILLION).saturating_sub(self.tokens_nano);
        let nanos = missing.div_ceil(u128::from(self.per_second.max(1)));
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    fn refill(&mut self, now: Tick) {
        let added = now.since(self.refilled_at).as_nanos() * u128::from(self.per_second);
        self.tokens_nano = (self.tokens_nano + added).min(u128::from(self.capacity) * BILLION);
        self.refilled_at = self.refilled_at.max(now);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_full_bucket_grants_its_burst_and_then_the_refill_rate() {
        let mut bucket = TokenBucket::new(Tick(0), 2, 5);
        assert!((0..5).all(|_| bucket.try_take(Tick(0), 1)));
        assert!(!bucket.try_take(Tick(0), 1));
        assert_eq!(bucket.time_until(Tick(0), 1), Duration::from_millis(500));
        assert!(!bucket.try_take(Tick::from_millis(499), 1));
        assert!(bucket.try_take(Tick::from_millis(500), 1));
        assert!(bucket.try_take(Tick::from_millis(60_000), 5) && !bucket.try_take(Tick::from_millis(60_000), 1));
    }

    proptest! {
        #[test]
        fn the_amount_taken_never_exceeds_the_burst_plus_the_refill(steps in prop::collection::vec((0..2_000_u64, 1..20_u64), 1..100)) {
            let (mut now, mut taken) = (0, 0);
            let mut bucket = TokenBucket::new(Tick(0), 10, 30);
            for (millis, amount) in steps {
                now += millis;
                if bucket.try_take(Tick::from_millis(now), amount) {
                    taken += amount;
                }
                prop_assert!(taken * 1000 <= 30_000 + 10 * now);
            }
        }
    }
}
