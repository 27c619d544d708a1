//! Kernels that a device has loaded, and launches of them.

use super::device::{GpuDevice, KernelId, KernelLaunch, LaunchArgument, to_u32};
use super::fault::{DeviceError, INVALID_VALUE};
use super::kernel_image::{KernelImage, ParameterType};
use super::storage_format::StorageFormat;

/// A kernel that a device has loaded.
#[derive(Debug, Clone)]
pub(crate) struct LoadedKernel {
    id: KernelId,
    image: KernelImage,
}

// === impl LoadedKernel ===

impl LoadedKernel {
    /// Loads a kernel by its name and its format.
    pub(crate) fn load(device: &mut impl GpuDevice, name: &str, storage: StorageFormat) -> Result<Self, DeviceError> {
        let image = KernelImage::find(name, storage)?;
        Ok(Self { id: device.load_kernel(&image)?, image })
    }

    /// Format of the weights and activations that it reads and writes.
    pub(crate) fn storage(&self) -> StorageFormat {
        self.image.storage
    }

    /// Returns a launch, after a check of its arguments against the parameters of the kernel.
    pub(crate) fn launch(
        &self,
        blocks: [usize; 3],
        arguments: Vec<LaunchArgument>,
    ) -> Result<KernelLaunch, DeviceError> {
        check_arguments(&self.image, &arguments)?;
        let KernelImage { threads, shared_bytes, .. } = self.image;
        Ok(KernelLaunch { kernel: self.id, blocks: blocks.map(to_u32), threads, shared_bytes, arguments })
    }
}

/// Checks the number and the types of arguments: the driver reads them by the layout of the kernel.
fn check_arguments(image: &KernelImage, arguments: &[LaunchArgument]) -> Result<(), DeviceError> {
    let matches = |(parameter, argument): (&ParameterType, &LaunchArgument)| match argument {
        LaunchArgument::Address(_) => *parameter == ParameterType::Pointer,
        LaunchArgument::Integer(_) => *parameter == ParameterType::Integer,
        LaunchArgument::Float(_) => *parameter == ParameterType::Float,
    };
    if image.parameters.len() == arguments.len() && image.parameters.iter().zip(arguments).all(matches) {
        return Ok(());
    }
    let detail = format!("{} takes {:?} and not {arguments:?}", image.name, image.parameters);
    Err(DeviceError::new("the launch of a kernel", INVALID_VALUE, detail))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::device::DeviceAddress;

    #[test]
    fn arguments_of_another_number_or_type_are_refused() {
        let image = KernelImage::find("pool_mean", StorageFormat::Bf16).unwrap();
        let (pointer, size) = (LaunchArgument::Address(DeviceAddress(256)), LaunchArgument::size(8));
        check_arguments(&image, &[pointer, pointer, pointer, size, size, size]).unwrap();
        for wrong in [vec![pointer; 3], vec![pointer; 6], vec![size; 6]] {
            assert!(check_arguments(&image, &wrong).unwrap_err().detail.starts_with("pool_mean takes ["));
        }
    }
}
