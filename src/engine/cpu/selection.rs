//! Choice of the instruction set: the fastest one of this CPU with results that agree with portable
//! code.

use crate::activation::Activation;
use crate::cpu::kernels::{GateRows, GemmTask, InitialValue, InputMatrix, NormalizeRows, PackedMatrix, SoftmaxRow};
use crate::cpu::simd::InstructionSet;
use crate::cpu::tiles::OutputTile;

/// Shape of the multiplication that is checked. To reach all code paths, it has more rows than a
/// tile, more columns than two panels of the widest vectors and not a multiple of them, and more
/// depth than one block.
const ROWS: usize = 17;
const COLUMNS: usize = 71;
const DEPTH: usize = 401;

/// Largest difference relative to the largest result of the same kernel. Sums of `DEPTH` products
/// in f32 differ by at most about `DEPTH × 2⁻²⁴ = 2.4e-5` between orders and roundings.
const DIFFERENCE_MAX: f32 = 1e-4;

/// Instruction sets of this CPU for which there are kernels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CpuFeatures {
    /// Those that the CPU has, the fastest first. The last one is portable code.
    pub supported: Vec<&'static str>,
    /// The one that executors use.
    pub chosen: &'static str,
    /// Those with results that differ from those of portable code, which are not used.
    pub rejected: Vec<&'static str>,
}

/// The instruction set of an executor.
#[derive(Debug)]
pub(super) struct KernelSelection {
    set: InstructionSet,
    rejected: Vec<&'static str>,
}

// === impl CpuFeatures ===

impl CpuFeatures {
    /// Checks the instruction sets of this CPU as an executor does when it is created.
    #[must_use]
    pub fn detect() -> Self {
        let supported = InstructionSet::detect().into_iter().map(InstructionSet::name).collect();
        let KernelSelection { set, rejected } = KernelSelection::choose();
        Self { supported, chosen: set.name(), rejected }
    }
}

// === impl KernelSelection ===

impl KernelSelection {
    /// Checks the instruction sets of this CPU, the fastest first, against portable code.
    pub(super) fn choose() -> Self {
        Self::choose_from(&InstructionSet::detect(), sample)
    }

    fn choose_from(sets: &[InstructionSet], sample: impl Fn(InstructionSet) -> Vec<Vec<f32>>) -> Self {
        let expected = sample(InstructionSet::Portable);
        let mut rejected = Vec::new();
        for set in sets.iter().copied() {
            if set == InstructionSet::Portable || agree(&sample(set), &expected) {
                return Self { set, rejected };
            }
            rejected.push(set.name());
        }
        Self { set: InstructionSet::Portable, rejected }
    }

    pub(super) fn set(&self) -> InstructionSet {
        self.set
    }

    /// Instruction sets of this CPU with results that differ.
    pub(super) fn rejected(&self) -> &[&'static str] {
        &self.rejected
    }
}

/// Compares the results of each kernel.
fn agree(found: &[Vec<f32>], expected: &[Vec<f32>]) -> bool {
    let kernel_agrees = |(found, expected): (&Vec<f32>, &Vec<f32>)| {
        let scale = expected.iter().fold(0.0_f32, |max, value| max.max(value.abs()));
        let is_close = |(a, b): (&f32, &f32)| (a - b).abs() <= DIFFERENCE_MAX * scale;
        found.len() == expected.len() && found.iter().zip(expected).all(is_close)
    };
    found.len() == expected.len() && found.iter().zip(expected).all(kernel_agrees)
}

/// Returns `count` numbers between -1 and 1.
fn numbers(count: usize, seed: usize) -> Vec<f32> {
    #[expect(clippy::cast_precision_loss, reason = "the numbers are below 2^24")]
    let number = |at: usize| ((at + seed) * 7919 % 1999) as f32 / 999.5 - 1.0;
    (0..count).map(number).collect()
}

