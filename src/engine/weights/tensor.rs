//! A tensor of weights, decoded row by row.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use half::{bf16, f16};
use safetensors::Dtype;

use super::map::FileMap;

/// Type of the numbers of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WeightType {
    F32,
    F16,
    Bf16,
}

/// A tensor of weights in a mapped file, as rows of its last dimension.
#[derive(Clone)]
pub(crate) struct WeightTensor {
    file: Arc<FileMap>,
    bytes: Range<usize>,
    kind: WeightType,
    rows: usize,
    columns: usize,
}

// === impl WeightType ===

impl WeightType {
    /// Returns the type, or the name of one that is not supported.
    pub(super) fn from_dtype(dtype: Dtype) -> Result<Self, String> {
        match dtype {
            Dtype::F32 => Ok(Self::F32),
            Dtype::F16 => Ok(Self::F16),
            Dtype::BF16 => Ok(Self::Bf16),
            other => Err(format!("{other:?}")),
        }
    }

    fn size(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }
}

// === impl WeightTensor ===

impl WeightTensor {
    /// `None` if the bytes do not have the size of the shape.
    pub(super) fn new(file: &Arc<FileMap>, bytes: Range<usize>, kind: WeightType, shape: &[usize]) -> Option<Self> {
        let (columns, rows) = shape.split_last()?;
        let rows = rows.iter().try_fold(1_usize, |product, size| product.checked_mul(*size))?;
        let size = rows.checked_mul(*columns)?.checked_mul(kind.size())?;
        let is_whole = file.bytes().get(bytes.clone())?.len() == size;
        is_whole.then(|| Self { file: Arc::clone(file), bytes, kind, rows, columns: *columns })
    }

    /// Number of rows: the product of all dimensions but the last.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Writes a row as f32 into `row`, which has as many elements. A row beyond the last
    /// one is zero.
    pub(crate) fn read_row(&self, at: usize, row: &mut [f32]) {
        let size = self.columns * self.kind.size();
        let tensor = self.file.bytes().get(self.bytes.clone()).unwrap_or_default();
        let Some(bytes) = at.checked_mul(size).and_then(|start| tensor.get(start..)?.get(..size)) else {
            row.fill(0.0);
            return;
        };
        match self.kind {
            WeightType::F32 => {
                let (numbers, _) = bytes.as_chunks::<4>();
                row.iter_mut().zip(numbers).for_each(|(to, from)| *to = f32::from_le_bytes(*from));
            }
            WeightType::F16 => {
                let (numbers, _) = bytes.as_chunks::<2>();
                row.iter_mut().zip(numbers).for_each(|(to, from)| *to = f16::from_le_bytes(*from).to_f32());
            }
            WeightType::Bf16 => {
                let (numbers, _) = bytes.as_chunks::<2>();
                row.iter_mut().zip(numbers).for_each(|(to, from)| *to = bf16::from_le_bytes(*from).to_f32());
            }
        }
    }

    /// Returns the elements of a vector, or of all rows.
    pub(crate) fn to_vec(&self) -> Vec<f32> {
        let mut all = vec![0.0; self.rows * self.columns];
        if self.columns > 0 {
            all.chunks_exact_mut(self.columns).enumerate().for_each(|(at, row)| self.read_row(at, row));
        }
        all
    }
}

impl fmt::Debug for WeightTensor {
    /// Prints the shape only.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, rows, columns, .. } = self;
        write!(f, "WeightTensor({rows} × {columns} of {kind:?})")
    }
}
