//! `residual_layer_norm` and `embedding_layer_norm`.

use groupage_ptx::{DevicePointer, FaultKind, KernelArgument};

use crate::fixture::{Fixture, KernelError, compare, pointer, size};
use crate::manifest::LoadedKernel;
use crate::reference::{add, gather, layer_norm};
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
    compare(&fixture.read(out, rows * width)?, &expected, storage.rounding())
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
fn an_output_that_is_also_an_input_is_detected() {
    let kernel = LoadedKernel::load("residual_layer_norm", StorageFormat::BFloat16);
    let mut fixture = Fixture::new(StorageFormat::BFloat16, 13);
    let [input, gamma, beta] = [8 * 64, 64, 64].map(|count| fixture.random(count, 1.0));
    let [null, to] = [DevicePointer::NULL, input.pointer].map(KernelArgument::Pointer);
    let sizes = [size(8), size(64), KernelArgument::F32(EPSILON)];
    let arguments = [&[pointer(&input), null, pointer(&gamma), pointer(&beta), to], &sizes[..]].concat();
    let fault = fixture.launch(&kernel, [2, 1, 1], &arguments).unwrap_err();
    assert!(matches!(fault.kind, FaultKind::ReadOnlyWrite { .. }), "{fault}");
}

/// Runs `embedding_layer_norm` on random data and compares the result. Without types, their table
/// and their numbers are null.
pub(crate) fn check_embedding(
    kernel: &LoadedKernel,
    storage: StorageFormat,
    (rows, width): (usize, usize),
    with_types: bool,
) -> Result<(), KernelError> {
    let mut fixture = Fixture::new(storage, 12);
    let table_rows: &[u32] = if with_types { &[13, 5, 2] } else { &[13, 5] };
    let ids = |table_rows: &u32| (0_u32..).take(rows).map(|row| row * 7 % table_rows).collect::<Vec<u32>>();
    let ids: Vec<Vec<u32>> = table_rows.iter().map(ids).collect();
    let table = |rows: &u32| fixture.random(usize::try_from(*rows).unwrap() * width, 1.0);
    let tables: Vec<_> = table_rows.iter().map(table).collect();
    let (gamma, beta) = (fixture.random(width, 1.0), fixture.random(width, 1.0));
    let out = fixture.output(rows * width);

    let null = KernelArgument::Pointer(DevicePointer::NULL);
    let mut arguments = vec![null; 6];
    for (at, (ids, table)) in ids.iter().zip(&tables).enumerate() {
        arguments[at] = KernelArgument::Pointer(fixture.upload_integers(ids));
        arguments[3 + at] = pointer(table);
    }
    arguments.extend([pointer(&gamma), pointer(&beta), KernelArgument::Pointer(out)]);
    arguments.extend([size(rows), size(width), KernelArgument::F32(EPSILON)]);
    fixture.launch(kernel, [rows.div_ceil(BLOCK_ROWS), 1, 1], &arguments)?;

    let embedded = ids.iter().zip(&tables).map(|(ids, table)| gather(&table.values, ids, width));
    let sum = embedded.reduce(|a, b| add(&a, &b)).unwrap();
    let normalized = |row: &[f64]| layer_norm(row, &gamma.values, &beta.values, f64::from(EPSILON));
    let expected: Vec<f64> = sum.chunks_exact(width).flat_map(normalized).collect();
    compare(&fixture.read(out, rows * width)?, &expected, storage.rounding())
}

#[test]
fn embedding_layer_norm_equals_its_reference() {
    for storage in STORAGES {
        let kernel = LoadedKernel::load("embedding_layer_norm", storage);
        for shape in [(1, 64), (9, 384), (6, 1024)] {
            for with_types in [true, false] {
                check_embedding(&kernel, storage, shape, with_types).unwrap_or_else(|error| {
                    panic!("{storage:?}, {shape:?}, types {with_types}: {error}");
                });
            }
        }
    }
}
