//! Attention of each sequence and head (Vaswani et al., arXiv:1706.03762).
//!
//! Keys and values of a head are packed, then blocks of queries are multiplied by the keys, turned
//! into weights by softmax, and multiplied by the values. Sequences are separate tasks, so no
//! padding is needed.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use crate::cpu::aligned::AlignedBuffer;
use crate::cpu::kernels::{
    GemmTask, InitialValue, InputMatrix, PackedView, ScaleRow, SoftmaxRow, pack_columns, pack_rows, packed_len,
};
use crate::cpu::linear::Device;
use crate::cpu::simd::InstructionSet;
use crate::cpu::tiles::{OutputTile, TileGrid};

/// Number of queries of a block: a multiple of the number of rows of a tile, for every instruction
/// set. Their scores take 96 KiB for 512 keys, a part of a second-level cache.
pub(super) const QUERY_BLOCK: usize = 48;

/// Scratch memory of one thread, for one head over one sequence.
#[derive(Debug)]
pub(super) struct AttentionScratch {
    /// Packed keys.
    keys: AlignedBuffer,
    /// Packed values.
    values: AlignedBuffer,
    /// Scores of a block of queries: a row for each query, with an element for each key.
    scores: AlignedBuffer,
}

/// Queries, keys and values of a batch, and the shape of the heads.
#[derive(Debug, Clone, Copy)]
pub(super) struct AttentionInput<'a> {
    /// Rows of queries, keys and values: `3 × hidden` elements a token.
    pub(super) qkv: &'a [f32],
    pub(super) hidden: usize,
    pub(super) head_dim: usize,
    /// Maximum distance in tokens between a query and the keys that it attends to; `None` without a
    /// limit.
    pub(super) window: Option<usize>,
}

/// Attention of one head over one sequence.
struct AttentionHeadTask<'a> {
    set: InstructionSet,
    input: AttentionInput<'a>,
    /// Rows of queries, keys and values from the first token of the sequence on. Each begins at the
    /// query of this head; its key follows `hidden` elements later, and its value `2 × hidden`.
    queries: InputMatrix<'a>,
    /// Number of tokens of the sequence.
    tokens: usize,
    /// Number of columns of a panel.
    panel: usize,
}

// === impl AttentionScratch ===

impl AttentionScratch {
    /// `None` if there is not enough memory.
    pub(super) fn new(set: InstructionSet, head_dim: usize, tokens_max: usize) -> Option<Self> {
        let panel = set.panel_columns();
        Some(Self {
            keys: AlignedBuffer::new(packed_len(tokens_max, head_dim, panel)?)?,
            values: AlignedBuffer::new(packed_len(head_dim, tokens_max, panel)?)?,
            scores: AlignedBuffer::new(tokens_max.checked_next_multiple_of(panel)?.checked_mul(QUERY_BLOCK)?)?,
        })
    }

    pub(super) fn bytes(&self) -> usize {
        self.keys.bytes() + self.values.bytes() + self.scores.bytes()
    }
}

// === impl AttentionInput ===

impl AttentionInput<'_> {
    /// Writes the results of all sequences into `attention_output`: `hidden` elements a token.
    pub(super) fn run(
        self,
        device: Device<'_>,
        spans: &[(usize, usize)],
        attention_output: &mut [f32],
        scratch: &[Mutex<AttentionScratch>],
    ) {
        let Self { hidden, head_dim, .. } = self;
        let grid =
            TileGrid { matrix: attention_output, stride: hidden, columns: hidden, column_block: head_dim, spans };
        grid.run(device.workers, |mut output, worker| {
            // A thread runs one task at a time, so that the lock is always free.
            let Some(scratch) = scratch.get(worker) else { return };
            let mut scratch = scratch.lock().unwrap_or_else(PoisonError::into_inner);
            let stride = 3 * hidden;
            let start = output.first_row() * stride + output.first_column();
            let queries = InputMatrix { data: self.qkv.get(start..).unwrap_or_default(), stride };
            let (set, tokens) = (device.set, output.rows());
            AttentionHeadTask { set, input: self, queries, tokens, panel: set.panel_columns() }
                .run(&mut output, &mut scratch);
        });
    }
}

// === impl AttentionHeadTask ===

