//! Settings of `tokenizer_config.json`, applied as `AutoTokenizer` of the `transformers` library does
//! (version 5).
//!
//! A class of the library builds parts of its tokenizer from these settings, and ignores the same
//! parts of `tokenizer.json`.

use serde_json::Value;
use tokenizers::normalizers::{BertNormalizer, Lowercase, NormalizerWrapper, Sequence};
use tokenizers::utils::truncation::TruncationDirection;
use tokenizers::{ModelWrapper, PreTokenizerWrapper, Tokenizer};

use crate::config::Architecture;
use crate::directory::ModelDirectory;
use crate::error::LoadError;
use crate::json::JsonFile;

const FILE: &str = "tokenizer_config.json";

/// Class of a tokenizer in the `transformers` library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TokenizerClass {
    /// `BertTokenizer`, with segment types unless it is that of `DistilBERT`.
    Bert { has_types: bool },
    /// `RobertaTokenizer`.
    Roberta,
    /// `XLMRobertaTokenizer`.
    XlmRoberta,
    /// `TokenizersBackend` and others: `tokenizer.json` as it is.
    Backend,
}

/// Settings of a tokenizer.
#[derive(Debug)]
pub(super) struct TokenizerSettings {
    /// Maximum number of tokens.
    pub(super) length: Option<usize>,
    /// Side of truncation; `None` for that of `tokenizer.json`.
    pub(super) direction: Option<TruncationDirection>,
    /// `true` if the second text of a pair has a segment type of its own.
    pub(super) uses_types: bool,
    normalizer: Option<BertNormalizer>,
    adds_prefix_space: Option<bool>,
}

// === impl TokenizerClass ===

impl TokenizerClass {
    /// Returns the class for the `tokenizer_class` of `tokenizer_config.json`, or of `config.json`.
    /// An absent name is that of the architecture.
    fn choose(name: Option<&str>, architecture: Architecture) -> Self {
        // The names that files of ModernBERT have are ignored by the library.
        if architecture == Architecture::ModernBert {
            return Self::Backend;
        }
        match name.map(|name| name.strip_suffix("Fast").unwrap_or(name)) {
            Some("BertTokenizer") => Self::Bert { has_types: true },
            Some("DistilBertTokenizer") => Self::Bert { has_types: false },
            Some("RobertaTokenizer") => Self::Roberta,
            Some("XLMRobertaTokenizer") => Self::XlmRoberta,
            Some(_) => Self::Backend,
            None => match architecture {
                Architecture::Bert | Architecture::DistilBert => Self::Bert { has_types: true },
                Architecture::Roberta => Self::Roberta,
                Architecture::XlmRoberta => Self::XlmRoberta,
                Architecture::ModernBert => Self::Backend,
            },
        }
    }
}

// === impl TokenizerSettings ===

impl TokenizerSettings {
    pub(super) fn read(directory: &ModelDirectory, architecture: Architecture) -> Result<Self, LoadError> {
        let file = match directory.json(FILE)? {
            Some(file) => file,
            None => JsonFile::parse(directory.path(FILE).display().to_string(), b"{}")?,
        };
        let model = directory.json_required("config.json")?;
        let name = match file.text("tokenizer_class")? {
            Some(name) => Some(name),
            None => model.text("tokenizer_class")?,
        };
        Self::parse(&file, TokenizerClass::choose(name, architecture))
    }

    fn parse(file: &JsonFile, class: TokenizerClass) -> Result<Self, LoadError> {
        let splits_chinese = file.flag("tokenize_chinese_chars")?.unwrap_or(true);
        let lowercases = file.flag("do_lower_case")?.unwrap_or(true);
        let normalizer = BertNormalizer::new(true, splits_chinese, file.flag("strip_accents")?, lowercases);
        let adds_prefix_space = file.flag("add_prefix_space")?.unwrap_or(false);
        Ok(Self {
            length: parse_length(file),
            direction: parse_direction(file)?,
            uses_types: parse_type_use(file, class)?,
            normalizer: matches!(class, TokenizerClass::Bert { .. }).then_some(normalizer),
            adds_prefix_space: (class == TokenizerClass::Roberta).then_some(adds_prefix_space),
        })
    }

    /// Replaces the parts of a tokenizer that its class builds from the settings.
    pub(super) fn apply(&self, tokenizer: &mut Tokenizer) -> tokenizers::Result<()> {
        if let Some(normalizer) = self.normalizer
            && matches!(tokenizer.get_model(), ModelWrapper::WordPiece(_))
        {
            tokenizer.with_normalizer(Some(normalizer))?;
        }
        if let Some(adds_prefix_space) = self.adds_prefix_space
            && let Some(PreTokenizerWrapper::ByteLevel(split)) = tokenizer.get_pre_tokenizer()
        {
            let split = split.add_prefix_space(adds_prefix_space);
            tokenizer.with_pre_tokenizer(Some(split));
        }
        Ok(())
    }
}

