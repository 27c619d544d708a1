//! Division of a matrix into disjoint tiles, which tasks write concurrently.

#![expect(unsafe_code, reason = "tiles of one matrix share its rows, which slices cannot express")]

use std::marker::PhantomData;
use std::ops::Range;

use crate::cpu::workers::WorkerPool;

/// A part of a matrix: some columns of some rows. No other tile has any of its elements.
#[derive(Debug)]
pub(super) struct OutputTile<'a> {
    /// The first element of the tile.
    start: *mut f32,
    /// Distance between the starts of two rows, in elements.
    stride: usize,
    first_row: usize,
    rows: usize,
    first_column: usize,
    columns: usize,
    matrix: PhantomData<&'a mut [f32]>,
}

/// Division of a matrix into tiles, one for each span of rows and each block of columns.
pub(super) struct TileGrid<'a> {
    /// The matrix, row by row.
    pub(super) matrix: &'a mut [f32],
    /// Distance between the starts of two rows, in elements.
    pub(super) stride: usize,
    /// Number of columns that are divided, at most `stride`.
    pub(super) columns: usize,
    /// Number of columns of a tile.
    pub(super) column_block: usize,
    /// First row and number of rows of each row of tiles, in ascending order.
    pub(super) spans: &'a [(usize, usize)],
}

/// The start of a matrix, shared by the tasks that write disjoint tiles of it.
struct MatrixStart(*mut f32);

// SAFETY: tasks derive disjoint tiles from the pointer, and f32 can be sent to other threads.
unsafe impl Sync for MatrixStart {}

// === impl MatrixStart ===

impl MatrixStart {
    fn get(&self) -> *mut f32 {
        self.0
    }
}

// === impl TileGrid ===

impl TileGrid<'_> {
    /// Runs a task for each tile. The second argument of the task is the number of the worker that
    /// runs it.
    ///
    /// # Panics
    /// The spans or columns are not within the matrix, or spans overlap: a bug in the caller.
    pub(super) fn run(self, workers: &WorkerPool, task: impl Fn(OutputTile<'_>, usize) + Sync) {
        let Self { matrix, stride, columns, column_block, spans } = self;
        let mut end = 0;
        for (first, rows) in spans {
            assert!(*first >= end && columns <= stride, "tiles overlap");
            end = first + rows;
        }
        assert!(end.checked_mul(stride).is_some_and(|size| size <= matrix.len()), "tiles outside of the matrix");
        let blocks = columns.div_ceil(column_block);
        let start = MatrixStart(matrix.as_mut_ptr());
        workers.run(spans.len() * blocks, |at, worker| {
            let Some((first_row, rows)) = spans.get(at / blocks).copied() else { return };
            let first_column = at % blocks * column_block;
            // SAFETY: the first element of the tile is within the matrix, as asserted above.
            let start = unsafe { start.get().add(first_row * stride + first_column) };
            let columns = column_block.min(columns - first_column);
            task(OutputTile { start, stride, first_row, rows, first_column, columns, matrix: PhantomData }, worker);
        });
    }
}

// === impl OutputTile ===

impl<'a> OutputTile<'a> {
    /// Creates a tile of rows that begin at multiples of `stride`, in a matrix that nothing else
    /// uses.
    ///
    /// # Panics
    /// The rows or columns are not within the matrix: a bug in the caller.
    pub(super) fn of_matrix(matrix: &'a mut [f32], stride: usize, rows: usize, columns: Range<usize>) -> Self {
        assert!(columns.start <= columns.end && columns.end <= stride, "columns outside of the matrix");
        assert!(rows * stride <= matrix.len(), "rows outside of the matrix");
        let start = matrix.as_mut_ptr().wrapping_add(columns.start);
        let (first_column, columns) = (columns.start, columns.len());
        Self { start, stride, first_row: 0, rows, first_column, columns, matrix: PhantomData }
    }

    /// First row of the matrix.
    pub(super) fn first_row(&self) -> usize {
        self.first_row
    }

    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    /// First column of the matrix.
    pub(super) fn first_column(&self) -> usize {
        self.first_column
    }

    pub(super) fn columns(&self) -> usize {
        self.columns
    }

    /// Returns the pointer to the first element, and the distance between the starts of two rows.
    pub(super) fn as_mut_ptr(&mut self) -> (*mut f32, usize) {
        (self.start, self.stride)
    }

    /// Returns a row of the tile.
    ///
    /// # Panics
    /// The tile does not have the row.
    pub(super) fn row(&mut self, row: usize) -> &mut [f32] {
        assert!(row < self.rows, "row outside of the tile");
        // SAFETY: the row is within the matrix.
        let start = unsafe { self.start.add(row * self.stride) };
        // SAFETY: the row has these elements, and no other tile has any of them.
        unsafe { std::slice::from_raw_parts_mut(start, self.columns) }
    }

    /// Returns all elements of a tile that is as wide as the matrix.
    ///
    /// # Panics
    /// The tile is not as wide.
    pub(super) fn whole_rows(&mut self) -> &mut [f32] {
        assert!(self.columns == self.stride, "tile narrower than the matrix");
        // SAFETY: the rows are within the matrix and adjacent, and no other tile has any of them.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.rows * self.stride) }
    }

    /// Returns the part of a tile with some of its rows.
    ///
    /// # Panics
    /// The tile does not have the rows.
    pub(super) fn part(&mut self, first: usize, rows: usize) -> OutputTile<'_> {
        assert!(first <= self.rows && rows <= self.rows - first, "rows outside of the tile");
        // SAFETY: the first row is within the tile, or its end if there are no rows.
        let start = unsafe { self.start.add(first * self.stride) };
        OutputTile { start, first_row: self.first_row + first, rows, matrix: PhantomData, ..*self }
    }
}

/// Divides rows into spans of at most `block` rows.
pub(super) fn row_spans(rows: usize, block: usize) -> Vec<(usize, usize)> {
    (0..rows).step_by(block).map(|first| (first, block.min(rows - first))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_is_in_one_tile() {
        let workers = WorkerPool::new(2).unwrap();
        let mut matrix = vec![0.0; 7 * 10];
        let spans = [(0, 2), (3, 3)];
        let grid = TileGrid { matrix: &mut matrix, stride: 10, columns: 9, column_block: 4, spans: &spans };
        grid.run(&workers, |mut tile, _| {
            for row in 0..tile.rows {
                let value = (100 * tile.first_row + tile.first_column) as f32;
                tile.row(row).iter_mut().for_each(|element| *element += 1.0 + value);
            }
        });
        let row = |value: f32| [vec![value; 4], vec![value + 4.0; 4], vec![value + 8.0], vec![0.0]].concat();
        let (first, second, empty) = (row(1.0), row(301.0), vec![0.0; 10]);
        assert_eq!(matrix, [&*first, &first, &empty, &second, &second, &second, &empty].concat());
    }

    #[test]
    fn rows_are_divided_completely() {
        assert_eq!(row_spans(7, 3), [(0, 3), (3, 3), (6, 1)]);
        assert_eq!(row_spans(0, 3), []);
    }

    #[test]
    #[should_panic(expected = "tiles overlap")]
    fn overlapping_spans_are_refused() {
        let workers = WorkerPool::new(1).unwrap();
        let spans = [(0, 2), (1, 1)];
        TileGrid { matrix: &mut [0.0; 8], stride: 2, columns: 2, column_block: 2, spans: &spans }
            .run(&workers, |_, _| {});
    }
}
