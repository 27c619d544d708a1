//! Softmax of attention scores.

use super::math::exp;
use crate::cpu::simd::{Simd, SimdOperation};

/// Replaces scores by `exp(factor · (score - max))`, and returns the reciprocal of their sum. The
/// division by the sum is left to the shorter rows of the result of the attention. With a score
/// that is infinite or not a number, the reciprocal is not a number.
pub(in crate::cpu) struct SoftmaxRow<'a> {
    pub(in crate::cpu) scores: &'a mut [f32],
    pub(in crate::cpu) factor: f32,
}

/// Multiplies a row by a number.
pub(in crate::cpu) struct ScaleRow<'a> {
    pub(in crate::cpu) row: &'a mut [f32],
    pub(in crate::cpu) factor: f32,
}

// === impl SoftmaxRow ===

impl SimdOperation for SoftmaxRow<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> f32 {
        let (vectors, rest) = self.scores.split_at_mut(self.scores.len() / S::LANES * S::LANES);
        let mut largest = simd.splat(f32::NEG_INFINITY);
        for chunk in vectors.chunks_exact(S::LANES) {
            largest = simd.max(largest, simd.load(chunk));
        }
        let max = rest.iter().copied().fold(simd.largest(largest), f32::max);
        let (max, factor) = (simd.splat(max), simd.splat(self.factor));
        let mut sum = simd.splat(0.0);
        for chunk in vectors.chunks_exact_mut(S::LANES) {
            let weights = weight(simd, chunk, max, factor);
            sum = simd.add(sum, weights);
            simd.store(weights, chunk);
        }
        let weights = weight(simd, rest, max, factor);
        simd.store(weights, rest);
        1.0 / (simd.sum(sum) + rest.iter().sum::<f32>())
    }
}

/// Returns the weights of scores. A function, because a closure that is called in two places may be
/// compiled on its own, without the instructions of the kernel.
#[inline(always)]
fn weight<S: Simd>(simd: S, scores: &[f32], max: S::Vector, factor: S::Vector) -> S::Vector {
    exp(simd, simd.mul(simd.sub(simd.load(scores), max), factor))
}

// === impl ScaleRow ===

impl SimdOperation for ScaleRow<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let factor = simd.splat(self.factor);
        for chunk in self.row.chunks_mut(S::LANES) {
            simd.store(simd.mul(simd.load(chunk), factor), chunk);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::simd::InstructionSet;

    #[test]
    fn scores_of_any_number_become_weights_with_sum_one() {
        for length in [1, 5, 8, 16, 17, 40] {
            let scores: Vec<f32> = (0..length).map(|at| (at * 5 % 11) as f32 * 30.0 - 100.0).collect();
            let max = f64::from(scores.iter().copied().fold(f32::MIN, f32::max));
            let weights: Vec<f64> = scores.iter().map(|score| ((f64::from(*score) - max) * 0.125).exp()).collect();
            let sum: f64 = weights.iter().sum();
            for set in InstructionSet::detect() {
                let mut row = scores.clone();
                let factor = set.run(SoftmaxRow { scores: &mut row, factor: 0.125 });
                set.run(ScaleRow { row: &mut row, factor });
                for (value, weight) in row.iter().zip(&weights) {
                    assert!((f64::from(*value) - weight / sum).abs() < 1e-6, "{} of {length}", set.name());
                }
            }
        }
    }

    #[test]
    fn a_score_that_is_not_finite_shows_in_the_sum() {
        for (set, length) in InstructionSet::detect().into_iter().flat_map(|set| [(set, 3), (set, 40)]) {
            for (at, score) in (0..length).flat_map(|at| [(at, f32::NAN), (at, f32::INFINITY)]) {
                let mut scores = vec![0.5; length];
                scores[at] = score;
                let factor = set.run(SoftmaxRow { scores: &mut scores, factor: 0.125 });
                assert!(factor.is_nan(), "{} of {length}: {score} at {at}: {factor}", set.name());
            }
        }
    }
}
