//! The weights of an encoder, packed once.

mod packer;

use self::packer::WeightPacker;
use super::linear::{LinearLayer, NormLayer};
use super::rotary::RotaryTables;
use super::simd::InstructionSet;
use crate::activation::Activation;
use crate::config::{Architecture, EncoderConfig, HeadPooling, PositionScheme, RotaryConfig};
use crate::error::LoadError;
use crate::model::Model;
use crate::pooling::Pooling;
use crate::weights::{EncoderTensors, WeightTensor};

/// An encoder with packed weights.
#[derive(Debug)]
pub(super) struct EncoderLayers {
    pub(super) config: EncoderConfig,
    pub(super) pooling: Pooling,
    pub(super) embeddings: EmbeddingTables,
    pub(super) layers: Vec<EncoderLayer>,
    /// Normalisation after the last layer, of encoders that normalise before each block.
    pub(super) last_norm: Option<NormLayer>,
    pub(super) head: Option<HeadLayers>,
    pub(super) rotary: Option<RotaryTables>,
}

/// Embeddings, in the files of the weights; small tables in memory.
#[derive(Debug)]
pub(super) struct EmbeddingTables {
    pub(super) words: WeightTensor,
    pub(super) positions: Option<WeightTensor>,
    pub(super) types: Option<WeightTensor>,
    pub(super) norm: NormLayer,
}

/// One layer: attention and a feed-forward block.
#[derive(Debug)]
pub(super) struct EncoderLayer {
    /// Queries, keys and values, in this order.
    pub(super) qkv: LinearLayer,
    pub(super) output: LinearLayer,
    /// After the attention and its residual in BERT; before the attention in `ModernBERT`, whose
    /// first layer has none.
    pub(super) attention_norm: Option<NormLayer>,
    pub(super) up: LinearLayer,
    pub(super) down: LinearLayer,
    /// After the feed-forward block and its residual in BERT; before the block in `ModernBERT`.
    pub(super) block_norm: NormLayer,
}

/// The classification head.
#[derive(Debug)]
pub(super) struct HeadLayers {
    pub(super) pooling: HeadPooling,
    pub(super) dense: LinearLayer,
    pub(super) activation: Activation,
    pub(super) norm: Option<NormLayer>,
    pub(super) classifier: LinearLayer,
}

// === impl EncoderLayers ===

impl EncoderLayers {
    /// Packs the weights of a model. `sequence_max` is the maximum number of tokens of a sequence.
    pub(super) fn pack(model: &Model, set: InstructionSet, sequence_max: usize) -> Result<Self, LoadError> {
        let (config, weights) = (model.config().clone(), model.weights());
        let tensors = EncoderTensors::new(weights, &config);
        let packer = WeightPacker { set, epsilon: config.norm_epsilon };
        let embeddings = EmbeddingTables {
            words: tensors.words()?,
            positions: tensors.positions()?.map(WeightTensor::load_small),
            types: tensors.types()?.map(WeightTensor::load_small),
            norm: packer.norm(tensors.embedding_norm()?),
        };
        let layers = (0..config.layers).map(|layer| packer.layer(tensors.layer(layer)?)).collect::<Result<_, _>>()?;
        let last_norm = tensors.last_norm()?.map(|norm| packer.norm(norm));
        let head = config.head.as_ref().map(|head| packer.head(head, tensors.head(head)?)).transpose()?;
        let rotary = match &config.positions {
            PositionScheme::Rotary(rotary) => Some(rotary_tables(model, rotary, sequence_max)?),
            PositionScheme::Absolute | PositionScheme::AfterPadding { .. } => None,
        };
        weights.check_reads()?;
        Ok(Self { pooling: model.pooling(), config, embeddings, layers, last_norm, head, rotary })
    }

    /// Returns `true` if layers normalise before their blocks and gate their feed-forward blocks.
    pub(super) fn normalizes_first(&self) -> bool {
        self.config.architecture == Architecture::ModernBert
    }

    /// Size of the packed weights in bytes.
    pub(super) fn bytes(&self) -> usize {
        let layers: usize = self.layers.iter().map(EncoderLayer::bytes).sum();
        let head = self.head.as_ref().map_or(0, |head| head.dense.bytes() + head.classifier.bytes());
        let rotary = self.rotary.as_ref().map_or(0, RotaryTables::bytes);
        layers + head + rotary + self.embeddings.norm.bytes()
    }
}

// === impl EncoderLayer ===

impl EncoderLayer {
    fn bytes(&self) -> usize {
        let linear = [&self.qkv, &self.output, &self.up, &self.down].map(LinearLayer::bytes);
        let norms = self.attention_norm.as_ref().map_or(0, NormLayer::bytes) + self.block_norm.bytes();
        linear.iter().sum::<usize>() + norms
    }
}

fn rotary_tables(model: &Model, config: &RotaryConfig, positions: usize) -> Result<RotaryTables, LoadError> {
    RotaryTables::new(config, model.config().head_dim(), positions).ok_or_else(|| LoadError {
        file: model.name().to_owned(),
        place: format!("the rotary embeddings of {positions} positions"),
        found: "not enough memory".to_owned(),
        expected: "memory for a number for each position and element of a head".to_owned(),
        advice: "choose fewer tokens a batch, or a memory limit of the container with more memory",
    })
}
