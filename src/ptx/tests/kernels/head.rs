//! The layers of a classification head.

use groupage_ptx::KernelArgument;

use crate::fixture::{Fixture, KernelError, compare, pointer, size};
use crate::manifest::LoadedKernel;
use crate::reference::{linear, offsets};
use crate::storage::{STORAGES, StorageFormat};

/// Largest error of sums in f32 and of the approximated tanh, relative to the result.
const FLOAT_ROUNDING: f64 = 3e-6;
/// Outputs of a block.
const BLOCK_COLUMNS: usize = 4;

/// Runs both layers on random data and compares the results of each.
pub(crate) fn check(
    dense: &LoadedKernel,
    logits: &LoadedKernel,
    storage: StorageFormat,
    (width, labels): (usize, usize),
) -> Result<(), KernelError> {
    let lengths = [4, 1, 6];
    let mut fixture = Fixture::new(storage, 51);
    let hidden = fixture.random(lengths.iter().sum::<usize>() * width, 1.0);
    let (dense_weight, dense_bias) = (fixture.random(width * width, 0.1), fixture.random(width, 1.0));
    let (weight, bias) = (fixture.random(labels * width, 0.5), fixture.random(labels, 1.0));
    let offsets_values = offsets(&lengths);
    let offsets = KernelArgument::Pointer(fixture.upload_integers(&offsets_values));

    let mut run = |kernel: &LoadedKernel, operands: [KernelArgument; 3], columns: usize| {
        let [input, weight, bias] = operands;
        let out = fixture.device.allocate(lengths.len() * columns * 4);
        let arguments = [input, offsets, weight, bias, KernelArgument::Pointer(out), size(columns), size(width)];
        let blocks = [columns.div_ceil(BLOCK_COLUMNS), lengths.len(), 1];
        fixture.launch(kernel, blocks, &arguments)?;
        Ok::<_, KernelError>((out, fixture.read_floats(out, lengths.len() * columns)?))
    };
    let operands = [pointer(&hidden), pointer(&dense_weight), pointer(&dense_bias)];
    let (dense_out, actual) = run(dense, operands, width)?;
    let first_rows: Vec<f64> = offsets_values
        .iter()
        .take(lengths.len())
        .flat_map(|row| hidden.values.chunks_exact(width).nth(usize::try_from(*row).unwrap()).unwrap().to_vec())
        .collect();
    let expected = linear(&first_rows, &dense_weight.values, &dense_bias.values, width);
    let expected: Vec<f64> = expected.into_iter().map(f64::tanh).collect();
    compare(&actual, &expected, FLOAT_ROUNDING)?;

    let operands = [KernelArgument::Pointer(dense_out), pointer(&weight), pointer(&bias)];
    let (_, actual) = run(logits, operands, labels)?;
    compare(&actual, &linear(&expected, &weight.values, &bias.values, width), FLOAT_ROUNDING)
}

#[test]
fn head_layers_equal_their_reference() {
    for storage in STORAGES {
        let dense = LoadedKernel::load("head_dense_tanh", storage);
        let logits = LoadedKernel::load("head_logits", storage);
        for shape in [(64, 1), (384, 3), (136, 5)] {
            check(&dense, &logits, storage, shape).unwrap_or_else(|error| panic!("{storage:?}, {shape:?}: {error}"));
        }
    }
}
