//! The function from the logits of a classification head to scores.

use crate::error::LoadError;
use crate::json::JsonFile;

/// Field of a cross-encoder that was saved before version 4 of sentence-transformers.
const OLD_FIELD: &str = "sbert_ce_default_activation_function";

/// Function from logits to scores, as the `transformers` library and the cross-encoders of
/// sentence-transformers choose it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScoreFunction {
    /// The logits themselves.
    Identity,
    /// The logistic function of each logit.
    Sigmoid,
    /// Softmax over the logits.
    Softmax,
}

// === impl ScoreFunction ===

impl ScoreFunction {
    /// Chooses the function of a model with `labels` labels, from `config.json` and, if there is
    /// one,
    /// `config_sentence_transformers.json`.
    ///
    /// A model with a file or fields of sentence-transformers is a cross-encoder (class
    /// `CrossEncoder`, version 6): a stated function has precedence, otherwise one label has the
    /// logistic function and several have none. Other models are those of the pipeline for text
    /// classification of the
    /// `transformers` library, where `problem_type` and the number of labels decide.
    pub(super) fn choose(config: &JsonFile, sentence: Option<&JsonFile>, labels: usize) -> Result<Self, LoadError> {
        let nested = config.object("sentence_transformers")?;
        if let Some(stated) = sentence.map(|file| Self::stated(file, "activation_fn")).transpose()?.flatten() {
            return Ok(stated);
        }
        // A field without a value hides the older one too.
        let stated = match &nested {
            Some(nested) if nested.has("activation_fn") => Self::stated(nested, "activation_fn")?,
            _ => Self::stated(config, OLD_FIELD)?,
        };
        if let Some(stated) = stated {
            return Ok(stated);
        }
        if sentence.is_some() || nested.is_some() || config.get(OLD_FIELD).is_some() {
            return Ok(if labels == 1 { Self::Sigmoid } else { Self::Identity });
        }
        Ok(match config.text("problem_type")? {
            Some("regression") => Self::Identity,
            Some("multi_label_classification") => Self::Sigmoid,
            _ if labels == 1 => Self::Sigmoid,
            _ => Self::Softmax,
        })
    }

    /// Returns the function that a field names by its path in Python. sentence-transformers trusts
    /// those of `PyTorch` only, and takes its default in place of others.
    fn stated(file: &JsonFile, field: &str) -> Result<Option<Self>, LoadError> {
        let Some(path) = file.text(field)?.filter(|path| path.starts_with("torch.")) else { return Ok(None) };
        match path.rsplit('.').next() {
            Some("Identity") => Ok(Some(Self::Identity)),
            Some("Sigmoid") => Ok(Some(Self::Sigmoid)),
            Some("Softmax") => Ok(Some(Self::Softmax)),
            _ => Err(file.error(field, "Identity, Sigmoid or Softmax of torch.nn", "use a model with one of these")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choose(config: &str, sentence: Option<&str>, labels: usize) -> Result<ScoreFunction, LoadError> {
        let file = |text: &str| JsonFile::parse("config.json".to_owned(), text.as_bytes()).unwrap();
        ScoreFunction::choose(&file(config), sentence.map(file).as_ref(), labels)
    }

    #[test]
    fn a_model_without_files_of_sentence_transformers_is_a_pipeline() {
        for (config, labels, expected) in [
            ("{}", 1, ScoreFunction::Sigmoid),
            ("{}", 3, ScoreFunction::Softmax),
            (r#"{"problem_type": "multi_label_classification"}"#, 3, ScoreFunction::Sigmoid),
            (r#"{"problem_type": "regression"}"#, 1, ScoreFunction::Identity),
        ] {
            assert_eq!(choose(config, None, labels).unwrap(), expected, "{config}");
        }
    }

    #[test]
    fn a_cross_encoder_has_the_logistic_function_for_one_label_only() {
        for (config, sentence, labels, expected) in [
            ("{}", Some("{}"), 1, ScoreFunction::Sigmoid),
            ("{}", Some("{}"), 3, ScoreFunction::Identity),
            (r#"{"problem_type": "regression"}"#, Some("{}"), 1, ScoreFunction::Sigmoid),
            (r#"{"sentence_transformers": {"version": "5.0.0"}}"#, None, 3, ScoreFunction::Identity),
            (r#"{"sbert_ce_default_activation_function": "my.module.Identity"}"#, None, 1, ScoreFunction::Sigmoid),
        ] {
            assert_eq!(choose(config, sentence, labels).unwrap(), expected, "{config} {sentence:?}");
        }
    }

    #[test]
    fn the_file_of_sentence_transformers_comes_before_the_fields_of_the_config() {
        let nested = r#"{"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"},
            "sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}"#;
        let null = r#"{"sentence_transformers": {"activation_fn": null},
            "sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}"#;
        let old = r#"{"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}"#;
        let identity = Some(r#"{"activation_fn": "torch.nn.modules.linear.Identity"}"#);
        let softmax = Some(r#"{"activation_fn": "torch.nn.modules.activation.Softmax"}"#);
        let other = Some(r#"{"activation_fn": "my.module.Identity"}"#);
        for (config, sentence, labels, expected) in [
            (nested, identity, 1, ScoreFunction::Identity),
            (nested, softmax, 3, ScoreFunction::Softmax),
            (nested, other, 3, ScoreFunction::Sigmoid),
            (nested, None, 3, ScoreFunction::Sigmoid),
            (null, None, 1, ScoreFunction::Sigmoid),
            (old, None, 1, ScoreFunction::Identity),
            ("{}", other, 1, ScoreFunction::Sigmoid),
        ] {
            assert_eq!(choose(config, sentence, labels).unwrap(), expected, "{config} {sentence:?}");
        }
    }

    #[test]
    fn another_function_of_torch_is_refused() {
        let error = choose("{}", Some(r#"{"activation_fn": "torch.nn.modules.activation.Tanh"}"#), 1).unwrap_err();
        assert!(error.to_string().contains("`activation_fn`: found \"torch.nn.modules.activation.Tanh\""), "{error}");
    }
}
