//! Embeddings of tokens: words, positions and segment types, added and normalised.

use crate::batch::PackedBatch;
use crate::cpu::layers::{EmbeddingTables, EncoderLayers};
use crate::cpu::linear::{Device, ROW_BLOCK};
use crate::cpu::tiles::{TileGrid, row_spans};
use crate::positions::token_positions;

/// Writes the embeddings of a batch into `states`: `hidden` elements a token.
pub(super) fn embed(device: Device<'_>, layers: &EncoderLayers, batch: &PackedBatch, states: &mut [f32]) {
    let hidden = layers.config.hidden;
    let positions = token_positions(&layers.config.positions, batch.ids(), batch.spans().map(|(_, tokens)| tokens));
    let spans = row_spans(batch.tokens(), ROW_BLOCK);
    let grid = TileGrid { matrix: states, stride: hidden, columns: hidden, column_block: hidden, spans: &spans };
    grid.run(device.workers, |mut tile, _| {
        let first = tile.first_row();
        let rows = tile.whole_rows();
        let tokens = batch.ids().iter().zip(batch.type_ids()).zip(&positions).skip(first);
        let mut added = vec![0.0; hidden];
        for (row, ((id, type_id), position)) in rows.chunks_exact_mut(hidden).zip(tokens) {
            layers.embeddings.add_token(*id, *type_id, *position, row, &mut added);
        }
        layers.embeddings.norm.normalize(device.set, rows);
    });
}

// === impl EmbeddingTables ===

impl EmbeddingTables {
    /// Writes the sum of the embeddings of a token. `added` is scratch memory of a row.
    fn add_token(&self, id: u32, type_id: u32, position: usize, row: &mut [f32], added: &mut [f32]) {
        let index = |value: u32| usize::try_from(value).unwrap_or(usize::MAX);
        self.words.read_row(index(id), row);
        // The order of the additions is that of the `transformers` library.
        for (table, at) in [(&self.types, index(type_id)), (&self.positions, position)] {
            if let Some(table) = table {
                table.read_row(at, added);
                row.iter_mut().zip(&*added).for_each(|(sum, value)| *sum += value);
            }
        }
    }
}
