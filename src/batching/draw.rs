//! The core's only randomness.
//!
//! A generator with a seed, handed in: the same seed and the same events give the same decisions. What it leaves out: security, and streams that may
//! not be guessed.

use super::math::float;

/// splitmix64 (Steele, Lea, Flood 2014): enough to explore and to spread retries, and the same on every machine.
#[derive(Debug, Clone)]
pub(super) struct Draw(u64);

// === impl Draw ===

impl Draw {
    pub(super) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Any number, all equally likely.
    pub(super) const fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number in [0, 1): 53 bits, so every value is exact.
    pub(super) fn unit(&mut self) -> f64 {
        float(self.bits() >> 11) / float(1 << 53)
    }

    /// True this often, in thousandths.
    pub(super) fn chance(&mut self, permille: u32) -> bool {
        self.unit() * 1000.0 < f64::from(permille)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_draws_the_same_numbers() {
        let draw = |seed| (0..4).map(move |_| seed).scan(Draw::new(seed), |d, _| Some(d.bits())).collect::<Vec<_>>();
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
        assert_eq!(Draw::new(0).bits(), 0xE220_A839_7B1D_CDAF, "the first number of the published generator");
    }

    #[test]
    fn a_chance_comes_about_as_often_as_it_says() {
        let mut draw = Draw::new(1);
        let hits = (0..100_000).filter(|_| draw.chance(150)).count();
        assert!((14_500..15_500).contains(&hits), "{hits}");
        assert!((0..1000).all(|_| !draw.chance(0)) && (0..1000).all(|_| draw.chance(1000)));
    }
}