/// Returns the results of every kernel: the multiplication with each activation function and with
/// none, and the kernels on rows.
fn sample(set: InstructionSet) -> Vec<Vec<f32>> {
    let weights = numbers(COLUMNS * DEPTH, 5);
    let read_row = |column: usize, row: &mut [f32]| {
        row.iter_mut().zip(weights.iter().skip(column * DEPTH)).for_each(|(to, from)| *to = *from);
    };
    let Some(weights) = PackedMatrix::from_rows(COLUMNS, DEPTH, set.panel_columns(), read_row) else {
        return Vec::new();
    };
    let functions = [Activation::Gelu, Activation::GeluTanh, Activation::Relu, Activation::Silu, Activation::Tanh];
    let functions = functions.map(Some).into_iter().chain([None]);
    let mut results: Vec<Vec<f32>> = functions.map(|function| multiply(set, &weights, function)).collect();
    results.extend(run_rows(set));
    results
}

/// Multiplies, and adds the result to earlier values if there is no activation function.
fn multiply(set: InstructionSet, weights: &PackedMatrix, activation: Option<Activation>) -> Vec<f32> {
    let (input, bias) = (numbers(ROWS * DEPTH, 0), numbers(COLUMNS, 0));
    let mut results = numbers(ROWS * COLUMNS, 11);
    let initial = match activation {
        Some(_) => InitialValue::Bias(Some(&bias)),
        None => InitialValue::Residual(Some(&bias)),
    };
    GemmTask {
        input: InputMatrix { data: &input, stride: DEPTH },
        weights: weights.view(),
        first_column: 0,
        output: OutputTile::of_matrix(&mut results, COLUMNS, ROWS, 0..COLUMNS),
        initial,
        activation,
    }
    .run(set);
    results
}

/// Runs the kernels on rows: normalisation, gated units and softmax.
fn run_rows(set: InstructionSet) -> [Vec<f32>; 3] {
    let (scale, shift) = (numbers(COLUMNS, 3), numbers(COLUMNS, 7));
    let mut normal = numbers(ROWS * COLUMNS, 13);
    set.run(NormalizeRows { rows: &mut normal, scale: &scale, shift: Some(&shift), epsilon: 1e-12 });
    let mut gated = numbers(ROWS * 2 * COLUMNS, 17);
    set.run(GateRows { rows: &mut gated, width: COLUMNS, function: Activation::Gelu });
    let mut weights = numbers(COLUMNS, 19);
    let factor = set.run(SoftmaxRow { scores: &mut weights, factor: 2.0 });
    weights.iter_mut().for_each(|weight| *weight *= factor);
    [normal, gated, weights]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fastest_instruction_set_is_chosen() {
        let choice = KernelSelection::choose();
        assert_eq!(Some(choice.set()), InstructionSet::detect().first().copied());
        assert!(choice.rejected().is_empty(), "{choice:?}");
        let features = CpuFeatures::detect();
        assert_eq!(
            (Some(&features.chosen), features.supported.last()),
            (features.supported.first(), Some(&"portable"))
        );
    }

    /// The error is relative to the kernel with the wrong result: it could be below the tolerance
    /// of another kernel, with larger results.
    #[test]
    fn an_instruction_set_with_one_wrong_result_is_rejected() {
        let sets = InstructionSet::detect();
        let kernels = sample(InstructionSet::Portable).len();
        assert_eq!(kernels, 9);
        for (kernel, error) in (0..kernels).flat_map(|kernel| [(kernel, 0.01), (kernel, f32::NAN)]) {
            let broken = |set: InstructionSet| {
                let mut results = sample(set);
                if set != InstructionSet::Portable {
                    let scale = results[kernel].iter().fold(0.0_f32, |max, value| max.max(value.abs()));
                    *results[kernel].last_mut().unwrap() += error * scale;
                }
                results
            };
            let choice = KernelSelection::choose_from(&sets, broken);
            assert_eq!((choice.set(), choice.rejected().len()), (InstructionSet::Portable, sets.len() - 1), "{kernel}");
        }
    }
}
