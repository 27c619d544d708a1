//! The error of an executor that cannot be created.

use super::fault::DeviceError;
use super::memory_plan::MemoryShortage;
use crate::error::LoadError;

/// Error of an executor that cannot be created. The model can be executed on the CPU instead,
/// except where [`Self::Model`] reports damaged weights, which both executors refuse.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CudaLoadError {
    /// The model has an option without a kernel, or its weights are damaged.
    #[error(transparent)]
    Model(#[from] LoadError),
    /// There is not enough device memory.
    #[error(transparent)]
    Memory(#[from] MemoryShortage),
    /// The device is too old, or an operation on it failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}
