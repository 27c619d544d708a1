//! Matrix multiplication of rows by packed weights.
//!
//! The *depth* of a product is the number of elements that are multiplied and added for each
//! element of its result. Every element is one chain of multiplications and additions in the order
//! of the depth, beginning with its initial value. Neither the number of rows nor the position of a
//! row among them changes the chain, so that the result of a row does not depend on other rows, bit
//! for bit.
//!
//! The loops are those of Goto and van de Geijn (see `pack`): a block of the depth, a panel of the
//! weights, and a tile of rows. A tile is multiplied in registers, and the part of the panel stays
//! in the first-level cache while all tiles of rows are multiplied by it.

#![expect(unsafe_code, reason = "tiles are read and written by pointers")]
#![expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "the pointers of a tile have one condition, stated by `Tile`"
)]

use super::activate::ActivateTile;
use super::pack::PackedView;
use crate::activation::Activation;
use crate::cpu::simd::{InstructionSet, Simd, SimdOperation};
use crate::cpu::tiles::OutputTile;

/// Maximum depth of a block. Its part of a panel of AVX2 (16 KiB) and the inputs of a tile (6 KiB)
/// stay in a first-level cache of 32 KiB.
const DEPTH_BLOCK_MAX: usize = 256;
/// Elements of the largest tile: 12 rows of two vectors of AVX-512.
const TILE_ELEMENTS_MAX: usize = 12 * 2 * 16;

/// Rows of input, which begin at multiples of `stride`.
#[derive(Debug, Clone, Copy)]
pub(in crate::cpu) struct InputMatrix<'a> {
    pub(in crate::cpu) data: &'a [f32],
    pub(in crate::cpu) stride: usize,
}

/// Values to which the products are added. A bias has one number for each column.
#[derive(Debug, Clone, Copy)]
pub(in crate::cpu) enum InitialValue<'a> {
    /// The bias, or zero.
    Bias(Option<&'a [f32]>),
    /// The values that the output has, plus the bias if there is one.
    Residual(Option<&'a [f32]>),
}

/// Multiplication of rows by some columns of the weights, as many as the output has.
pub(in crate::cpu) struct GemmTask<'a> {
    pub(in crate::cpu) input: InputMatrix<'a>,
    pub(in crate::cpu) weights: PackedView<'a>,
    /// First column of the weights that is used. A panel begins there.
    pub(in crate::cpu) first_column: usize,
    pub(in crate::cpu) output: OutputTile<'a>,
    pub(in crate::cpu) initial: InitialValue<'a>,
    /// Function that is applied to the results.
    pub(in crate::cpu) activation: Option<Activation>,
}

/// A tile for one block of the depth. Its pointers are valid for `rows` rows of at least `depth`
/// inputs, for `depth` rows of a panel (two vectors each), and for `rows` rows of at least
/// `columns` outputs.
struct Tile<'a> {
    input: *const f32,
    input_stride: usize,
    panel: *const f32,
    depth: usize,
    output: *mut f32,
    output_stride: usize,
    rows: usize,
    /// Number of columns, at most two vectors.
    columns: usize,
    /// `true` if the products are added to the values of the output.
    adds_output: bool,
    /// Bias to add; empty for none. Columns beyond its end have 0.
    bias: &'a [f32],
}

/// Multiplication of a tile with all columns of its panel. The number of rows is a constant, so that
/// the compiler keeps its sums in registers. It is a separate function for each instruction set:
/// inlined into its caller, it would share the registers with the caller's values.
struct TileTask<'a, const ROWS: usize>(&'a Tile<'a>);

// === impl InputMatrix ===

impl<'a> InputMatrix<'a> {
    /// Returns the rows after the first ones.
    #[must_use]
    pub(in crate::cpu) fn skip_rows(self, rows: usize) -> Self {
        Self { data: self.data.get(rows * self.stride..).unwrap_or_default(), ..self }
    }
}

// === impl GemmTask ===

impl GemmTask<'_> {
    /// Multiplies.
    ///
    /// # Panics
    /// The shapes do not fit, or the weights are packed for another instruction set: a bug in the
    /// caller.
    pub(in crate::cpu) fn run(mut self, set: InstructionSet) {
        let PackedView { data, packed_depth, first: skipped, depth, columns, panel } = self.weights;
        let (rows, first, input_stride) = (self.output.rows(), self.first_column, self.input.stride);
        // Number of columns of the result.
        let width = self.output.columns();
        if rows == 0 || depth == 0 {
            return;
        }
        assert!(panel == set.panel_columns() && first.is_multiple_of(panel), "weights are packed for other vectors");
        assert!(first + width <= columns, "weights have too few columns");
        assert!((rows - 1) * input_stride + depth <= self.input.data.len(), "too few inputs");
        assert!(skipped + depth <= packed_depth, "weights have too few rows");
        assert!(columns.next_multiple_of(panel) * packed_depth <= data.len(), "weights are incomplete");
        let (output, output_stride) = self.output.as_mut_ptr();
        // The blocks have equal depths, except that the last one may have less.
        let (tile_rows, block_max) = (set.tile_rows(), depth.div_ceil(depth.div_ceil(DEPTH_BLOCK_MAX)));
        for begin in (0..depth).step_by(block_max) {
            let block = block_max.min(depth - begin);
            let is_last = begin + block == depth;
            for column in (0..width).step_by(panel) {
                for row in (0..rows).step_by(tile_rows) {
                    // The first block begins with the initial value, and later ones add to the
                    // sums that the output has.
                    // SAFETY: all offsets are within the inputs, weights and outputs, by the
                    // assertions above and the bounds of the loops.
                    let tile = unsafe {
                        Tile {
                            input: self.input.data.as_ptr().add(row * input_stride + begin),
                            input_stride,
                            panel: data.as_ptr().add((first + column) * packed_depth + (skipped + begin) * panel),
                            depth: block,
                            output: output.add(row * output_stride + column),
                            output_stride,
                            rows: tile_rows.min(rows - row),
                            columns: panel.min(width - column),
                            adds_output: begin > 0 || matches!(self.initial, InitialValue::Residual(_)),
                            bias: self.initial.bias(begin, first + column),
                        }
                    };
                    tile.multiply(set);
                    if let Some(function) = self.activation.filter(|_| is_last) {
                        let columns = column..column + tile.columns;
                        set.run(ActivateTile { tile: self.output.part(row, tile.rows), columns, function });
                    }
                }
            }
        }
    }
}

