//! The tensors of an encoder by their roles, whatever the architecture names them.

use super::names::LayerNames;
use super::{ModelWeights, WeightTensor};
use crate::config::{Architecture, EncoderConfig, HeadConfig, PositionScheme};
use crate::error::LoadError;

/// Reads the tensors of one model.
pub(crate) struct EncoderTensors<'a> {
    weights: &'a ModelWeights,
    config: &'a EncoderConfig,
    names: &'static LayerNames,
    /// Prefix of the tensors of the encoder in these files.
    prefix: &'static str,
}

/// Weights and biases of a linear layer: matrices of equal size on top of each other.
#[derive(Debug)]
pub(crate) struct LinearTensors {
    /// Names of the matrices, for messages.
    pub(crate) name: String,
    parts: Vec<WeightTensor>,
    /// Rows of each matrix.
    part_rows: usize,
    /// Number of results: the rows of all matrices.
    pub(crate) columns: usize,
    /// Number of inputs.
    pub(crate) depth: usize,
    pub(crate) bias: Option<Vec<f32>>,
}

/// Factors and offsets of a layer normalisation.
#[derive(Debug)]
pub(crate) struct NormTensors {
    pub(crate) scale: Vec<f32>,
    pub(crate) shift: Option<Vec<f32>>,
}

/// Tensors of one layer.
#[derive(Debug)]
pub(crate) struct LayerTensors {
    /// Queries, keys and values, in this order.
    pub(crate) qkv: LinearTensors,
    pub(crate) output: LinearTensors,
    /// The first layer of `ModernBERT` has none.
    pub(crate) attention_norm: Option<NormTensors>,
    pub(crate) up: LinearTensors,
    pub(crate) down: LinearTensors,
    pub(crate) block_norm: NormTensors,
}

/// Tensors of a classification head.
#[derive(Debug)]
pub(crate) struct HeadTensors {
    pub(crate) dense: LinearTensors,
    pub(crate) norm: Option<NormTensors>,
    pub(crate) classifier: LinearTensors,
}

// === impl EncoderTensors ===

impl<'a> EncoderTensors<'a> {
    pub(crate) fn new(weights: &'a ModelWeights, config: &'a EncoderConfig) -> Self {
        let names = LayerNames::of(config.architecture);
        let prefix = config.architecture.tensor_prefix();
        let prefix = if weights.has(&format!("{prefix}{}.weight", names.words)) { prefix } else { "" };
        Self { weights, config, names, prefix }
    }

    /// Checks that every tensor exists and has the shape and a type that an executor needs.
    pub(crate) fn check(&self) -> Result<(), LoadError> {
        self.words()?;
        self.positions()?;
        self.types()?;
        self.embedding_norm()?;
        for number in 0..self.config.layers {
            self.layer(number)?;
        }
        self.last_norm()?;
        if let Some(head) = &self.config.head {
            self.head(head)?;
        }
        Ok(())
    }

    /// Returns the embeddings of words.
    pub(crate) fn words(&self) -> Result<WeightTensor, LoadError> {
        self.table(self.names.words, self.config.vocabulary)
    }

    /// Returns the embeddings of positions. The table has those that are skipped.
    pub(crate) fn positions(&self) -> Result<Option<WeightTensor>, LoadError> {
        let rows = match self.config.positions {
            PositionScheme::AfterPadding { padding } => {
                let skipped = usize::try_from(padding).unwrap_or(usize::MAX).saturating_add(1);
                skipped.saturating_add(self.config.positions_max)
            }
            PositionScheme::Absolute | PositionScheme::Rotary(_) => self.config.positions_max,
        };
        self.names.positions.map(|name| self.table(name, rows)).transpose()
    }

    /// Returns the embeddings of segment types.
    pub(crate) fn types(&self) -> Result<Option<WeightTensor>, LoadError> {
        self.names.types.map(|name| self.table(name, self.config.types)).transpose()
    }

    pub(crate) fn embedding_norm(&self) -> Result<NormTensors, LoadError> {
        self.norm(&format!("{}{}", self.prefix, self.names.embedding_norm))
    }

    /// Returns the normalisation after the last layer, of encoders that normalise before each
    /// block.
    pub(crate) fn last_norm(&self) -> Result<Option<NormTensors>, LoadError> {
        self.names.last_norm.map(|name| self.norm(&format!("{}{name}", self.prefix))).transpose()
    }

