//! Matrices in the layout of the matrix multiplication.
//!
//! The columns are divided into panels of two vectors. A panel has, for each row of the matrix, its
//! elements of that row, so that a tile reads it from start to end (Goto and van de Geijn, *Anatomy
//! of High-Performance Matrix Multiplication*, 2008). The last panel is filled with zeros.

use crate::cpu::aligned::AlignedBuffer;

/// A matrix of `depth` rows that was packed once.
#[derive(Debug, Default)]
pub(in crate::cpu) struct PackedMatrix {
    data: AlignedBuffer,
    depth: usize,
    columns: usize,
    panel: usize,
}

/// A packed matrix in memory of others.
#[derive(Debug, Clone, Copy)]
pub(in crate::cpu) struct PackedView<'a> {
    pub(in crate::cpu) data: &'a [f32],
    /// Number of packed rows.
    pub(in crate::cpu) packed_depth: usize,
    /// First row that is used.
    pub(in crate::cpu) first: usize,
    /// Number of rows that are used: of elements that are multiplied and added for each result.
    pub(in crate::cpu) depth: usize,
    /// Number of columns: of results.
    pub(in crate::cpu) columns: usize,
    /// Number of columns of a panel.
    pub(in crate::cpu) panel: usize,
}

// === impl PackedMatrix ===

impl PackedMatrix {
    /// Packs the transpose of a matrix, as weights of linear layers are stored: its `columns` rows
    /// have `depth` elements each. `read_row` writes one of them. `None` without memory.
    pub(in crate::cpu) fn from_rows(
        columns: usize,
        depth: usize,
        panel: usize,
        mut read_row: impl FnMut(usize, &mut [f32]),
    ) -> Option<Self> {
        let mut data = AlignedBuffer::new(packed_len(columns, depth, panel)?)?;
        let mut row = vec![0.0; depth];
        for column in 0..columns {
            read_row(column, &mut row);
            write_column(data.as_mut_slice(), &row, column, panel);
        }
        Some(Self { data, depth, columns, panel })
    }

    pub(in crate::cpu) fn view(&self) -> PackedView<'_> {
        let Self { depth, columns, panel, .. } = *self;
        PackedView { data: self.data.as_slice(), packed_depth: depth, first: 0, depth, columns, panel }
    }

    pub(in crate::cpu) fn columns(&self) -> usize {
        self.columns
    }

    pub(in crate::cpu) fn bytes(&self) -> usize {
        self.data.bytes()
    }
}

/// Number of elements of a packed matrix.
pub(in crate::cpu) fn packed_len(columns: usize, depth: usize, panel: usize) -> Option<usize> {
    columns.checked_next_multiple_of(panel)?.checked_mul(depth)
}

/// Writes a row of the transpose as a column of the packed matrix.
#[inline]
fn write_column(packed: &mut [f32], row: &[f32], column: usize, panel: usize) {
    let start = column / panel * panel * row.len() + column % panel;
    let places = packed.get_mut(start..).unwrap_or_default().iter_mut().step_by(panel);
    places.zip(row).for_each(|(to, from)| *to = *from);
}

/// Packs the transpose of rows of `depth` elements, which begin at multiples of `stride`. Elements
/// of the last panel beyond the columns keep their values.
pub(in crate::cpu) fn pack_rows(rows: &[f32], stride: usize, depth: usize, panel: usize, packed: &mut [f32]) {
    for (column, row) in rows.chunks(stride).enumerate() {
        write_column(packed, row.get(..depth).unwrap_or_default(), column, panel);
    }
}

/// Packs rows of `columns` elements, which begin at multiples of `stride`, as they are.
pub(in crate::cpu) fn pack_columns(rows: &[f32], stride: usize, columns: usize, panel: usize, packed: &mut [f32]) {
    let depth = rows.len().div_ceil(stride);
    for (at, row) in rows.chunks(stride).enumerate() {
        let row = row.get(..columns).unwrap_or_default();
        for (piece, start) in row.chunks(panel).zip((at * panel..).step_by(panel * depth)) {
            let to = packed.get_mut(start..start + piece.len()).unwrap_or_default();
            to.iter_mut().zip(piece).for_each(|(to, from)| *to = *from);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Element of a packed matrix.
    fn element(packed: &[f32], depth: usize, panel: usize, row: usize, column: usize) -> f32 {
        packed[column / panel * panel * depth + row * panel + column % panel]
    }

    #[test]
    fn both_directions_of_packing_have_the_same_layout() {
        let (depth, columns, panel, stride) = (5, 11, 4, 7);
        // `value` of row and column of the packed matrix.
        let value = |row: usize, column: usize| (row * 100 + column) as f32;
        let mut transpose = vec![-1.0; columns * stride];
        let mut plain = vec![-1.0; depth * 13];
        for (row, column) in (0..depth).flat_map(|row| (0..columns).map(move |column| (row, column))) {
            transpose[column * stride + row] = value(row, column);
            plain[row * 13 + column] = value(row, column);
        }
        let length = packed_len(columns, depth, panel).unwrap();
        let (mut by_rows, mut by_columns) = (vec![0.0; length], vec![0.0; length]);
        pack_rows(&transpose, stride, depth, panel, &mut by_rows);
        pack_columns(&plain, 13, columns, panel, &mut by_columns);
        assert_eq!(by_rows, by_columns);
        let read_row = |column: usize, row: &mut [f32]| row.copy_from_slice(&transpose[column * stride..][..depth]);
        let once = PackedMatrix::from_rows(columns, depth, panel, read_row).unwrap();
        assert_eq!(once.view().data, by_rows);
        let elements: Vec<f32> = (10..12).map(|column| element(&by_rows, depth, panel, 3, column)).collect();
        assert_eq!(elements, [310.0, 0.0]);
    }
}