/// Puts a conversion to lowercase in front of the normalizer, unless there is one, as
/// sentence-transformers does for `do_lower_case`.
pub(super) fn add_lowercase(tokenizer: &mut Tokenizer) -> tokenizers::Result<()> {
    let is_lowercase = |normalizer: &NormalizerWrapper| matches!(normalizer, NormalizerWrapper::Lowercase(_));
    let mut normalizers = match tokenizer.get_normalizer().cloned() {
        Some(NormalizerWrapper::Sequence(sequence)) => sequence.into_iter().collect(),
        Some(one) => vec![one],
        None => Vec::new(),
    };
    if !normalizers.iter().any(is_lowercase) {
        normalizers.insert(0, Lowercase.into());
        tokenizer.with_normalizer(Some(Sequence::new(normalizers)))?;
    }
    Ok(())
}

/// Reads the maximum length. Files state a length of 1e30 for a tokenizer without a limit.
fn parse_length(file: &JsonFile) -> Option<usize> {
    let length = file.get("model_max_length").and_then(Value::as_u64)?;
    usize::try_from(length).ok().filter(|length| *length > 0)
}

fn parse_direction(file: &JsonFile) -> Result<Option<TruncationDirection>, LoadError> {
    match file.text("truncation_side")? {
        None => Ok(None),
        Some("right") => Ok(Some(TruncationDirection::Right)),
        Some("left") => Ok(Some(TruncationDirection::Left)),
        Some(_) => Err(file.error("truncation_side", "left or right", "use the file of the model")),
    }
}

/// Returns whether segment types are among the inputs of the model. Without names, they are those
/// of the class: version 4 of the library had types for `PreTrainedTokenizerFast`, version 5 does
/// not.
fn parse_type_use(file: &JsonFile, class: TokenizerClass) -> Result<bool, LoadError> {
    let Some(names) = file.get("model_input_names") else {
        return Ok(class == TokenizerClass::Bert { has_types: true });
    };
    let error = || file.error("model_input_names", "an array of names", "use the file of the model");
    Ok(names.as_array().ok_or_else(error)?.iter().any(|name| name == "token_type_ids"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str, class: TokenizerClass) -> TokenizerSettings {
        TokenizerSettings::parse(&JsonFile::parse(FILE.to_owned(), text.as_bytes()).unwrap(), class).unwrap()
    }

    #[test]
    fn the_class_is_that_of_the_file_or_of_the_architecture() {
        for (name, architecture, expected) in [
            (None, Architecture::Bert, TokenizerClass::Bert { has_types: true }),
            (Some("BertTokenizerFast"), Architecture::Bert, TokenizerClass::Bert { has_types: true }),
            (Some("DistilBertTokenizer"), Architecture::Bert, TokenizerClass::Bert { has_types: false }),
            (Some("XLMRobertaTokenizerFast"), Architecture::Bert, TokenizerClass::XlmRoberta),
            (Some("PreTrainedTokenizerFast"), Architecture::Bert, TokenizerClass::Backend),
            (None, Architecture::XlmRoberta, TokenizerClass::XlmRoberta),
            (Some("BertTokenizer"), Architecture::ModernBert, TokenizerClass::Backend),
        ] {
            assert_eq!(TokenizerClass::choose(name, architecture), expected, "{name:?} of {architecture:?}");
        }
    }

    #[test]
    fn lengths_and_sides_are_read() {
        let settings = parse(r#"{"model_max_length": 1e30, "truncation_side": "left"}"#, TokenizerClass::Backend);
        assert_eq!((settings.length, settings.direction), (None, Some(TruncationDirection::Left)));
        assert_eq!(parse(r#"{"model_max_length": 512}"#, TokenizerClass::Backend).length, Some(512));
        let wrong = JsonFile::parse(FILE.to_owned(), br#"{"truncation_side": "top"}"#).unwrap();
        assert!(TokenizerSettings::parse(&wrong, TokenizerClass::Backend).is_err());
    }

    #[test]
    fn segment_types_follow_the_inputs_of_the_model() {
        let named = r#"{"model_input_names": ["input_ids", "attention_mask"]}"#;
        assert!(!parse(named, TokenizerClass::Bert { has_types: true }).uses_types);
        assert!(parse("{}", TokenizerClass::Bert { has_types: true }).uses_types);
        assert!(!parse("{}", TokenizerClass::Backend).uses_types);
        assert!(!parse("{}", TokenizerClass::XlmRoberta).uses_types);
        let types = r#"{"model_input_names": ["input_ids", "token_type_ids"]}"#;
        assert!(parse(types, TokenizerClass::XlmRoberta).uses_types);
    }
}
