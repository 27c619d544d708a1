//! Streams of seeded random numbers, one for each purpose, and their distributions.
//!
//! The numbers are those of [`SplitMix64`]. Exponential numbers are drawn by inversion, normal ones
//! by the Box–Muller transform.
//!
//! `ln`, `exp` and `cos` are those of the platform, so runs of a seed are equal to the last bit
//! only on one platform. The numbers are not cryptographic.

use std::f64::consts::TAU;

use crate::batching::rng::SplitMix64;

/// A stream of random numbers for one purpose.
#[derive(Debug, Clone)]
pub struct RandomStream {
    source: SplitMix64,
    spare_normal: Option<f64>,
}

// === impl RandomStream ===

impl RandomStream {
    /// Creates the stream of this seed for one purpose. Streams of different purposes are
    /// independent.
    #[must_use]
    pub const fn new(seed: u64, purpose: u64) -> Self {
        let state = SplitMix64::new(seed).next_u64() ^ purpose.wrapping_mul(0xD1B5_4A32_D192_ED03);
        Self { source: SplitMix64::new(state), spare_normal: None }
    }

    /// Returns 64 random bits.
    pub const fn next_u64(&mut self) -> u64 {
        self.source.next_u64()
    }

    /// Returns a uniform number in [0, 1).
    pub fn next_f64(&mut self) -> f64 {
        self.source.next_f64()
    }

    /// Returns a uniform number in [low, high).
    pub fn uniform(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.next_f64()
    }

    /// Returns `true` with this probability. A probability of zero draws no number, so that a
    /// disabled feature does not change the draws of others.
    pub fn bernoulli(&mut self, share: f64) -> bool {
        share > 0.0 && self.next_f64() < share
    }

    /// Returns an exponential number with this mean.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.next_f64()).ln()
    }

    /// Returns a normal number with mean 0 and standard deviation 1 (Box and Muller, 1958).
    pub fn normal(&mut self) -> f64 {
        if let Some(spare) = self.spare_normal.take() {
            return spare;
        }
        let radius = (-2.0 * (1.0 - self.next_f64()).ln()).sqrt();
        let (sin, cos) = (TAU * self.next_f64()).sin_cos();
        self.spare_normal = Some(radius * sin);
        radius * cos
    }
}

/// Truncates a number to an integer. NaN and negative numbers give 0, and numbers above `u32::MAX`
/// give `u32::MAX`.
#[must_use]
pub fn saturating_u32(x: f64) -> u32 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a cast from a float saturates, as intended"
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
    fn draws_have_the_mean_and_deviation_of_their_distribution() {
        let mut draw = RandomStream::new(1, 2);
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
        let first = |seed, purpose| RandomStream::new(seed, purpose).next_u64();
        assert_eq!(first(7, 1), first(7, 1));
        assert_ne!(first(7, 1), first(7, 2));
        assert_ne!(first(7, 1), first(8, 1));
    }
}
