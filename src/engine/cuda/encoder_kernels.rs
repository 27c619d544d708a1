//! The kernels of an encoder, loaded for one model, and the launches of each.

use super::device::{DeviceAddress, GpuDevice, KernelLaunch, LaunchArgument};
use super::device_weights::{DeviceLinear, DeviceNorm};
use super::fault::DeviceError;
use super::loaded_kernel::LoadedKernel;
use super::model_support::KernelChoice;
use super::storage_format::StorageFormat;

/// Rows of a block of the normalisations, and columns of one of the heads: a warp each.
const BLOCK_WARPS: usize = 4;
/// Rows and columns of the tiles of products.
const SMALL_TILE: usize = 64;
const LARGE_TILE: usize = 128;

/// Kernels that a model needs.
#[derive(Debug)]
pub(crate) struct EncoderKernels {
    /// Format of all weights and activations.
    pub(crate) storage: StorageFormat,
    pub(crate) embedding: LoadedKernel,
    pub(crate) norm: LoadedKernel,
    /// Product with a bias.
    pub(crate) product: ProductKernels,
    /// Product with a bias and a residual.
    pub(crate) residual: ProductKernels,
    /// Product with a bias and the activation function.
    pub(crate) activation: ProductKernels,
    pub(crate) attention: LoadedKernel,
    pub(crate) pooling: LoadedKernel,
    pub(crate) head: Option<HeadKernels>,
}

/// Kernels of a classification head.
#[derive(Debug)]
pub(crate) struct HeadKernels {
    /// Returns the hidden state that the head reads, to check that it is finite.
    pub(crate) input: LoadedKernel,
    pub(crate) dense: LoadedKernel,
    pub(crate) logits: LoadedKernel,
}

/// A product with tiles of two sizes. Its results have the same bits with both.
#[derive(Debug)]
pub(crate) struct ProductKernels {
    small: LoadedKernel,
    large: LoadedKernel,
    multiprocessors: usize,
}

/// Operands of a product.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ProductOperands {
    pub(crate) input: DeviceAddress,
    pub(crate) layer: DeviceLinear,
    /// Null for a product without a residual.
    pub(crate) residual: DeviceAddress,
    pub(crate) out: DeviceAddress,
    pub(crate) rows: usize,
}

/// Width of the rows of a normalisation, and its epsilon.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NormShape {
    pub(crate) width: usize,
    pub(crate) epsilon: f32,
}

// === impl EncoderKernels ===

impl EncoderKernels {
    /// Loads the kernels.
    ///
    /// # Errors
    /// The driver does not accept one.
    pub(crate) fn load(device: &mut impl GpuDevice, choice: KernelChoice, has_head: bool) -> Result<Self, DeviceError> {
        let KernelChoice { storage, attention, activation, pooling } = choice;
        let head = if has_head {
            Some(HeadKernels {
                input: LoadedKernel::load(device, "pool_first", storage)?,
                dense: LoadedKernel::load(device, "head_dense_tanh", storage)?,
                logits: LoadedKernel::load(device, "head_logits", storage)?,
            })
        } else {
            None
        };
        Ok(Self {
            storage,
            embedding: LoadedKernel::load(device, "embedding_layer_norm", storage)?,
            norm: LoadedKernel::load(device, "residual_layer_norm", storage)?,
            product: ProductKernels::load(device, ["gemm_bias_64", "gemm_bias_128"], storage)?,
            residual: ProductKernels::load(device, ["gemm_bias_residual_64", "gemm_bias_residual_128"], storage)?,
            activation: ProductKernels::load(device, activation, storage)?,
            attention: LoadedKernel::load(device, attention, storage)?,
            pooling: LoadedKernel::load(device, pooling, storage)?,
            head,
        })
    }

    /// Returns the launch of a normalisation of rows to which a residual was added.
    pub(crate) fn normalize(
        &self,
        input: DeviceAddress,
        norm: DeviceNorm,
        out: DeviceAddress,
        rows: usize,
        shape: NormShape,
    ) -> Result<KernelLaunch, DeviceError> {
        let mut arguments =
            [input, DeviceAddress::NULL, norm.gamma, norm.beta, out].map(LaunchArgument::Address).to_vec();
        arguments.extend([LaunchArgument::size(rows), LaunchArgument::size(shape.width)]);
        arguments.push(LaunchArgument::Float(shape.epsilon));
        self.norm.launch(row_grid(rows), arguments)
    }
}

// === impl ProductKernels ===

impl ProductKernels {
    fn load(device: &mut impl GpuDevice, names: [&str; 2], storage: StorageFormat) -> Result<Self, DeviceError> {
        let [small, large] = names;
        let small = LoadedKernel::load(device, small, storage)?;
        let large = LoadedKernel::load(device, large, storage)?;
        let multiprocessors = usize::try_from(device.properties().multiprocessors).unwrap_or(usize::MAX);
        Ok(Self { small, large, multiprocessors })
    }

    /// Format of the operands and of the result.
    pub(crate) fn storage(&self) -> StorageFormat {
        self.small.storage()
    }

    /// Returns the launch of a product.
    pub(crate) fn multiply(&self, operands: ProductOperands) -> Result<KernelLaunch, DeviceError> {
        let ProductOperands { input, layer, residual, out, rows } = operands;
        let DeviceLinear { weight, bias, columns, depth } = layer;
        let mut arguments = [input, weight, bias, residual, out].map(LaunchArgument::Address).to_vec();
        arguments.extend([rows, columns, depth].map(LaunchArgument::size));
        let tile = choose_tile(rows, columns, self.multiprocessors);
        let kernel = if tile == LARGE_TILE { &self.large } else { &self.small };
        kernel.launch([columns.div_ceil(tile), rows.div_ceil(tile), 1], arguments)
    }
}

/// Returns the rows and columns of the tiles of a product. A large tile reads each operand half as
/// often, but only pays if there are enough of them for all multiprocessors.
fn choose_tile(rows: usize, columns: usize, multiprocessors: usize) -> usize {
    let large = rows.div_ceil(LARGE_TILE) * columns.div_ceil(LARGE_TILE);
    if large >= multiprocessors { LARGE_TILE } else { SMALL_TILE }
}

/// Returns the grid of a layer of the head.
pub(crate) fn head_grid(columns: usize, sequences: usize) -> [usize; 3] {
    [columns.div_ceil(BLOCK_WARPS), sequences, 1]
}

/// Returns the grid of an operation with a warp for each row.
pub(crate) fn row_grid(rows: usize) -> [usize; 3] {
    [rows.div_ceil(BLOCK_WARPS), 1, 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_tiles_are_for_products_that_fill_the_device() {
        assert_eq!(choose_tile(64, 1152, 132), SMALL_TILE);
        assert_eq!(choose_tile(1024, 2304, 132), LARGE_TILE);
        assert_eq!(choose_tile(64, 64, 1), LARGE_TILE);
    }
}
