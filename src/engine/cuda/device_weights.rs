//! The weights of an encoder on a device, converted to their storage format once.

use super::device::{DeviceAddress, GpuDevice};
use super::load_error::CudaLoadError;
use super::storage_format::{STORAGE_BYTES, StorageFormat};
use crate::model::Model;
use crate::weights::{EncoderTensors, HeadTensors, LayerTensors, LinearTensors, NormTensors, WeightTensor};

/// Bytes that are converted before they are copied: large enough for the bandwidth of the bus, and
/// small beside any model.
const CHUNK_BYTES: usize = 4 << 20;

/// Addresses of the weights of a linear layer.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct DeviceLinear {
    pub(crate) weight: DeviceAddress,
    pub(crate) bias: DeviceAddress,
    /// Number of results.
    pub(crate) columns: usize,
    /// Number of inputs.
    pub(crate) depth: usize,
}

/// Addresses of the weights of a layer normalisation.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct DeviceNorm {
    pub(crate) gamma: DeviceAddress,
    pub(crate) beta: DeviceAddress,
}

/// Addresses of the weights of one layer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DeviceLayer {
    pub(crate) qkv: DeviceLinear,
    pub(crate) output: DeviceLinear,
    pub(crate) attention_norm: DeviceNorm,
    pub(crate) up: DeviceLinear,
    pub(crate) down: DeviceLinear,
    pub(crate) block_norm: DeviceNorm,
}

/// Addresses of all weights.
#[derive(Debug, Clone)]
pub(crate) struct DeviceWeights {
    pub(crate) words: DeviceAddress,
    pub(crate) positions: DeviceAddress,
    pub(crate) types: DeviceAddress,
    pub(crate) embedding_norm: DeviceNorm,
    pub(crate) layers: Vec<DeviceLayer>,
    /// Dense layer and classifier of the head.
    pub(crate) head: Option<(DeviceLinear, DeviceLinear)>,
}

/// A matrix of weights before it is copied.
#[derive(Debug)]
pub(crate) enum HostMatrix {
    /// Rows of embeddings, and their number of columns.
    Table(WeightTensor, usize),
    /// Weights of a linear layer.
    Linear(LinearTensors),
    /// A row.
    Vector(Vec<f32>),
}

/// Receives the matrices of a model one by one, in an order that is the same each time.
pub(crate) trait WeightSink {
    /// Returns the address of the matrix.
    fn add(&mut self, matrix: HostMatrix) -> Result<DeviceAddress, CudaLoadError>;
}

/// Adds up sizes, before anything is allocated.
#[derive(Debug, Default)]
pub(crate) struct SizeSink {
    /// Size of each matrix in bytes.
    pub(crate) sizes: Vec<usize>,
}

/// Converts matrices and copies them to a device.
pub(crate) struct UploadSink<'a, D> {
    pub(crate) device: &'a mut D,
    pub(crate) storage: StorageFormat,
    /// Addresses of the regions, in the order of the matrices.
    pub(crate) regions: std::slice::Iter<'a, DeviceAddress>,
}

// === impl DeviceWeights ===

impl DeviceWeights {
    /// Passes all matrices of a model to a sink.
    ///
    /// # Errors
    /// A tensor is missing or has another shape, or the sink fails.
    pub(crate) fn place(model: &Model, sink: &mut impl WeightSink) -> Result<Self, CudaLoadError> {
        let config = model.config();
        let hidden = config.hidden;
        let tensors = EncoderTensors::new(model.weights(), config);
        let small = |tensor: Option<WeightTensor>| tensor.map(WeightTensor::load_small);
        let mut table = |tensor: Option<WeightTensor>| {
            // The kernel adds an embedding of each kind. A model without one has a row of zeros.
            let none = || HostMatrix::Vector(vec![0.0; hidden]);
            sink.add(tensor.map_or_else(none, |tensor| HostMatrix::Table(tensor, hidden)))
        };
        let (words, positions, types) =
            (table(Some(tensors.words()?))?, table(small(tensors.positions()?))?, table(small(tensors.types()?))?);
        let embedding_norm = DeviceNorm::place(Some(tensors.embedding_norm()?), hidden, sink)?;
        let layers = (0..config.layers).map(|number| DeviceLayer::place(tensors.layer(number)?, hidden, sink));
        let layers = layers.collect::<Result<_, _>>()?;
        let head = match &config.head {
            Some(head) => {
                let HeadTensors { dense, classifier, .. } = tensors.head(head)?;
                Some((DeviceLinear::place(dense, sink)?, DeviceLinear::place(classifier, sink)?))
            }
            None => None,
        };
        Ok(Self { words, positions, types, embedding_norm, layers, head })
    }
}

