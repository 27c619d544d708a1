//! The executor on a GPU of this machine, for callers that are built with and without the driver.

use std::path::Path;

use super::CudaOptions;
use super::load_error::CudaLoadError;
use crate::executor::Executor;
use crate::model::Model;

/// Creates the executor of a model on the GPU of this number, as [`super::choose_device`] returns
/// it. Compiled kernels are kept in the directory `kernel_cache`, if there is one.
///
/// # Errors
/// Those of [`super::CudaExecutor::new`], or the GPU cannot be opened, as in a binary without the
/// feature `cuda`.
pub fn open_gpu_executor(
    model: &Model,
    ordinal: usize,
    kernel_cache: Option<&Path>,
    options: CudaOptions,
) -> Result<Box<dyn Executor>, CudaLoadError> {
    #[cfg(feature = "cuda")]
    {
        let device = super::CudaDevice::open(ordinal, kernel_cache.map(super::CubinCache::new))?;
        Ok(Box::new(super::CudaExecutor::new(model, device, options)?))
    }
    #[cfg(not(feature = "cuda"))]
    {
        let _ = (model, kernel_cache, options);
        let detail = format!("GPU {ordinal}: this binary was built without the feature `cuda`");
        Err(super::DeviceError::new("the start of the driver", super::fault::NOT_SUPPORTED, detail).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory_limit::MemoryLimit;

    /// No machine has this many GPUs, so that this holds with and without the driver.
    #[test]
    fn a_gpu_that_does_not_exist_is_an_error() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/goldens/bert");
        let model = Model::open(folder.as_ref()).unwrap();
        let options = CudaOptions { tokens_max: 64, memory: MemoryLimit::default(), batch_invariant: true };
        let error = open_gpu_executor(&model, 10_000, None, options).err().unwrap();
        assert!(matches!(error, CudaLoadError::Device(_)), "{error}");
    }
}
