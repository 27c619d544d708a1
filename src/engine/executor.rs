//! The interface of executors, which compute one result for each sequence of a packed batch.

use std::time::Duration;

use crate::batch::{OutputKind, PackedBatch};

/// Executes an encoder on one device. It is used by one thread at a time, because it owns the
/// scratch memory of the device.
///
/// The result of a sequence depends on that sequence alone, bit for bit: neither on the other
/// sequences of the batch, nor on their order, nor on the number of threads.
pub trait Executor: Send {
    /// Executes a batch. Returns one result for each sequence, in their order.
    ///
    /// # Errors
    /// The batch as a whole cannot be executed.
    fn execute(&mut self, batch: &PackedBatch) -> Result<Vec<SequenceResult>, ExecuteError>;

    /// Returns the choices that the executor made when it was created.
    fn report(&self) -> &ExecutorReport;

    /// Returns counts of the work of a device; `None` for an executor that neither pads batches nor
    /// replays launches.
    fn device_usage(&self) -> Option<DeviceUsage> {
        None
    }

    /// Returns the interface for two batches at once; `None` for an executor that prepares nothing
    /// while it executes.
    fn pipeline(&mut self) -> Option<&mut dyn BatchPipeline> {
        None
    }
}

/// The interface of an executor that copies the inputs of a batch while it executes another one.
///
/// Batches are executed one after the other, in the order in which they were submitted, and their
/// results have the bits of [`Executor::execute`].
pub trait BatchPipeline {
    /// Submits a batch. At most [`BATCHES_MAX`] are in flight: submitted, and not collected.
    ///
    /// # Errors
    /// The batch cannot be executed, or too many are in flight. Nothing is submitted then, and
    /// those in flight are not affected, unless the device is lost.
    fn submit(&mut self, batch: PackedBatch) -> Result<(), ExecuteError>;

    /// Returns `true` if [`Self::collect`] would not wait for the device: the oldest batch has
    /// ended, or is executed when it is collected, or there is none.
    fn is_ended(&mut self) -> bool;

    /// Waits for the oldest batch, starts the next one, and returns the results of the oldest, one
    /// for each sequence. There are none if nothing is in flight.
    ///
    /// # Errors
    /// The oldest batch cannot be executed. It is not in flight any more.
    fn collect(&mut self) -> Result<Vec<SequenceResult>, ExecuteError>;
}

/// Maximum number of batches in flight: one that is executed, and one whose inputs are copied
/// meanwhile. A third one could only wait.
pub const BATCHES_MAX: usize = 2;

/// Result of one sequence.
pub type SequenceResult = Result<SequenceOutput, NonFiniteOutput>;

/// Values of one sequence.
#[derive(Debug, Clone, PartialEq)]
pub enum SequenceOutput {
    /// The pooled vector, with one element for each of a hidden state. It is not scaled: see
    /// [`crate::finish_embedding`].
    Embedding(Vec<f32>),
    /// Hidden states of all tokens, row by row.
    TokenStates {
        /// `tokens × hidden` elements.
        values: Vec<f32>,
        /// Number of elements of a row.
        hidden: usize,
    },
    /// Logits, one for each label: see [`crate::score_logits`].
    Logits(Vec<f32>),
}

// === impl SequenceOutput ===

impl SequenceOutput {
    /// Returns the output, or an error if one of its numbers is not finite.
    pub(crate) fn check_finite(self) -> SequenceResult {
        let values = match &self {
            Self::Embedding(values) | Self::Logits(values) | Self::TokenStates { values, .. } => values,
        };
        let is_finite = values.iter().all(|value| value.is_finite());
        if is_finite { Ok(self) } else { Err(NonFiniteOutput) }
    }
}

/// Error of a sequence with an infinite element in its result, or one that is not a number. An
/// activation beyond the range of [`NumberType`] is infinite, and so causes it. Other sequences of
/// the batch are not affected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the result of the model is not finite: its weights are damaged, or a number exceeds the range of its type, which \
     is 65504 for float16 and 3.4e38 for the others: instead of float16, execute the model on the CPU, or store its \
     weights in BF16"
)]
pub struct NonFiniteOutput;

