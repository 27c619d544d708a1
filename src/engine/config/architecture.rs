//! Architectures by their names in `config.json`.

use serde_json::Value;

use crate::error::LoadError;
use crate::json::JsonFile;

/// Architecture of the layers of an encoder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Architecture {
    /// `BertModel` (arXiv:1810.04805).
    Bert,
    /// `RobertaModel` (arXiv:1907.11692).
    Roberta,
    /// `XLMRobertaModel` (arXiv:1911.02116): the layers of `RoBERTa`.
    XlmRoberta,
    /// `DistilBertModel` (arXiv:1910.01108).
    DistilBert,
    /// `ModernBertModel` (arXiv:2412.13663).
    ModernBert,
}

/// Names of architectures without the suffix for their heads.
const NAMES: [(&str, Architecture); 5] = [
    ("Bert", Architecture::Bert),
    ("Roberta", Architecture::Roberta),
    ("XLMRoberta", Architecture::XlmRoberta),
    ("DistilBert", Architecture::DistilBert),
    ("ModernBert", Architecture::ModernBert),
];

const CLASSIFIER: &str = "ForSequenceClassification";

// === impl Architecture ===

impl Architecture {
    /// Returns the architecture, and whether there is a classification head.
    pub(super) fn parse(file: &JsonFile) -> Result<(Self, bool), LoadError> {
        let listed = file.get("architectures").and_then(Value::as_array).and_then(|names| names.first());
        let found = match listed.and_then(Value::as_str) {
            Some(name) => Self::from_name(name),
            None => Self::from_model_type(file.text("model_type")?.unwrap_or_default()).map(|known| (known, false)),
        };
        found.ok_or_else(|| {
            let names: Vec<&str> = NAMES.iter().map(|(name, _)| *name).collect();
            let expected =
                format!("one of {} with the suffix Model, {CLASSIFIER} or that of another task", names.join(", "));
            file.error("architectures", &expected, "use a model of one of these architectures")
        })
    }

    fn from_name(name: &str) -> Option<(Self, bool)> {
        NAMES.iter().find_map(|(prefix, architecture)| {
            let suffix = name.strip_prefix(prefix)?;
            if suffix == CLASSIFIER {
                return Some((*architecture, true));
            }
            // Heads of other tasks are ignored, as by the `AutoModel` of the `transformers`
            // library.
            (suffix == "Model" || suffix.starts_with("For")).then_some((*architecture, false))
        })
    }

    fn from_model_type(name: &str) -> Option<Self> {
        Some(match name {
            "bert" => Self::Bert,
            "roberta" => Self::Roberta,
            "xlm-roberta" => Self::XlmRoberta,
            "distilbert" => Self::DistilBert,
            "modernbert" => Self::ModernBert,
            _ => return None,
        })
    }

    /// Prefix of the names of tensors in files of models with a head. Files of encoders alone often
    /// lack it.
    pub(crate) fn tensor_prefix(self) -> &'static str {
        match self {
            Self::Bert => "bert.",
            Self::Roberta | Self::XlmRoberta => "roberta.",
            Self::DistilBert => "distilbert.",
            Self::ModernBert => "model.",
        }
    }

    /// Name of the last tensor of a classification head.
    pub(crate) fn classifier_tensor(self) -> &'static str {
        match self {
            Self::Roberta | Self::XlmRoberta => "classifier.out_proj.weight",
            Self::Bert | Self::DistilBert | Self::ModernBert => "classifier.weight",
        }
    }

    /// Name of the field with the number of attention heads.
    pub(super) fn heads_field(self) -> &'static str {
        if self == Self::DistilBert { "n_heads" } else { "num_attention_heads" }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_architectures_are_whole() {
        assert_eq!(
            Architecture::from_name("XLMRobertaForSequenceClassification"),
            Some((Architecture::XlmRoberta, true))
        );
        assert_eq!(Architecture::from_name("ModernBertForMaskedLM"), Some((Architecture::ModernBert, false)));
        for task in ["PreTraining", "TokenClassification", "QuestionAnswering"] {
            let name = format!("RobertaFor{task}");
            assert_eq!(Architecture::from_name(&name), Some((Architecture::Roberta, false)), "{name}");
        }
        for name in ["Bert", "BertModelX", "BertGenerationEncoder", "RobertaPreLayerNormForMaskedLM", "AlbertModel", ""]
        {
            assert_eq!(Architecture::from_name(name), None, "{name}");
        }
    }
}
