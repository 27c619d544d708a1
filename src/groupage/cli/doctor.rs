//! `groupage doctor`: reports whether this machine and this build can execute a model.
//!
//! It prints the CPU, the memory, the driver and the GPUs. With `--engine`, it also loads a model,
//! executes one text, and reports the result.

#[cfg(feature = "engine")]
mod device;
#[cfg(feature = "engine")]
mod model;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args as ClapArgs;

use crate::api::v1alpha1::EngineDevice;
use crate::config;
use crate::error::BoxError;
use crate::memory::MachineMemory;

/// Arguments of `groupage doctor`.
#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    /// Directory of a model, as of `groupage proxy --engine`. It is loaded and executes one text
    #[arg(long, value_name = "MODEL_DIR")]
    engine: Option<PathBuf>,
    /// Device that executes the model: Auto, Cpu or Cuda
    #[arg(
        long,
        value_name = "DEVICE",
        default_value = "Auto",
        requires = "engine",
        value_parser = config::parse_engine_device
    )]
    engine_device: EngineDevice,
}

/// A model to inspect, with the device and the memory for it.
#[cfg_attr(not(feature = "engine"), expect(dead_code, reason = "a build without the engine inspects nothing"))]
#[derive(Debug, Clone, Copy)]
struct Inspection<'a> {
    model: &'a Path,
    device: EngineDevice,
    memory: MachineMemory,
}

/// Lines of a report: a name and a text.
type ReportLines = Vec<(&'static str, String)>;

/// Text in place of a report about the driver, in a build without support for GPUs.
const NO_GPUS: &str = "support for GPUs is not built in: build it with `--features cuda`";

pub(super) fn run(args: &Args) -> ExitCode {
    let memory = MachineMemory::read(Path::new("/"));
    print_section("machine", &machine_lines(memory));
    print_section("engine", &engine_lines());
    let Some(model) = &args.engine else {
        print_section("device", &driver_lines());
        return ExitCode::SUCCESS;
    };
    match inspect_model(Inspection { model, device: args.engine_device, memory }) {
        Ok(sections) => {
            sections.iter().for_each(|(title, lines)| print_section(title, lines));
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("× the model cannot be served: {error}");
            ExitCode::from(config::EXIT_CONFIG)
        }
    }
}

fn print_section(title: &str, lines: &ReportLines) {
    println!("{title}");
    lines.iter().for_each(|(name, text)| println!("  {name:<13} {text}"));
}

fn machine_lines(memory: MachineMemory) -> ReportLines {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    vec![
        ("version", format!("groupage {} for {}", env!("CARGO_PKG_VERSION"), std::env::consts::ARCH)),
        ("cores", format!("{cores}, as far as this process may use them")),
        ("memory", describe_memory(memory)),
    ]
}

#[cfg(feature = "engine")]
fn engine_lines() -> ReportLines {
    model::engine_lines(&groupage_engine::CpuFeatures::detect())
}

#[cfg(not(feature = "engine"))]
fn engine_lines() -> ReportLines {
    vec![("build", "this build has no engine: build it with `--features engine`".to_owned())]
}

#[cfg(feature = "engine")]
fn driver_lines() -> ReportLines {
    device::found_lines()
}

#[cfg(not(feature = "engine"))]
fn driver_lines() -> ReportLines {
    vec![("driver", NO_GPUS.to_owned())]
}

#[cfg(feature = "engine")]
fn inspect_model(inspection: Inspection<'_>) -> Result<Vec<(&'static str, ReportLines)>, BoxError> {
    model::inspect(inspection)
}

#[cfg(not(feature = "engine"))]
fn inspect_model(Inspection { model, .. }: Inspection<'_>) -> Result<Vec<(&'static str, ReportLines)>, BoxError> {
    Err(format!("{}: this build has no engine: build it with `--features engine`", model.display()).into())
}

fn describe_memory(memory: MachineMemory) -> String {
    let known = |bytes: Option<u64>| bytes.map_or_else(|| "an unknown amount".to_owned(), format_bytes);
    let limit = memory.limit.map_or_else(|| "none".to_owned(), format_bytes);
    let (total, available) = (known(memory.total), known(memory.available));
    format!("{total}, of which {available} is available; limit of the control group: {limit}")
}

#[cfg(feature = "engine")]
fn to_u64(bytes: usize) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

/// Formats a size in the largest unit in which it is at least 1.
fn format_bytes(bytes: u64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "printed with one decimal")]
    let mut size = bytes as f64;
    let mut units = ["B", "KiB", "MiB", "GiB", "TiB"].into_iter();
    let mut unit = units.next().unwrap_or_default();
    for larger in units {
        if size < 1024.0 {
            break;
        }
        (size, unit) = (size / 1024.0, larger);
    }
    if unit == "B" { format!("{bytes} B") } else { format!("{size:.1} {unit}") }
}

#[cfg(test)]
mod tests {
    use clap::FromArgMatches as _;

    use super::*;

    #[test]
    fn sizes_have_the_largest_unit() {
        assert_eq!(
            [0, 1023, 1024, 90_900_000, 3 << 30].map(format_bytes),
            ["0 B", "1023 B", "1.0 KiB", "86.7 MiB", "3.0 GiB"]
        );
    }

    #[test]
    fn a_device_is_named_in_any_case_and_an_unknown_one_is_refused() {
        let parse = |arguments: &[&str]| {
            let command = Args::augment_args(clap::Command::new("doctor").no_binary_name(true));
            let matches = command.try_get_matches_from(arguments)?;
            Args::from_arg_matches(&matches).map(|args| args.engine_device)
        };
        for (name, device) in [("CPU", EngineDevice::Cpu), ("cuda", EngineDevice::Cuda), ("Auto", EngineDevice::Auto)] {
            assert_eq!(parse(&["--engine", "m", "--engine-device", name]).unwrap(), device);
        }
        assert_eq!(parse(&[]).unwrap(), EngineDevice::Auto);
        let error = parse(&["--engine", "m", "--engine-device", "tpu"]).unwrap_err().to_string();
        assert!(error.contains("tpu") && error.contains("choose Auto, Cpu or Cuda"), "{error}");
        assert!(parse(&["--engine-device", "cpu"]).unwrap_err().to_string().contains("--engine <MODEL_DIR>"));
    }

    #[test]
    fn memory_is_described_with_the_limit() {
        let memory = MachineMemory { total: Some(4 << 30), available: Some(3 << 30), limit: Some(1 << 30) };
        assert_eq!(
            describe_memory(memory),
            "4.0 GiB, of which 3.0 GiB is available; limit of the control group: 1.0 GiB"
        );
        assert!(describe_memory(MachineMemory::default()).contains("unknown"));
    }

    #[test]
    #[cfg(not(feature = "engine"))]
    fn a_build_without_the_engine_names_the_feature() {
        let inspection =
            Inspection { model: "/models/m".as_ref(), device: EngineDevice::Auto, memory: MachineMemory::default() };
        let error = inspect_model(inspection).unwrap_err().to_string();
        assert!(error.contains("/models/m") && error.contains("--features engine"), "{error}");
        assert!(engine_lines()[0].1.contains("--features engine"));
        assert_eq!(driver_lines(), [("driver", NO_GPUS.to_owned())]);
    }
}
