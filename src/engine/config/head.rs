//! Classification heads.

use serde_json::Value;

use super::Architecture;
use crate::activation::Activation;
use crate::error::LoadError;
use crate::json::JsonFile;

/// Maximum number of labels: about four times that of ImageNet-21k, the largest common set.
pub(crate) const LABELS_MAX: usize = 100_000;

/// A classification head: a dense layer with an activation function, and the logits of the labels.
/// A cross-encoder for reranking has one label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeadConfig {
    /// Names of the labels, in the order of the logits.
    pub labels: Vec<String>,
    /// The hidden state that the head reads.
    pub pooling: HeadPooling,
    /// Activation function after the dense layer.
    pub activation: Activation,
}

/// The hidden state that a head reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadPooling {
    /// That of the first token.
    First,
    /// The mean of all tokens.
    Mean,
}

// === impl HeadConfig ===

impl HeadConfig {
    pub(super) fn parse(file: &JsonFile, architecture: Architecture) -> Result<Self, LoadError> {
        let labels = parse_labels(file)?;
        let (pooling, activation) = match architecture {
            Architecture::Bert | Architecture::Roberta | Architecture::XlmRoberta => {
                (HeadPooling::First, Activation::Tanh)
            }
            Architecture::DistilBert => (HeadPooling::First, Activation::Relu),
            Architecture::ModernBert => {
                let activation = super::parse_activation(file, "classifier_activation")?;
                (parse_pooling(file)?, activation)
            }
        };
        Ok(Self { labels, pooling, activation })
    }
}

fn parse_pooling(file: &JsonFile) -> Result<HeadPooling, LoadError> {
    match file.text("classifier_pooling")?.unwrap_or("cls") {
        "cls" => Ok(HeadPooling::First),
        "mean" => Ok(HeadPooling::Mean),
        _ => Err(file.error("classifier_pooling", "cls or mean", "use a model with one of these")),
    }
}

/// Reads `id2label`; without it, `num_labels` numbered labels, or two.
fn parse_labels(file: &JsonFile) -> Result<Vec<String>, LoadError> {
    let Some(object) = file.get("id2label") else {
        let count = file.size("num_labels", 1..=LABELS_MAX)?.unwrap_or(2);
        return Ok((0..count).map(|at| format!("LABEL_{at}")).collect());
    };
    let expected = "an object with the names of the labels 0, 1 and so on";
    let error = || file.error("id2label", expected, "use the `config.json` of the model");
    let object = object.as_object().filter(|object| (1..=LABELS_MAX).contains(&object.len())).ok_or_else(error)?;
    let label = |at: usize| object.get(&at.to_string()).and_then(Value::as_str).map(str::to_owned).ok_or_else(error);
    (0..object.len()).map(label).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<HeadConfig, LoadError> {
        let file = JsonFile::parse("config.json".to_owned(), text.as_bytes()).unwrap();
        HeadConfig::parse(&file, Architecture::Bert)
    }

    #[test]
    fn labels_are_in_the_order_of_their_numbers() {
        let labels: String = (0..12).rev().map(|at| format!("\"{at}\": \"l{at}\",")).collect();
        let head = parse(&format!("{{\"id2label\": {{{}}}}}", labels.trim_end_matches(','))).unwrap();
        assert_eq!(head.labels.get(10).map(String::as_str), Some("l10"));
        assert_eq!(parse("{}").unwrap().labels, ["LABEL_0", "LABEL_1"]);
        for wrong in [r#"{"id2label": {"1": "a"}}"#, r#"{"id2label": {}}"#, r#"{"id2label": {"0": 3}}"#] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
