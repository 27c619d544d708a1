//! A model that the proxy executes itself: `engine`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::OpenEnum;

optional_keys! {
    /// A model that the proxy executes itself, in place of a model server.
    pub struct EngineSpec {
        /// Directory of a model that the process executes itself, in place of a model server. In a
        /// pod it is a directory of a volume, which is mounted into the sidecar too.
        pub model: Option<String>,
        /// Device that executes the model. `Auto` uses a GPU if the process can use one, otherwise
        /// the CPU. With `Cuda` a pod requests a GPU for its sidecar, and without one the process
        /// does not start.
        pub device: Option<OpenEnum<EngineDevice>>,
        /// Maximum memory for weights and intermediate results: a size, or a share of what is free
        /// on the GPU at the start, or on the CPU of the memory limit or, without one, of the
        /// memory of the machine.
        pub memory: Option<String>,
        /// `true` to refuse devices on which the result of a call depends on the other calls of its
        /// batch.
        pub batch_invariant: Option<bool>,
        /// Maximum number of tokens of an input, if it is to be below that of the model. Longer
        /// inputs are cut, or refused if the call declines that.
        pub item_tokens_max: Option<u32>,
    }
}

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
