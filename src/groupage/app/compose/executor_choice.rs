//! The choice of the device that executes the model of a policy.

use std::path::Path;

use groupage_engine::{DeviceChoice, DevicePreference, DeviceReport, MemoryLimit, NoDeviceError, choose_device};
use groupage_serving::ExecutorSettings;

use crate::api::v1alpha1::EngineDevice;
use crate::config::{EngineConfig, MemoryBudget};
use crate::error::BoxError;

/// Chooses the device, and logs the choice with its reason. The driver library is loaded unless the
/// CPU is configured. Compiled kernels are kept in `kernel_folder`, if there is one.
///
/// # Errors
/// A GPU is required, and there is none that can be used.
pub(super) fn choose_executor(
    config: &EngineConfig,
    kernel_folder: Option<&Path>,
) -> Result<ExecutorSettings, BoxError> {
    let preference = match config.device {
        EngineDevice::Auto => DevicePreference::Auto,
        EngineDevice::Cpu => DevicePreference::Cpu,
        EngineDevice::Cuda => DevicePreference::Cuda,
    };
    let DeviceReport { choice, reason, .. } = choose_device(preference).map_err(|error| device_error(&error))?;
    match choice {
        DeviceChoice::Cpu => tracing::info!(device = "CPU", reason, "device of the engine"),
        DeviceChoice::Cuda { ordinal } => tracing::info!(device = "GPU", ordinal, reason, "device of the engine"),
    }
    Ok(ExecutorSettings {
        device: choice,
        is_device_required: config.device == EngineDevice::Cuda,
        memory: config.memory.map_or_else(MemoryLimit::default, memory_limit),
        batch_invariant: config.batch_invariant,
        kernel_cache: kernel_folder.map(Path::to_owned),
    })
}

fn device_error(error: &NoDeviceError) -> String {
    format!("engine.device is Cuda, and {error}; set it to Auto or Cpu to use the CPU")
}

fn memory_limit(budget: MemoryBudget) -> MemoryLimit {
    match budget {
        MemoryBudget::Bytes(bytes) => MemoryLimit::Bytes(usize::try_from(bytes).unwrap_or(usize::MAX)),
        MemoryBudget::FreeShare(share) => MemoryLimit::FreeShare(share.ppm()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse_share;

    #[test]
    fn settings_follow_the_policy() {
        let config = |device, memory| EngineConfig { device, memory, ..EngineConfig::new("/models/m") };
        let cpu = choose_executor(&config(EngineDevice::Cpu, None), None).unwrap();
        assert_eq!(cpu, ExecutorSettings::default());
        let half = MemoryBudget::FreeShare(parse_share("50%").unwrap());
        let shared =
            choose_executor(&config(EngineDevice::Cpu, Some(half)), Some(Path::new("/state/kernels"))).unwrap();
        assert_eq!(shared.memory, MemoryLimit::FreeShare(500_000));
        assert_eq!(shared.kernel_cache.as_deref(), Some(Path::new("/state/kernels")));
        let bytes = choose_executor(&config(EngineDevice::Cpu, Some(MemoryBudget::Bytes(7))), None).unwrap();
        assert_eq!(bytes.memory, MemoryLimit::Bytes(7));
    }

    /// The result depends on the machine: a GPU that is required is used, or its absence is an
    /// error.
    #[test]
    fn a_required_gpu_is_never_replaced_by_the_cpu() {
        let config = EngineConfig { device: EngineDevice::Cuda, ..EngineConfig::new("/models/m") };
        match choose_executor(&config, None) {
            Ok(settings) => assert!(settings.is_device_required && settings.device != DeviceChoice::Cpu),
            Err(error) => {
                let error = error.to_string();
                assert!(error.starts_with("engine.device is Cuda, and no GPU can be used: "), "{error}");
            }
        }
    }
}
