//! The `SplitMix64` random number generator: the only source of randomness of the core, of the
//! simulator and of their tests.
//!
//! The same seed and the same events lead to the same decisions. The generator is not
//! cryptographically secure, and its output is predictable.
//!
//! It is written out here, so that its numbers never change: a dependency that changed them would
//! change every recorded run.

use super::math::to_f64;

/// A `SplitMix64` generator (Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators",
/// OOPSLA 2014).
///
/// It is sufficient for exploration, randomized retry delays and simulations, and yields the same
/// numbers on every machine.
#[derive(Debug, Clone)]
pub struct SplitMix64(u64);

// === impl SplitMix64 ===

impl SplitMix64 {
    /// Creates the generator of this seed, which is its initial state.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns 64 uniformly distributed bits.
    pub const fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Returns a number uniformly distributed in [0, 1). It has 53 bits, so every value is exact.
    pub fn next_f64(&mut self) -> f64 {
        to_f64(self.next_u64() >> 11) / to_f64(1 << 53)
    }

    /// Returns `true` with this probability, in thousandths.
    pub fn next_bool(&mut self, permille: u32) -> bool {
        self.next_f64() * 1000.0 < f64::from(permille)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_draws_the_same_numbers() {
        let draw =
            |seed| (0..4).map(move |_| seed).scan(SplitMix64::new(seed), |d, _| Some(d.next_u64())).collect::<Vec<_>>();
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
        assert_eq!(SplitMix64::new(0).next_u64(), 0xE220_A839_7B1D_CDAF, "the first number of the published generator");
    }

    #[test]
    fn chance_matches_its_probability() {
        let mut draw = SplitMix64::new(1);
        let hits = (0..100_000).filter(|_| draw.next_bool(150)).count();
        assert!((14_500..15_500).contains(&hits), "{hits}");
        assert!((0..1000).all(|_| !draw.next_bool(0)) && (0..1000).all(|_| draw.next_bool(1000)));
    }
}
