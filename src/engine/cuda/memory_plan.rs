//! The memory that an executor reserves at its start.

use super::batch_inputs::InputLayout;
use super::device::{REGION_ALIGNMENT, STAGED_BYTES_MAX};
use super::graph_cache::TOKEN_BUCKET;
use super::storage_format::STORAGE_BYTES;
use crate::config::EncoderConfig;

/// Maximum number of sequences of an execution. It allows 16 384 tokens, the usual maximum of a
/// batch, in short texts such as queries, of 16 tokens each. Batches of more sequences are divided.
const SEQUENCES_MAX: usize = 1024;
const FLOAT_BYTES: usize = 4;

/// Sizes of all memory but the weights, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MemoryPlan {
    /// Maximum number of tokens of an execution.
    pub(crate) tokens_max: usize,
    /// Maximum number of sequences of an execution.
    pub(crate) sequences_max: usize,
    /// Hidden states; there are three buffers of this size.
    pub(crate) states: usize,
    /// Queries, keys and values, or the inner states of a feed-forward block.
    pub(crate) wide: usize,
    /// Token ids, positions, offsets and tiles of a batch.
    pub(crate) inputs: usize,
    /// Inputs of a batch that are staged; there are two buffers of this size.
    pub(crate) staged: usize,
    /// Pooled vectors; the dense layer of a head has as many.
    pub(crate) pooled: usize,
    /// Logits.
    pub(crate) logits: usize,
    /// Workspace of a library that multiplies matrices; 0 if none is used.
    pub(crate) library: usize,
}

/// Error of a device without enough memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "{} of weights, {} of workspace for {tokens_max} tokens a batch and {} of inputs and results are {} in total, and {} of device memory may be used: {}",
    mebibytes(*weights), mebibytes(*workspace), mebibytes(*results), mebibytes(*total), mebibytes(*available), self.advice()
)]
pub struct MemoryShortage {
    /// Memory for weights in bytes.
    pub weights: usize,
    /// Memory for intermediate results in bytes.
    pub workspace: usize,
    /// Memory for inputs and results in bytes.
    pub results: usize,
    /// Sum of the memory for weights, workspace and results in bytes.
    pub total: usize,
    /// Memory that may be used in bytes.
    pub available: usize,
    /// Maximum number of tokens of a batch that was requested.
    pub tokens_max: usize,
    /// The largest such maximum for which there is memory; 0 if there is not enough for the longest
    /// sequence of the model.
    pub tokens_possible: usize,
}

// === impl MemoryPlan ===

impl MemoryPlan {
    /// Returns the memory for batches of this number of tokens.
    pub(crate) fn new(config: &EncoderConfig, tokens_max: usize) -> Self {
        let padded = tokens_max.next_multiple_of(TOKEN_BUCKET);
        let sequences_max = tokens_max.min(SEQUENCES_MAX);
        let labels = config.head.as_ref().map_or(0, |head| head.labels.len());
        let inputs = InputLayout::bytes_max(tokens_max, sequences_max);
        Self {
            tokens_max,
            sequences_max,
            states: padded * config.hidden * STORAGE_BYTES,
            wide: padded * config.intermediate.max(3 * config.hidden) * STORAGE_BYTES,
            inputs,
            staged: inputs.min(STAGED_BYTES_MAX),
            pooled: sequences_max * config.hidden * FLOAT_BYTES,
            logits: sequences_max * labels * FLOAT_BYTES,
            library: 0,
        }
    }

    /// Adds the workspace of a library.
    pub(crate) fn with_library(self, library: usize) -> Self {
        Self { library, ..self }
    }

    /// Sizes of the regions: three of hidden states, the wide one, the inputs, two of staged
    /// inputs, the pooled vectors, the dense layer of the head, the logits, and the workspace of a
    /// library.
    pub(crate) fn regions(&self) -> [usize; 11] {
        let Self { states, wide, inputs, staged, pooled, logits, library, .. } = *self;
        let dense = if logits > 0 { pooled } else { 0 };
        [states, states, states, wide, inputs, staged, staged, pooled, dense, logits, library]
    }

    /// Memory of intermediate results and of the library in bytes.
    fn workspace(&self) -> usize {
        3 * self.states + self.wide + self.library
    }

    /// Memory of all regions in bytes.
    pub(crate) fn total(&self) -> usize {
        region_bytes(&self.regions())
    }