    pub(crate) fn layer(&self, number: usize) -> Result<LayerTensors, LoadError> {
        let EncoderConfig { hidden, intermediate, architecture, .. } = *self.config;
        let name = |part: &str| format!("{}{}{number}.{part}", self.prefix, self.names.layer);
        let qkv: Vec<String> = self.names.qkv.iter().map(|part| name(part)).collect();
        let is_gated = architecture == Architecture::ModernBert;
        let attention_norm = name(self.names.attention_norm);
        // The first layer of ModernBERT attends to normalised embeddings.
        let is_absent = is_gated && number == 0 && !self.weights.has(&format!("{attention_norm}.weight"));
        Ok(LayerTensors {
            qkv: self.linear(&qkv, 3 * hidden, hidden)?,
            output: self.linear(&[name(self.names.output)], hidden, hidden)?,
            attention_norm: if is_absent { None } else { Some(self.norm(&attention_norm)?) },
            up: self.linear(&[name(self.names.up)], if is_gated { 2 * intermediate } else { intermediate }, hidden)?,
            down: self.linear(&[name(self.names.down)], hidden, intermediate)?,
            block_norm: self.norm(&name(self.names.block_norm))?,
        })
    }

    pub(crate) fn head(&self, head: &HeadConfig) -> Result<HeadTensors, LoadError> {
        let hidden = self.config.hidden;
        let prefix = if self.names.dense_is_in_encoder { self.prefix } else { "" };
        Ok(HeadTensors {
            dense: self.linear(&[format!("{prefix}{}", self.names.dense)], hidden, hidden)?,
            norm: self.names.dense_norm.map(|name| self.norm(name)).transpose()?,
            classifier: self.linear(&[self.names.classifier.to_owned()], head.labels.len(), hidden)?,
        })
    }

    fn table(&self, name: &str, rows: usize) -> Result<WeightTensor, LoadError> {
        self.weights.tensor(&format!("{}{name}.weight", self.prefix), &[rows, self.config.hidden])
    }

    fn linear(&self, names: &[String], columns: usize, depth: usize) -> Result<LinearTensors, LoadError> {
        let part_rows = columns / names.len().max(1);
        let weight = |name: &String| self.weights.tensor(&format!("{name}.weight"), &[part_rows, depth]);
        let parts = names.iter().map(weight).collect::<Result<Vec<_>, _>>()?;
        let mut bias = Vec::with_capacity(columns);
        for name in names {
            match self.bias(name, part_rows)? {
                Some(part) => bias.extend(part),
                None => break,
            }
        }
        let bias = (bias.len() == columns).then_some(bias);
        Ok(LinearTensors { name: names.join(", "), parts, part_rows, columns, depth, bias })
    }

    fn bias(&self, name: &str, columns: usize) -> Result<Option<Vec<f32>>, LoadError> {
        let name = format!("{name}.bias");
        if self.names.has_optional_bias && !self.weights.has(&name) {
            return Ok(None);
        }
        Ok(Some(self.weights.tensor(&name, &[columns])?.to_vec()))
    }

    /// Reads a normalisation. Weights that were converted from TensorFlow have its names, `gamma`
    /// and `beta`.
    fn norm(&self, name: &str) -> Result<NormTensors, LoadError> {
        let (width, gamma) = (self.config.hidden, format!("{name}.gamma"));
        if self.weights.has(&gamma) {
            let scale = self.weights.tensor(&gamma, &[width])?.to_vec();
            let shift = self.weights.tensor(&format!("{name}.beta"), &[width])?.to_vec();
            return Ok(NormTensors { scale, shift: Some(shift) });
        }
        let scale = self.weights.tensor(&format!("{name}.weight"), &[width])?.to_vec();
        Ok(NormTensors { scale, shift: self.bias(name, width)? })
    }
}

// === impl LinearTensors ===

impl LinearTensors {
    /// Writes the weights of a result as f32 into `row`, which has `depth` elements.
    pub(crate) fn read_row(&self, column: usize, row: &mut [f32]) {
        if let Some(part) = self.parts.get(column / self.part_rows) {
            part.read_row(column % self.part_rows, row);
        }
    }
}
