//! Arguments of `groupage controller` for the sidecars that it injects.

use clap::{Args as ClapArgs, ValueEnum};

use crate::api::v1alpha1::Mode;
use crate::config;
use crate::config::quantity::{CPU, MEMORY};
use crate::injector::SidecarDefaults;

/// Image pull policies of Kubernetes.
const PULL_POLICIES: [&str; 3] = ["Always", "IfNotPresent", "Never"];

/// Defaults of every sidecar; policies and annotations override them.
#[derive(Debug, Clone, ClapArgs)]
pub(super) struct SidecarArgs {
    /// Image of the sidecars
    #[arg(long, value_name = "IMAGE", default_value_t = SidecarDefaults::default().image)]
    sidecar_image: String,
    /// Pull policy of the image
    #[arg(long, value_name = "POLICY", value_parser = PULL_POLICIES, default_value_t = SidecarDefaults::default().pull_policy)]
    sidecar_pull_policy: String,
    /// Secret to pull the image with; may be repeated
    #[arg(long, value_name = "NAME")]
    sidecar_pull_secret: Vec<String>,
    /// Mode of the sidecars: Batch, Observe or Passthrough
    #[arg(long, value_name = "MODE", value_parser = mode, default_value = "Batch")]
    sidecar_mode: Mode,
    /// Log level of the sidecars
    #[arg(long, value_name = "LEVEL", value_parser = log_level, default_value_t = SidecarDefaults::default().log_level)]
    sidecar_log_level: String,
    /// CPU request of the sidecars
    #[arg(long, value_name = "QUANTITY", value_parser = cpu, default_value_t = SidecarDefaults::default().cpu_request)]
    sidecar_cpu_request: String,
    /// Memory request of the sidecars
    #[arg(long, value_name = "QUANTITY", value_parser = memory, default_value_t = SidecarDefaults::default().memory_request)]
    sidecar_memory_request: String,
    /// Memory limit of the sidecars
    #[arg(long, value_name = "QUANTITY", value_parser = memory, default_value_t = SidecarDefaults::default().memory_limit)]
    sidecar_memory_limit: String,
    /// Use native sidecars: if every node supports them, always, or never
    #[arg(long, value_enum, ignore_case = true, default_value = "Auto")]
    sidecar_native: NativeSidecars,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "PascalCase")]
enum NativeSidecars {
    Auto,
    Always,
    Never,
}

// === impl SidecarArgs ===

impl SidecarArgs {
    /// Returns `true` if native sidecars are always used, `false` if never. `None` selects them
    /// where every node supports them.
    pub(super) const fn native(&self) -> Option<bool> {
        match self.sidecar_native {
            NativeSidecars::Auto => None,
            NativeSidecars::Always => Some(true),
            NativeSidecars::Never => Some(false),
        }
    }

    /// Returns the settings that a sidecar has by default.
    pub(super) fn defaults(&self) -> SidecarDefaults {
        SidecarDefaults {
            image: self.sidecar_image.clone(),
            pull_policy: self.sidecar_pull_policy.clone(),
            pull_secrets: self.sidecar_pull_secret.clone(),
            cpu_request: self.sidecar_cpu_request.clone(),
            memory_request: self.sidecar_memory_request.clone(),
            memory_limit: self.sidecar_memory_limit.clone(),
            log_level: self.sidecar_log_level.clone(),
            mode: self.sidecar_mode,
        }
    }
}

fn mode(text: &str) -> Result<Mode, String> {
    let known = [("Batch", Mode::Batch), ("Observe", Mode::Observe), ("Passthrough", Mode::Passthrough)];
    let found = known.into_iter().find(|(word, _)| word.eq_ignore_ascii_case(text));
    found.map(|(_, mode)| mode).ok_or_else(|| "must be Batch, Observe or Passthrough".to_owned())
}

/// Validates a log level as the annotations do: a value with which a sidecar cannot start is
/// rejected here, not by the first pod that gets it.
pub(super) fn log_level(text: &str) -> Result<String, String> {
    let allowed = "must be error, warn, info, debug, trace, off, or a filter as in RUST_LOG";
    config::is_log_level(text).then(|| text.to_owned()).ok_or_else(|| allowed.to_owned())
}

fn cpu(text: &str) -> Result<String, String> {
    CPU.contains(text).then(|| text.to_owned()).ok_or_else(|| format!("must be {}", CPU.allowed()))
}

fn memory(text: &str) -> Result<String, String> {
    MEMORY.contains(text).then(|| text.to_owned()).ok_or_else(|| format!("must be {}", MEMORY.allowed()))
}
