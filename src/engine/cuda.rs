//! The executor on NVIDIA GPUs, in bfloat16 or half precision with sums in 32-bit floating point.
//!
//! The forward pass is written once over `GpuDevice`, the interface of the CUDA driver reduced to
//! what it needs. `CudaDevice` is the driver, loaded at run time, and `SimulatedDevice` runs the
//! same PTX on an interpreter, so that everything but the driver is tested without a GPU.
//!
//! - `device` has the interface, `fault` its errors, `kernel_image` the PTX in the binary, and
//!   `loaded_kernel` checks launches.
//! - `model_support` chooses the kernels of a model, `storage_format` the type of their numbers,
//!   `memory_plan` adds up the memory, `device_memory` reserves it, and `device_weights` copies the
//!   weights.
//! - `gemm_provider` is the interface of libraries that multiply matrices, `gemm_choice` checks
//!   one, and `gemm_plans` has its plans.
//! - `batch_execution` executes a batch: `token_ceiling` divides it, `batch_inputs` lays it out,
//!   `encoder_kernels` and `encoder_pass` have the launches, `graph_cache` decides which of them
//!   are replayed as a graph, and `batch_outputs` copies the results. `batch_pipeline` overlaps the
//!   copy of the inputs of a batch with the execution of another one, and `submitted_batch` has
//!   both.
//! - `device_choice` decides between GPU and CPU, `open_executor` opens the chosen GPU, `driver`
//!   calls the driver, `kernel_load` loads kernels, `cubin_cache` keeps compiled ones, and
//!   `kernel_parity` compares two devices.
//!
//! Not part of it: results are not scaled to unit length, copies of results are not overlapped with
//! execution, and there is one device an executor.

mod batch_execution;
mod batch_inputs;
mod batch_outputs;
mod batch_pipeline;
mod cubin_cache;
mod device;
mod device_address;
mod device_choice;
mod device_memory;
mod device_weights;
#[cfg(feature = "cuda")]
mod driver;
mod driver_state;
mod encoder_kernels;
mod encoder_pass;
mod fault;
mod gemm_choice;
mod gemm_plans;
mod gemm_provider;
mod graph_cache;
mod kernel_image;
#[cfg(any(test, feature = "cuda"))]
mod kernel_load;
#[cfg(any(test, feature = "simulator"))]
mod kernel_parity;
mod load_error;
mod loaded_kernel;
mod memory_plan;
mod model_support;
mod open_executor;
#[cfg(any(test, feature = "simulator"))]
mod simulated;
mod storage_format;
mod submitted_batch;
mod token_ceiling;

use std::fmt;

pub use self::cubin_cache::{CubinCache, CubinKey};
pub use self::device::{
    DeviceAddress, DeviceOperation, DeviceProperties, GpuDevice, GraphId, KernelId, KernelLaunch, LaunchArgument,
    REGION_ALIGNMENT, STAGED_BYTES_MAX, StagedBytes, StagingArea,
};
pub use self::device_choice::{DeviceChoice, DevicePreference, DeviceReport, NoDeviceError, choose_device};
use self::device_memory::DeviceMemory;
#[cfg(feature = "cuda")]
pub use self::driver::CudaDevice;
pub use self::driver_state::DriverState;
use self::encoder_kernels::EncoderKernels;
use self::encoder_pass::EncoderPass;
pub use self::fault::{DeviceError, FaultSeverity};
use self::gemm_choice::{LibraryChoice, choose_library, library_workspace};
use self::gemm_plans::GemmPlans;
pub use self::gemm_provider::{GemmCall, GemmPlan, GemmProvider, GemmShape};
use self::graph_cache::{GRAPHS_MAX, GraphCache};
pub use self::kernel_image::{KernelImage, ParameterType};
#[cfg(any(test, feature = "simulator"))]
pub use self::kernel_parity::{KernelParity, compare_kernels};
pub use self::load_error::CudaLoadError;
use self::memory_plan::MemoryPlan;
pub use self::memory_plan::MemoryShortage;
use self::model_support::KernelChoice;
pub use self::open_executor::open_gpu_executor;
#[cfg(any(test, feature = "simulator"))]
pub use self::simulated::{SimulatedDevice, SimulatedLibrary};
pub use self::storage_format::StorageFormat;
use self::submitted_batch::SubmittedBatches;
use self::token_ceiling::TokenCeiling;
use crate::batch::PackedBatch;
use crate::cpu::TOKENS_MAX;
use crate::error::LoadError;
use crate::executor::{BatchPipeline, DeviceUsage, ExecuteError, Executor, ExecutorReport, SequenceResult};
use crate::limits::BatchLimits;
use crate::memory_limit::MemoryLimit;
use crate::model::Model;

/// Options of the executor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CudaOptions {
    /// Maximum number of tokens of a batch.
    pub tokens_max: usize,
    /// Maximum device memory.
    pub memory: MemoryLimit,
    /// `true` if results must not depend on the batch. Otherwise a library of the device multiplies
    /// matrices, if one is installed.
    pub batch_invariant: bool,
}

