//! A model that the proxy executes itself.

use serde::{Deserialize, Serialize};

/// Device that executes a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum EngineDevice {
    /// A GPU if the process has one, otherwise the CPU.
    Auto,
    /// The CPU.
    Cpu,
    /// A GPU of NVIDIA.
    Cuda,
}
