//! The memory of an executor, before it is created.

use super::arena::{inner_columns, projection_columns};
use super::attention::QUERY_BLOCK;
use super::simd::LANES_MAX;
use super::{CpuExecutor, CpuOptions, thread_count};
use crate::config::{EncoderConfig, PositionScheme};
use crate::model::Model;

/// Widest panel of packed columns: two vectors of the longest instruction set.
const PANEL_MAX: usize = 2 * LANES_MAX;
const FLOAT_BYTES: usize = size_of::<f32>();

/// Memory of an executor in bytes, without the files of the model, and the threads that share it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryDemand {
    /// Packed weights, and small tables of embeddings.
    pub weights: usize,
    /// Intermediate results, of which each thread has a part.
    pub scratch: usize,
    /// Number of threads.
    pub threads: usize,
}

// === impl CpuExecutor ===

impl CpuExecutor {
    /// Returns the memory that [`Self::new`] takes, or slightly more: matrices are rounded up to the
    /// widest panels, whatever the CPU supports.
    #[must_use]
    pub fn memory_demand(model: &Model, options: CpuOptions) -> MemoryDemand {
        let config = model.config();
        let sequence_max = model.tokens_max().min(options.tokens_max);
        MemoryDemand {
            weights: weight_floats(config, sequence_max).saturating_mul(FLOAT_BYTES),
            scratch: scratch_floats(config, options, sequence_max).saturating_mul(FLOAT_BYTES),
            threads: thread_count(options.threads),
        }
    }
}

/// Number of elements of all packed weights.
fn weight_floats(config: &EncoderConfig, sequence_max: usize) -> usize {
    let EncoderConfig { hidden, intermediate, .. } = *config;
    // A normalisation has a factor and an offset an element.
    let norm = 2 * hidden;
    let layer = [
        linear(3 * hidden, hidden),
        linear(hidden, hidden),
        linear(inner_columns(config), hidden),
        linear(hidden, intermediate),
        2 * norm,
    ];
    let layers = config.layers.saturating_mul(sum(&layer));
    let head =
        config.head.as_ref().map_or(0, |head| sum(&[linear(hidden, hidden), linear(head.labels.len(), hidden), norm]));
    let tables = match config.positions {
        // Two tables with a cosine and a sine for each pair of elements of a head.
        PositionScheme::Rotary(_) => sequence_max.saturating_mul(2 * config.head_dim()),
        PositionScheme::Absolute | PositionScheme::AfterPadding { .. } => config.positions_max.saturating_mul(hidden),
    };
    // The normalisations of the embeddings and after the last layer.
    sum(&[layers, head, tables, config.types.saturating_mul(hidden), 2 * norm])
}

/// Number of elements of all scratch buffers.
fn scratch_floats(config: &EncoderConfig, options: CpuOptions, sequence_max: usize) -> usize {
    let states = buffer(options.tokens_max.saturating_mul(config.hidden));
    let projection = buffer(options.tokens_max.saturating_mul(projection_columns(config)));
    let attention = sum(&[
        buffer(packed(sequence_max, config.head_dim())),
        buffer(packed(config.head_dim(), sequence_max)),
        buffer(packed(sequence_max, QUERY_BLOCK)),
    ]);
    sum(&[states, states, projection, attention.saturating_mul(thread_count(options.threads))])
}

/// Elements of a packed matrix and its bias.
fn linear(columns: usize, depth: usize) -> usize {
    buffer(packed(columns, depth)).saturating_add(columns)
}

fn packed(columns: usize, depth: usize) -> usize {
    columns.saturating_add(PANEL_MAX - 1).saturating_mul(depth)
}

/// Elements of a buffer that begins at a cache line.
fn buffer(length: usize) -> usize {
    length.saturating_add(LANES_MAX)
}

fn sum(parts: &[usize]) -> usize {
    parts.iter().fold(0, |sum, part| sum.saturating_add(*part))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::Executor as _;

    #[test]
    fn the_demand_is_what_an_executor_takes_or_slightly_more() {
        let goldens = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens");
        for name in ["bert", "bert-rerank", "distilbert-classify", "modernbert-classify", "xlm-roberta-rerank"] {
            let model = Model::open(&goldens.join(name)).unwrap();
            let options = CpuOptions { threads: Some(3), tokens_max: 1000 };
            let MemoryDemand { weights, scratch, threads } = CpuExecutor::memory_demand(&model, options);
            let executor = CpuExecutor::new(&model, options).unwrap();
            let report = executor.report();
            assert_eq!(threads, report.threads);
            // The matrices of the tiny models have 48 to 144 columns, and panels up to 32.
            assert!((report.weight_bytes..2 * report.weight_bytes).contains(&weights), "{name}: {weights} {report:?}");
            assert!(
                (report.scratch_bytes..2 * report.scratch_bytes).contains(&scratch),
                "{name}: {scratch} {report:?}"
            );
        }
    }

    #[test]
    fn the_demand_of_a_large_model_is_close_to_its_parameters() {
        // The shape of `bge-base`: 85 million parameters in its layers.
        let text = br#"{"architectures": ["BertModel"], "hidden_size": 768, "num_hidden_layers": 12,
            "num_attention_heads": 12, "intermediate_size": 3072, "vocab_size": 30522,
            "max_position_embeddings": 512}"#;
        let file = crate::json::JsonFile::parse("config.json".to_owned(), text).unwrap();
        let floats = weight_floats(&EncoderConfig::parse(&file).unwrap(), 512);
        assert!((85_000_000..91_000_000).contains(&floats), "{floats}");
    }
}
