//! The decision whether a library such as cuBLASLt executes matrix products, if the device has one
//! and results may depend on the batch.
//!
//! The installed version of the library may be one that was never tested. So each product that it
//! would execute is computed once at the start, with the weights of the model, by the library and
//! by the kernel, which is tested with an interpreter. If the difference is larger than that of
//! rounding, as for a wrong layout or a damaged library, the kernel executes this product. Other
//! numbers of rows, for which the library may choose other algorithms, are not checked.

use super::device::{DeviceAddress, DeviceOperation, GpuDevice};
use super::encoder_kernels::{ProductKernels, ProductOperands};
use super::encoder_pass::EncoderPass;
use super::fault::DeviceError;
use super::gemm_plans::GemmPlans;
use super::storage_format::{STORAGE_BYTES, StorageFormat};

/// Rows of the products: those of the smallest shape of a batch.
const ROWS: usize = 64;

/// The choice of a library.
#[derive(Debug, Default)]
pub(crate) struct LibraryChoice {
    pub(crate) plans: GemmPlans,
    /// Name of the library; `None` if the kernels execute all products.
    pub(crate) name: Option<String>,
    /// The products that the library cannot execute, with the reason.
    pub(crate) rejected: Vec<String>,
}

/// A product that occurs in every layer.
struct CheckedProduct<'a> {
    /// Name of its result, for reports.
    role: &'static str,
    kernels: &'a ProductKernels,
    operands: ProductOperands,
}

/// Returns the size of the workspace of the library of a device; `None` if there is none, or if
/// results must not depend on the batch.
pub(crate) fn library_workspace(device: &mut impl GpuDevice, batch_invariant: bool) -> Option<usize> {
    if batch_invariant {
        return None;
    }
    device.gemm_provider().map(|provider| provider.workspace_bytes())
}

/// Checks the library, if one with this workspace was found.
///
/// # Errors
/// The context is damaged.
pub(crate) fn choose_library(
    device: &mut impl GpuDevice,
    pass: &EncoderPass,
    workspace: Option<usize>,
) -> Result<LibraryChoice, DeviceError> {
    let name = match workspace {
        Some(_) => device.gemm_provider().map(|provider| provider.name()),
        None => None,
    };
    let Some(name) = name else { return Ok(LibraryChoice::default()) };
    let products = checked_products(pass);
    let mut plans = GemmPlans::new(Some(pass.arena.library));
    let mut rejected = Vec::new();
    for CheckedProduct { role, kernels, operands } in &products {
        if let Some(reason) = find_obstacle(device, &mut plans, kernels, *operands)? {
            plans.exclude(kernels, *operands);
            rejected.push(format!("{name}, {role}: {reason}"));
        }
    }
    if rejected.len() == products.len() {
        return Ok(LibraryChoice { rejected, ..LibraryChoice::default() });
    }
    Ok(LibraryChoice { plans, name: Some(name), rejected })
}

/// Returns the products of the first layer, of which those of the other layers have the shapes;
/// none for a model without layers. Operands and results are in regions that every batch
/// overwrites.
fn checked_products(pass: &EncoderPass) -> Vec<CheckedProduct<'_>> {
    let (arena, kernels) = (pass.arena, &pass.kernels);
    let Some(layer) = pass.weights.layers.first() else { return Vec::new() };
    let operands = |layer, input, residual, out| ProductOperands { input, layer, residual, out, rows: ROWS };
    vec![
        CheckedProduct {
            role: "queries, keys and values",
            kernels: &kernels.product,
            operands: operands(layer.qkv, arena.states, DeviceAddress::NULL, arena.wide),
        },
        CheckedProduct {
            role: "output of the attention",
            kernels: &kernels.residual,
            operands: operands(layer.output, arena.states, arena.mixed, arena.wide),
        },
        CheckedProduct {
            role: "output of the feed-forward block",
            kernels: &kernels.residual,
            operands: operands(layer.down, arena.wide, arena.mixed, arena.states),
        },
    ]
}

