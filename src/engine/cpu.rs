//! The executor on the CPU, in 32-bit floating point.
//!
//! - `simd` has vectors of several instruction sets behind one trait, `kernels` the kernels on them,
//!   and `selection` chooses an instruction set and checks it.
//! - `workers` runs tasks on threads, and `tiles` divides matrices among them.
//! - `layers` packs the weights once, `arena` has the memory of intermediate results, and `forward`
//!   executes a batch: `embed`, `attention` with `rotary`, and `output`.
//! - `memory_demand` adds up the memory of both before they exist.

mod aligned;
mod arena;
mod attention;
mod embed;
mod forward;
mod kernels;
mod layers;
mod linear;
mod memory_demand;
mod output;
mod rotary;
mod selection;
mod simd;
mod tiles;
mod workers;

use std::fmt;

use self::arena::ScratchArena;
use self::forward::ForwardPass;
use self::layers::EncoderLayers;
pub use self::memory_demand::MemoryDemand;
pub use self::selection::CpuFeatures;
use self::selection::KernelSelection;
use self::workers::WorkerPool;
use crate::batch::PackedBatch;
use crate::error::LoadError;
use crate::executor::{ExecuteError, Executor, ExecutorReport, NumberType, SequenceResult};
use crate::limits::BatchLimits;
use crate::model::Model;

/// Maximum number of threads: far above the number of cores of one machine.
const THREADS_MAX: usize = 1024;
/// Maximum of [`CpuOptions::tokens_max`]: 64 times the usual number of tokens of a batch, 16 384.
pub(crate) const TOKENS_MAX: usize = 1 << 20;

/// Options of the executor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuOptions {
    /// Number of threads; `None` for one a core that this process may use.
    pub threads: Option<usize>,
    /// Maximum number of tokens of a batch. For each, scratch memory of
    /// `(2 × hidden + max(3 × hidden, inner)) × 4` bytes is reserved, where `inner` is the
    /// intermediate size, or twice as much in `ModernBERT`.
    pub tokens_max: usize,
}

/// Executes an encoder on the CPU.
pub struct CpuExecutor {
    kernels: KernelSelection,
    workers: WorkerPool,
    layers: EncoderLayers,
    arena: ScratchArena,
    report: ExecutorReport,
    limits: BatchLimits,
}

// === impl CpuExecutor ===

impl CpuExecutor {
    /// Packs the weights of a model and reserves scratch memory.
    ///
    /// # Errors
    /// A tensor is missing or has another shape or type, or there is not enough memory.
    pub fn new(model: &Model, options: CpuOptions) -> Result<Self, LoadError> {
        let refuse = |place: &str, found: String, expected: &str, advice| LoadError {
            file: model.name().to_owned(),
            place: place.to_owned(),
            found,
            expected: expected.to_owned(),
            advice,
        };
        let CpuOptions { threads, tokens_max } = options;
        if !(1..=TOKENS_MAX).contains(&tokens_max) {
            let expected = format!("1 to {TOKENS_MAX}");
            return Err(refuse("tokens of a batch", tokens_max.to_string(), &expected, "choose another limit"));
        }
        let threads = thread_count(threads);
        let workers = WorkerPool::new(threads).map_err(|error| {
            refuse("threads", error.to_string(), &format!("{threads} threads"), "choose fewer threads")
        })?;
        let kernels = KernelSelection::choose();
        let sequence_max = model.tokens_max().min(tokens_max);
        let layers = EncoderLayers::pack(model, kernels.set(), sequence_max)?;
        let arena = ScratchArena::new(model.config(), kernels.set(), tokens_max, sequence_max, threads);
        let arena = arena.ok_or_else(|| {
            let found = format!("not enough memory for {tokens_max} tokens");
            refuse("scratch memory", found, "memory for every token of a batch", "choose fewer tokens a batch")
        })?;
        let report = ExecutorReport {
            kernels: format!("CPU, {}", kernels.set().name()),
            number_type: NumberType::Float32,
            batch_invariant: true,
            rejected: kernels.rejected().iter().map(|name| (*name).to_owned()).collect(),
            threads,
            tokens_max,
            weight_bytes: layers.bytes(),
            scratch_bytes: arena.bytes(),
            file_bytes: model.weights().bytes(),
        };
        let limits = BatchLimits::new(model.config(), tokens_max, sequence_max);
        Ok(Self { kernels, workers, layers, arena, report, limits })
    }
}

/// Returns the number of threads of an executor.
fn thread_count(wanted: Option<usize>) -> usize {
    let available = || std::thread::available_parallelism().map_or(1, usize::from);
    wanted.unwrap_or_else(available).clamp(1, THREADS_MAX)
}

impl fmt::Debug for CpuExecutor {
    /// Prints the report only: biases alone have thousands of numbers.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CpuExecutor").field("report", &self.report).finish_non_exhaustive()
    }
}

impl Executor for CpuExecutor {
    fn execute(&mut self, batch: &PackedBatch) -> Result<Vec<SequenceResult>, ExecuteError> {
        self.limits.check(batch)?;
        let Self { kernels, workers, layers, arena, .. } = self;
        let set = kernels.set();
        Ok(workers.enter(|| ForwardPass { set, workers, layers, batch }.run(arena)))
    }

    fn report(&self) -> &ExecutorReport {
        &self.report
    }
}
