//! The interface of libraries that multiply matrices in place of the kernels of this crate.
//!
//! A library chooses its algorithm by the number of rows, so that the bits of a row depend on its
//! batch. It is used only where that is allowed.

use super::device_address::DeviceAddress;
use super::fault::DeviceError;
use super::storage_format::StorageFormat;

/// A library that multiplies matrices in a storage format, with sums in 32-bit floating point, in
/// the stream of the kernels.
pub trait GemmProvider {
    /// Returns the name of the library, with its version.
    fn name(&self) -> String;

    /// Size of the region that every product may write, in bytes.
    fn workspace_bytes(&self) -> usize;

    /// Chooses the algorithm for products of a shape. `None` if the library has none.
    ///
    /// # Errors
    /// The library has failed.
    fn plan(&mut self, shape: GemmShape) -> Result<Option<GemmPlan>, DeviceError>;

    /// Launches a product.
    ///
    /// # Errors
    /// There is no such plan, or the launch is refused.
    fn multiply(&mut self, call: &GemmCall) -> Result<(), DeviceError>;
}

/// Shape of a product of an input with the transpose of a weight, plus a bias, and the format of
/// its numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct GemmShape {
    /// Rows of the input and of the result.
    pub rows: usize,
    /// Rows of the weight, which are columns of the result.
    pub columns: usize,
    /// Columns of the input and of the weight.
    pub depth: usize,
    /// `true` if a matrix is added, in the shape of the result.
    pub has_residual: bool,
    /// Format of all matrices.
    pub storage: StorageFormat,
}

/// A plan of a provider, by its number. Plans live as long as their provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GemmPlan(pub usize);

/// A product. All matrices are stored by rows, without gaps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GemmCall {
    /// The plan of its shape.
    pub plan: GemmPlan,
    /// The input.
    pub input: DeviceAddress,
    /// The weight, as a linear layer of `PyTorch` stores it.
    pub weight: DeviceAddress,
    /// A number for each column of the result.
    pub bias: DeviceAddress,
    /// The matrix that is added; null if the shape has none.
    pub residual: DeviceAddress,
    /// The result. It overlaps no other matrix.
    pub out: DeviceAddress,
    /// A region of the size that the provider states.
    pub workspace: DeviceAddress,
}
