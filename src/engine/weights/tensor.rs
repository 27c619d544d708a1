//! A tensor of weights, decoded row by row.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use half::{bf16, f16};
use safetensors::Dtype;

use super::file::WeightFile;

/// Maximum size of a table that is kept in memory: 1024 positions of 1024 elements in F32. Most
/// encoders have 512 positions.
const LOADED_BYTES_MAX: usize = 4 << 20;

/// Type of the numbers of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WeightType {
    F32,
    F16,
    Bf16,
}

/// A tensor of weights in a file, as rows of its last dimension.
#[derive(Clone)]
pub(crate) struct WeightTensor {
    file: Arc<WeightFile>,
    /// Position of the first row in the file.
    start: u64,
    dtype: WeightType,
    rows: usize,
    columns: usize,
    /// All rows, if they are kept in memory.
    loaded: Option<Arc<[u8]>>,
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
    pub(super) fn new(file: &Arc<WeightFile>, bytes: Range<u64>, dtype: WeightType, shape: &[usize]) -> Option<Self> {
        let (columns, rows) = shape.split_last()?;
        let rows = rows.iter().try_fold(1_usize, |product, size| product.checked_mul(*size))?;
        let size = rows.checked_mul(*columns)?.checked_mul(dtype.size())?;
        let is_whole = bytes.end <= file.bytes() && bytes.end.checked_sub(bytes.start)? == u64::try_from(size).ok()?;
        let (file, start) = (Arc::clone(file), bytes.start);
        is_whole.then_some(Self { file, start, dtype, rows, columns: *columns, loaded: None })
    }

    /// Reads all rows into memory if they are few: for tables of which every token needs a row.
    pub(crate) fn load_small(mut self) -> Self {
        let size = self.rows * self.columns * self.dtype.size();
        if size <= LOADED_BYTES_MAX {
            let mut bytes = vec![0; size];
            self.loaded = self.file.read(self.start, &mut bytes).ok().map(|()| bytes.into());
        }
        self
    }

    /// Number of rows: the product of all dimensions but the last.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Writes a row as f32 into `row`, which has as many elements.
    ///
    /// A row beyond the last one is zero. If the file was truncated since it was opened, or cannot
    /// be read, the row is not a number, so that results are refused as not finite, and
    /// [`super::ModelWeights::check_reads`] has the reason.
    pub(crate) fn read_row(&self, at: usize, row: &mut [f32]) {
        if at >= self.rows {
            row.fill(0.0);
            return;
        }
        let Some(bytes) = self.row_bytes(at) else {
            row.fill(f32::NAN);
            return;
        };
        match self.dtype {
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

    fn row_bytes(&self, at: usize) -> Option<Cow<'_, [u8]>> {
        let size = self.columns * self.dtype.size();
        if let Some(loaded) = &self.loaded {
            return Some(loaded.get(at * size..)?.get(..size)?.into());
        }
        let mut bytes = vec![0; size];
        let start = self.start.checked_add(u64::try_from(at * size).ok()?)?;
        self.file.read(start, &mut bytes).ok()?;
        Some(bytes.into())
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
        let Self { dtype, rows, columns, .. } = self;
        write!(f, "WeightTensor({rows} × {columns} of {dtype:?})")
    }
}
