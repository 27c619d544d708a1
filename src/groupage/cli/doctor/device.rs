//! The report about the device that executes a model: the choice, and what there is to choose from.

use groupage_engine::{DeviceChoice, DevicePreference, DeviceProperties, DriverState, choose_device};

use super::{NO_GPUS, ReportLines, format_bytes, to_u64};
use crate::app::ExecutorChoice;

/// Returns the properties of the chosen GPU.
pub(super) fn chosen_gpu(choice: &ExecutorChoice) -> Option<&DeviceProperties> {
    match (choice.report.choice, &choice.report.driver) {
        (DeviceChoice::Cuda { ordinal }, DriverState::Ready(devices)) => devices.get(ordinal),
        _ => None,
    }
}

/// Returns the driver and the GPUs of this machine. A driver that does not work is no error here.
pub(super) fn found_lines() -> ReportLines {
    let driver = choose_device(DevicePreference::Auto).map_or_else(|error| error.driver, |report| report.driver);
    driver_lines(&driver)
}

/// Returns the choice with its reason, and what there is to choose from.
pub(super) fn device_lines(choice: &ExecutorChoice) -> ReportLines {
    let report = &choice.report;
    let chosen = match report.choice {
        DeviceChoice::Cpu => "CPU".to_owned(),
        DeviceChoice::Cuda { ordinal } => format!("GPU {ordinal}"),
    };
    let mut lines = vec![("chosen", format!("{chosen}: {}", report.reason))];
    lines.extend(driver_lines(&report.driver));
    lines
}

fn driver_lines(driver: &DriverState) -> ReportLines {
    let text = match driver {
        DriverState::NotUsed => "not looked for".to_owned(),
        DriverState::NotBuilt => NO_GPUS.to_owned(),
        DriverState::Absent => "libcuda.so.1 is absent".to_owned(),
        DriverState::Broken(error) => format!("× libcuda.so.1 does not work: {error}"),
        DriverState::Ready(devices) => {
            let version = devices.iter().map(|device| device.driver_version).max().unwrap_or_default();
            let count = devices.len();
            format!("libcuda.so.1 for CUDA {}.{}, {count} devices", version / 1000, version % 1000 / 10)
        }
    };
    let mut lines = vec![("driver", text)];
    if let DriverState::Ready(devices) = driver {
        lines.extend(devices.iter().enumerate().map(|(ordinal, device)| ("GPU", describe_gpu(ordinal, device))));
    }
    lines
}

fn describe_gpu(ordinal: usize, device: &DeviceProperties) -> String {
    let DeviceProperties { name, capability: (major, minor), multiprocessors, memory_bytes, .. } = device;
    let memory = format_bytes(to_u64(*memory_bytes));
    let obstacle = device.obstacle().map_or_else(String::new, |obstacle| format!("; × {obstacle}"));
    format!(
        "{ordinal}: {name}, compute capability {major}.{minor}, {multiprocessors} multiprocessors, {memory} of memory\
         {obstacle}"
    )
}

#[cfg(test)]
pub(super) mod tests {
    use groupage_engine::DeviceReport;
    use groupage_serving::ExecutorSettings;

    use super::*;

    /// A GPU with 24 GiB.
    pub(in crate::cli::doctor) fn gpu(capability: (u32, u32)) -> DeviceProperties {
        let name = "NVIDIA L4".to_owned();
        DeviceProperties { name, capability, multiprocessors: 58, memory_bytes: 24 << 30, driver_version: 13_000 }
    }

    /// The result depends on the machine and on the build.
    #[test]
    fn the_driver_is_reported_without_a_model() {
        let lines = found_lines();
        assert_eq!(lines[0].0, "driver");
        assert_eq!(lines[0].1 == NO_GPUS, !cfg!(feature = "cuda"), "{lines:?}");
        assert!(lines.iter().skip(1).all(|(name, _)| *name == "GPU"), "{lines:?}");
        assert_eq!(driver_lines(&DriverState::Absent), [("driver", "libcuda.so.1 is absent".to_owned())]);
    }

    #[test]
    fn gpus_are_listed_with_the_choice_and_its_reason() {
        let devices = vec![gpu((7, 5)), gpu((8, 9))];
        let choice = DeviceChoice::Cuda { ordinal: 1 };
        let reason = "it is the first GPU that runs the kernels".to_owned();
        let report = DeviceReport { choice, driver: DriverState::Ready(devices), reason };
        let choice = ExecutorChoice { report, settings: ExecutorSettings::default() };
        let text = device_lines(&choice).iter().map(|(name, line)| format!("{name}: {line}\n")).collect::<String>();
        for part in [
            "chosen: GPU 1: it is the first GPU that runs the kernels",
            "driver: libcuda.so.1 for CUDA 13.0, 2 devices",
            "GPU: 0: NVIDIA L4, compute capability 7.5, 58 multiprocessors, 24.0 GiB of memory; × compute capability 7.5",
            "GPU: 1: NVIDIA L4, compute capability 8.9, 58 multiprocessors, 24.0 GiB of memory\n",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert_eq!(chosen_gpu(&choice), Some(&gpu((8, 9))));
    }
}
