//! The inputs of a batch as the kernels read them: one block of memory, copied with one operation.

use super::device::to_u32;
use super::graph_cache::{GraphKey, TOKEN_BUCKET};
use crate::batch::{OutputKind, PackedBatch};
use crate::config::PositionScheme;
use crate::positions::token_positions;

/// Rows of a tile of queries of the attention (`attention.cu`).
const QUERY_ROWS: usize = 64;
const INTEGER_BYTES: usize = size_of::<u32>();

/// Sequences that are executed together: a batch, or a part of one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BatchPart<'a> {
    pub(crate) ids: &'a [u32],
    pub(crate) type_ids: &'a [u32],
    /// Number of tokens of each sequence, at least one.
    pub(crate) lengths: &'a [usize],
    pub(crate) kinds: &'a [OutputKind],
}

/// Offsets of the inputs in their block, in bytes. Token ids are at its start.
///
/// All but the last one depend on the shape only, so that a graph reads the inputs of every batch
/// of its shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct InputLayout {
    pub(crate) positions: usize,
    pub(crate) type_ids: usize,
    /// Pairs of a sequence and a query.
    pub(crate) tiles: usize,
    /// First row of each sequence, and the number of rows.
    pub(crate) offsets: usize,
    /// First row of each sequence that requests logits.
    pub(crate) head_rows: usize,
}

/// Inputs of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BatchInputs {
    pub(crate) key: GraphKey,
    pub(crate) layout: InputLayout,
    pub(crate) bytes: Vec<u8>,
    /// Number of sequences that request logits.
    pub(crate) head_rows: usize,
}

// === impl BatchPart ===

impl<'a> BatchPart<'a> {
    /// Returns all sequences of a batch, of which `lengths` are the numbers of tokens.
    pub(crate) fn whole(batch: &'a PackedBatch, lengths: &'a [usize]) -> Self {
        Self { ids: batch.ids(), type_ids: batch.type_ids(), lengths, kinds: batch.kinds() }
    }
}

// === impl InputLayout ===

impl InputLayout {
    fn new(key: GraphKey, sequences: usize) -> Self {
        let row = key.tokens * INTEGER_BYTES;
        let offsets = 3 * row + key.tiles * 2 * INTEGER_BYTES;
        // One more sequence is the padding, and the last offset is the end.
        Self { positions: row, type_ids: 2 * row, tiles: 3 * row, offsets, head_rows: offsets + (sequences + 2) * 4 }
    }

    /// Size of the block for any batch within these limits.
    pub(crate) fn bytes_max(tokens_max: usize, sequences_max: usize) -> usize {
        // Each sequence has at most one tile that is not full.
        let key = GraphKey::new(tokens_max, tokens_max / QUERY_ROWS + sequences_max + 1);
        Self::new(key, sequences_max).head_rows + sequences_max * INTEGER_BYTES
    }
}

// === impl BatchInputs ===

impl BatchInputs {
    /// Lays out a batch of at least one sequence. The tokens of the padding are a sequence of their
    /// own at its end, so that no other one depends on them.
    pub(crate) fn new(part: BatchPart<'_>, scheme: &PositionScheme) -> Self {
        let tokens = part.ids.len();
        let padding = tokens.next_multiple_of(TOKEN_BUCKET) - tokens;
        let mut lengths = part.lengths.to_vec();
        lengths.extend((padding > 0).then_some(padding));
        let mut tiles = query_tiles(&lengths);
        let key = GraphKey::new(tokens, tiles.len());
        tiles.resize(key.tiles, idle_tile(&lengths));
        let mut offsets = row_offsets(&lengths);
        // An offset that nothing reads keeps the layout when there is no padding.
        offsets.resize(part.lengths.len() + 2, to_u32(key.tokens));
        let requested = part.kinds.iter().zip(&offsets).filter(|(kind, _)| **kind == OutputKind::Logits);
        let head_rows: Vec<u32> = requested.map(|(_, row)| *row).collect();

        let positions = token_positions(scheme, part.ids, part.lengths.iter().copied());
        let mut bytes = Vec::new();
        // The padding has token 0 at position 0, of which every model has embeddings.
        append(&mut bytes, part.ids.iter().copied(), key.tokens);
        append(&mut bytes, positions.into_iter().map(to_u32), key.tokens);
        append(&mut bytes, part.type_ids.iter().copied(), key.tokens);
        append(&mut bytes, tiles.into_iter().flatten(), 2 * key.tiles);
        let layout = InputLayout::new(key, part.lengths.len());
        let count = offsets.len();
        append(&mut bytes, offsets.into_iter(), count);
        let count = head_rows.len();
        append(&mut bytes, head_rows.into_iter(), count);
        Self { key, layout, bytes, head_rows: count }
    }
}

