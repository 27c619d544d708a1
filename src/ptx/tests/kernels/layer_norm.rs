//! `residual_layer_norm` and `embedding_layer_norm`.

use groupage_ptx::{DevicePointer, KernelArgument};

use crate::fixture::{Fixture, KernelError, compare, pointer, size};
use crate::manifest::LoadedKernel;
use crate::reference::{add, layer_norm};
use crate::storage::{STORAGES, StorageFormat};

const EPSILON: f32 = 1e-12;
/// Rows of a block.
const BLOCK_ROWS: usize = 4;

/// Runs `residual_layer_norm` on random data and compares the result.
pub(crate) fn check_residual(
    kernel: &LoadedKernel,
    storage: StorageFormat,
    rows: usize,
    width: usize,
) -> Result<(), KernelError> {
    check(kernel, storage, (rows, width), true)
}

fn check(
    kernel: &LoadedKernel,
    storage: StorageFormat,
    (rows, width): (usize, usize),
    with_residual: bool,
) -> Result<(), KernelError> {
    let mut fixture = Fixture::new(storage, 11);
    let (input, residual) = (fixture.random(rows * width, 2.0), fixture.random(rows * width, 2.0));
    let (gamma, beta) = (fixture.random(width, 1.0), fixture.random(width, 1.0));
    let out = fixture.output(rows * width);
    let residual_pointer = if with_residual { residual.pointer } else { DevicePointer::NULL };
    let arguments = [
        pointer(&input),
        KernelArgument::Pointer(residual_pointer),
        pointer(&gamma),
        pointer(&beta),
        KernelArgument::Pointer(out),
        size(rows),
        size(width),
        KernelArgument::F32(EPSILON),
    ];
    fixture.launch(kernel, [rows.div_ceil(BLOCK_ROWS), 1, 1], &arguments)?;
    let sum = if with_residual { add(&input.values, &residual.values) } else { input.values };
    let normalized = |row: &[f64]| layer_norm(row, &gamma.values, &beta.values, f64::from(EPSILON));
    let expected: Vec<f64> = sum.chunks_exact(width).flat_map(normalized).collect();
    compare(&fixture.read(out, rows * width), &expected, storage.rounding())
}

#[test]
fn residual_layer_norm_equals_its_reference() {
    for storage in STORAGES {
        let kernel = LoadedKernel::load("residual_layer_norm", storage);
        for shape in [(1, 8), (7, 384), (5, 768), (3, 1024), (4, 264)] {
            for with_residual in [true, false] {
                check(&kernel, storage, shape, with_residual).unwrap_or_else(|error| {
                    panic!("{storage:?}, {shape:?}, residual {with_residual}: {error}");
                });
            }
        }
    }
}

#[test]
fn embedding_layer_norm_equals_its_reference() {
    for storage in STORAGES {
        let kernel = LoadedKernel::load("embedding_layer_norm", storage);
        for (rows, width) in [(1, 64), (9, 384), (6, 1024)] {
            let mut fixture = Fixture::new(storage, 12);
            let ids = |table_rows| (0_u32..).take(rows).map(move |row| row * 7 % table_rows).collect::<Vec<u32>>();
            let [tokens, positions, types] = [13, 5, 2].map(ids);
            let tables = [13, 5, 2].map(|table_rows| fixture.random(table_rows * width, 1.0));
            let (gamma, beta) = (fixture.random(width, 1.0), fixture.random(width, 1.0));
            let out = fixture.output(rows * width);
            let ids = [&tokens, &positions, &types].map(|ids| KernelArgument::Pointer(fixture.upload_integers(ids)));
            let mut arguments = ids.to_vec();
            arguments.extend(tables.iter().map(pointer));
            arguments.extend([pointer(&gamma), pointer(&beta), KernelArgument::Pointer(out)]);
            arguments.extend([size(rows), size(width), KernelArgument::F32(EPSILON)]);
            fixture.launch(&kernel, [rows.div_ceil(BLOCK_ROWS), 1, 1], &arguments).unwrap();

            let row_of = |table: usize, id: u32| {
                let at = usize::try_from(id).unwrap() * width;
                &tables[table].values[at..at + width]
            };
            let expected: Vec<f64> = (0..rows)
                .flat_map(|row| {
                    let words = add(row_of(0, tokens[row]), row_of(1, positions[row]));
                    let sum = add(&words, row_of(2, types[row]));
                    layer_norm(&sum, &gamma.values, &beta.values, f64::from(EPSILON))
                })
                .collect();
            compare(&fixture.read(out, rows * width), &expected, storage.rounding()).unwrap();
        }
    }
}
