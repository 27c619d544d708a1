//! The shape of an encoder, read from `config.json`.

mod architecture;
mod head;
mod modern;

pub use self::architecture::Architecture;
pub use self::head::{HeadConfig, HeadPooling};
pub use self::modern::RotaryConfig;

use crate::activation::Activation;
use crate::error::LoadError;
use crate::json::JsonFile;

/// Maximum number of elements of a hidden state: four times that of the largest published encoder
/// of these architectures (XLM-RoBERTa XXL, 4096).
const HIDDEN_MAX: usize = 16_384;
/// Maximum number of elements of a query or key of one head: four times that of the widest heads in
/// use (Gemma, 256). Tables of rotary embeddings grow with it.
const HEAD_DIM_MAX: usize = 1024;
/// Maximum number of layers: about five times that of the deepest one (XLM-RoBERTa XXL, 48).
const LAYERS_MAX: usize = 256;
/// Maximum number of elements between the two matrices of a feed-forward block: four times
/// [`HIDDEN_MAX`], the ratio of the BERT paper.
const INTERMEDIATE_MAX: usize = 4 * HIDDEN_MAX;
/// Maximum number of tokens of a vocabulary: four times the largest in use (mT5 and Gemma,
/// 256 000).
const VOCABULARY_MAX: usize = 1 << 20;
/// Maximum number of positions: four times the longest context of published encoders (32 768).
pub(crate) const POSITIONS_MAX: usize = 1 << 17;
/// Maximum number of segment types. BERT has 2.
const TYPES_MAX: usize = 1024;

/// Shape of an encoder.
#[derive(Debug, Clone, PartialEq)]
pub struct EncoderConfig {
    /// Architecture of the layers.
    pub architecture: Architecture,
    /// Number of elements of a hidden state.
    pub hidden: usize,
    /// Number of layers.
    pub layers: usize,
    /// Number of attention heads. It divides `hidden`.
    pub heads: usize,
    /// Number of elements between the two matrices of a feed-forward block.
    pub intermediate: usize,
    /// Number of tokens with an embedding.
    pub vocabulary: usize,
    /// Number of segment types with an embedding; 0 without such embeddings.
    pub types: usize,
    /// Epsilon of the layer normalisations.
    pub norm_epsilon: f32,
    /// Activation function of the feed-forward blocks.
    pub activation: Activation,
    /// Source of the order of tokens.
    pub positions: PositionScheme,
    /// Maximum number of tokens of a sequence for which there are positions.
    pub positions_max: usize,
    /// Classification head; `None` for an encoder alone.
    pub head: Option<HeadConfig>,
}

/// Source of the order of tokens.
#[derive(Debug, Clone, PartialEq)]
pub enum PositionScheme {
    /// A learned embedding for each position, from 0.
    Absolute,
    /// As `Absolute`, counted from `padding + 1`. A token with the id `padding` does not count, and
    /// has the position `padding` (`RoBERTa` in the `transformers` library).
    AfterPadding {
        /// Id of the padding token.
        padding: u32,
    },
    /// Rotary embeddings of queries and keys.
    Rotary(RotaryConfig),
}

// === impl EncoderConfig ===

impl EncoderConfig {
    /// Number of elements of a query, key or value of one head.
    #[must_use]
    pub fn head_dim(&self) -> usize {
        self.hidden / self.heads
    }

    /// Reads `config.json`.
    pub(crate) fn parse(file: &JsonFile) -> Result<Self, LoadError> {
        let (architecture, has_head) = Architecture::parse(file)?;
        let config = match architecture {
            Architecture::Bert | Architecture::Roberta | Architecture::XlmRoberta => parse_bert(file, architecture)?,
            Architecture::DistilBert => parse_distil(file)?,
            Architecture::ModernBert => modern::parse(file)?,
        };
        if config.hidden % config.heads != 0 {
            let expected = format!("a divisor of the hidden size, {}", config.hidden);
            return Err(file.error(architecture.heads_field(), &expected, "use the `config.json` of the model"));
        }
        if config.head_dim() > HEAD_DIM_MAX {
            let expected = format!("heads of at most {HEAD_DIM_MAX} of the {} elements", config.hidden);
            return Err(file.error(architecture.heads_field(), &expected, "use a model with more heads"));
        }
        if matches!(config.positions, PositionScheme::Rotary(_)) && config.head_dim() % 2 == 1 {
            let expected = format!("heads of an even number of the {} elements", config.hidden);
            let advice = "use a model whose rotary embeddings have pairs of elements";
            return Err(file.error(architecture.heads_field(), &expected, advice));
        }
        let head = has_head.then(|| HeadConfig::parse(file, architecture)).transpose()?;
        Ok(Self { head, ..config })
    }
}

/// Returns the activation function that a field names.
pub(crate) fn parse_activation(file: &JsonFile, field: &str) -> Result<Activation, LoadError> {
    let error = || file.error(field, Activation::NAMES, "use a model with one of these activation functions");
    Activation::from_name(file.text(field)?.unwrap_or("gelu")).ok_or_else(error)
}

