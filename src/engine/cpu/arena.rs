//! Scratch memory, reserved once for the largest batch.

use std::sync::Mutex;

use crate::config::{Architecture, EncoderConfig};
use crate::cpu::aligned::AlignedBuffer;
use crate::cpu::attention::AttentionScratch;
use crate::cpu::simd::InstructionSet;

/// Intermediate results of a batch.
#[derive(Debug)]
pub(super) struct ScratchArena {
    /// Hidden states: `tokens × hidden`.
    pub(super) states: AlignedBuffer,
    /// Results of the attention, and normalised states: `tokens × hidden`.
    pub(super) attention_output: AlignedBuffer,
    /// Queries, keys and values, then the inner states of a feed-forward block.
    pub(super) projection: AlignedBuffer,
    /// Scratch memory of the attention, one a thread.
    pub(super) attention: Vec<Mutex<AttentionScratch>>,
}

// === impl ScratchArena ===

impl ScratchArena {
    /// `None` if there is not enough memory.
    pub(super) fn new(
        config: &EncoderConfig,
        set: InstructionSet,
        tokens_max: usize,
        sequence_max: usize,
        threads: usize,
    ) -> Option<Self> {
        let states = tokens_max.checked_mul(config.hidden)?;
        let projection = tokens_max.checked_mul(projection_columns(config))?;
        let scratch = || AttentionScratch::new(set, config.head_dim(), sequence_max).map(Mutex::new);
        Some(Self {
            states: AlignedBuffer::new(states)?,
            attention_output: AlignedBuffer::new(states)?,
            projection: AlignedBuffer::new(projection)?,
            attention: (0..threads).map(|_| scratch()).collect::<Option<_>>()?,
        })
    }

    pub(super) fn bytes(&self) -> usize {
        let attention = |scratch: &Mutex<AttentionScratch>| {
            scratch.lock().unwrap_or_else(std::sync::PoisonError::into_inner).bytes()
        };
        let attention: usize = self.attention.iter().map(attention).sum();
        self.states.bytes() + self.attention_output.bytes() + self.projection.bytes() + attention
    }
}

/// Number of columns of the widest intermediate result.
pub(super) fn projection_columns(config: &EncoderConfig) -> usize {
    (3 * config.hidden).max(inner_columns(config))
}

/// Number of columns of the inner states of a feed-forward block, with the gates of gated ones.
pub(super) fn inner_columns(config: &EncoderConfig) -> usize {
    let is_gated = config.architecture == Architecture::ModernBert;
    if is_gated { 2 * config.intermediate } else { config.intermediate }
}
