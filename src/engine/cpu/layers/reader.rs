//! Reads tensors by their names and packs them.

use super::names::LayerNames;
use super::{EncoderLayer, HeadLayers};
use crate::config::{Architecture, EncoderConfig, HeadConfig};
use crate::cpu::kernels::PackedMatrix;
use crate::cpu::linear::{LinearLayer, NormLayer};
use crate::cpu::simd::InstructionSet;
use crate::error::LoadError;
use crate::weights::{ModelWeights, WeightTensor};

/// Reads the weights of one model.
pub(super) struct WeightReader<'a> {
    weights: &'a ModelWeights,
    config: &'a EncoderConfig,
    names: &'static LayerNames,
    /// Prefix of the tensors of the encoder in these files.
    prefix: &'static str,
    set: InstructionSet,
}

// === impl WeightReader ===

impl<'a> WeightReader<'a> {
    pub(super) fn new(
        weights: &'a ModelWeights,
        config: &'a EncoderConfig,
        names: &'static LayerNames,
        set: InstructionSet,
    ) -> Self {
        let prefix = config.architecture.tensor_prefix();
        let prefix = if weights.has(&format!("{prefix}{}.weight", names.words)) { prefix } else { "" };
        Self { weights, config, names, prefix, set }
    }

    /// Returns a table of embeddings.
    pub(super) fn table(&self, name: &str, rows: usize) -> Result<WeightTensor, LoadError> {
        self.weights.tensor(&format!("{}{name}.weight", self.prefix), &[rows, self.config.hidden])
    }

    /// Returns a normalisation of the encoder.
    pub(super) fn norm(&self, name: &str) -> Result<NormLayer, LoadError> {
        self.read_norm(&format!("{}{name}", self.prefix))
    }

    pub(super) fn layer(&self, number: usize) -> Result<EncoderLayer, LoadError> {
        let EncoderConfig { hidden, intermediate, architecture, .. } = *self.config;
        let name = |part: &str| format!("{}{}{number}.{part}", self.prefix, self.names.layer);
        let qkv: Vec<String> = self.names.qkv.iter().map(|part| name(part)).collect();
        let is_gated = architecture == Architecture::ModernBert;
        let attention_norm = name(self.names.attention_norm);
        // The first layer of ModernBERT attends to normalised embeddings.
        let is_absent = is_gated && number == 0 && !self.weights.has(&format!("{attention_norm}.weight"));
        Ok(EncoderLayer {
            qkv: self.linear(&qkv, 3 * hidden, hidden)?,
            output: self.linear(&[name(self.names.output)], hidden, hidden)?,
            attention_norm: if is_absent { None } else { Some(self.read_norm(&attention_norm)?) },
            up: self.linear(&[name(self.names.up)], if is_gated { 2 * intermediate } else { intermediate }, hidden)?,
            down: self.linear(&[name(self.names.down)], hidden, intermediate)?,
            block_norm: self.read_norm(&name(self.names.block_norm))?,
        })
    }

    pub(super) fn head(&self, head: &HeadConfig) -> Result<HeadLayers, LoadError> {
        let hidden = self.config.hidden;
        let prefix = if self.names.dense_is_in_encoder { self.prefix } else { "" };
        Ok(HeadLayers {
            pooling: head.pooling,
            dense: self.linear(&[format!("{prefix}{}", self.names.dense)], hidden, hidden)?,
            activation: head.activation,
            norm: self.names.dense_norm.map(|name| self.read_norm(name)).transpose()?,
            classifier: self.linear(&[self.names.classifier.to_owned()], head.labels.len(), hidden)?,
        })
    }

    /// Packs matrices of equal size on top of each other, with `columns` results in total.
    fn linear(&self, names: &[String], columns: usize, depth: usize) -> Result<LinearLayer, LoadError> {
        let each = columns / names.len().max(1);
        let weight = |name: &String| self.weights.tensor(&format!("{name}.weight"), &[each, depth]);
        let tensors = names.iter().map(weight).collect::<Result<Vec<_>, _>>()?;
        let read_row = |column: usize, row: &mut [f32]| {
            if let Some(tensor) = tensors.get(column / each) {
                tensor.read_row(column % each, row);
            }
        };
        let weights = PackedMatrix::from_rows(columns, depth, self.set.panel_columns(), read_row);
        let weights = weights.ok_or_else(|| LoadError {
            file: names.join(", "),
            place: format!("a matrix of {columns} × {depth}"),
            found: "not enough memory".to_owned(),
            expected: "memory for the weights in 32-bit numbers".to_owned(),
            advice: "use a machine or a memory limit of the container with more memory",
        })?;
        let mut bias = Vec::with_capacity(columns);
        for name in names {
            match self.bias(name, each)? {
                Some(part) => bias.extend(part),
                None => break,
            }
        }
        Ok(LinearLayer { weights, bias: (bias.len() == columns).then_some(bias) })
    }

    fn bias(&self, name: &str, columns: usize) -> Result<Option<Vec<f32>>, LoadError> {
        let name = format!("{name}.bias");
        if self.names.has_optional_bias && !self.weights.has(&name) {
            return Ok(None);
        }
        Ok(Some(self.weights.tensor(&name, &[columns])?.to_vec()))
    }

    /// Reads a normalisation. Weights that were converted from TensorFlow have its names, `gamma` and
    /// `beta`.
    fn read_norm(&self, name: &str) -> Result<NormLayer, LoadError> {
        let (width, gamma) = (self.config.hidden, format!("{name}.gamma"));
        let epsilon = self.config.norm_epsilon;
        if self.weights.has(&gamma) {
            let scale = self.weights.tensor(&gamma, &[width])?.to_vec();
            let shift = self.weights.tensor(&format!("{name}.beta"), &[width])?.to_vec();
            return Ok(NormLayer { scale, shift: Some(shift), epsilon });
        }
        let scale = self.weights.tensor(&format!("{name}.weight"), &[width])?.to_vec();
        Ok(NormLayer { scale, shift: self.bias(name, width)?, epsilon })
    }
}
