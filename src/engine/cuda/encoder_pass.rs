//! The operations of a forward pass, in their order.

use super::batch_inputs::{BatchInputs, InputLayout};
use super::device::{DeviceAddress, DeviceOperation, GpuDevice, KernelLaunch, LaunchArgument};
use super::device_weights::{DeviceLayer, DeviceLinear, DeviceWeights};
use super::encoder_kernels::{EncoderKernels, NormShape, ProductKernels, ProductOperands, head_grid, row_grid};
use super::fault::{DeviceError, INVALID_VALUE};
use super::gemm_plans::GemmPlans;
use super::graph_cache::GraphKey;
use super::loaded_kernel::LoadedKernel;
use crate::config::EncoderConfig;

/// Addresses of the memory regions that every batch uses (see `memory_plan`).
#[derive(Debug, Clone, Copy)]
pub(crate) struct DeviceArena {
    /// Hidden states: `tokens × hidden`.
    pub(crate) states: DeviceAddress,
    /// Output of a block plus its residual, before the normalisation.
    sum: DeviceAddress,
    /// Results of the attention.
    pub(crate) mixed: DeviceAddress,
    /// Queries, keys and values, then the inner states of a feed-forward block.
    pub(crate) wide: DeviceAddress,
    /// Inputs of the batch in execution, laid out as [`InputLayout`].
    pub(crate) inputs: DeviceAddress,
    /// Inputs of submitted batches that are copied while another one is executed, by staging area.
    pub(crate) staged: [DeviceAddress; 2],
    /// Pooled vectors: `sequences × hidden` numbers in f32.
    pub(crate) pooled: DeviceAddress,
    /// Results of the dense layer of the head, in f32.
    dense: DeviceAddress,
    /// Logits: `requests × labels` numbers in f32.
    pub(crate) logits: DeviceAddress,
    /// Workspace of a library that multiplies matrices.
    pub(crate) library: DeviceAddress,
}

/// Operations of a forward pass in their order, with the device and the plans that determine
/// whether a product is executed by a kernel or by a library.
struct OperationList<'a, D> {
    device: &'a mut D,
    plans: &'a mut GemmPlans,
    operations: Vec<DeviceOperation>,
}

/// The forward pass of one model on one device.
#[derive(Debug)]
pub(crate) struct EncoderPass {
    pub(crate) config: EncoderConfig,
    pub(crate) kernels: EncoderKernels,
    pub(crate) weights: DeviceWeights,
    pub(crate) arena: DeviceArena,
}

// === impl DeviceArena ===

impl DeviceArena {
    /// Takes the regions in the order of [`super::memory_plan::MemoryPlan::regions`].
    pub(crate) fn new(regions: &[DeviceAddress]) -> Result<Self, DeviceError> {
        let count = regions.len();
        let regions: Result<[DeviceAddress; 11], _> = regions.try_into();
        let Ok([states, sum, mixed, wide, inputs, first, second, pooled, dense, logits, library]) = regions else {
            let detail = format!("{count} regions instead of 11");
            return Err(DeviceError::new("the allocation of memory", INVALID_VALUE, detail));
        };
        Ok(Self { states, sum, mixed, wide, inputs, staged: [first, second], pooled, dense, logits, library })
    }
}

// === impl OperationList ===

impl<D: GpuDevice> OperationList<'_, D> {
    fn push(&mut self, launch: KernelLaunch) {
        self.operations.push(DeviceOperation::Launch(launch));
    }

    /// Adds a product without an activation function, which a library may execute.
    fn multiply(&mut self, kernels: &ProductKernels, operands: ProductOperands) -> Result<(), DeviceError> {
        self.operations.push(self.plans.multiply(self.device, kernels, operands)?);
        Ok(())
    }
}

// === impl EncoderPass ===

impl EncoderPass {
    /// Returns the operations from the inputs of a batch to its hidden states. They depend only on
    /// the shape of the batch, so that a graph of them can be replayed.
    pub(crate) fn encoder_operations(
        &self,
        device: &mut impl GpuDevice,
        plans: &mut GemmPlans,
        inputs: &BatchInputs,
    ) -> Result<Vec<DeviceOperation>, DeviceError> {
        let mut list = OperationList { device, plans, operations: Vec::new() };
        list.push(self.embed(inputs.key, inputs.layout)?);
        for layer in &self.weights.layers {
            self.push_attention(&mut list, layer, inputs)?;
            self.push_feed_forward(&mut list, layer, inputs.key.tokens)?;
        }
        Ok(list.operations)
    }

    /// Returns the launch that adds the embeddings of each token and normalises the sum.
    fn embed(&self, key: GraphKey, layout: InputLayout) -> Result<KernelLaunch, DeviceError> {
        let (inputs, weights, norm) = (self.arena.inputs, &self.weights, self.weights.embedding_norm);
        let ids = [inputs, inputs.offset(layout.positions), inputs.offset(layout.type_ids)];
        let tables = [weights.words, weights.positions, weights.types];
        let mut arguments = [ids, tables].as_flattened().to_vec();
        arguments.extend([norm.gamma, norm.beta, self.arena.states]);
        let mut arguments: Vec<_> = arguments.into_iter().map(LaunchArgument::Address).collect();
        arguments.extend([key.tokens, self.config.hidden].map(LaunchArgument::size));
        arguments.push(LaunchArgument::Float(self.config.norm_epsilon));
        self.kernels.embedding.launch(row_grid(key.tokens), arguments)
    }