/// BERT (Devlin et al., arXiv:1810.04805) and `RoBERTa` (arXiv:1907.11692).
fn parse_bert(file: &JsonFile, architecture: Architecture) -> Result<EncoderConfig, LoadError> {
    let scheme = file.text("position_embedding_type")?.unwrap_or("absolute");
    if scheme != "absolute" {
        let advice = "use a model with absolute positions";
        return Err(file.error("position_embedding_type", "absolute", advice));
    }
    if file.flag("is_decoder")? == Some(true) {
        return Err(file.error("is_decoder", "false", "use an encoder"));
    }
    let table = file.size_required("max_position_embeddings", 1..=POSITIONS_MAX)?;
    let (positions, positions_max) = if architecture == Architecture::Bert {
        (PositionScheme::Absolute, table)
    } else {
        let padding = file.size("pad_token_id", 0..=table.saturating_sub(2))?.unwrap_or(1);
        let padding_id = u32::try_from(padding).unwrap_or(u32::MAX);
        (PositionScheme::AfterPadding { padding: padding_id }, table.saturating_sub(padding + 1))
    };
    Ok(EncoderConfig {
        architecture,
        hidden: file.size_required("hidden_size", 1..=HIDDEN_MAX)?,
        layers: file.size_required("num_hidden_layers", 1..=LAYERS_MAX)?,
        heads: file.size_required("num_attention_heads", 1..=HIDDEN_MAX)?,
        intermediate: file.size_required("intermediate_size", 1..=INTERMEDIATE_MAX)?,
        vocabulary: file.size_required("vocab_size", 1..=VOCABULARY_MAX)?,
        types: file.size("type_vocab_size", 1..=TYPES_MAX)?.unwrap_or(2),
        norm_epsilon: parse_epsilon(file, "layer_norm_eps", 1e-12)?,
        activation: parse_activation(file, "hidden_act")?,
        positions,
        positions_max,
        head: None,
    })
}

/// `DistilBERT` (Sanh et al., arXiv:1910.01108). Its epsilon is a constant in the `transformers`
/// library.
fn parse_distil(file: &JsonFile) -> Result<EncoderConfig, LoadError> {
    let positions_max = file.size("max_position_embeddings", 1..=POSITIONS_MAX)?.unwrap_or(512);
    Ok(EncoderConfig {
        architecture: Architecture::DistilBert,
        hidden: file.size_required("dim", 1..=HIDDEN_MAX)?,
        layers: file.size_required("n_layers", 1..=LAYERS_MAX)?,
        heads: file.size_required("n_heads", 1..=HIDDEN_MAX)?,
        intermediate: file.size_required("hidden_dim", 1..=INTERMEDIATE_MAX)?,
        vocabulary: file.size_required("vocab_size", 1..=VOCABULARY_MAX)?,
        types: 0,
        norm_epsilon: 1e-12,
        activation: parse_activation(file, "activation")?,
        positions: PositionScheme::Absolute,
        positions_max,
        head: None,
    })
}

fn parse_epsilon(file: &JsonFile, field: &str, default: f64) -> Result<f32, LoadError> {
    let epsilon = file.number(field, 0.0..=1.0)?.unwrap_or(default);
    #[expect(clippy::cast_possible_truncation, reason = "the range of f32 includes [0, 1]")]
    let epsilon = epsilon as f32;
    Ok(epsilon)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BERT: &str = r#"{"architectures": ["BertModel"], "hidden_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "intermediate_size": 96, "vocab_size": 100, "max_position_embeddings": 40,
        "hidden_act": "gelu", "pad_token_id": 1}"#;

    fn parse(text: &str) -> Result<EncoderConfig, LoadError> {
        EncoderConfig::parse(&JsonFile::parse("config.json".to_owned(), text.as_bytes()).unwrap())
    }

    #[test]
    fn positions_of_roberta_start_after_the_padding_id() {
        let bert = parse(BERT).unwrap();
        assert_eq!((bert.positions, bert.positions_max, bert.head), (PositionScheme::Absolute, 40, None));
        let roberta = parse(&BERT.replace("BertModel", "RobertaForMaskedLM")).unwrap();
        assert_eq!(roberta.positions, PositionScheme::AfterPadding { padding: 1 });
        assert_eq!((roberta.positions_max, roberta.head), (38, None));
    }

    #[test]
    fn a_field_that_cannot_be_used_is_named() {
        for (from, to, part) in [
            ("\"gelu\"", "\"mish\"", "`hidden_act`: found \"mish\", expected gelu"),
            ("\"hidden_size\": 64", "\"hidden_size\": 0", "`hidden_size`: found 0"),
            ("\"hidden_size\": 64", "\"hidden_size\": 63", "`num_attention_heads`: found 4, expected a divisor"),
            (
                "\"hidden_size\": 64, \"num_hidden_layers\": 2,\n        \"num_attention_heads\": 4",
                "\"hidden_size\": 2048, \"num_hidden_layers\": 2, \"num_attention_heads\": 1",
                "`num_attention_heads`: found 1, expected heads of at most 1024 of the 2048 elements",
            ),
            ("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1e9", "`num_hidden_layers`"),
            ("\"vocab_size\": 100, ", "", "`vocab_size`: found nothing"),
            ("\"pad_token_id\": 1", "\"position_embedding_type\": \"relative_key\"", "`position_embedding_type`"),
            ("BertModel", "LlamaForCausalLM", "`architectures`: found [\"LlamaForCausalLM\"]"),
            ("BertModel", "BertGenerationEncoder", "`architectures`"),
        ] {
            let error = parse(&BERT.replace(from, to)).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