// === impl InitialValue ===

impl<'a> InitialValue<'a> {
    /// Returns the bias from a column on if the block that begins at `begin` is the first one;
    /// later blocks add none.
    #[inline(always)]
    fn bias(self, begin: usize, column: usize) -> &'a [f32] {
        match self {
            Self::Bias(Some(bias)) | Self::Residual(Some(bias)) if begin == 0 => bias.get(column..).unwrap_or_default(),
            _ => &[],
        }
    }
}

// === impl Tile ===

impl Tile<'_> {
    fn multiply(&self, set: InstructionSet) {
        if self.columns < set.panel_columns() {
            return self.multiply_in_copy(set);
        }
        macro_rules! by_rows {
            ($($rows:literal)*) => {
                match self.rows {
                    $($rows => set.run(TileTask::<$rows>(self)),)*
                    _ => unreachable!("no instruction set has larger tiles"),
                }
            };
        }
        by_rows!(1 2 3 4 5 6 7 8 9 10 11 12);
    }

    /// Multiplies a tile that has fewer columns than its panel, in a copy that has all.
    fn multiply_in_copy(&self, set: InstructionSet) {
        let (mut copy, panel) = ([0.0_f32; TILE_ELEMENTS_MAX], set.panel_columns());
        assert!(self.rows * panel <= TILE_ELEMENTS_MAX, "no instruction set has larger tiles");
        for (row, copied) in copy.chunks_exact_mut(panel).take(self.rows).enumerate() {
            // SAFETY: the output has the row, with fewer elements than `copied`.
            unsafe {
                self.output.add(row * self.output_stride).copy_to_nonoverlapping(copied.as_mut_ptr(), self.columns);
            }
        }
        Tile { output: copy.as_mut_ptr(), output_stride: panel, columns: panel, ..*self }.multiply(set);
        for (row, copied) in copy.chunks_exact(panel).take(self.rows).enumerate() {
            // SAFETY: as above.
            unsafe {
                self.output.add(row * self.output_stride).copy_from_nonoverlapping(copied.as_ptr(), self.columns);
            }
        }
    }
}

// === impl TileTask ===

impl<const ROWS: usize> SimdOperation for TileTask<'_, ROWS> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        // Both are constants, so the code of larger tiles is removed by the compiler.
        assert!(ROWS <= S::TILE_ROWS, "tile larger than the registers");
        let tile = self.0;
        assert!(tile.columns == 2 * S::LANES, "a tile without all columns of its panel");
        let bias = [simd.load(tile.bias), simd.load(tile.bias.get(S::LANES..).unwrap_or_default())];
        let mut sums = [bias; ROWS];
        // The loops have few instructions, so that the compiler unrolls them and keeps the sums in
        // registers: an array with an index that varies is written to memory after each
        // multiplication.
        // SAFETY: the tile has the rows.
        let outputs: [*mut f32; ROWS] = std::array::from_fn(|row| unsafe { tile.output.add(row * tile.output_stride) });
        if tile.adds_output {
            for (sums, output) in sums.iter_mut().zip(&outputs) {
                // SAFETY: the row has two vectors.
                let (low, high) = unsafe { (simd.load_at(*output), simd.load_at(output.add(S::LANES))) };
                *sums = [simd.add(sums[0], low), simd.add(sums[1], high)];
            }
        }
        multiply_add(simd, tile, &mut sums);
        for (sums, output) in sums.iter().zip(&outputs) {
            // SAFETY: the row has two vectors.
            unsafe {
                simd.store_at(sums[0], *output);
                simd.store_at(sums[1], output.add(S::LANES));
            }
        }
    }
}

/// Adds the products of the inputs and the weights to the sums.
#[inline(always)]
fn multiply_add<S: Simd, const ROWS: usize>(simd: S, tile: &Tile<'_>, sums: &mut [[S::Vector; 2]; ROWS]) {
    // SAFETY: the tile has the rows.
    let inputs: [*const f32; ROWS] = std::array::from_fn(|row| unsafe { tile.input.add(row * tile.input_stride) });
    let mut weights = tile.panel;
    // Offsets are added to pointers and not to other offsets, because the release profile checks
    // additions of integers for overflow.
    for depth in 0..tile.depth {
        // SAFETY: the panel has two vectors for each element of the depth, and each row as many
        // inputs.
        unsafe {
            let (low, high) = (simd.load_at(weights), simd.load_at(weights.add(S::LANES)));
            for (sums, input) in sums.iter_mut().zip(&inputs) {
                let input = simd.splat(*input.add(depth));
                sums[0] = simd.mul_add(input, low, sums[0]);
                sums[1] = simd.mul_add(input, high, sums[1]);
            }
            weights = weights.add(2 * S::LANES);
        }
    }
}