/// Executes an encoder on a device that runs kernels.
pub struct CudaExecutor<D> {
    device: D,
    pass: EncoderPass,
    graphs: GraphCache,
    plans: GemmPlans,
    ceiling: TokenCeiling,
    usage: DeviceUsage,
    limits: BatchLimits,
    report: ExecutorReport,
    submitted: SubmittedBatches,
    /// The error that damaged the context.
    fault: Option<DeviceError>,
}

// === impl CudaExecutor ===

impl<D: GpuDevice> CudaExecutor<D> {
    /// Loads the kernels of a model, copies its weights, and reserves all memory.
    ///
    /// # Errors
    /// The model has an option without a kernel, the device is too old, or there is not enough
    /// memory. The model can be executed on the CPU then.
    pub fn new(model: &Model, mut device: D, options: CudaOptions) -> Result<Self, CudaLoadError> {
        let CudaOptions { tokens_max, memory, batch_invariant } = options;
        check_tokens(model, tokens_max)?;
        let choice = KernelChoice::of_model(model)?;
        if let Some(obstacle) = device.properties().obstacle() {
            return Err(DeviceError::new("the choice of a device", fault::NOT_SUPPORTED, obstacle).into());
        }
        device.bind_thread()?;
        let config = model.config().clone();
        let kernels = EncoderKernels::load(&mut device, choice, config.head.is_some())?;
        let sequence_max = model.tokens_max().min(tokens_max);
        let library = library_workspace(&mut device, batch_invariant);
        let plan = MemoryPlan::new(&config, tokens_max).with_library(library.unwrap_or(0));
        let DeviceMemory { weights, weight_bytes, arena } =
            DeviceMemory::reserve(model, &mut device, choice.storage, plan, memory, sequence_max)?;
        let limits = BatchLimits::new(&config, tokens_max, sequence_max);
        let pass = EncoderPass { config, kernels, weights, arena };
        let LibraryChoice { plans, name, rejected } = choose_library(&mut device, &pass, library)?;
        let report = ExecutorReport {
            batch_invariant: name.is_none(),
            kernels: describe_kernels(device.properties(), choice.storage, name),
            number_type: choice.storage.number_type(),
            rejected,
            threads: 1,
            tokens_max,
            weight_bytes,
            scratch_bytes: plan.total(),
            file_bytes: model.weights().bytes(),
        };
        Ok(Self {
            limits,
            pass,
            graphs: GraphCache::new(GRAPHS_MAX),
            plans,
            ceiling: TokenCeiling::new(tokens_max, plan.sequences_max),
            usage: DeviceUsage::default(),
            report,
            submitted: SubmittedBatches::default(),
            fault: None,
            device,
        })
    }

    /// Returns the error that damaged the context of the device, if there was one. It has details
    /// that [`ExecuteError`] has not.
    #[must_use]
    pub fn fault(&self) -> Option<&DeviceError> {
        self.fault.as_ref()
    }

    /// Returns the device.
    #[must_use]
    pub fn device(&self) -> &D {
        &self.device
    }
}

impl<D> fmt::Debug for CudaExecutor<D> {
    /// Prints the report only.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaExecutor").field("report", &self.report).finish_non_exhaustive()
    }
}

impl<D: GpuDevice> Executor for CudaExecutor<D> {
    fn execute(&mut self, batch: &PackedBatch) -> Result<Vec<SequenceResult>, ExecuteError> {
        if let Some(fault) = &self.fault {
            return Err(fault.into());
        }
        self.limits.check(batch)?;
        // It overwrites the working memory of a batch that was started.
        self.submitted.restart();
        let executed = self.run(batch);
        self.report_failure(executed)
    }

    fn pipeline(&mut self) -> Option<&mut dyn BatchPipeline> {
        Some(self)
    }

    fn report(&self) -> &ExecutorReport {
        &self.report
    }

    fn device_usage(&self) -> Option<DeviceUsage> {
        Some(DeviceUsage { token_ceiling: self.ceiling.tokens(), ..self.usage })
    }
}

/// Returns the name of a device, the type of its numbers, and the name of a library that multiplies
/// matrices there.
fn describe_kernels(properties: &DeviceProperties, storage: StorageFormat, library: Option<String>) -> String {
    let DeviceProperties { name, capability: (major, minor), .. } = properties;
    let products = library.map_or_else(String::new, |library| format!(", products by {library}"));
    format!("CUDA, {name}, compute capability {major}.{minor}, {}{products}", storage.number_type().name())
}

fn check_tokens(model: &Model, tokens_max: usize) -> Result<(), LoadError> {
    if (1..=TOKENS_MAX).contains(&tokens_max) {
        return Ok(());
    }
    Err(LoadError {
        file: model.name().to_owned(),
        place: "tokens of a batch".to_owned(),
        found: tokens_max.to_string(),
        expected: format!("1 to {TOKENS_MAX}"),
        advice: "choose another limit",
    })
}
