//! Random numbers that are the same for a seed.
//!
//! splitmix64 (Steele, Lea, Flood 2014) and the usual ways from uniform to normal and exponential. `ln`, `exp` and `cos` are those of the
//! platform, so runs are equal for a seed on one platform, to the last bit. It leaves out anything cryptographic.

use std::f64::consts::TAU;

/// A stream of random numbers.
#[derive(Debug, Clone)]
pub struct Draw {
    state: u64,
    spare_normal: Option<f64>,
}

// === impl Draw ===

impl Draw {
    /// The stream of this seed for one purpose: streams of unlike purposes have nothing to do with each other.
    #[must_use]
    pub fn new(seed: u64, purpose: u64) -> Self {
        let mut mixer = Self { state: seed, spare_normal: None };
        let state = mixer.bits() ^ purpose.wrapping_mul(0xD1B5_4A32_D192_ED03);
        Self { state, spare_normal: None }
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Uniform in [0, 1).
    pub fn unit(&mut self) -> f64 {
        const STEP: f64 = 1.0 / (1_u64 << 53) as f64;
        (self.bits() >> 11) as f64 * STEP
    }

    /// Uniform in [low, high).
    pub fn uniform(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit()
    }

    /// True in this share of cases. A share of zero draws nothing, so that what is switched off changes nothing else.
    pub fn chance(&mut self, share: f64) -> bool {
        share > 0.0 && self.unit() < share
    }

    /// Exponential with this mean.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.unit()).ln()
    }

    /// Normal with mean 0 and deviation 1 (Box and Muller 1958).
    pub fn normal(&mut self) -> f64 {
        if let Some(spare) = self.spare_normal.take() {
            return spare;
        }
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        let (sin, cos) = (TAU * self.unit()).sin_cos();
        self.spare_normal = Some(radius * sin);
        radius * cos
    }
}

/// The whole part of a number that is not negative: 0 for NaN and below, and no more than `u32::MAX`.
#[must_use]
pub fn whole(x: f64) -> u32 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a cast from a float saturates, which is what is wanted"
    )]
    let n = x as u32;
    n
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mean_and_deviation(mut draw: impl FnMut() -> f64) -> (f64, f64) {
        const N: u32 = 200_000;
        let (mut sum, mut squares) = (0.0, 0.0);
        for _ in 0..N {
            let x = draw();
            sum += x;
            squares += x * x;
        }
        let mean = sum / f64::from(N);
        (mean, (squares / f64::from(N) - mean * mean).sqrt())
    }

    #[test]
    fn the_draws_have_the_moments_that_they_promise() {
        let mut draw = Draw::new(1, 2);
        let (mean, deviation) = mean_and_deviation(|| draw.normal());
        assert!(mean.abs() < 0.01 && (deviation - 1.0).abs() < 0.01, "normal: {mean} {deviation}");
        let (mean, deviation) = mean_and_deviation(|| draw.exponential(3.0));
        assert!((mean - 3.0).abs() < 0.03 && (deviation - 3.0).abs() < 0.05, "exponential: {mean} {deviation}");
        let (mean, deviation) = mean_and_deviation(|| draw.uniform(2.0, 4.0));
        assert!(
            (mean - 3.0).abs() < 0.01 && (deviation - 1.0 / 3_f64.sqrt()).abs() < 0.01,
            "uniform: {mean} {deviation}"
        );
    }

    #[test]
    fn a_seed_has_one_stream_for_each_purpose() {
        let first = |seed, purpose| Draw::new(seed, purpose).bits();
        assert_eq!(first(7, 1), first(7, 1));
        assert_ne!(first(7, 1), first(7, 2));
        assert_ne!(first(7, 1), first(8, 1));
    }
}
