//! The forward pass of an encoder over a packed batch.

use super::arena::{ScratchArena, inner_columns};
use super::attention::AttentionInput;
use super::embed::embed;
use super::kernels::{GateRows, InputMatrix};
use super::layers::{EncoderLayer, EncoderLayers};
use super::linear::{Device, OutputRows, ROW_BLOCK};
use super::output::collect;
use super::simd::InstructionSet;
use super::tiles::{TileGrid, row_spans};
use super::workers::WorkerPool;
use crate::batch::PackedBatch;
use crate::config::PositionScheme;
use crate::executor::SequenceResult;

/// The forward pass of one batch, which was checked.
pub(super) struct ForwardPass<'a> {
    pub(super) set: InstructionSet,
    pub(super) workers: &'a WorkerPool,
    pub(super) layers: &'a EncoderLayers,
    pub(super) batch: &'a PackedBatch,
}

/// The parts of the arena that a batch uses.
struct BatchStates<'a> {
    states: &'a mut [f32],
    attention_output: &'a mut [f32],
    projection: &'a mut [f32],
}

// === impl ForwardPass ===

impl ForwardPass<'_> {
    pub(super) fn run(&self, arena: &mut ScratchArena) -> Vec<SequenceResult> {
        let (tokens, config) = (self.batch.tokens(), &self.layers.config);
        let device = self.device();
        let spans: Vec<(usize, usize)> = self.batch.spans().collect();
        let ScratchArena { states, attention_output, projection, attention } = arena;
        let length = tokens * config.hidden;
        let states = states.as_mut_slice().get_mut(..length).unwrap_or_default();
        let attention_output = attention_output.as_mut_slice().get_mut(..length).unwrap_or_default();
        let mut buffers = BatchStates { states, attention_output, projection: projection.as_mut_slice() };
        embed(device, self.layers, self.batch, buffers.states);
        for (number, layer) in self.layers.layers.iter().enumerate() {
            if self.layers.normalizes_first() {
                self.project_normalized(layer, &mut buffers);
            } else {
                layer.qkv.apply(device, self.rows(buffers.states), self.output(buffers.projection, 3), None);
            }
            let window = self.rotate(number, &spans, buffers.projection);
            let qkv = buffers.projection.get(..3 * length).unwrap_or_default();
            let input = AttentionInput { qkv, hidden: config.hidden, head_dim: config.head_dim(), window };
            input.run(device, &spans, buffers.attention_output, attention);
            let output = self.output(buffers.states, 1);
            layer.output.add(device, self.rows(buffers.attention_output), output);
            if self.layers.normalizes_first() {
                self.gated_block(layer, &mut buffers);
            } else {
                self.plain_block(layer, &mut buffers);
            }
        }
        if let Some(norm) = &self.layers.last_norm {
            norm.apply(device, buffers.states);
        }
        collect(device, self.layers, self.batch, buffers.states, buffers.attention_output)
    }

    fn device(&self) -> Device<'_> {
        Device { set: self.set, workers: self.workers }
    }

    /// Returns rows of hidden states as an input.
    fn rows<'a>(&self, data: &'a [f32]) -> InputMatrix<'a> {
        InputMatrix { data, stride: self.layers.config.hidden }
    }

    /// Returns rows of `parts` hidden states as an output.
    fn output<'a>(&self, data: &'a mut [f32], parts: usize) -> OutputRows<'a> {
        OutputRows { data, stride: parts * self.layers.config.hidden, rows: self.batch.tokens() }
    }

    /// Queries, keys and values of normalised states.
    fn project_normalized(&self, layer: &EncoderLayer, buffers: &mut BatchStates<'_>) {
        let input = match &layer.attention_norm {
            Some(norm) => {
                buffers.attention_output.copy_from_slice(buffers.states);
                norm.apply(self.device(), buffers.attention_output);
                &*buffers.attention_output
            }
            None => &*buffers.states,
        };
        layer.qkv.apply(self.device(), self.rows(input), self.output(buffers.projection, 3), None);
    }

    /// Rotates queries and keys of encoders with rotary embeddings, and returns the window of the
    /// attention of a layer.
    fn rotate(&self, number: usize, spans: &[(usize, usize)], qkv: &mut [f32]) -> Option<usize> {
        let PositionScheme::Rotary(config) = &self.layers.config.positions else { return None };
        let is_local = config.is_local.get(number).copied().unwrap_or(false);
        if let Some(tables) = &self.layers.rotary {
            let hidden = self.layers.config.hidden;
            let stride = 3 * hidden;
            let grid = TileGrid { matrix: qkv, stride, columns: stride, column_block: stride, spans };
            grid.run(self.workers, |mut tile, _| {
                for position in 0..tile.rows() {
                    let row = tile.row(position).get_mut(..2 * hidden).unwrap_or_default();
                    tables.rotate(is_local, position, row);
                }
            });
        }
        is_local.then_some(config.window)
    }

    /// The feed-forward block of BERT, with the normalisations after both residuals.
    fn plain_block(&self, layer: &EncoderLayer, buffers: &mut BatchStates<'_>) {
        let (device, config) = (self.device(), &self.layers.config);
        if let Some(norm) = &layer.attention_norm {
            norm.apply(device, buffers.states);
        }
        let stride = config.intermediate;
        let inner = OutputRows { data: buffers.projection, stride, rows: self.batch.tokens() };
        layer.up.apply(device, self.rows(buffers.states), inner, Some(config.activation));
        let inner = InputMatrix { data: buffers.projection, stride };
        layer.down.add(device, inner, self.output(buffers.states, 1));
        layer.block_norm.apply(device, buffers.states);
    }

    /// The gated feed-forward block of `ModernBERT`, with the normalisation before it.
    fn gated_block(&self, layer: &EncoderLayer, buffers: &mut BatchStates<'_>) {
        let (device, config) = (self.device(), &self.layers.config);
        buffers.attention_output.copy_from_slice(buffers.states);
        layer.block_norm.apply(device, buffers.attention_output);
        let (stride, rows) = (inner_columns(config), self.batch.tokens());
        let inner = OutputRows { data: buffers.projection, stride, rows };
        layer.up.apply(device, self.rows(buffers.attention_output), inner, None);
        let spans = row_spans(rows, ROW_BLOCK);
        let grid =
            TileGrid { matrix: buffers.projection, stride, columns: stride, column_block: stride, spans: &spans };
        grid.run(self.workers, |mut tile, _| {
            let (rows, width, function) = (tile.whole_rows(), config.intermediate, config.activation);
            self.set.run(GateRows { rows, width, function });
        });
        let inner = InputMatrix { data: buffers.projection, stride };
        layer.down.add(device, inner, self.output(buffers.states, 1));
    }
}
