//! Attention over packed sequences.

use groupage_ptx::{DevicePointer, KernelArgument};

use crate::fixture::{DeviceTensor, Fixture, KernelError, compare, size};
use crate::manifest::LoadedKernel;
use crate::reference::{attention, offsets};
use crate::storage::{STORAGES, StorageFormat};

/// Query rows of a tile.
const TILE_ROWS: usize = 64;

/// Launches attention on packed sequences.
pub(crate) fn launch(
    fixture: &mut Fixture,
    kernel: &LoadedKernel,
    qkv: DevicePointer,
    lengths: &[usize],
    heads: usize,
) -> Result<DevicePointer, KernelError> {
    let head_width: usize = kernel.entry.name.trim_start_matches("attention_").parse().unwrap();
    let out = fixture.output(lengths.iter().sum::<usize>() * heads * head_width);
    let tiles: Vec<u32> = lengths
        .iter()
        .enumerate()
        .flat_map(|(sequence, length)| (0..*length).step_by(TILE_ROWS).map(move |row| [sequence, row]))
        .flatten()
        .map(|value| u32::try_from(value).unwrap())
        .collect();
    let offsets = fixture.upload_integers(&offsets(lengths));
    let tile_list = fixture.upload_integers(&tiles);
    let width = f32::from(u16::try_from(head_width).unwrap());
    let arguments = [
        KernelArgument::Pointer(qkv),
        KernelArgument::Pointer(out),
        KernelArgument::Pointer(offsets),
        KernelArgument::Pointer(tile_list),
        size(heads),
        KernelArgument::F32(std::f32::consts::LOG2_E / width.sqrt()),
    ];
    fixture.launch(kernel, [tiles.len() / 2, heads, 1], &arguments)?;
    Ok(out)
}

fn random_qkv(fixture: &mut Fixture, tokens: usize, width: usize) -> DeviceTensor {
    fixture.random(tokens * 3 * width, 1.5)
}

/// Runs attention on random data and compares the result.
pub(crate) fn check(
    kernel: &LoadedKernel,
    storage: StorageFormat,
    lengths: &[usize],
    heads: usize,
    head_width: usize,
) -> Result<(), KernelError> {
    let (tokens, width) = (lengths.iter().sum::<usize>(), heads * head_width);
    let mut fixture = Fixture::new(storage, 31);
    let qkv = random_qkv(&mut fixture, tokens, width);
    let out = launch(&mut fixture, kernel, qkv.pointer, lengths, heads)?;
    let actual = fixture.read(out, tokens * width)?;
    compare(&actual, &attention(&qkv.values, lengths, heads, head_width), storage.rounding())
}

#[test]
fn attention_equals_its_reference_on_ragged_sequences() {
    for storage in STORAGES {
        for head_width in [32, 64, 128] {
            let kernel = LoadedKernel::load(&format!("attention_{head_width}"), storage);
            // Short sequences, exactly one tile, one row more, and several tiles of keys.
            for lengths in [&[5, 64, 1, 65][..], &[130]] {
                check(&kernel, storage, lengths, 2, head_width).unwrap_or_else(|error| {
                    panic!("{}, {storage:?}, {lengths:?}: {error}", kernel.entry.name);
                });
            }
        }
    }
}

#[test]
fn the_bits_of_a_sequence_do_not_depend_on_the_others() {
    let (heads, head_width, lengths) = (2, 64, [7, 70, 33]);
    let width = heads * head_width;
    let kernel = LoadedKernel::load("attention_64", StorageFormat::BFloat16);
    let mut fixture = Fixture::new(StorageFormat::BFloat16, 32);
    let qkv = random_qkv(&mut fixture, lengths.iter().sum(), width);
    let out = launch(&mut fixture, &kernel, qkv.pointer, &lengths, heads).unwrap();
    let batch = fixture.read(out, lengths.iter().sum::<usize>() * width).unwrap();
    let mut start = 0;
    for length in lengths {
        let first = qkv.pointer.offset((start * 3 * width * 2) as u64);
        let out = launch(&mut fixture, &kernel, first, &[length], heads).unwrap();
        let single = fixture.read(out, length * width).unwrap();
        assert_eq!(single, batch[start * width..(start + length) * width], "sequence of {length}");
        start += length;
    }
}

/// Returns the results of two tokens with these queries, keys and values, of which the other
/// elements of queries and keys are zero.
fn attend(storage: StorageFormat, head_width: usize, tokens: [[f64; 3]; 2]) -> [f64; 2] {
    let kernel = LoadedKernel::load(&format!("attention_{head_width}"), storage);
    let widen = |value: f64, rest: f64| std::iter::once(value).chain(std::iter::repeat_n(rest, head_width - 1));
    let row = |[query, key, value]: [f64; 3]| widen(query, 0.0).chain(widen(key, 0.0)).chain(widen(value, value));
    let mut fixture = Fixture::new(storage, 33);
    let qkv = fixture.upload(&tokens.into_iter().flat_map(row).collect::<Vec<f64>>());
    let out = launch(&mut fixture, &kernel, qkv.pointer, &[2], 1).unwrap();
    let values = fixture.read(out, 2 * head_width).unwrap();
    [values[0], values[head_width]]
}

/// An infinite number makes the results that depend on it not finite, which the executor finds, and no
/// others.
#[test]
fn an_infinite_number_makes_its_results_not_finite() {
    let infinite = f64::INFINITY;
    for (storage, head_width) in STORAGES.into_iter().flat_map(|storage| [32, 64, 128].map(|width| (storage, width))) {
        let attend = |tokens| attend(storage, head_width, tokens);
        let place = format!("{storage:?}, {head_width}");
        // The first makes a score of minus infinity.
        for (query, key, value) in
            [(-1.0, infinite, 5.0), (1.0, infinite, 5.0), (0.0, infinite, 5.0), (1.0, 1.0, infinite)]
        {
            let found = attend([[query, 1.0, 2.0], [query, key, value]]);
            assert!(found.iter().all(|value| !value.is_finite()), "{place}: {found:?}");
        }
        // An infinite query, with scores that are all infinite: with keys of either sign.
        for key in [1.0, -1.0] {
            let [first, second] = attend([[infinite, key, 2.0], [1.0, key, 5.0]]);
            assert!(!first.is_finite() && (second - 3.5).abs() < 0.05, "{place}: {first}, {second}");
        }
    }
}
