//! The limits that the manifest states: a kernel computes correct results at each limit and fails
//! beyond it.

use groupage_ptx::FaultKind;

use crate::fixture::KernelError;
use crate::gemm::ProductShape;
use crate::manifest::{KernelManifest, LoadedKernel};
use crate::storage::StorageFormat;
use crate::{attention, gemm, head, layer_norm, pooling};

const STORAGE: StorageFormat = StorageFormat::BFloat16;

/// Runs a kernel with a value of a parameter, and small values of the others.
fn check(kernel: &LoadedKernel, parameter: &str, value: usize) -> Result<(), KernelError> {
    let load = |name| LoadedKernel::load(name, STORAGE);
    match (kernel.entry.source.as_str(), parameter) {
        ("residual_layer_norm.cu", "width") => layer_norm::check_residual(kernel, STORAGE, 3, value),
        ("embedding.cu", "width") => layer_norm::check_embedding(kernel, STORAGE, (3, value), true),
        ("gemm.cu", "columns") => gemm::check(kernel, STORAGE, ProductShape { rows: 3, columns: value, depth: 32 }),
        ("gemm.cu", "depth") => gemm::check(kernel, STORAGE, ProductShape { rows: 3, columns: 8, depth: value }),
        ("attention.cu", "heads") => {
            let width = kernel.entry.name.trim_start_matches("attention_").parse().unwrap();
            attention::check(kernel, STORAGE, &[1], value, width)
        }
        ("pooling.cu", "width") => pooling::check(kernel, STORAGE, (value, 8), true),
        ("pooling.cu", "out_width") => pooling::check(kernel, STORAGE, (value.next_multiple_of(8), value), true),
        // Each layer after or before the other one.
        ("head.cu", "depth") if kernel.entry.name == "head_logits" => {
            head::check(&load("head_dense_tanh"), kernel, STORAGE, (value, 3))
        }
        ("head.cu", "depth") => head::check(kernel, &load("head_logits"), STORAGE, (value, 3)),
        (source, _) => panic!("{source}: no check of {parameter}"),
    }
}

#[test]
fn kernels_are_right_at_the_limits_of_the_manifest_and_not_beyond() {
    for entry in KernelManifest::read().kernels.into_iter().filter(|entry| entry.storage == STORAGE.name()) {
        let kernel = LoadedKernel::load(&entry.name, STORAGE);
        for (parameter, limit) in &entry.limits {
            let accepted = |value| check(&kernel, parameter, value);
            let step = limit.multiple_of.unwrap_or(1);
            for value in [step, 3 * step] {
                accepted(value).unwrap_or_else(|error| panic!("{}, {parameter} {value}: {error}", entry.name));
            }
            if step > 1 {
                let result = accepted(2 * step + step / 2);
                assert!(result.is_err(), "{} computes a {parameter} that is no multiple of {step}", entry.name);
            }
            // A grid of the largest number of heads takes minutes, and one more is refused.
            let Some(max) = limit.max else { continue };
            match accepted(max + step) {
                Err(KernelError::Fault(fault)) if matches!(fault.kind, FaultKind::BadShape { .. }) => {}
                Err(_) => accepted(max).unwrap_or_else(|error| panic!("{}, {parameter} {max}: {error}", entry.name)),
                Ok(()) => panic!("{} computes a {parameter} above {max}", entry.name),
            }
        }
    }
}