impl AttentionHeadTask<'_> {
    fn run(&self, output: &mut OutputTile<'_>, scratch: &mut AttentionScratch) {
        let AttentionInput { hidden, head_dim, .. } = self.input;
        let (tokens, panel, stride) = (self.tokens, self.panel, self.queries.stride);
        // Rows of the sequence from this offset on. The last one is cut after the elements of the
        // head, so that the slice does not reach into the next sequence.
        let rows = |start: usize| {
            let end = (start + (tokens - 1) * stride + head_dim).min(self.queries.data.len());
            self.queries.data.get(start..end).unwrap_or_default()
        };
        pack_rows(rows(hidden), stride, head_dim, panel, scratch.keys.as_mut_slice());
        pack_columns(rows(2 * hidden), stride, head_dim, panel, scratch.values.as_mut_slice());
        for first in (0..tokens).step_by(QUERY_BLOCK) {
            let count = QUERY_BLOCK.min(tokens - first);
            self.attend(first, output.part(first, count), scratch);
        }
    }

    /// Computes the attention of a block of queries, from the query `first` on.
    fn attend(&self, first: usize, mut output: OutputTile<'_>, scratch: &mut AttentionScratch) {
        let stride = self.tokens.next_multiple_of(self.panel);
        let count = output.rows();
        // The keys that any query of the block attends to, from the beginning of a panel on.
        let attended = self.keys_of(first).start / self.panel * self.panel..self.keys_of(first + count - 1).end;
        let scores = scratch.scores.as_mut_slice();
        let tile = OutputTile::of_matrix(scores, stride, count, attended.clone());
        self.multiply_keys(first, scratch.keys.as_slice(), tile);
        let mut factors = [0.0; QUERY_BLOCK];
        for (at, (row, factor)) in scores.chunks_exact_mut(stride).zip(&mut factors).take(count).enumerate() {
            *factor = self.softmax(row, &attended, self.keys_of(first + at));
        }
        let weights = InputMatrix { data: scores.get(attended.start..).unwrap_or_default(), stride };
        self.multiply_values(&attended, weights, scratch.values.as_slice(), output.part(0, count));
        for (at, factor) in factors.iter().enumerate().take(count) {
            self.set.run(ScaleRow { row: output.row(at), factor: *factor });
        }
    }

    /// Multiplies the queries from `first` on by the keys of the columns of `scores`.
    fn multiply_keys(&self, first: usize, keys: &[f32], scores: OutputTile<'_>) {
        let (depth, panel) = (self.input.head_dim, self.panel);
        let weights = PackedView { data: keys, packed_depth: depth, first: 0, depth, columns: self.tokens, panel };
        GemmTask {
            input: self.queries.skip_rows(first),
            weights,
            first_column: scores.first_column(),
            output: scores,
            initial: InitialValue::Bias(None),
            activation: None,
        }
        .run(self.set);
    }

    /// Multiplies weights by the values of the attended keys.
    fn multiply_values(
        &self,
        attended: &Range<usize>,
        weights: InputMatrix<'_>,
        values: &[f32],
        output: OutputTile<'_>,
    ) {
        let values = PackedView {
            data: values,
            packed_depth: self.tokens,
            first: attended.start,
            depth: attended.len(),
            columns: self.input.head_dim,
            panel: self.panel,
        };
        GemmTask {
            input: weights,
            weights: values,
            first_column: 0,
            output,
            initial: InitialValue::Bias(None),
            activation: None,
        }
        .run(self.set);
    }

    /// Replaces the scores of a query by weights that are not normalised, and returns the factor
    /// that normalises them. Keys that other queries of the block attend to get the weight zero.
    fn softmax(&self, row: &mut [f32], attended: &Range<usize>, keys: Range<usize>) -> f32 {
        #[expect(clippy::cast_precision_loss, reason = "heads have at most 2^14 elements")]
        let factor = 1.0 / (self.input.head_dim as f32).sqrt();
        row.get_mut(attended.start..keys.start).unwrap_or_default().fill(0.0);
        row.get_mut(keys.end..attended.end).unwrap_or_default().fill(0.0);
        self.set.run(SoftmaxRow { scores: row.get_mut(keys).unwrap_or_default(), factor })
    }

    /// Returns the keys that a query attends to.
    fn keys_of(&self, query: usize) -> Range<usize> {
        match self.input.window {
            Some(window) => query.saturating_sub(window)..self.tokens.min(query + window + 1),
            None => 0..self.tokens,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::workers::WorkerPool;

    const HIDDEN: usize = 24;
    const HEAD_DIM: usize = 12;

    fn number(at: usize) -> f32 {
        (at * 7919 % 1999) as f32 / 400.0 - 2.5
    }

    /// Attention of one query and head in f64, by its definition.
    fn expected(qkv: &[f32], tokens: usize, query: usize, head: usize, window: usize) -> Vec<f64> {
        let part = |token: usize, kind: usize| -> Vec<f64> {
            let start = token * 3 * HIDDEN + kind * HIDDEN + head * HEAD_DIM;
            qkv[start..start + HEAD_DIM].iter().map(|value| f64::from(*value)).collect()
        };
        let keys: Vec<usize> = (0..tokens).filter(|key| key.abs_diff(query) <= window).collect();
        let score = |key: &usize| {
            let product: f64 = part(query, 0).iter().zip(part(*key, 1)).map(|(a, b)| a * b).sum();
            (product / (HEAD_DIM as f64).sqrt()).exp()
        };
        let scores: Vec<f64> = keys.iter().map(score).collect();
        let sum: f64 = scores.iter().sum();
        let element = |at: usize| keys.iter().zip(&scores).map(|(key, score)| score / sum * part(*key, 2)[at]).sum();
        (0..HEAD_DIM).map(element).collect()
    }

    #[test]
    fn heads_attend_to_the_keys_of_their_sequence() {
        let workers = WorkerPool::new(2).unwrap();
        let spans = [(0, 1), (1, 60), (61, 7), (68, 130)];
        let qkv: Vec<f32> = (0..198 * 3 * HIDDEN).map(number).collect();
        for (set, window) in InstructionSet::detect().into_iter().flat_map(|set| [(set, None), (set, Some(5))]) {
            let scratch: Vec<_> =
                (0..2).map(|_| Mutex::new(AttentionScratch::new(set, HEAD_DIM, 130).unwrap())).collect();
            let mut attention_output = vec![0.0; 198 * HIDDEN];
            let input = AttentionInput { qkv: &qkv, hidden: HIDDEN, head_dim: HEAD_DIM, window };
            input.run(Device { set, workers: &workers }, &spans, &mut attention_output, &scratch);
            for (start, tokens) in spans {
                let own = &qkv[start * 3 * HIDDEN..];
                for (query, head) in (0..tokens).flat_map(|query| [(query, 0), (query, 1)]) {
                    let found = &attention_output[(start + query) * HIDDEN + head * HEAD_DIM..];
                    let expected = expected(own, tokens, query, head, window.unwrap_or(usize::MAX));
                    for (found, expected) in found.iter().zip(expected) {
                        let error = (f64::from(*found) - expected).abs();
                        assert!(error < 2e-5, "{} {window:?} {tokens}: {found}, {expected}", set.name());
                    }
                }
            }
        }
    }
}