    /// Checks that weights and regions fit into the available memory. `sequence_max` is the number
    /// of tokens of the longest sequence.
    pub(crate) fn check(
        &self,
        config: &EncoderConfig,
        weights: usize,
        available: usize,
        sequence_max: usize,
    ) -> Result<(), MemoryShortage> {
        let total = weights.saturating_add(self.total());
        if total <= available {
            return Ok(());
        }
        let fits = |tokens: usize| {
            weights.saturating_add(Self::new(config, tokens).with_library(self.library).total()) <= available
        };
        // Bisection over multiples of the bucket, which is valid because more tokens never take
        // less memory.
        let (mut low, mut high) = (0, self.tokens_max / TOKEN_BUCKET);
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            if fits(middle * TOKEN_BUCKET) {
                low = middle;
            } else {
                high = middle - 1;
            }
        }
        let possible = low * TOKEN_BUCKET;
        let workspace = self.workspace();
        Err(MemoryShortage {
            weights,
            workspace,
            results: self.total().saturating_sub(workspace),
            total,
            available,
            tokens_max: self.tokens_max,
            tokens_possible: if possible < sequence_max { 0 } else { possible },
        })
    }
}

// === impl MemoryShortage ===

impl MemoryShortage {
    fn advice(&self) -> String {
        match self.tokens_possible {
            0 => "raise `engine.memory`, lower `engine.itemTokensMax`, stop other processes on the device, use one \
                  with more memory, or use the CPU"
                .to_owned(),
            tokens => format!(
                "batches of {tokens} tokens fit; for larger ones, raise `engine.memory` or stop other processes on the \
                 device"
            ),
        }
    }
}

/// Returns the memory that regions of these sizes take, each aligned.
pub(crate) fn region_bytes(sizes: &[usize]) -> usize {
    sizes.iter().map(|size| size.next_multiple_of(REGION_ALIGNMENT)).sum()
}

/// Writes bytes as MiB, rounded up.
fn mebibytes(bytes: usize) -> String {
    format!("{} MiB", bytes.div_ceil(1 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::JsonFile;

    /// The shape of `bge-base`.
    fn config() -> EncoderConfig {
        let text = br#"{"architectures": ["BertModel"], "hidden_size": 768, "num_hidden_layers": 12,
            "num_attention_heads": 12, "intermediate_size": 3072, "vocab_size": 30522,
            "max_position_embeddings": 512}"#;
        EncoderConfig::parse(&JsonFile::parse("config.json".to_owned(), text).unwrap()).unwrap()
    }

    #[test]
    fn memory_is_that_of_the_largest_batch() {
        let plan = MemoryPlan::new(&config(), 16_384);
        assert_eq!((plan.sequences_max, plan.states), (1024, 16_384 * 768 * 2));
        assert_eq!((plan.wide, plan.pooled, plan.logits), (16_384 * 3072 * 2, 1024 * 768 * 4, 0));
        assert_eq!(plan.staged, plan.inputs, "the inputs of the usual batches are staged");
        let total: usize = 3 * plan.states + plan.wide + plan.inputs + 2 * plan.staged + plan.pooled;
        assert!((total..total + 10 * REGION_ALIGNMENT).contains(&plan.total()));
        assert_eq!(plan.with_library(1 << 20).total(), plan.total() + (1 << 20));
        let small = MemoryPlan::new(&config(), 10);
        assert_eq!((small.tokens_max, small.sequences_max, small.states), (10, 10, 64 * 768 * 2));
    }

    #[test]
    fn a_shortage_states_the_sum_and_the_remedy() {
        let (config, weights) = (config(), 218 << 20);
        let plan = MemoryPlan::new(&config, 16_384);
        plan.check(&config, weights, weights + plan.total(), 512).unwrap();
        let shortage = plan.check(&config, weights, 300 << 20, 512).unwrap_err();
        let tokens = shortage.tokens_possible;
        assert!(tokens >= 512 && weights + MemoryPlan::new(&config, tokens).total() <= 300 << 20, "{tokens}");
        assert!(weights + MemoryPlan::new(&config, tokens + TOKEN_BUCKET).total() > 300 << 20, "{tokens}");
        let text = shortage.to_string();
        for part in ["218 MiB of weights", "168 MiB of workspace for 16384 tokens", "300 MiB of device memory"] {
            assert!(text.contains(part), "{text}");
        }
        assert!(text.contains(&format!(": batches of {tokens} tokens fit; ")), "{text}");
        let nothing = plan.check(&config, weights, weights, 512).unwrap_err().to_string();
        assert!(nothing.contains("lower `engine.itemTokensMax`") && nothing.ends_with("or use the CPU"), "{nothing}");
    }
}
