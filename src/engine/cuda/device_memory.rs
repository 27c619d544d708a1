//! The memory of an executor on its device, reserved and filled once.

use super::device::GpuDevice;
use super::device_weights::{DeviceWeights, SizeSink, UploadSink};
use super::encoder_pass::DeviceArena;
use super::load_error::CudaLoadError;
use super::memory_plan::{MemoryPlan, region_bytes};
use super::storage_format::StorageFormat;
use crate::memory_limit::MemoryLimit;
use crate::model::Model;

/// Weights and working memory.
#[derive(Debug)]
pub(crate) struct DeviceMemory {
    pub(crate) weights: DeviceWeights,
    pub(crate) weight_bytes: usize,
    pub(crate) arena: DeviceArena,
}

// === impl DeviceMemory ===

impl DeviceMemory {
    /// Allocates everything at once, and copies the weights. `sequence_max` is the number of
    /// tokens of the longest sequence.
    pub(crate) fn reserve(
        model: &Model,
        device: &mut impl GpuDevice,
        storage: StorageFormat,
        plan: MemoryPlan,
        memory: MemoryLimit,
        sequence_max: usize,
    ) -> Result<Self, CudaLoadError> {
        let mut matrices = SizeSink::default();
        DeviceWeights::place(model, &mut matrices)?;
        let weight_bytes = region_bytes(&matrices.sizes);
        let available = memory.bytes(device.free_bytes()?);
        plan.check(model.config(), weight_bytes, available, sequence_max)?;

        let count = matrices.sizes.len();
        let sizes: Vec<usize> = matrices.sizes.into_iter().chain(plan.regions()).collect();
        let regions = device.allocate(&sizes)?;
        let (matrices, arena) = regions.split_at_checked(count).unwrap_or_default();
        let arena = DeviceArena::new(arena)?;
        let weights = DeviceWeights::place(model, &mut UploadSink { device, storage, regions: matrices.iter() })?;
        model.weights().check_reads()?;
        Ok(Self { weights, weight_bytes, arena })
    }
}
