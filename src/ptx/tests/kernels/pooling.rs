//! Pooling and scaling to unit length.

use groupage_ptx::KernelArgument;

use crate::fixture::{Fixture, KernelError, compare, pointer, size};
use crate::manifest::LoadedKernel;
use crate::reference::{normalize, offsets};
use crate::storage::{STORAGES, StorageFormat};

/// Largest error of sums and quotients in f32, relative to the result.
const FLOAT_ROUNDING: f64 = 1e-6;

/// Pools rows in f64.
fn pool(kind: &str, rows: &[&[f64]], out_width: usize) -> Vec<f64> {
    let count = f64::from(u32::try_from(rows.len()).unwrap());
    (0..out_width)
        .map(|column| match kind {
            "mean" => rows.iter().map(|row| row[column]).sum::<f64>() / count,
            "first" => rows[0][column],
            _ => rows[rows.len() - 1][column],
        })
        .collect()
}

/// Runs a pooling kernel on random data and compares the result.
pub(crate) fn check(
    kernel: &LoadedKernel,
    storage: StorageFormat,
    (width, out_width): (usize, usize),
    normalized: bool,
) -> Result<(), KernelError> {
    let lengths = [3, 1, 17, 8];
    let kind = kernel.entry.name.trim_start_matches("pool_").to_owned();
    let mut fixture = Fixture::new(storage, 41);
    let hidden = fixture.random(lengths.iter().sum::<usize>() * width, 2.0);
    let offsets = fixture.upload_integers(&offsets(&lengths));
    let out = fixture.device.allocate(lengths.len() * out_width * 4);
    let arguments = [
        pointer(&hidden),
        KernelArgument::Pointer(offsets),
        KernelArgument::Pointer(out),
        size(width),
        size(out_width),
        KernelArgument::U32(u32::from(normalized)),
    ];
    fixture.launch(kernel, [lengths.len(), 1, 1], &arguments)?;
    let rows: Vec<&[f64]> = hidden.values.chunks_exact(width).collect();
    let mut rest = rows.as_slice();
    let mut expected = Vec::new();
    for length in lengths {
        let (sequence, after) = rest.split_at(length);
        rest = after;
        let pooled = pool(&kind, sequence, out_width);
        expected.extend(if normalized { normalize(&pooled) } else { pooled });
    }
    compare(&fixture.read_floats(out, lengths.len() * out_width)?, &expected, FLOAT_ROUNDING)
}

#[test]
fn pooling_equals_its_reference() {
    for storage in STORAGES {
        for kind in ["mean", "first", "last"] {
            let kernel = LoadedKernel::load(&format!("pool_{kind}"), storage);
            for widths in [(8, 8), (384, 384), (1024, 256), (264, 264)] {
                for normalized in [false, true] {
                    check(&kernel, storage, widths, normalized).unwrap_or_else(|error| {
                        panic!("{kind}, {storage:?}, {widths:?}, normalized {normalized}: {error}");
                    });
                }
            }
        }
    }
}
