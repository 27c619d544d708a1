//! The choice between GPU and CPU, with the findings on which it is based.

use std::fmt;

use super::device::DeviceProperties;
use super::driver_state::DriverState;

/// The device that is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DevicePreference {
    /// A GPU if there is one that can be used, and the CPU otherwise.
    #[default]
    Auto,
    /// The CPU. The driver library is not loaded.
    Cpu,
    /// A GPU, and no other device.
    Cuda,
}

/// The device to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DeviceChoice {
    /// The CPU.
    #[default]
    Cpu,
    /// The GPU of this number of the driver.
    Cuda {
        /// Number of the device, from 0.
        ordinal: usize,
    },
}

/// A choice and its reasons.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceReport {
    /// The device to use.
    pub choice: DeviceChoice,
    /// The driver and its devices.
    pub driver: DriverState,
    /// Reason of the choice.
    pub reason: String,
}

/// Error of a GPU that is wanted and cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no GPU can be used: {reason}")]
pub struct NoDeviceError {
    /// The driver and its devices.
    pub driver: DriverState,
    /// The reason.
    pub reason: String,
}

/// Chooses a device. The driver library is loaded unless the CPU is wanted.
///
/// # Errors
/// A GPU is wanted and none can be used.
pub fn choose_device(preference: DevicePreference) -> Result<DeviceReport, NoDeviceError> {
    let driver = match preference {
        DevicePreference::Cpu => DriverState::NotUsed,
        #[cfg(feature = "cuda")]
        DevicePreference::Auto | DevicePreference::Cuda => super::driver::probe_driver(),
        #[cfg(not(feature = "cuda"))]
        DevicePreference::Auto | DevicePreference::Cuda => DriverState::NotBuilt,
    };
    decide(preference, driver)
}

/// Decides by the state of the driver.
fn decide(preference: DevicePreference, driver: DriverState) -> Result<DeviceReport, NoDeviceError> {
    match find_device(&driver) {
        Ok(ordinal) => {
            let reason = "it is the first GPU that runs the kernels".to_owned();
            Ok(DeviceReport { choice: DeviceChoice::Cuda { ordinal }, driver, reason })
        }
        Err(reason) if preference == DevicePreference::Cuda => Err(NoDeviceError { driver, reason }),
        Err(reason) => Ok(DeviceReport { choice: DeviceChoice::Cpu, driver, reason }),
    }
}

/// Returns the first device that runs the kernels, or the reason why there is none.
fn find_device(driver: &DriverState) -> Result<usize, String> {
    match driver {
        DriverState::NotUsed => Err("the CPU is configured".to_owned()),
        DriverState::NotBuilt => Err("this binary was built without the feature `cuda`".to_owned()),
        DriverState::Absent => Err("the library libcuda.so.1 of the NVIDIA driver is not installed here: in a \
             container, request a GPU and use the runtime of NVIDIA, with `compute` among \
             NVIDIA_DRIVER_CAPABILITIES"
            .to_owned()),
        DriverState::Broken(error) => Err(format!("the NVIDIA driver does not work: {error}")),
        DriverState::Ready(devices) => {
            let usable = devices.iter().position(|device| device.obstacle().is_none());
            usable.ok_or_else(|| match devices.first().and_then(DeviceProperties::obstacle) {
                Some(obstacle) => format!("no GPU runs the kernels: {obstacle}"),
                None => "the NVIDIA driver lists no GPU: request one for this container".to_owned(),
            })
        }
    }
}

// === impl DeviceReport ===