/// Returns the reason for which the library cannot execute a product, if there is one.
fn find_obstacle(
    device: &mut impl GpuDevice,
    plans: &mut GemmPlans,
    kernels: &ProductKernels,
    operands: ProductOperands,
) -> Result<Option<String>, DeviceError> {
    match compare_product(device, plans, kernels, operands) {
        Ok(obstacle) => Ok(obstacle),
        Err(error) if error.is_fatal() => Err(error),
        Err(error) => Ok(Some(error.to_string())),
    }
}

/// Executes a product with the library and with the kernel. Returns the reason for which the
/// library must not execute it, if there is one.
fn compare_product(
    device: &mut impl GpuDevice,
    plans: &mut GemmPlans,
    kernels: &ProductKernels,
    operands: ProductOperands,
) -> Result<Option<String>, DeviceError> {
    let product = plans.multiply(device, kernels, operands)?;
    if !matches!(product, DeviceOperation::Multiply(_)) {
        return Ok(Some("it has no plan".to_owned()));
    }
    let storage = kernels.storage();
    let expected = run(device, &DeviceOperation::Launch(kernels.multiply(operands)?), operands, storage)?;
    let found = run(device, &product, operands, storage)?;
    let error = relative_error(&found, &expected);
    // Library and kernel round the same sums. They sum in different orders, so that a few elements
    // are rounded to neighbouring numbers, and most are equal. The comparison is false if the error
    // is not a number.
    let agrees = error <= storage.rounding_error();
    Ok((!agrees).then(|| format!("its result differs from that of the kernel by {error:.1e}")))
}

/// Returns numbers of a format in which no two neighbouring rows or columns are equal.
fn pattern(count: usize, period: usize, storage: StorageFormat) -> Vec<u8> {
    let value = |at: usize| {
        let step = u8::try_from((at * 7 + at / 13) % period).unwrap_or(0);
        storage.encode(f32::from(step) / 16.0 - 1.0)
    };
    (0..count).flat_map(value).collect()
}

/// Executes a product of numbers between -1 and 1, and returns its result.
fn run(
    device: &mut impl GpuDevice,
    operation: &DeviceOperation,
    operands: ProductOperands,
    storage: StorageFormat,
) -> Result<Vec<f64>, DeviceError> {
    let ProductOperands { input, layer, residual, out, rows } = operands;
    device.upload(input, &pattern(rows * layer.depth, 29, storage))?;
    if residual != DeviceAddress::NULL {
        device.upload(residual, &pattern(rows * layer.columns, 31, storage))?;
    }
    // All bits are set, which is not a number in either format, so that an element that the product
    // does not write is found.
    let mut bytes = vec![u8::MAX; rows * layer.columns * STORAGE_BYTES];
    device.upload(out, &bytes)?;
    device.perform(operation)?;
    device.download(out, &mut bytes)?;
    Ok(storage.decode_all(&bytes).into_iter().map(f64::from).collect())
}

/// Returns the norm of the difference by the norm of the expected numbers. It is not a number if
/// one of them is none.
fn relative_error(found: &[f64], expected: &[f64]) -> f64 {
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>().sqrt();
    let difference = norm(&mut found.iter().zip(expected).map(|(found, expected)| found - expected));
    if difference == 0.0 { 0.0 } else { difference / norm(&mut expected.iter().copied()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_relative_to_the_result() {
        assert!(relative_error(&[3.0, 4.0], &[3.0, 4.0]) <= 0.0);
        assert!((relative_error(&[3.0, 4.5], &[3.0, 4.0]) - 0.1).abs() < 1e-12);
        assert!(relative_error(&[1.0], &[0.0]).is_infinite());
        assert!(relative_error(&[f64::NAN], &[1.0]).is_nan());
    }
}