/// Appends `count` integers: the given ones, then zeros.
fn append(bytes: &mut Vec<u8>, values: impl Iterator<Item = u32>, count: usize) {
    let padded = values.chain(std::iter::repeat(0)).take(count);
    bytes.extend(padded.flat_map(u32::to_le_bytes));
}

/// Returns the first row of each sequence, and the number of rows.
fn row_offsets(lengths: &[usize]) -> Vec<u32> {
    let mut end = 0;
    let ends = lengths.iter().map(|length| {
        end += length;
        to_u32(end)
    });
    std::iter::once(0).chain(ends).collect()
}

/// Returns all tiles of all sequences: the sequence, and the first query within it.
fn query_tiles(lengths: &[usize]) -> Vec<[u32; 2]> {
    let of_sequence = |(sequence, length): (usize, &usize)| {
        (0..*length).step_by(QUERY_ROWS).map(move |query| [to_u32(sequence), to_u32(query)])
    };
    lengths.iter().enumerate().flat_map(of_sequence).collect()
}

/// Returns a tile that writes nothing: its queries are beyond the end of the shortest sequence.
fn idle_tile(lengths: &[usize]) -> [u32; 2] {
    let shortest = lengths.iter().enumerate().min_by_key(|(_, length)| **length);
    shortest.map_or([0, 0], |(sequence, length)| [to_u32(sequence), to_u32(length.next_multiple_of(QUERY_ROWS))])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inputs(lengths: &[usize]) -> BatchInputs {
        let tokens: usize = lengths.iter().sum();
        let ids: Vec<u32> = (0..tokens).map(|at| to_u32(at) + 1).collect();
        let kinds = [OutputKind::Logits, OutputKind::Embedding];
        let kinds: Vec<OutputKind> = kinds.into_iter().cycle().take(lengths.len()).collect();
        let part = BatchPart { ids: &ids, type_ids: &vec![1; tokens], lengths, kinds: &kinds };
        BatchInputs::new(part, &PositionScheme::Absolute)
    }

    fn integers(inputs: &BatchInputs, start: usize, count: usize) -> Vec<u32> {
        let (all, _) = inputs.bytes.as_chunks::<4>();
        all.iter().skip(start / 4).take(count).map(|bytes| u32::from_le_bytes(*bytes)).collect()
    }

    #[test]
    fn a_batch_is_padded_by_one_more_sequence() {
        let inputs = inputs(&[3, 70]);
        assert_eq!(inputs.key, GraphKey { tokens: 128, tiles: 4 });
        assert_eq!(integers(&inputs, 0, 5), [1, 2, 3, 4, 5]);
        assert_eq!(integers(&inputs, 4 * 72, 3), [73, 0, 0]);
        assert_eq!(integers(&inputs, inputs.layout.positions, 5), [0, 1, 2, 0, 1]);
        assert_eq!(integers(&inputs, inputs.layout.type_ids + 4 * 72, 2), [1, 0]);
        assert_eq!(integers(&inputs, inputs.layout.tiles, 8), [0, 0, 1, 0, 1, 64, 2, 0]);
        assert_eq!(integers(&inputs, inputs.layout.offsets, 4), [0, 3, 73, 128]);
        assert_eq!((inputs.head_rows, integers(&inputs, inputs.layout.head_rows, 9)), (1, vec![0]));
    }

    #[test]
    fn idle_tiles_are_beyond_the_shortest_sequence() {
        let inputs = inputs(&[60, 60, 60, 60, 60, 60, 60, 60, 32]);
        assert_eq!(inputs.key, GraphKey { tokens: 512, tiles: 10 });
        assert_eq!(integers(&inputs, inputs.layout.tiles + 8 * 8, 4), [8, 0, 8, 64]);
        let offsets = integers(&inputs, inputs.layout.offsets, 11);
        assert_eq!(offsets.get(8..), Some([480, 512, 512].as_slice()), "without padding the end is repeated");
        assert_eq!(integers(&inputs, inputs.layout.head_rows, 9), [0, 120, 240, 360, 480]);
    }

    #[test]
    fn the_block_is_large_enough_for_every_batch() {
        for tokens_max in [1, 63, 64, 65, 1000] {
            let limit = InputLayout::bytes_max(tokens_max, tokens_max);
            for length in [1, 2, 17, 63, 64, 65, 999] {
                let mut lengths = vec![length; tokens_max / length];
                lengths.extend(Some(tokens_max % length).filter(|rest| *rest > 0));
                let size = inputs(&lengths).bytes.len();
                assert!(size <= limit, "{size} bytes of {limit} for {tokens_max} tokens in sequences of {length}");
            }
        }
    }
}
