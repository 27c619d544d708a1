//! Linear layers and layer normalisations with packed weights.

use crate::activation::Activation;
use crate::cpu::kernels::{GemmTask, InitialValue, InputMatrix, NormalizeRows, PackedMatrix};
use crate::cpu::simd::InstructionSet;
use crate::cpu::tiles::{TileGrid, row_spans};
use crate::cpu::workers::WorkerPool;

/// Number of rows of a task: a multiple of the rows of all tiles. Its inputs take 144 KiB for a
/// hidden size of 384, a part of a second-level cache, and a panel of weights is read from memory
/// once for that many rows.
pub(super) const ROW_BLOCK: usize = 96;
/// Number of tasks a thread that are wanted, so that threads end at about the same time.
const TASKS_PER_THREAD: usize = 4;

/// A linear layer: `output = input · weightsᵀ + bias`.
#[derive(Debug)]
pub(super) struct LinearLayer {
    pub(super) weights: PackedMatrix,
    pub(super) bias: Option<Vec<f32>>,
}

/// A layer normalisation.
#[derive(Debug)]
pub(super) struct NormLayer {
    pub(super) scale: Vec<f32>,
    pub(super) shift: Option<Vec<f32>>,
    pub(super) epsilon: f32,
}

/// Kernels and the threads that run them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Device<'a> {
    pub(super) set: InstructionSet,
    pub(super) workers: &'a WorkerPool,
}

/// Rows of results, which begin at multiples of `stride`.
pub(super) struct OutputRows<'a> {
    pub(super) data: &'a mut [f32],
    pub(super) stride: usize,
    pub(super) rows: usize,
}

// === impl LinearLayer ===

impl LinearLayer {
    pub(super) fn bytes(&self) -> usize {
        self.weights.bytes() + self.bias.as_ref().map_or(0, |bias| bias.len() * size_of::<f32>())
    }

    /// Replaces `output` with the results, after an activation function if there is one.
    pub(super) fn apply(
        &self,
        device: Device<'_>,
        input: InputMatrix<'_>,
        output: OutputRows<'_>,
        activation: Option<Activation>,
    ) {
        self.multiply(device, input, output, InitialValue::Bias(self.bias.as_deref()), activation);
    }

    /// Adds the results to `output`.
    pub(super) fn add(&self, device: Device<'_>, input: InputMatrix<'_>, output: OutputRows<'_>) {
        self.multiply(device, input, output, InitialValue::Residual(self.bias.as_deref()), None);
    }

    fn multiply(
        &self,
        device: Device<'_>,
        input: InputMatrix<'_>,
        output: OutputRows<'_>,
        initial: InitialValue<'_>,
        activation: Option<Activation>,
    ) {
        let Device { set, workers } = device;
        let OutputRows { data, stride, rows } = output;
        let spans = row_spans(rows, ROW_BLOCK);
        let (columns, panel) = (self.weights.columns(), set.panel_columns());
        // Few rows are divided by columns too, for all threads to have tasks.
        let wanted = if workers.threads() > 1 { workers.threads() * TASKS_PER_THREAD } else { 1 };
        let blocks = wanted.div_ceil(spans.len().max(1)).min(columns.div_ceil(panel)).max(1);
        let column_block = columns.div_ceil(blocks).next_multiple_of(panel);
        let grid = TileGrid { matrix: data, stride, columns, column_block, spans: &spans };
        grid.run(workers, |output, _| {
            let input = input.skip_rows(output.first_row());
            let (weights, first_column) = (self.weights.view(), output.first_column());
            GemmTask { input, weights, first_column, output, initial, activation }.run(set);
        });
    }
}

// === impl NormLayer ===

impl NormLayer {
    pub(super) fn bytes(&self) -> usize {
        (self.scale.len() + self.shift.as_ref().map_or(0, Vec::len)) * size_of::<f32>()
    }

    /// Normalises rows in place. Each has as many elements as the layer.
    pub(super) fn apply(&self, device: Device<'_>, data: &mut [f32]) {
        let width = self.scale.len();
        let spans = row_spans(data.len() / width, ROW_BLOCK);
        let grid = TileGrid { matrix: data, stride: width, columns: width, column_block: width, spans: &spans };
        grid.run(device.workers, |mut tile, _| self.normalize(device.set, tile.whole_rows()));
    }

    /// Normalises rows in place, on this thread.
    pub(super) fn normalize(&self, set: InstructionSet, rows: &mut [f32]) {
        set.run(NormalizeRows { rows, scale: &self.scale, shift: self.shift.as_deref(), epsilon: self.epsilon });
    }
}
