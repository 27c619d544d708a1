//! Choice of the instruction set: the fastest one of this CPU whose results agree with portable code.

use crate::activation::Activation;
use crate::cpu::kernels::{GemmTask, InitialValue, InputMatrix, NormalizeRows, PackedMatrix, SoftmaxRow};
use crate::cpu::simd::InstructionSet;
use crate::cpu::tiles::OutputTile;

/// Shape of the multiplication that is checked: more rows than a tile, more columns than two panels
/// of the widest vectors with a rest, and more depth than a block of it.
const ROWS: usize = 17;
const COLUMNS: usize = 71;
const DEPTH: usize = 401;

/// Largest difference relative to the largest result. Sums of `DEPTH` products in f32 differ by at
/// most about `DEPTH × 2⁻²⁴ = 2.4e-5` between orders and roundings.
const DIFFERENCE_MAX: f32 = 1e-4;

/// The instruction set of an executor.
#[derive(Debug)]
pub(super) struct KernelSelection {
    set: InstructionSet,
    rejected: Vec<&'static str>,
}

// === impl KernelSelection ===

impl KernelSelection {
    /// Checks the instruction sets of this CPU, the fastest first, against portable code.
    pub(super) fn choose() -> Self {
        Self::choose_from(&InstructionSet::detect(), sample)
    }

    fn choose_from(sets: &[InstructionSet], sample: impl Fn(InstructionSet) -> Vec<f32>) -> Self {
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

    /// Instruction sets that this CPU has and whose results differ.
    pub(super) fn rejected(&self) -> &[&'static str] {
        &self.rejected
    }
}

fn agree(found: &[f32], expected: &[f32]) -> bool {
    let scale = expected.iter().fold(0.0_f32, |max, value| max.max(value.abs()));
    let is_close = |(a, b): (&f32, &f32)| (a - b).abs() <= DIFFERENCE_MAX * scale;
    found.len() == expected.len() && found.iter().zip(expected).all(is_close)
}

/// Returns the results of the kernels for numbers between -1 and 1.
fn sample(set: InstructionSet) -> Vec<f32> {
    #[expect(clippy::cast_precision_loss, reason = "the numbers are below 2^24")]
    let number = |at: usize| (at * 7919 % 1999) as f32 / 999.5 - 1.0;
    let input: Vec<f32> = (0..ROWS * DEPTH).map(number).collect();
    let bias: Vec<f32> = (0..COLUMNS).map(number).collect();
    let read_row = |column: usize, row: &mut [f32]| {
        row.iter_mut().enumerate().for_each(|(at, element)| *element = number(column * DEPTH + at + 5));
    };
    let Some(weights) = PackedMatrix::from_rows(COLUMNS, DEPTH, set.panel_columns(), read_row) else {
        return Vec::new();
    };
    let mut results = vec![0.0; ROWS * COLUMNS];
    GemmTask {
        input: InputMatrix { data: &input, stride: DEPTH },
        weights: weights.view(),
        first_column: 0,
        output: OutputTile::of_matrix(&mut results, COLUMNS, ROWS, 0..COLUMNS),
        initial: InitialValue::Bias(Some(&bias)),
        activation: Some(Activation::Gelu),
    }
    .run(set);
    set.run(NormalizeRows { rows: &mut results, scale: &bias, shift: None, epsilon: 1e-12 });
    let mut weights = bias;
    let factor = set.run(SoftmaxRow { scores: &mut weights, factor: 2.0 });
    results.extend(weights.iter().map(|weight| weight * factor));
    results
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fastest_instruction_set_is_chosen() {
        let choice = KernelSelection::choose();
        assert_eq!(Some(choice.set()), InstructionSet::detect().first().copied());
        assert!(choice.rejected().is_empty(), "{choice:?}");
    }

    #[test]
    fn an_instruction_set_with_wrong_results_is_rejected() {
        let sets = InstructionSet::detect();
        let broken = |set: InstructionSet| {
            let mut results = sample(set);
            if set != InstructionSet::Portable {
                results[700] += 1.0;
            }
            results
        };
        let choice = KernelSelection::choose_from(&sets, broken);
        assert_eq!((choice.set(), choice.rejected().len()), (InstructionSet::Portable, sets.len() - 1));
        let not_a_number = |set: InstructionSet| {
            if set == InstructionSet::Portable { sample(set) } else { vec![f32::NAN; sample(set).len()] }
        };
        assert_eq!(KernelSelection::choose_from(&sets, not_a_number).set(), InstructionSet::Portable);
    }
}
