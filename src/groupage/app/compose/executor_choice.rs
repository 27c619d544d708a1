//! The choice of the device that executes the model of a policy.

use groupage_engine::{DeviceChoice, DevicePreference, DeviceReport, MemoryLimit, NoDeviceError, choose_device};
use groupage_serving::{DeviceNote, ExecutorSettings};

use crate::api::v1alpha1::EngineDevice;
use crate::config::{EngineConfig, MemoryBudget};
use crate::error::BoxError;

/// Chooses the device, and logs the choice with its reason. The driver library is loaded unless the
/// CPU is configured.
///
/// # Errors
/// A GPU is required, and there is none that can be used.
pub(super) fn choose_executor(config: &EngineConfig) -> Result<(ExecutorSettings, DeviceNote), BoxError> {
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
    let settings = ExecutorSettings {
        device: choice,
        is_device_required: config.device == EngineDevice::Cuda,
        memory: config.memory.map_or_else(MemoryLimit::default, memory_limit),
        batch_invariant: config.batch_invariant,
    };
    Ok((settings, DeviceNote { is_gpu: choice != DeviceChoice::Cpu, reason }))
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
        let (cpu, note) = choose_executor(&config(EngineDevice::Cpu, None)).unwrap();
        assert_eq!(cpu, ExecutorSettings::default());
        assert_eq!(note, DeviceNote { is_gpu: false, reason: "the CPU is configured".to_owned() });
        let half = MemoryBudget::FreeShare(parse_share("50%").unwrap());
        let (shared, _) = choose_executor(&config(EngineDevice::Cpu, Some(half))).unwrap();
        assert_eq!(shared.memory, MemoryLimit::FreeShare(500_000));
        let (bytes, _) = choose_executor(&config(EngineDevice::Cpu, Some(MemoryBudget::Bytes(7)))).unwrap();
        assert_eq!(bytes.memory, MemoryLimit::Bytes(7));
    }

    /// The result depends on the machine: a GPU that is required is used, or its absence is an
    /// error.
    #[test]
    fn a_required_gpu_is_never_replaced_by_the_cpu() {
        let config = EngineConfig { device: EngineDevice::Cuda, ..EngineConfig::new("/models/m") };
        match choose_executor(&config) {
            Ok((settings, _)) => assert!(settings.is_device_required && settings.device != DeviceChoice::Cpu),
            Err(error) => {
                let error = error.to_string();
                assert!(error.starts_with("engine.device is Cuda, and no GPU can be used: "), "{error}");
            }
        }
    }
}