impl fmt::Display for DeviceReport {
    /// Writes one line for the choice, one for the driver, and one for each device.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.choice {
            DeviceChoice::Cpu => writeln!(f, "device: CPU, because {}", self.reason)?,
            DeviceChoice::Cuda { ordinal } => writeln!(f, "device: GPU {ordinal}, because {}", self.reason)?,
        }
        let DriverState::Ready(devices) = &self.driver else {
            return match self.driver {
                DriverState::NotUsed => f.write_str("driver library: not loaded"),
                DriverState::NotBuilt => f.write_str("driver library: support is not built in"),
                DriverState::Absent => f.write_str("driver library: absent"),
                DriverState::Broken(_) | DriverState::Ready(_) => f.write_str("driver library: present, does not work"),
            };
        };
        write!(f, "driver library: present, {} devices", devices.len())?;
        for (ordinal, device) in devices.iter().enumerate() {
            let DeviceProperties { name, capability: (major, minor), multiprocessors, .. } = device;
            let (memory, driver) = (device.memory_bytes >> 20, device.driver_version);
            write!(
                f,
                "\nGPU {ordinal}: {name}, compute capability {major}.{minor}, {multiprocessors} multiprocessors, "
            )?;
            write!(f, "{memory} MiB, driver for CUDA {}.{}", driver / 1000, driver % 1000 / 10)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::fault::DeviceError;

    fn device(capability: (u32, u32), driver_version: u32) -> DeviceProperties {
        let name = "NVIDIA L4".to_owned();
        DeviceProperties { name, capability, multiprocessors: 58, memory_bytes: 24 << 30, driver_version }
    }

    #[test]
    fn the_first_gpu_that_runs_the_kernels_is_chosen() {
        let devices = vec![device((7, 5), 13_000), device((8, 9), 13_000)];
        let report = decide(DevicePreference::Auto, DriverState::Ready(devices)).unwrap();
        assert_eq!(report.choice, DeviceChoice::Cuda { ordinal: 1 });
        let text = report.to_string();
        assert!(text.starts_with("device: GPU 1, because"), "{text}");
        let line = "GPU 1: NVIDIA L4, compute capability 8.9, 58 multiprocessors, 24576 MiB, driver for CUDA 13.0";
        assert!(text.ends_with(line), "{text}");
    }

    #[test]
    fn without_a_gpu_the_cpu_is_chosen_with_the_reason() {
        let broken = DeviceError::new("the start of the driver", 803, String::new());
        for (driver, part) in [
            (DriverState::Absent, "libcuda.so.1 of the NVIDIA driver is not installed"),
            (DriverState::NotBuilt, "without the feature `cuda`"),
            (DriverState::Broken(broken), "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803)"),
            (DriverState::Ready(vec![]), "lists no GPU"),
            (DriverState::Ready(vec![device((7, 0), 13_000)]), "compute capability 7.0 is below 8.0"),
            (DriverState::Ready(vec![device((8, 9), 12_020)]), "install driver R550"),
        ] {
            let report = decide(DevicePreference::Auto, driver.clone()).unwrap();
            assert_eq!(report.choice, DeviceChoice::Cpu);
            assert!(report.to_string().contains(part), "{report}");
            let error = decide(DevicePreference::Cuda, driver).unwrap_err();
            assert!(
                error.to_string().starts_with("no GPU can be used: ") && error.to_string().contains(part),
                "{error}"
            );
        }
    }

    #[test]
    fn the_driver_is_not_loaded_for_the_cpu() {
        let report = choose_device(DevicePreference::Cpu).unwrap();
        assert_eq!((report.choice, report.driver), (DeviceChoice::Cpu, DriverState::NotUsed));
    }

    /// On a machine without the driver, its library must not be needed to load this binary.
    #[test]
    fn this_machine_is_probed_without_a_panic() {
        let report = choose_device(DevicePreference::Auto).unwrap();
        if let DriverState::NotBuilt | DriverState::Absent | DriverState::Broken(_) = report.driver {
            assert_eq!(report.choice, DeviceChoice::Cpu);
            assert!(choose_device(DevicePreference::Cuda).is_err());
        }
        assert_eq!(report.driver == DriverState::NotBuilt, !cfg!(feature = "cuda"));
    }
}
