//! Activation functions and gated linear units.

use std::ops::Range;

use super::math::{erf, sigmoid, tanh};
use crate::activation::Activation;
use crate::cpu::simd::{Simd, SimdOperation};
use crate::cpu::tiles::OutputTile;

/// Applies an activation function to some columns of a tile, while they are in the cache.
pub(super) struct ActivateTile<'a> {
    pub(super) tile: OutputTile<'a>,
    pub(super) columns: Range<usize>,
    pub(super) function: Activation,
}

/// Gated linear units (Shazeer, arXiv:2002.05202): of rows of `2 × width` elements, multiplies the
/// activation of the first half by the second half, into the first half.
pub(in crate::cpu) struct GateRows<'a> {
    pub(in crate::cpu) rows: &'a mut [f32],
    pub(in crate::cpu) width: usize,
    pub(in crate::cpu) function: Activation,
}

// === impl ActivateTile ===

impl SimdOperation for ActivateTile<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        for row in 0..self.tile.rows() {
            let row = self.tile.row(row).get_mut(self.columns.clone()).unwrap_or_default();
            activate(simd, row, self.function);
        }
    }
}

/// Applies an activation function to all elements of a slice.
#[inline(always)]
fn activate<S: Simd>(simd: S, row: &mut [f32], function: Activation) {
    // The function is chosen outside of the loop.
    match function {
        Activation::Gelu => map(simd, row, Gelu),
        Activation::GeluTanh => map(simd, row, GeluTanh),
        Activation::Relu => map(simd, row, Relu),
        Activation::Silu => map(simd, row, Silu),
        Activation::Tanh => map(simd, row, Tanh),
    }
}

#[inline(always)]
fn map<S: Simd>(simd: S, row: &mut [f32], function: impl VectorFunction) {
    for chunk in row.chunks_mut(S::LANES) {
        simd.store(function.apply(simd, simd.load(chunk)), chunk);
    }
}

/// A function on vectors. It is no closure, because one that is passed to a function in two places is
/// compiled on its own, without the instructions of the kernel, where each of them is a call.
trait VectorFunction: Copy {
    fn apply<S: Simd>(self, simd: S, x: S::Vector) -> S::Vector;
}

#[derive(Clone, Copy)]
struct Gelu;

#[derive(Clone, Copy)]
struct GeluTanh;

#[derive(Clone, Copy)]
struct Relu;

#[derive(Clone, Copy)]
struct Silu;

#[derive(Clone, Copy)]
struct Tanh;

impl VectorFunction for Gelu {
    #[inline(always)]
    fn apply<S: Simd>(self, simd: S, x: S::Vector) -> S::Vector {
        let half = simd.mul(x, simd.splat(0.5));
        simd.mul_add(half, erf(simd, simd.mul(x, simd.splat(std::f32::consts::FRAC_1_SQRT_2))), half)
    }
}

impl VectorFunction for GeluTanh {
    /// `x/2 · (1 + tanh(u))` with `u = √(2/π) · (x + 0.044715 x³)`, which is `x · sigmoid(2u)`.
    #[inline(always)]
    fn apply<S: Simd>(self, simd: S, x: S::Vector) -> S::Vector {
        const SQRT_2_OVER_PI: f32 = 0.797_884_6;
        let square = simd.mul(x, x);
        let factor =
            simd.mul_add(square, simd.splat(2.0 * SQRT_2_OVER_PI * 0.044_715), simd.splat(2.0 * SQRT_2_OVER_PI));
        simd.mul(x, sigmoid(simd, simd.mul(x, factor)))
    }
}

impl VectorFunction for Relu {
    #[inline(always)]
    fn apply<S: Simd>(self, simd: S, x: S::Vector) -> S::Vector {
        simd.max(simd.splat(0.0), x)
    }
}

impl VectorFunction for Silu {
    #[inline(always)]
    fn apply<S: Simd>(self, simd: S, x: S::Vector) -> S::Vector {
        simd.mul(x, sigmoid(simd, x))
    }
}

impl VectorFunction for Tanh {
    #[inline(always)]
    fn apply<S: Simd>(self, simd: S, x: S::Vector) -> S::Vector {
        tanh(simd, x)
    }
}

// === impl GateRows ===

impl SimdOperation for GateRows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        for row in self.rows.chunks_exact_mut(2 * self.width) {
            let Some((input, gate)) = row.split_at_mut_checked(self.width) else { continue };
            activate(simd, input, self.function);
            for (input, gate) in input.chunks_mut(S::LANES).zip(gate.chunks(S::LANES)) {
                simd.store(simd.mul(simd.load(input), simd.load(gate)), input);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::simd::InstructionSet;

    /// Applies a function to a row.
    struct ActivateRow<'a>(&'a mut [f32], Activation);

    impl SimdOperation for ActivateRow<'_> {
        type Output = ();

        #[inline(always)]
        fn run<S: Simd>(self, simd: S) {
            activate(simd, self.0, self.1);
        }
    }

    /// Values of `torch.nn.functional` for the inputs -3, -0.5, 0, 1 and 4.
    const VALUES: [(Activation, [f32; 5]); 5] = [
        (Activation::Gelu, [-0.004_049_694, -0.154_268_77, 0.0, 0.841_344_8, 3.999_873_4]),
        (Activation::GeluTanh, [-0.003_637_392, -0.154_286, 0.0, 0.841_192, 3.999_929_7]),
        (Activation::Relu, [0.0, 0.0, 0.0, 1.0, 4.0]),
        (Activation::Silu, [-0.142_277_62, -0.188_770_33, 0.0, 0.731_058_6, 3.928_055_2]),
        (Activation::Tanh, [-0.995_054_8, -0.462_117_16, 0.0, 0.761_594_2, 0.999_329_3]),
    ];

    #[test]
    fn functions_have_the_values_of_torch() {
        for set in InstructionSet::detect() {
            for (function, expected) in VALUES {
                let mut row = [-3.0, -0.5, 0.0, 1.0, 4.0];
                set.run(ActivateRow(&mut row, function));
                for (value, expected) in row.iter().zip(expected) {
                    assert!((value - expected).abs() < 4e-7, "{} {function:?}: {row:?}", set.name());
                }
            }
        }
    }

    #[test]
    fn functions_of_nan_are_nan() {
        for (set, (function, _)) in
            InstructionSet::detect().into_iter().flat_map(|set| VALUES.map(|value| (set, value)))
        {
            let mut row = [1.0, f32::NAN, -1.0];
            set.run(ActivateRow(&mut row, function));
            assert_eq!(row.map(f32::is_nan), [false, true, false], "{} {function:?}: {row:?}", set.name());
        }
    }

    #[test]
    fn the_second_half_of_a_row_is_the_gate() {
        for set in InstructionSet::detect() {
            let mut rows = vec![1.0, -2.0, 3.0, 10.0, 20.0, 30.0, 4.0, 5.0, 6.0, 0.5, 0.5, 0.5];
            set.run(GateRows { rows: &mut rows, width: 3, function: Activation::Relu });
            assert_eq!(rows, [10.0, 0.0, 90.0, 10.0, 20.0, 30.0, 2.0, 2.5, 3.0, 0.5, 0.5, 0.5], "{}", set.name());
        }
    }
}
