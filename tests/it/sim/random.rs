//! The only source of randomness: a seed yields the same numbers on every machine.

use std::time::Duration;

use groupage::batching::Tick;
use groupage::batching::rng::SplitMix64;

/// A seeded source of random choices.
#[derive(Debug, Clone)]
pub(crate) struct RandomSource(SplitMix64);

// === impl RandomSource ===

impl RandomSource {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(SplitMix64::new(seed ^ 0x5EED_6A0A_9A6E))
    }

    pub(crate) const fn next(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Returns a number from `low` to `high`, both inclusive.
    pub(crate) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low + 1)
    }

    /// Like [`Self::between`], for 32-bit numbers.
    pub(crate) fn count(&mut self, low: u32, high: u32) -> u32 {
        u32::try_from(self.between(u64::from(low), u64::from(high))).unwrap_or(high)
    }

    pub(crate) fn chance(&mut self, permille: u64) -> bool {
        self.next() % 1000 < permille
    }

    /// Returns `true` if the wake-up of the core comes before the next planned event, by chance if both
    /// are due at one instant. `None` if neither is due.
    pub(crate) fn wakes_first(&mut self, planned: Option<Tick>, wakeup: Option<Tick>) -> Option<bool> {
        match (planned, wakeup) {
            (None, None) => None,
            (Some(planned), Some(wakeup)) => Some(wakeup < planned || wakeup == planned && self.chance(500)),
            (planned, _) => Some(planned.is_none()),
        }
    }

    pub(crate) fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        let last = u64::try_from(of.len()).unwrap_or(u64::MAX) - 1;
        &of[usize::try_from(self.between(0, last)).unwrap_or(0)]
    }

    /// Returns a duration of up to `millis`, in whole milliseconds, so that instants coincide, or
    /// in nanoseconds.
    pub(crate) fn span(&mut self, coarse: bool, millis: u64) -> Duration {
        if coarse {
            Duration::from_millis(self.between(0, millis))
        } else {
            Duration::from_nanos(self.between(0, millis * 1_000_000))
        }
    }
}
