//! Packs tensors for the kernels of an instruction set.

use super::{EncoderLayer, HeadLayers};
use crate::config::HeadConfig;
use crate::cpu::kernels::PackedMatrix;
use crate::cpu::linear::{LinearLayer, NormLayer};
use crate::cpu::simd::InstructionSet;
use crate::error::LoadError;
use crate::weights::{HeadTensors, LayerTensors, LinearTensors, NormTensors};

/// Packs the weights of one model.
#[derive(Debug, Clone, Copy)]
pub(super) struct WeightPacker {
    pub(super) set: InstructionSet,
    pub(super) epsilon: f32,
}

// === impl WeightPacker ===

impl WeightPacker {
    pub(super) fn layer(self, tensors: LayerTensors) -> Result<EncoderLayer, LoadError> {
        Ok(EncoderLayer {
            qkv: self.linear(tensors.qkv)?,
            output: self.linear(tensors.output)?,
            attention_norm: tensors.attention_norm.map(|norm| self.norm(norm)),
            up: self.linear(tensors.up)?,
            down: self.linear(tensors.down)?,
            block_norm: self.norm(tensors.block_norm),
        })
    }

    pub(super) fn head(self, config: &HeadConfig, tensors: HeadTensors) -> Result<HeadLayers, LoadError> {
        Ok(HeadLayers {
            pooling: config.pooling,
            dense: self.linear(tensors.dense)?,
            activation: config.activation,
            norm: tensors.norm.map(|norm| self.norm(norm)),
            classifier: self.linear(tensors.classifier)?,
        })
    }

    pub(super) fn norm(self, tensors: NormTensors) -> NormLayer {
        NormLayer { scale: tensors.scale, shift: tensors.shift, epsilon: self.epsilon }
    }

    fn linear(self, tensors: LinearTensors) -> Result<LinearLayer, LoadError> {
        let (columns, depth) = (tensors.columns, tensors.depth);
        let read_row = |column: usize, row: &mut [f32]| tensors.read_row(column, row);
        let weights = PackedMatrix::from_rows(columns, depth, self.set.panel_columns(), read_row);
        let weights = weights.ok_or_else(|| LoadError {
            file: tensors.name.clone(),
            place: format!("a matrix of {columns} × {depth}"),
            found: "not enough memory".to_owned(),
            expected: "memory for the weights in 32-bit numbers".to_owned(),
            advice: "use a machine or a memory limit of the container with more memory",
        })?;
        Ok(LinearLayer { weights, bias: tensors.bias })
    }
}