/// Error of a batch that cannot be executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ExecuteError {
    /// The batch has more tokens than the scratch memory has room for.
    #[error("a batch of {tokens} tokens exceeds the limit of {tokens_max}: split it, or raise the limit")]
    TooManyTokens {
        /// Number of tokens in the batch.
        tokens: usize,
        /// Limit of the executor.
        tokens_max: usize,
    },
    /// A sequence is empty or longer than the model takes.
    #[error("sequence {sequence} has {tokens} tokens and the model takes 1 to {tokens_max}: shorten it")]
    WrongLength {
        /// Index of the sequence in the batch.
        sequence: usize,
        /// Number of its tokens.
        tokens: usize,
        /// Limit of the model.
        tokens_max: usize,
    },
    /// A token has no embedding, because it was encoded for another model.
    #[error("token {token} has no embedding: encode the batch with the tokenizer of this model")]
    UnknownToken {
        /// Index of the token in the batch.
        token: usize,
    },
    /// Logits are requested from a model without a classification head.
    #[error("sequence {sequence} requests {kind:?}, which the model does not have")]
    NoHead {
        /// Index of the sequence in the batch.
        sequence: usize,
        /// The requested result.
        kind: OutputKind,
    },
    /// Two batches are in flight.
    #[error("{batches_max} batches are in flight: collect the results of the oldest one first")]
    TooManyBatches {
        /// Limit of the executor.
        batches_max: usize,
    },
    /// The device refused an operation, for example for lack of memory. It can execute other
    /// batches.
    #[error(
        "{operation} was refused by the device: {name} ({code}): send shorter inputs, or lower `engine.itemTokensMax` \
         of the server"
    )]
    DeviceRefusal {
        /// The operation.
        operation: &'static str,
        /// Name of the error.
        name: &'static str,
        /// Number of the error.
        code: u32,
    },
    /// The context of the device is damaged, and every later batch of this process fails.
    #[error("{operation} failed on the device: {name} ({code}): restart the process, its device context is unusable")]
    DeviceLoss {
        /// The operation.
        operation: &'static str,
        /// Name of the error.
        name: &'static str,
        /// Number of the error.
        code: u32,
    },
    /// The device has not ended a batch within its time, and nothing is known about its context.
    #[error("the device has not ended a batch within {} s: restart the process", .time_max.as_secs())]
    DeviceStall {
        /// Maximum time of a batch.
        time_max: Duration,
    },
}

// === impl ExecuteError ===

impl ExecuteError {
    /// Returns `true` if no later batch can be executed in this process, so that it must be
    /// restarted.
    #[must_use]
    pub fn is_fatal(&self) -> bool {
        matches!(self, Self::DeviceLoss { .. } | Self::DeviceStall { .. })
    }
}

/// Work of a device since the executor was created.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DeviceUsage {
    /// Number of executions that replayed a launch graph.
    pub replayed: u64,
    /// Number of executions that recorded their launches as a graph, and replayed it.
    pub recorded: u64,
    /// Number of executions with a separate launch of each kernel.
    pub eager: u64,
    /// Number of padding tokens, which are executed like others.
    pub padding_tokens: u64,
    /// Number of tokens up to which a batch is executed whole. It falls after a shortage of memory.
    pub token_ceiling: usize,
}

/// Type of the numbers that an executor multiplies. Sums have 32 bits with each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NumberType {
    /// Floating point of 32 bits (IEEE 754).
    Float32,
    /// The upper 16 bits of it.
    Bfloat16,
    /// Floating point of 16 bits (IEEE 754), up to 65,504.
    Float16,
}

// === impl NumberType ===

impl NumberType {
    /// Returns the name of the type in `PyTorch` and in the files of models (`torch_dtype`).
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Float32 => "float32",
            Self::Bfloat16 => "bfloat16",
            Self::Float16 => "float16",
        }
    }
}

/// Choices of an executor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecutorReport {
    /// Name of the device and of its kernels.
    pub kernels: String,
    /// Type of the numbers that it multiplies.
    pub number_type: NumberType,
    /// `true` if the results of a sequence have the same bits in every batch.
    pub batch_invariant: bool,
    /// Kernels that the device supports but that failed their comparison with portable ones, and
    /// products that a library of the device cannot execute.
    pub rejected: Vec<String>,
    /// Number of CPU threads that execute a batch.
    pub threads: usize,
    /// Maximum number of tokens of a batch.
    pub tokens_max: usize,
    /// Memory of the packed weights in bytes, without the files of the model.
    pub weight_bytes: usize,
    /// Scratch memory in bytes.
    pub scratch_bytes: usize,
    /// Size of the files with weights in bytes. On the CPU, embeddings are read from them on
    /// demand, by position: the page cache has the part that is in use.
    pub file_bytes: usize,
}
