//! A library of products on the simulated device, in place of cuBLASLt.
//!
//! It sums in an order that depends on the number of rows, as a library that chooses its algorithm
//! by the shape does, so that results differ in their last bits from those of the kernels.

use super::SimulatedDevice;
use crate::cuda::device::{DeviceAddress, GpuDevice};
use crate::cuda::fault::{DeviceError, INVALID_VALUE};
use crate::cuda::gemm_provider::{GemmCall, GemmPlan, GemmProvider, GemmShape};
use crate::cuda::storage_format::{STORAGE_BYTES, StorageFormat};

const WORKSPACE_BYTES: usize = 4096;

/// A library of products, with the faults that it simulates.
#[derive(Debug, Clone, Default)]
pub struct SimulatedLibrary {
    /// `true` to have no plan for products with a residual.
    pub refuses_residuals: bool,
    /// `true` to leave out the bias, for tests.
    pub is_wrong: bool,
    /// Number of products after which launches fail; `None` if none fails.
    pub products_max: Option<usize>,
    /// Number of times that a plan was requested.
    pub planned: usize,
    /// Number of products.
    pub products: usize,
    pub(crate) plans: Vec<GemmShape>,
}

impl GemmProvider for SimulatedDevice {
    fn name(&self) -> String {
        "a simulated library".to_owned()
    }

    fn workspace_bytes(&self) -> usize {
        WORKSPACE_BYTES
    }

    fn plan(&mut self, shape: GemmShape) -> Result<Option<GemmPlan>, DeviceError> {
        let Some(library) = &mut self.library else { return Ok(None) };
        library.planned += 1;
        if shape.has_residual && library.refuses_residuals {
            return Ok(None);
        }
        library.plans.push(shape);
        Ok(Some(GemmPlan(library.plans.len() - 1)))
    }

    fn multiply(&mut self, call: &GemmCall) -> Result<(), DeviceError> {
        let refuse = |detail: &str| DeviceError::new("the launch of a product", INVALID_VALUE, detail.to_owned());
        let library = self.library.as_mut().ok_or_else(|| refuse("no library"))?;
        let shape = *library.plans.get(call.plan.0).ok_or_else(|| refuse("no such plan"))?;
        if library.products_max.is_some_and(|max| library.products >= max) {
            return Err(refuse("the library fails"));
        }
        library.products += 1;
        let is_wrong = library.is_wrong;
        let GemmShape { rows, columns, depth, has_residual, storage } = shape;
        let input = self.read(call.input, rows * depth, storage)?;
        let weight = self.read(call.weight, columns * depth, storage)?;
        let bias = self.read(call.bias, columns, storage)?;
        let results = rows * columns;
        let residual = if has_residual { self.read(call.residual, results, storage)? } else { vec![0.0; results] };
        // A part of the sum for each block of the depth, whose size depends on the rows.
        let block = if rows > 64 { 8 } else { 16 };
        let mut out = Vec::with_capacity(results * STORAGE_BYTES);
        for (at, added) in residual.iter().enumerate() {
            let (row, column) = (at / columns, at % columns);
            let blocks =
                input[row * depth..][..depth].chunks(block).zip(weight[column * depth..][..depth].chunks(block));
            let partial = blocks.map(|(a, b)| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>());
            let bias = if is_wrong { 0.0 } else { bias[column] };
            out.extend(storage.encode(partial.sum::<f32>() + bias + added));
        }
        self.upload(call.workspace, &[0; WORKSPACE_BYTES])?;
        self.upload(call.out, &out)
    }
}

// === impl SimulatedDevice ===

impl SimulatedDevice {
    /// Returns the device with a library.
    #[must_use]
    pub fn with_library(mut self, library: SimulatedLibrary) -> Self {
        self.library = Some(library);
        self
    }

    /// Returns the library, with its counts.
    #[must_use]
    pub fn library(&self) -> Option<&SimulatedLibrary> {
        self.library.as_ref()
    }

    fn read(&mut self, from: DeviceAddress, count: usize, storage: StorageFormat) -> Result<Vec<f32>, DeviceError> {
        let mut bytes = vec![0; count * STORAGE_BYTES];
        self.download(from, &mut bytes)?;
        Ok(storage.decode_all(&bytes))
    }
}
