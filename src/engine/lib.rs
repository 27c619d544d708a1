//! Encoder models in this process: sentence embeddings, classifiers and rerankers.
//!
//! - [`Model::open`] reads a directory in the format of Hugging Face.
//! - [`Model::tokenizer`] turns texts, pairs and ids into [`TokenSequence`]s, on any thread.
//! - A [`PackedBatch`] has sequences without padding, and an [`Executor`] returns one result for
//!   each. [`CpuExecutor`] is the one on the CPU, and [`CudaExecutor`] the one on NVIDIA GPUs,
//!   with the feature `cuda` for their driver; [`choose_device`] decides between them.
//! - [`finish_embedding`] and [`score_logits`] turn results into what callers expect.
//!
//! Results are those of sentence-transformers and of the `transformers` library: the same
//! truncation, pooling and activation functions. Scores are those of Text Embeddings Inference. The
//! result of a sequence does not depend on its batch, bit for bit.
//!
//! The crate serves nothing, reads no environment and no clock, and logs nothing.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use groupage_engine::{CpuExecutor, CpuOptions, Executor, Model, OutputKind, PackedBatch};
//!
//! let model = Model::open("all-MiniLM-L6-v2".as_ref())?;
//! let mut executor = CpuExecutor::new(&model, CpuOptions { threads: None, tokens_max: 16_384 })?;
//! let mut batch = PackedBatch::new(16_384);
//! batch.push(&model.tokenizer().encode_text("A man is eating food.", true)?, OutputKind::Embedding)?;
//! for result in executor.execute(&batch)? {
//!     println!("{:?}", result?);
//! }
//! # Ok(())
//! # }
//! ```

mod activation;
mod batch;
mod config;
mod cpu;
mod cuda;
mod directory;
mod error;
mod executor;
mod json;
mod limits;
mod memory_limit;
mod model;
mod pooling;
mod positions;
mod scores;
mod sentence;
mod tokenize;
mod weights;

#[cfg(test)]
mod tests;

pub use activation::Activation;
pub use batch::{BatchFull, OutputKind, PackedBatch};
pub use config::{Architecture, EncoderConfig, HeadConfig, HeadPooling, PositionScheme, RotaryConfig};
pub use cpu::{CpuExecutor, CpuFeatures, CpuOptions, MemoryDemand};
#[cfg(feature = "cuda")]
pub use cuda::CudaDevice;
pub use cuda::{
    CubinCache, CubinKey, CudaExecutor, CudaLoadError, CudaOptions, DeviceAddress, DeviceChoice, DeviceError,
    DeviceOperation, DevicePreference, DeviceProperties, DeviceReport, DriverState, FaultSeverity, GemmCall, GemmPlan,
    GemmProvider, GemmShape, GpuDevice, GraphId, KernelId, KernelImage, KernelLaunch, LaunchArgument, MemoryShortage,
    NoDeviceError, ParameterType, REGION_ALIGNMENT, STAGED_BYTES_MAX, StagedBytes, StagingArea, StorageFormat,
    choose_device, open_gpu_executor,
};
#[cfg(any(test, feature = "simulator"))]
pub use cuda::{KernelParity, SimulatedDevice, SimulatedLibrary, compare_kernels};
pub use error::LoadError;
pub use executor::{
    BATCHES_MAX, BatchPipeline, DeviceUsage, ExecuteError, Executor, ExecutorReport, NonFiniteOutput, NumberType,
    SequenceOutput, SequenceResult,
};
pub use memory_limit::MemoryLimit;
pub use model::Model;
pub use pooling::{Pooling, finish_embedding};
pub use scores::{score_logits, sigmoid};
pub use sentence::Prompts;
pub use tokenize::{TextTokenizer, TokenDetail, TokenError, TokenSequence, Truncation};
