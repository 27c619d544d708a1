//! Layer normalisation (Ba et al., arXiv:1607.06450).

use crate::cpu::simd::{Simd, SimdOperation};

/// Normalises each row to mean 0 and variance 1, then scales and shifts it by element.
pub(in crate::cpu) struct NormalizeRows<'a> {
    /// Rows, replaced with their result. Each has as many elements as `scale`.
    pub(in crate::cpu) rows: &'a mut [f32],
    pub(in crate::cpu) scale: &'a [f32],
    /// `None` for a model without it.
    pub(in crate::cpu) shift: Option<&'a [f32]>,
    pub(in crate::cpu) epsilon: f32,
}

// === impl NormalizeRows ===

impl SimdOperation for NormalizeRows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let width = self.scale.len();
        #[expect(clippy::cast_precision_loss, reason = "rows have at most 2^14 elements")]
        let count = width as f32;
        for row in self.rows.chunks_exact_mut(width) {
            let center = simd.splat(sum(simd, row) / count);
            // The second pass avoids the cancellation of a sum of squares minus the square of the sum.
            let variance = sum_squares(simd, row, center) / count;
            let factor = simd.splat(1.0 / (variance + self.epsilon).sqrt());
            let shifts = self.shift.unwrap_or_default();
            for (at, (chunk, scale)) in row.chunks_mut(S::LANES).zip(self.scale.chunks(S::LANES)).enumerate() {
                let shift = simd.load(shifts.get(at * S::LANES..).unwrap_or_default());
                let normal = simd.mul(simd.sub(simd.load(chunk), center), factor);
                simd.store(simd.mul_add(normal, simd.load(scale), shift), chunk);
            }
        }
    }
}

/// Adds the elements of a row, in an order that depends on the width only.
#[inline(always)]
fn sum<S: Simd>(simd: S, row: &[f32]) -> f32 {
    let mut total = simd.splat(0.0);
    for chunk in row.chunks(S::LANES) {
        total = simd.add(total, simd.load(chunk));
    }
    simd.sum(total)
}

/// Adds the squared distances of the elements of a row from `center`, in an order that depends on
/// the width only.
#[inline(always)]
fn sum_squares<S: Simd>(simd: S, row: &[f32], center: S::Vector) -> f32 {
    let chunks = row.chunks_exact(S::LANES);
    let rest = chunks.remainder();
    let mut total = simd.splat(0.0);
    for chunk in chunks {
        total = simd.add(total, square_distance(simd, simd.load(chunk), center));
    }
    // The zeros after the last element have a distance too, which is left out.
    let rest_squares = simd.to_array(square_distance(simd, simd.load(rest), center));
    simd.sum(total) + rest_squares.iter().take(rest.len()).sum::<f32>()
}

#[inline(always)]
fn square_distance<S: Simd>(simd: S, value: S::Vector, center: S::Vector) -> S::Vector {
    let distance = simd.sub(value, center);
    simd.mul(distance, distance)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::simd::InstructionSet;

    #[test]
    fn rows_of_any_width_are_normalised() {
        for width in [1, 3, 8, 13, 16, 31, 48] {
            let row: Vec<f32> = (0..width).map(|at| 3.0 + (at * at % 7) as f32).collect();
            let scale: Vec<f32> = (0..width).map(|at| 1.0 + at as f32 * 0.1).collect();
            let shift: Vec<f32> = (0..width).map(|at| 0.5 - at as f32 * 0.2).collect();
            let wide: Vec<f64> = row.iter().map(|value| f64::from(*value)).collect();
            let mean = wide.iter().sum::<f64>() / width as f64;
            let variance = wide.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / width as f64;
            for set in InstructionSet::detect() {
                let mut rows = [row.clone(), row.clone()].concat();
                set.run(NormalizeRows { rows: &mut rows, scale: &scale, shift: Some(&shift), epsilon: 1e-5 });
                for (at, value) in rows.iter().enumerate() {
                    let at = at % width;
                    let normal = (wide[at] - mean) / (variance + 1e-5).sqrt();
                    let expected = normal * f64::from(scale[at]) + f64::from(shift[at]);
                    assert!(
                        (f64::from(*value) - expected).abs() < 2e-5,
                        "{} of {width}: {value}, {expected}",
                        set.name()
                    );
                }
            }
        }
    }

    #[test]
    fn the_shift_is_optional() {
        let mut rows = vec![1.0, 3.0];
        let scale = [2.0, 2.0];
        InstructionSet::Portable.run(NormalizeRows { rows: &mut rows, scale: &scale, shift: None, epsilon: 0.0 });
        assert_eq!(rows, [-2.0, 2.0]);
    }

    /// The mean is far above the distances from it, and fills a part of the last vector only.
    #[test]
    fn a_large_mean_does_not_cancel_the_variance() {
        for width in [5, 17, 33] {
            let middle = (width / 2) as f32;
            let row: Vec<f32> = (0..width).map(|at| 8192.0 + at as f32 - middle).collect();
            let variance = row.iter().map(|value| (value - 8192.0).powi(2)).sum::<f32>() / width as f32;
            for set in InstructionSet::detect() {
                let mut rows = row.clone();
                set.run(NormalizeRows { rows: &mut rows, scale: &vec![1.0; width], shift: None, epsilon: 1e-5 });
                for (value, input) in rows.iter().zip(&row) {
                    let expected = (input - 8192.0) / (variance + 1e-5).sqrt();
                    assert!((value - expected).abs() < 1e-5, "{} of {width}: {value}, {expected}", set.name());
                }
            }
        }
    }
}
