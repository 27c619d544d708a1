//! The effective settings of a model that the process executes itself.

use std::path::PathBuf;

use super::units::Share;
use crate::api::v1alpha1::EngineDevice;

/// A model that the process executes itself. It takes the place of the upstream, and is fixed at
/// the start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineConfig {
    /// Directory of the model.
    pub model: PathBuf,
    /// Device that executes it.
    pub device: EngineDevice,
    /// Maximum memory for weights and intermediate results; `None` for 85 percent of what is free on a
    /// GPU, and for what the process may use on the CPU.
    pub memory: Option<MemoryBudget>,
    /// `true` to refuse executors with results that depend on the batch.
    pub batch_invariant: bool,
    /// Maximum number of tokens of an input; `None` for that of the model.
    pub item_tokens_max: Option<u32>,
}

/// A limit on memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryBudget {
    /// A number of bytes.
    Bytes(u64),
    /// A share of the memory that is free on a GPU at the start, or on the CPU of the memory limit
    /// or, without one, of the memory of the machine.
    FreeShare(Share),
}

// === impl EngineConfig ===

impl EngineConfig {
    /// Returns the settings of a model, with the defaults for all others.
    #[must_use]
    pub fn new(model: impl Into<PathBuf>) -> Self {
        Self {
            model: model.into(),
            device: EngineDevice::Auto,
            memory: None,
            batch_invariant: false,
            item_tokens_max: None,
        }
    }
}

/// Parses the name of a device, in any case.
///
/// # Errors
/// There is no such device. The error lists those that exist.
pub fn parse_engine_device(name: &str) -> Result<EngineDevice, &'static str> {
    [EngineDevice::Auto, EngineDevice::Cpu, EngineDevice::Cuda]
        .into_iter()
        .find(|known| format!("{known:?}").eq_ignore_ascii_case(name))
        .ok_or("choose Auto, Cpu or Cuda")
}
