//! Tokens per second of an executor, by length and number of sequences.

use std::time::Instant;

use groupage_engine::{EncoderConfig, Executor, Model, OutputKind, PackedBatch, TokenSequence};
use serde_json::{Value, json};

use crate::{CheckResult, TOKENS_MAX};

/// Lengths and numbers of sequences.
const LENGTHS: [usize; 4] = [16, 64, 128, 512];
const COUNTS: [usize; 9] = [1, 2, 4, 8, 16, 32, 64, 128, 256];
/// Batches with other tokens that take turns, so that embeddings are not in a cache of the device.
const VARIANTS: usize = 4;
/// Executions before the first that is measured: the second one of a shape records its graph.
const WARM_UPS: usize = 3;
/// Executions that are measured: until this time has passed, and at least and at most these
/// numbers.
const SECONDS: f64 = 0.2;
const RUNS_MIN: usize = 5;
const RUNS_MAX: usize = 200;

/// Measures every length and number of sequences.
pub(crate) fn measure_rows(model: &Model, executor: &mut impl Executor) -> CheckResult<Vec<Value>> {
    let mut rows = Vec::new();
    for length in LENGTHS.into_iter().filter(|length| *length <= model.tokens_max()) {
        for count in COUNTS {
            let batch = |variant| batch_of(model, variant * count, length, count);
            let batches = (0..VARIANTS).map(batch).collect::<CheckResult<Vec<_>>>()?;
            let seconds = median_seconds(executor, &batches)?;
            let tokens_per_second = to_f64(length * count)? / seconds;
            rows.push(json!({
                "length": length,
                "sequences": count,
                "milliseconds": seconds * 1e3,
                "tokens_per_second": tokens_per_second,
                "teraflops": tokens_per_second * token_operations(model.config(), length)? / 1e12,
            }));
        }
    }
    Ok(rows)
}

/// Number of operations of a token in a sequence of this length: two for each element of the
/// matrices of its layers, and for each element of a key and of a value that it is multiplied with.
fn token_operations(config: &EncoderConfig, length: usize) -> CheckResult<f64> {
    let EncoderConfig { hidden, intermediate, layers, .. } = *config;
    let matrices = 4 * hidden * hidden + 2 * hidden * intermediate;
    to_f64(layers * (2 * matrices + 4 * length * hidden))
}

fn to_f64(value: usize) -> CheckResult<f64> {
    Ok(f64::from(u32::try_from(value)?))
}

fn batch_of(model: &Model, first: usize, length: usize, count: usize) -> CheckResult<PackedBatch> {
    let mut batch = PackedBatch::new(TOKENS_MAX);
    for sequence in first..first + count {
        batch.push(&sequence_of(model, sequence, length)?, OutputKind::Embedding)?;
    }
    Ok(batch)
}

/// Returns a sequence with ids from all of the vocabulary.
fn sequence_of(model: &Model, sequence: usize, length: usize) -> CheckResult<TokenSequence> {
    let vocabulary = model.config().vocabulary;
    let id = |at: usize| u32::try_from((sequence * 8191 + at * 7919 + 1000) % vocabulary);
    let ids = (0..length).map(id).collect::<Result<Vec<u32>, _>>()?;
    Ok(model.tokenizer().encode_ids(&ids, false)?)
}

/// Returns the median time of an execution, with its inputs and results.
fn median_seconds(executor: &mut impl Executor, batches: &[PackedBatch]) -> CheckResult<f64> {
    let (begin, mut times) = (Instant::now(), Vec::new());
    for (run, batch) in batches.iter().cycle().enumerate() {
        let is_enough = times.len() >= RUNS_MIN && begin.elapsed().as_secs_f64() >= SECONDS;
        if times.len() >= RUNS_MAX || is_enough {
            break;
        }
        let start = Instant::now();
        for result in executor.execute(batch)? {
            result?;
        }
        if run >= WARM_UPS {
            times.push(start.elapsed().as_secs_f64());
        }
    }
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().ok_or_else(|| "no execution was measured".into())
}
