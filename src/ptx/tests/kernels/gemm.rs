//! The matrix products and their epilogues.

use groupage_ptx::KernelArgument;

use crate::fixture::{Fixture, KernelError, compare, pointer, size};
use crate::manifest::LoadedKernel;
use crate::reference::{add, gelu_erf, gelu_tanh, linear};
use crate::storage::{STORAGES, StorageFormat};

/// Rows and columns of the tiles that kernels exist for.
const TILES: [usize; 2] = [64, 128];
const EPILOGUES: [&str; 4] = ["bias", "bias_residual", "bias_gelu_erf", "bias_gelu_tanh"];

/// Shape of a product.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ProductShape {
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    pub(crate) depth: usize,
}

fn kernel(epilogue: &str, tile: usize, storage: StorageFormat) -> LoadedKernel {
    LoadedKernel::load(&format!("gemm_{epilogue}_{tile}"), storage)
}

/// The inputs of a product on a device.
#[derive(Debug)]
struct ProductInputs {
    fixture: Fixture,
    shape: ProductShape,
    arguments: Vec<KernelArgument>,
    expected: Vec<f64>,
}

// === impl ProductInputs ===

impl ProductInputs {
    fn new(epilogue: &str, storage: StorageFormat, shape: ProductShape) -> Self {
        let ProductShape { rows, columns, depth } = shape;
        let mut fixture = Fixture::new(storage, 21);
        let (weight, bias) = (fixture.random(columns * depth, 0.2), fixture.random(columns, 1.0));
        let (input, residual) = (fixture.random(rows * depth, 1.0), fixture.random(rows * columns, 1.0));
        let product = linear(&input.values, &weight.values, &bias.values, depth);
        let expected = match epilogue {
            "bias" => product,
            "bias_residual" => add(&product, &residual.values),
            "bias_gelu_erf" => product.into_iter().map(gelu_erf).collect(),
            _ => product.into_iter().map(gelu_tanh).collect(),
        };
        let arguments = [&input, &weight, &bias, &residual].map(pointer).to_vec();
        Self { fixture, shape, arguments, expected }
    }

    /// Runs a kernel on the first `rows` rows, from `first` on.
    fn run(&mut self, kernel: &LoadedKernel, first: usize, rows: usize) -> Result<Vec<f64>, KernelError> {
        let ProductShape { columns, depth, .. } = self.shape;
        let tile = if kernel.entry.name.ends_with("128") { 128 } else { 64 };
        let out = self.fixture.output(rows * columns);
        let mut arguments = self.arguments.clone();
        arguments[0] = rows_from(arguments[0], first * depth);
        arguments[3] = rows_from(arguments[3], first * columns);
        arguments.extend([KernelArgument::Pointer(out), size(rows), size(columns), size(depth)]);
        let blocks = [columns.div_ceil(tile), rows.div_ceil(tile), 1];
        self.fixture.launch(kernel, blocks, &arguments)?;
        Ok(self.fixture.read(out, rows * columns)?)
    }
}

fn rows_from(argument: KernelArgument, elements: usize) -> KernelArgument {
    match argument {
        KernelArgument::Pointer(pointer) => KernelArgument::Pointer(pointer.offset(elements as u64 * 2)),
        other => other,
    }
}

/// Runs a product on random data and compares the result.
pub(crate) fn check(kernel: &LoadedKernel, storage: StorageFormat, shape: ProductShape) -> Result<(), KernelError> {
    let epilogue = kernel.entry.name.trim_start_matches("gemm_").trim_end_matches(|c: char| c.is_ascii_digit());
    let mut inputs = ProductInputs::new(epilogue.trim_end_matches('_'), storage, shape);
    let actual = inputs.run(kernel, 0, shape.rows)?;
    compare(&actual, &inputs.expected, storage.rounding())
}

#[test]
fn products_equal_their_reference_on_ragged_shapes() {
    // One row, ragged rows and columns, a whole tile, and fewer steps than stages.
    let shapes = [(1, 384, 160), (71, 136, 96), (128, 128, 64), (5, 2, 32), (130, 70, 32)];
    for storage in STORAGES {
        for (epilogue, tile) in EPILOGUES.into_iter().flat_map(|epilogue| TILES.map(|tile| (epilogue, tile))) {
            let kernel = kernel(epilogue, tile, storage);
            for (rows, columns, depth) in shapes {
                let shape = ProductShape { rows, columns, depth };
                check(&kernel, storage, shape).unwrap_or_else(|error| {
                    panic!("{}, {storage:?}, {shape:?}: {error}", kernel.entry.name);
                });
            }
        }
    }
}

#[test]
fn the_bits_of_a_row_do_not_depend_on_its_batch_or_on_the_tile() {
    let shape = ProductShape { rows: 150, columns: 72, depth: 160 };
    for (storage, epilogue) in STORAGES.into_iter().flat_map(|storage| EPILOGUES.map(|epilogue| (storage, epilogue))) {
        let mut inputs = ProductInputs::new(epilogue, storage, shape);
        let [small, large] = TILES.map(|tile| kernel(epilogue, tile, storage));
        let batch = inputs.run(&large, 0, shape.rows).unwrap();
        assert_eq!(inputs.run(&small, 0, shape.rows).unwrap(), batch, "tiles of {epilogue}, {storage:?}");
        for row in [63, 149] {
            let expected = &batch[row * shape.columns..(row + 1) * shape.columns];
            for kernel in [&small, &large] {
                let single = inputs.run(kernel, row, 1).unwrap();
                assert_eq!(single, expected, "row {row} of {}, {storage:?}", kernel.entry.name);
            }
        }
    }
}
