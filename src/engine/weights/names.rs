//! Names of the tensors of each architecture, as the `transformers` library writes them.

use crate::config::Architecture;

/// Names of tensors without the prefix of the encoder.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LayerNames {
    pub(crate) words: &'static str,
    pub(crate) positions: Option<&'static str>,
    pub(crate) types: Option<&'static str>,
    pub(crate) embedding_norm: &'static str,
    /// Prefix of a layer, before its number.
    pub(crate) layer: &'static str,
    /// Projections of queries, keys and values: one matrix, or three.
    pub(crate) qkv: &'static [&'static str],
    pub(crate) output: &'static str,
    pub(crate) attention_norm: &'static str,
    pub(crate) up: &'static str,
    pub(crate) down: &'static str,
    pub(crate) block_norm: &'static str,
    pub(crate) last_norm: Option<&'static str>,
    /// `true` if linear layers and normalisations may lack a bias.
    pub(crate) has_optional_bias: bool,
    /// Names of the head: a dense layer, its normalisation, and the classifier. The pooler of BERT
    /// belongs to the encoder.
    pub(crate) dense: &'static str,
    pub(crate) dense_is_in_encoder: bool,
    pub(crate) dense_norm: Option<&'static str>,
    pub(crate) classifier: &'static str,
}

const BERT: LayerNames = LayerNames {
    words: "embeddings.word_embeddings",
    positions: Some("embeddings.position_embeddings"),
    types: Some("embeddings.token_type_embeddings"),
    embedding_norm: "embeddings.LayerNorm",
    layer: "encoder.layer.",
    qkv: &["attention.self.query", "attention.self.key", "attention.self.value"],
    output: "attention.output.dense",
    attention_norm: "attention.output.LayerNorm",
    up: "intermediate.dense",
    down: "output.dense",
    block_norm: "output.LayerNorm",
    last_norm: None,
    has_optional_bias: false,
    dense: "pooler.dense",
    dense_is_in_encoder: true,
    dense_norm: None,
    classifier: "classifier",
};

const ROBERTA: LayerNames =
    LayerNames { dense: "classifier.dense", dense_is_in_encoder: false, classifier: "classifier.out_proj", ..BERT };

const DISTIL_BERT: LayerNames = LayerNames {
    types: None,
    layer: "transformer.layer.",
    qkv: &["attention.q_lin", "attention.k_lin", "attention.v_lin"],
    output: "attention.out_lin",
    attention_norm: "sa_layer_norm",
    up: "ffn.lin1",
    down: "ffn.lin2",
    block_norm: "output_layer_norm",
    dense: "pre_classifier",
    dense_is_in_encoder: false,
    ..BERT
};

const MODERN_BERT: LayerNames = LayerNames {
    words: "embeddings.tok_embeddings",
    positions: None,
    types: None,
    embedding_norm: "embeddings.norm",
    layer: "layers.",
    qkv: &["attn.Wqkv"],
    output: "attn.Wo",
    attention_norm: "attn_norm",
    up: "mlp.Wi",
    down: "mlp.Wo",
    block_norm: "mlp_norm",
    last_norm: Some("final_norm"),
    has_optional_bias: true,
    dense: "head.dense",
    dense_is_in_encoder: false,
    dense_norm: Some("head.norm"),
    classifier: "classifier",
};

// === impl LayerNames ===

impl LayerNames {
    pub(crate) fn of(architecture: Architecture) -> &'static Self {
        match architecture {
            Architecture::Bert => &BERT,
            Architecture::Roberta | Architecture::XlmRoberta => &ROBERTA,
            Architecture::DistilBert => &DISTIL_BERT,
            Architecture::ModernBert => &MODERN_BERT,
        }
    }
}
