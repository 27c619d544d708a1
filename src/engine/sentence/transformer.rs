//! Settings of the module `Transformer` of sentence-transformers: the length of sequences, the
//! conversion to lowercase, and options that are refused.

use serde_json::Value;

use crate::directory::ModelDirectory;
use crate::error::LoadError;
use crate::json::JsonFile;

/// Maximum length of a sequence that a file may state, as that of positions.
const LENGTH_MAX: usize = 1 << 20;

/// Files with the settings, in the order in which sentence-transformers searches them.
const FILES: [&str; 7] = [
    "sentence_bert_config.json",
    "sentence_roberta_config.json",
    "sentence_distilbert_config.json",
    "sentence_camembert_config.json",
    "sentence_albert_config.json",
    "sentence_xlm-roberta_config.json",
    "sentence_xlnet_config.json",
];

/// Fields that are read, or do not change results. `unpad_inputs` chooses a layout of batches, and
/// `backend` and `cache_dir` are of the program that saved the file.
const FIELDS: [&str; 14] = [
    "max_seq_length",
    "do_lower_case",
    "transformer_task",
    "modality_config",
    "module_output_name",
    "unpad_inputs",
    "backend",
    "cache_dir",
    "tokenizer_args",
    "processor_kwargs",
    "model_args",
    "model_kwargs",
    "config_args",
    "config_kwargs",
];

/// Arguments of the model that choose its precision and implementation, which this crate chooses
/// itself.
const MODEL_ARGUMENTS: [&str; 7] = [
    "torch_dtype",
    "dtype",
    "attn_implementation",
    "add_pooling_layer",
    "low_cpu_mem_usage",
    "device_map",
    "trust_remote_code",
];

const UNSUPPORTED: &str = "use a model without this option";

/// Settings of the module.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct TransformerSettings {
    /// Maximum number of tokens of a sequence.
    pub(super) length_max: Option<usize>,
    /// `true` if texts are converted to lowercase.
    pub(super) lowercases: bool,
}

// === impl TransformerSettings ===

impl TransformerSettings {
    /// Reads the first of the files that exists.
    pub(super) fn read(directory: &ModelDirectory) -> Result<Self, LoadError> {
        for name in FILES {
            if let Some(file) = directory.json(name)? {
                return Self::parse(&file);
            }
        }
        Ok(Self::default())
    }

    fn parse(file: &JsonFile) -> Result<Self, LoadError> {
        for field in file.fields().filter(|field| !FIELDS.contains(field)) {
            check_empty(file, field)?;
        }
        check_task(file)?;
        for field in ["model_args", "model_kwargs"] {
            check_arguments(file, field, &MODEL_ARGUMENTS)?;
        }
        for field in ["config_args", "config_kwargs"] {
            check_arguments(file, field, &["trust_remote_code"])?;
        }
        let mut length_max = file.size("max_seq_length", 1..=LENGTH_MAX)?;
        for field in ["tokenizer_args", "processor_kwargs"] {
            check_arguments(file, field, &["model_max_length", "trust_remote_code", "use_fast"])?;
            // This length has precedence.
            if let Some(arguments) = file.object(field)? {
                length_max = arguments.size("model_max_length", 1..=LENGTH_MAX)?.or(length_max);
            }
        }
        Ok(Self { length_max, lowercases: file.flag("do_lower_case")?.unwrap_or(false) })
    }
}

/// Checks that the module is an encoder of texts, or a classifier.
fn check_task(file: &JsonFile) -> Result<(), LoadError> {
    for (field, known) in [
        ("transformer_task", ["feature-extraction", "sequence-classification"]),
        ("module_output_name", ["token_embeddings", "scores"]),
    ] {
        if file.text(field)?.is_some_and(|name| !known.contains(&name)) {
            return Err(file.error(field, &known.join(" or "), UNSUPPORTED));
        }
    }
    let Some(modalities) = file.object("modality_config")? else { return Ok(()) };
    match modalities.fields().find(|modality| *modality != "text") {
        Some(other) => Err(modalities.error(other, "text as the only modality", UNSUPPORTED)),
        None => Ok(()),
    }
}

/// Checks that an object has no fields with values but known ones.
fn check_arguments(file: &JsonFile, field: &str, known: &[&str]) -> Result<(), LoadError> {
    let Some(arguments) = file.object(field)? else { return Ok(()) };
    arguments.fields().filter(|name| !known.contains(name)).try_for_each(|name| check_empty(&arguments, name))
}

/// Checks that a field is null or an empty object.
fn check_empty(file: &JsonFile, field: &str) -> Result<(), LoadError> {
    match file.get(field) {
        None => Ok(()),
        Some(Value::Object(object)) if object.is_empty() => Ok(()),
        Some(_) => Err(file.error(field, "no value", UNSUPPORTED)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<TransformerSettings, LoadError> {
        TransformerSettings::parse(&JsonFile::parse(FILES[0].to_owned(), text.as_bytes()).unwrap())
    }

    #[test]
    fn lengths_are_read_in_both_forms() {
        for (text, length) in [
            (r#"{"max_seq_length": 256, "do_lower_case": false}"#, Some(256)),
            (r#"{"tokenizer_args": {"model_max_length": 128}}"#, Some(128)),
            (r#"{"max_seq_length": 256, "processor_kwargs": {"model_max_length": 64}}"#, Some(64)),
            (r#"{"processor_kwargs": {}, "max_seq_length": null}"#, None),
        ] {
            assert_eq!(parse(text).unwrap().length_max, length, "{text}");
        }
    }

    #[test]
    fn the_files_of_version_6_are_read() {
        let text = r#"{"transformer_task": "sequence-classification", "module_output_name": "scores",
            "modality_config": {"text": {"method": "forward", "method_output_name": "logits"}},
            "unpad_inputs": null, "processing_kwargs": {}, "query_length": null,
            "model_args": {"attn_implementation": "sdpa"}, "config_args": {"trust_remote_code": true}}"#;
        assert_eq!(parse(text).unwrap(), TransformerSettings::default());
    }

    #[test]
    fn options_that_change_results_are_refused() {
        for (text, place) in [
            (r#"{"query_length": 32}"#, "`query_length`"),
            (r#"{"document_length": 32}"#, "`document_length`"),
            (r#"{"processing_kwargs": {"text": {"padding": "max_length"}}}"#, "`processing_kwargs`"),
            (r#"{"transformer_task": "fill-mask"}"#, "`transformer_task`"),
            (r#"{"module_output_name": "sentence_embedding"}"#, "`module_output_name`"),
            (r#"{"modality_config": {"image": {}}}"#, "`modality_config.image`"),
            (r#"{"tokenizer_args": {"do_lower_case": true}}"#, "`tokenizer_args.do_lower_case`"),
            (r#"{"config_kwargs": {"is_decoder": true}}"#, "`config_kwargs.is_decoder`"),
            (r#"{"model_args": {"subfolder": "x"}}"#, "`model_args.subfolder`"),
            (r#"{"an_option_of_version_7": 1}"#, "`an_option_of_version_7`"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.place.contains(place), "{text}: {error}");
        }
    }
}