// === impl DeviceLayer ===

impl DeviceLayer {
    fn place(tensors: LayerTensors, hidden: usize, sink: &mut impl WeightSink) -> Result<Self, CudaLoadError> {
        Ok(Self {
            qkv: DeviceLinear::place(tensors.qkv, sink)?,
            output: DeviceLinear::place(tensors.output, sink)?,
            attention_norm: DeviceNorm::place(tensors.attention_norm, hidden, sink)?,
            up: DeviceLinear::place(tensors.up, sink)?,
            down: DeviceLinear::place(tensors.down, sink)?,
            block_norm: DeviceNorm::place(Some(tensors.block_norm), hidden, sink)?,
        })
    }
}

// === impl DeviceLinear ===

impl DeviceLinear {
    fn place(mut tensors: LinearTensors, sink: &mut impl WeightSink) -> Result<Self, CudaLoadError> {
        let (columns, depth) = (tensors.columns, tensors.depth);
        let bias = tensors.bias.take().unwrap_or_else(|| vec![0.0; columns]);
        let weight = sink.add(HostMatrix::Linear(tensors))?;
        Ok(Self { weight, bias: sink.add(HostMatrix::Vector(bias))?, columns, depth })
    }
}

// === impl DeviceNorm ===

impl DeviceNorm {
    /// Without a normalisation, factors are one and offsets zero.
    fn place(tensors: Option<NormTensors>, hidden: usize, sink: &mut impl WeightSink) -> Result<Self, CudaLoadError> {
        let (scale, shift) = tensors.map_or((None, None), |norm| (Some(norm.scale), norm.shift));
        let mut add = |values: Option<Vec<f32>>, default| {
            sink.add(HostMatrix::Vector(values.unwrap_or_else(|| vec![default; hidden])))
        };
        Ok(Self { gamma: add(scale, 1.0)?, beta: add(shift, 0.0)? })
    }
}

// === impl HostMatrix ===

impl HostMatrix {
    fn rows(&self) -> usize {
        match self {
            Self::Table(tensor, _) => tensor.rows(),
            Self::Linear(tensors) => tensors.columns,
            Self::Vector(_) => 1,
        }
    }

    fn columns(&self) -> usize {
        match self {
            Self::Table(_, columns) => *columns,
            Self::Linear(tensors) => tensors.depth,
            Self::Vector(values) => values.len(),
        }
    }

    fn read_row(&self, at: usize, row: &mut [f32]) {
        match self {
            Self::Table(tensor, _) => tensor.read_row(at, row),
            Self::Linear(tensors) => tensors.read_row(at, row),
            Self::Vector(values) => row.copy_from_slice(values),
        }
    }
}

// === impl SizeSink ===

impl WeightSink for SizeSink {
    fn add(&mut self, matrix: HostMatrix) -> Result<DeviceAddress, CudaLoadError> {
        self.sizes.push(matrix.rows() * matrix.columns() * STORAGE_BYTES);
        Ok(DeviceAddress::NULL)
    }
}

// === impl UploadSink ===

impl<D: GpuDevice> WeightSink for UploadSink<'_, D> {
    fn add(&mut self, matrix: HostMatrix) -> Result<DeviceAddress, CudaLoadError> {
        let start = *self.regions.next().unwrap_or(&DeviceAddress::NULL);
        let (rows, row_bytes) = (matrix.rows(), matrix.columns() * STORAGE_BYTES);
        let (mut row, mut bytes) = (vec![0.0; matrix.columns()], Vec::new());
        let chunk_rows = (CHUNK_BYTES / row_bytes.max(1)).max(1);
        for first in (0..rows).step_by(chunk_rows) {
            bytes.clear();
            for at in (first..rows).take(chunk_rows) {
                matrix.read_row(at, &mut row);
                bytes.extend(row.iter().flat_map(|value| self.storage.encode(*value)));
            }
            self.device.upload(start.offset(first * row_bytes), &bytes)?;
        }
        Ok(start)
    }
}
