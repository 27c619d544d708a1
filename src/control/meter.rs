//! How much may come: a bucket that fills with time, one for frames and one for bytes of a stream, one for reviews of tokens.
//!
//! Pure: the time is an argument. It leaves out what follows when it is empty.

use std::time::Duration;

use crate::batching::Tick;

/// An allowance that grows with time up to a bound.
///
/// # Properties
/// In any span of time no more than `most` + `per_second` × span is taken. Integers only.
#[derive(Debug, Clone)]
pub struct Meter {
    per_second: u64,
    most: u64,
    /// What is left, in units of a billionth.
    left: u128,
    at: Tick,
}

const BILLION: u128 = 1_000_000_000;

// === impl Meter ===

impl Meter {
    /// Full at first: `most` at once, `per_second` after it.
    #[must_use]
    pub fn new(now: Tick, per_second: u64, most: u64) -> Self {
        Self { per_second, most, left: u128::from(most) * BILLION, at: now }
    }

    /// Takes so much, if it is there; nothing is taken otherwise.
    pub fn take(&mut self, now: Tick, amount: u64) -> bool {
        self.fill(now);
        let wanted = u128::from(amount) * BILLION;
        let enough = wanted <= self.left;
        if enough {
            self.left -= wanted;
        }
        enough
    }

    /// How long until so much is there; at most as long as the whole takes.
    #[must_use]
    pub fn wait(&mut self, now: Tick, amount: u64) -> Duration {
        self.fill(now);
        let missing = (u128::from(amount.min(self.most)) * BILLION).saturating_sub(self.left);
        let nanos = missing.div_ceil(u128::from(self.per_second.max(1)));
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    fn fill(&mut self, now: Tick) {
        let came = now.since(self.at).as_nanos() * u128::from(self.per_second);
        self.left = (self.left + came).min(u128::from(self.most) * BILLION);
        self.at = self.at.max(now);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_full_meter_gives_what_it_holds_and_then_what_comes() {
        let mut meter = Meter::new(Tick(0), 2, 5);
        assert!((0..5).all(|_| meter.take(Tick(0), 1)));
        assert!(!meter.take(Tick(0), 1));
        assert_eq!(meter.wait(Tick(0), 1), Duration::from_millis(500));
        assert!(!meter.take(Tick::from_millis(499), 1));
        assert!(meter.take(Tick::from_millis(500), 1));
        assert!(meter.take(Tick::from_millis(60_000), 5) && !meter.take(Tick::from_millis(60_000), 1));
    }

    proptest! {
        #[test]
        fn no_more_is_taken_than_was_given(steps in prop::collection::vec((0..2_000_u64, 1..20_u64), 1..100)) {
            let (mut now, mut taken) = (0, 0);
            let mut meter = Meter::new(Tick(0), 10, 30);
            for (millis, amount) in steps {
                now += millis;
                if meter.take(Tick::from_millis(now), amount) {
                    taken += amount;
                }
                prop_assert!(taken * 1000 <= 30_000 + 10 * now);
            }
        }
    }
}