    /// Adds the attention block of a layer: queries, keys and values, their attention, the output
    /// with the residual, and its normalisation.
    fn push_attention<D: GpuDevice>(
        &self,
        list: &mut OperationList<'_, D>,
        layer: &DeviceLayer,
        inputs: &BatchInputs,
    ) -> Result<(), DeviceError> {
        let (arena, rows, kernels) = (self.arena, inputs.key.tokens, &self.kernels);
        let operands = ProductOperands {
            input: arena.states,
            layer: layer.qkv,
            residual: DeviceAddress::NULL,
            out: arena.wide,
            rows,
        };
        list.multiply(&kernels.product, operands)?;
        let offsets = arena.inputs.offset(inputs.layout.offsets);
        let tiles = arena.inputs.offset(inputs.layout.tiles);
        let mut arguments = [arena.wide, arena.mixed, offsets, tiles].map(LaunchArgument::Address).to_vec();
        arguments.push(LaunchArgument::size(self.config.heads));
        arguments.push(LaunchArgument::Float(attention_scale(self.config.head_dim())));
        list.push(kernels.attention.launch([inputs.key.tiles, self.config.heads, 1], arguments)?);
        let operands =
            ProductOperands { input: arena.mixed, layer: layer.output, residual: arena.states, out: arena.sum, rows };
        list.multiply(&kernels.residual, operands)?;
        list.push(kernels.normalize(arena.sum, layer.attention_norm, arena.states, rows, self.norm_shape())?);
        Ok(())
    }

    /// Adds the feed-forward block of a layer with its residual, and its normalisation.
    fn push_feed_forward<D: GpuDevice>(
        &self,
        list: &mut OperationList<'_, D>,
        layer: &DeviceLayer,
        rows: usize,
    ) -> Result<(), DeviceError> {
        let (arena, kernels) = (self.arena, &self.kernels);
        let operands = ProductOperands {
            input: arena.states,
            layer: layer.up,
            residual: DeviceAddress::NULL,
            out: arena.wide,
            rows,
        };
        list.push(kernels.activation.multiply(operands)?);
        let operands =
            ProductOperands { input: arena.wide, layer: layer.down, residual: arena.states, out: arena.sum, rows };
        list.multiply(&kernels.residual, operands)?;
        list.push(kernels.normalize(arena.sum, layer.block_norm, arena.states, rows, self.norm_shape())?);
        Ok(())
    }

    /// Returns the launch that pools the hidden states of the first `sequences` sequences.
    pub(crate) fn pool(
        &self,
        kernel: &LoadedKernel,
        inputs: &BatchInputs,
        sequences: usize,
    ) -> Result<KernelLaunch, DeviceError> {
        let (arena, width) = (self.arena, self.config.hidden);
        let offsets = arena.inputs.offset(inputs.layout.offsets);
        let mut arguments = [arena.states, offsets, arena.pooled].map(LaunchArgument::Address).to_vec();
        // Not here: embeddings are scaled by the caller, after they are cut to the requested number
        // of dimensions.
        let normalize = 0;
        arguments.extend([width, width, normalize].map(LaunchArgument::size));
        kernel.launch([sequences, 1, 1], arguments)
    }

    /// Returns the launches of the classification head; none for a model without one.
    pub(crate) fn head_launches(&self, inputs: &BatchInputs) -> Result<Vec<KernelLaunch>, DeviceError> {
        let (Some(kernels), Some((dense_layer, classifier))) = (&self.kernels.head, self.weights.head) else {
            return Ok(Vec::new());
        };
        let (arena, sequences) = (self.arena, inputs.head_rows);
        let rows = arena.inputs.offset(inputs.layout.head_rows);
        let arguments = |input, rows, layer: DeviceLinear, out| {
            let addresses = [input, rows, layer.weight, layer.bias, out].map(LaunchArgument::Address);
            let sizes = [layer.columns, layer.depth].map(LaunchArgument::size);
            addresses.into_iter().chain(sizes).collect()
        };
        let first = arguments(arena.states, rows, dense_layer, arena.dense);
        let second = arguments(arena.dense, DeviceAddress::NULL, classifier, arena.logits);
        Ok(vec![
            kernels.dense.launch(head_grid(dense_layer.columns, sequences), first)?,
            kernels.logits.launch(head_grid(classifier.columns, sequences), second)?,
        ])
    }

    fn norm_shape(&self) -> NormShape {
        NormShape { width: self.config.hidden, epsilon: self.config.norm_epsilon }
    }
}

/// Returns the factor of the scores of a head of this width: 1/√width, as in the definition of the
/// attention, times log₂ e, because the kernel computes the softmax with powers of two.
fn attention_scale(width: usize) -> f32 {
    #[expect(clippy::cast_precision_loss, reason = "a head has at most 128 elements")]
    let width = width as f32;
    std::f32::consts::LOG2_E / width.sqrt()
}
