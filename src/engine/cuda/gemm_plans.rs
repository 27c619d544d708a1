//! The choice between the kernels of this crate and a library, for each shape of a product.
//!
//! A plan is made once for each shape: the choice of an algorithm takes about as long as a
//! launch. Products with an activation function stay with the kernels, because cuBLASLt has only
//! the approximation of GELU by tanh.

use std::collections::BTreeMap;

use super::device::{DeviceAddress, DeviceOperation, GpuDevice};
use super::encoder_kernels::{ProductKernels, ProductOperands};
use super::fault::DeviceError;
use super::gemm_provider::{GemmCall, GemmPlan, GemmShape};

/// Maximum number of shapes: three products for each number of tokens up to 16 384, in steps of
/// 64. Products of further shapes are executed by the kernels.
const SHAPES_MAX: usize = 3 * 256;

/// The plans of a library by shape.
#[derive(Debug, Default)]
pub(crate) struct GemmPlans {
    /// The region that products may write; `None` if no library is used.
    workspace: Option<DeviceAddress>,
    /// `None` for a shape for which the library has no algorithm.
    plans: BTreeMap<GemmShape, Option<GemmPlan>>,
    /// Shapes of which the kernels execute products with any number of rows.
    excluded: Vec<GemmShape>,
}

// === impl GemmPlans ===

impl GemmPlans {
    /// Creates the plans of the library of the device, with this workspace; without one, no library
    /// is used.
    pub(crate) fn new(workspace: Option<DeviceAddress>) -> Self {
        Self { workspace, plans: BTreeMap::new(), excluded: Vec::new() }
    }

    /// Leaves products with the weight and the residual of this one to the kernels.
    pub(crate) fn exclude(&mut self, kernels: &ProductKernels, operands: ProductOperands) {
        self.excluded.push(shape_of(kernels, operands));
    }

    /// Ends the use of the library. Returns `false` if none was used.
    pub(crate) fn disable(&mut self) -> bool {
        self.plans.clear();
        self.workspace.take().is_some()
    }

    /// Returns the operation of a product: of the library if it has an algorithm, else of a kernel.
    pub(crate) fn multiply(
        &mut self,
        device: &mut impl GpuDevice,
        kernels: &ProductKernels,
        operands: ProductOperands,
    ) -> Result<DeviceOperation, DeviceError> {
        let Some((plan, workspace)) = self.find(device, shape_of(kernels, operands))?.zip(self.workspace) else {
            return kernels.multiply(operands).map(DeviceOperation::Launch);
        };
        let ProductOperands { input, layer, residual, out, .. } = operands;
        let (weight, bias) = (layer.weight, layer.bias);
        Ok(DeviceOperation::Multiply(GemmCall { plan, input, weight, bias, residual, out, workspace }))
    }

    /// Returns the plan of a shape, if the library has one.
    fn find(&mut self, device: &mut impl GpuDevice, shape: GemmShape) -> Result<Option<GemmPlan>, DeviceError> {
        let is_excluded = self.excluded.iter().any(|excluded| GemmShape { rows: shape.rows, ..*excluded } == shape);
        if self.workspace.is_none() || is_excluded {
            return Ok(None);
        }
        if let Some(known) = self.plans.get(&shape) {
            return Ok(*known);
        }
        let Some(provider) = device.gemm_provider().filter(|_| self.plans.len() < SHAPES_MAX) else {
            return Ok(None);
        };
        let plan = match provider.plan(shape) {
            Err(error) if error.is_fatal() => return Err(error),
            // A library that cannot plan a shape has no plan for it.
            planned => planned.ok().flatten(),
        };
        self.plans.insert(shape, plan);
        Ok(plan)
    }
}

/// Returns the shape of a product. A library multiplies in the format of the kernels.
fn shape_of(kernels: &ProductKernels, operands: ProductOperands) -> GemmShape {
    let ProductOperands { layer, residual, rows, .. } = operands;
    let has_residual = residual != DeviceAddress::NULL;
    GemmShape { rows, columns: layer.columns, depth: layer.depth, has_residual, storage: kernels.storage() }
}
