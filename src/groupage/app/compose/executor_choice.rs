//! The choice of the device that executes the model of a policy.

use groupage_engine::{DeviceChoice, DevicePreference, DeviceReport, MemoryLimit, NoDeviceError, choose_device};
use groupage_serving::{DeviceNote, ExecutorSettings};

use crate::api::v1alpha1::EngineDevice;
use crate::config::{EngineConfig, MemoryBudget};
use crate::error::BoxError;

/// The choice of the device, and the settings of the executor on it.
#[derive(Debug, Clone)]
pub(crate) struct ExecutorChoice {
    /// The choice with its reason, and the devices of this machine.
    pub(crate) report: DeviceReport,
    pub(crate) settings: ExecutorSettings,
}

/// Chooses the device. The driver library is loaded unless the CPU is configured.
///
/// # Errors
/// A GPU is required, and there is none that can be used.
pub(super) fn choose_executor(config: &EngineConfig) -> Result<ExecutorChoice, BoxError> {
    let preference = match config.device {
        EngineDevice::Auto => DevicePreference::Auto,
        EngineDevice::Cpu => DevicePreference::Cpu,
        EngineDevice::Cuda => DevicePreference::Cuda,
    };
    let report = choose_device(preference).map_err(|error| device_error(&error))?;
    let settings = ExecutorSettings {
        device: report.choice,
        is_device_required: config.device == EngineDevice::Cuda,
        memory: config.memory.map_or_else(MemoryLimit::default, memory_limit),
        batch_invariant: config.batch_invariant,
        cpu_tokens_max: None,
        cpu_refusal: None,
        kernel_cache: None,
    };
    Ok(ExecutorChoice { report, settings })
}

// === impl ExecutorChoice ===

impl ExecutorChoice {
    /// Returns the device and the reason for it.
    pub(super) fn note(&self) -> DeviceNote {
        DeviceNote { is_gpu: self.report.choice != DeviceChoice::Cpu, reason: self.report.reason.clone() }
    }

    pub(super) fn log(&self) {
        let reason = &self.report.reason;
        match self.report.choice {
            DeviceChoice::Cpu => tracing::info!(device = "CPU", reason, "device of the engine"),
            DeviceChoice::Cuda { ordinal } => tracing::info!(device = "GPU", ordinal, reason, "device of the engine"),
        }
    }
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
        let choose_executor = |config: &EngineConfig| choose_executor(config).unwrap();
        let cpu = choose_executor(&config(EngineDevice::Cpu, None));
        assert_eq!(cpu.settings, ExecutorSettings::default());
        assert_eq!(cpu.note(), DeviceNote { is_gpu: false, reason: "the CPU is configured".to_owned() });
        let half = MemoryBudget::FreeShare(parse_share("50%").unwrap());
        let shared = choose_executor(&config(EngineDevice::Cpu, Some(half))).settings;
        assert_eq!(shared.memory, MemoryLimit::FreeShare(500_000));
        let bytes = choose_executor(&config(EngineDevice::Cpu, Some(MemoryBudget::Bytes(7)))).settings;
        assert_eq!(bytes.memory, MemoryLimit::Bytes(7));
    }

    /// The result depends on the machine: a GPU that is required is used, or its absence is an
    /// error.
    #[test]
    fn a_required_gpu_is_never_replaced_by_the_cpu() {
        let config = EngineConfig { device: EngineDevice::Cuda, ..EngineConfig::new("/models/m") };
        match choose_executor(&config) {
            Ok(ExecutorChoice { settings, .. }) => {
                assert!(settings.is_device_required && settings.device != DeviceChoice::Cpu);
            }
            Err(error) => {
                let error = error.to_string();
                assert!(error.starts_with("engine.device is Cuda, and no GPU can be used: "), "{error}");
            }
        }
    }
}
