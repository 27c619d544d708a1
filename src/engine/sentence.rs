//! The files of sentence-transformers: modules, pooling, length, and prompts.

mod transformer;

use std::collections::BTreeMap;

use serde_json::Value;

use self::transformer::TransformerSettings;
use crate::directory::ModelDirectory;
use crate::error::LoadError;
use crate::json::JsonFile;
use crate::pooling::Pooling;

/// Maximum number of modules of a model. Published models have at most four.
const MODULES_MAX: usize = 16;
/// Maximum number of named prompts. Published models have at most about twenty.
const PROMPTS_MAX: usize = 1024;
/// The file of the module for pooling, at the path that it has in all published models.
const POOLING_FILE: &str = "1_Pooling/config.json";
/// Beginning of the types of modules that belong to sentence-transformers. Others are code of their
/// authors, with any function.
const MODULE_PREFIX: &str = "sentence_transformers.";
const UNSUPPORTED: &str = "use a model without it";

/// What the files of sentence-transformers add to an encoder.
#[derive(Debug)]
pub(crate) struct SentenceConfig {
    /// Directory of the encoder.
    pub(crate) encoder: ModelDirectory,
    pub(crate) pooling: Pooling,
    /// The error of a model for embeddings whose modules end before the pooling. A classifier has
    /// the module `Transformer` alone.
    pub(crate) unpooled: Option<LoadError>,
    /// `true` if a file configures the pooling, as those of a model for embeddings do.
    pub(crate) has_pooling: bool,
    /// `true` if embeddings are scaled to unit length.
    pub(crate) normalizes: bool,
    /// Maximum number of tokens of a sequence.
    pub(crate) length_max: Option<usize>,
    /// `true` if texts are converted to lowercase before other normalizers.
    pub(crate) lowercases: bool,
    pub(crate) prompts: Prompts,
}

/// Texts that are put in front of inputs, by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Prompts {
    /// Prompts by name.
    pub by_name: BTreeMap<String, String>,
    /// Name of the prompt of inputs for which none is named.
    pub default: Option<String>,
}

// === impl Prompts ===

impl Prompts {
    /// Returns the prompt with a name, or the default prompt without one. `None` for a name that
    /// the model does not have.
    #[must_use]
    pub fn get(&self, name: Option<&str>) -> Option<&str> {
        match name.or(self.default.as_deref()) {
            Some(name) => self.by_name.get(name).map(String::as_str),
            None => Some(""),
        }
    }

    fn parse(file: &JsonFile) -> Result<Self, LoadError> {
        let error = |field| file.error(field, "an object of strings", "use the file that was published with the model");
        let mut prompts = Self::default();
        if let Some(object) = file.get("prompts") {
            let object = object.as_object().filter(|object| object.len() <= PROMPTS_MAX);
            for (name, text) in object.ok_or_else(|| error("prompts"))? {
                let text = text.as_str().ok_or_else(|| error("prompts"))?;
                prompts.by_name.insert(name.clone(), text.to_owned());
            }
        }
        prompts.default = file.text("default_prompt_name")?.map(str::to_owned);
        if let Some(name) = &prompts.default
            && !prompts.by_name.contains_key(name)
        {
            return Err(file.error("default_prompt_name", "a name in `prompts`", "add the prompt, or remove the name"));
        }
        Ok(prompts)
    }
}

// === impl SentenceConfig ===

impl SentenceConfig {
    /// Reads the files. Without `modules.json`, embeddings are not scaled, and are pooled as
    /// `1_Pooling/config.json` states, as in TEI; without this file too, they are means of all
    /// tokens, as in sentence-transformers.
    pub(crate) fn parse(root: &ModelDirectory) -> Result<Self, LoadError> {
        let mut config = Self {
            encoder: root.clone(),
            pooling: Pooling::Mean,
            unpooled: None,
            has_pooling: false,
            normalizes: false,
            length_max: None,
            lowercases: false,
            prompts: Prompts::default(),
        };
        if let Some(modules) = root.json("modules.json")? {
            let rows = modules.elements(MODULES_MAX)?;
            rows.iter().enumerate().try_for_each(|(at, module)| config.add_module(root, at, module))?;
            let advice = "use a model for embeddings with the modules Transformer and Pooling";
            let next = rows.len();
            let missing = || modules.error(&format!("[{next}].type"), expected_module(next), advice);
            config.unpooled = (next < 2).then(missing);
            config.has_pooling = config.unpooled.is_none();
        } else if let Some(file) = root.json(POOLING_FILE)? {
            config.pooling = parse_pooling(&file)?;
            config.has_pooling = true;
        }
        if let Some(file) = root.json("config_sentence_transformers.json")? {
            config.prompts = Prompts::parse(&file)?;
        }
        let TransformerSettings { length_max, lowercases } = TransformerSettings::read(&config.encoder)?;
        Ok(Self { length_max, lowercases, ..config })
    }

    /// Applies the row of `modules.json` at an index. Its type is a path of Python, whose parts in
    /// the middle differ by version.
    fn add_module(&mut self, root: &ModelDirectory, at: usize, module: &JsonFile) -> Result<(), LoadError> {
        let path = module.text("path")?.unwrap_or_default();
        let Some(folder) = root.child(path) else {
            return Err(module.error("path", "the name of a folder in the directory of the model", UNSUPPORTED));
        };
        let kind = module.text("type")?.and_then(|kind| kind.strip_prefix(MODULE_PREFIX));
        match (at, kind.and_then(|kind| kind.rsplit('.').next())) {
            (0, Some("Transformer")) => self.encoder = folder,
            (1, Some("Pooling")) => self.pooling = parse_pooling(&folder.json_required("config.json")?)?,
            (2.., Some("Normalize")) => self.normalizes = true,
            // It has an effect in training only.
            (2.., Some("Dropout")) => {}
            _ => return Err(module.error("type", expected_module(at), UNSUPPORTED)),
        }
        Ok(())
    }
}

/// Returns the modules that may be at an index of `modules.json`.
const fn expected_module(at: usize) -> &'static str {
    match at {
        0 => "the module Transformer of sentence_transformers",
        1 => "the module Pooling of sentence_transformers",
        _ => "the module Normalize or Dropout of sentence_transformers",
    }
}

/// Reads `pooling_mode`, or the flags of versions before 5.
fn parse_pooling(file: &JsonFile) -> Result<Pooling, LoadError> {
    const FLAGS: [(&str, &str); 6] = [
        ("pooling_mode_cls_token", "cls"),
        ("pooling_mode_max_tokens", "max"),
        ("pooling_mode_mean_tokens", "mean"),
        ("pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len_tokens"),
        ("pooling_mode_weightedmean_tokens", "weightedmean"),
        ("pooling_mode_lasttoken", "lasttoken"),
    ];
    if file.flag("include_prompt")? == Some(false) {
        return Err(file.error("include_prompt", "true", UNSUPPORTED));
    }
    let expected = "one of mean, cls, lasttoken or max";
    let from_name = |name: &str| match name {
        "mean" => Some(Pooling::Mean),
        "cls" => Some(Pooling::First),
        "lasttoken" => Some(Pooling::Last),
        "max" => Some(Pooling::Max),
        _ => None,
    };
    if let Some(mode) = file.get("pooling_mode") {
        let name = match mode.as_array().map(Vec::as_slice) {
            Some([one]) => one.as_str(),
            Some(_) => None,
            None => Value::as_str(mode),
        };
        return name.and_then(from_name).ok_or_else(|| file.error("pooling_mode", expected, UNSUPPORTED));
    }
    let mut active = Vec::new();
    for (field, name) in FLAGS {
        if file.flag(field)? == Some(true) {
            active.push((field, name));
        }
    }
    match active.as_slice() {
        [] => Ok(Pooling::Mean),
        [(field, name)] => from_name(name).ok_or_else(|| file.error(field, expected, UNSUPPORTED)),
        [_, (second, _), ..] => Err(file.error(second, "one kind of pooling only", UNSUPPORTED)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODULES: &str = r#"[{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}]"#;

    fn parse(files: &[(&str, &str)]) -> Result<SentenceConfig, LoadError> {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        SentenceConfig::parse(&ModelDirectory::open(folder.path()).unwrap())
    }

    #[test]
    fn without_files_an_embedding_is_the_mean() {
        let config = parse(&[]).unwrap();
        assert_eq!((config.pooling, config.normalizes, config.length_max), (Pooling::Mean, false, None));
        assert!(!config.has_pooling);
    }

    #[test]
    fn without_modules_the_file_of_the_pooling_is_read() {
        let config = parse(&[(POOLING_FILE, r#"{"pooling_mode_cls_token": true}"#)]).unwrap();
        assert_eq!((config.pooling, config.normalizes, config.has_pooling), (Pooling::First, false, true));
        let error = parse(&[(POOLING_FILE, r#"{"pooling_mode": "weightedmean"}"#)]).unwrap_err();
        assert!(error.file.ends_with(POOLING_FILE), "{error}");
    }

    #[test]
    fn modules_choose_pooling_and_scaling() {
        let pooling = r#"{"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": false}"#;
        let length = r#"{"max_seq_length": 256, "do_lower_case": true}"#;
        let files =
            [("modules.json", MODULES), ("1_Pooling/config.json", pooling), ("sentence_bert_config.json", length)];
        let config = parse(&files).unwrap();
        assert_eq!((config.pooling, config.normalizes), (Pooling::First, true));
        assert_eq!((config.length_max, config.lowercases), (Some(256), true));
    }

    #[test]
    fn pooling_is_read_in_the_forms_of_all_versions() {
        for (text, expected) in [
            (r#"{"pooling_mode": "lasttoken"}"#, Some(Pooling::Last)),
            (r#"{"pooling_mode": ["max"]}"#, Some(Pooling::Max)),
            (r#"{"pooling_mode": ["max", "mean"]}"#, None),
            (r#"{"pooling_mode": "weightedmean"}"#, None),
            (r#"{"pooling_mode_lasttoken": true}"#, Some(Pooling::Last)),
            (r#"{"pooling_mode_lasttoken": true, "pooling_mode_mean_tokens": true}"#, None),
            (r#"{"pooling_mode_mean_sqrt_len_tokens": true}"#, None),
            (r#"{"pooling_mode": "mean", "include_prompt": false}"#, None),
            ("{}", Some(Pooling::Mean)),
        ] {
            let file = JsonFile::parse("1_Pooling/config.json".to_owned(), text.as_bytes()).unwrap();
            assert_eq!(parse_pooling(&file).ok(), expected, "{text}");
        }
    }

    #[test]
    fn a_module_that_is_not_known_is_named() {
        let dense = MODULES.replace("models.Normalize", "models.Dense");
        let pooling = r#"{"pooling_mode": "mean"}"#;
        let error = parse(&[("modules.json", &dense), ("1_Pooling/config.json", pooling)]).unwrap_err().to_string();
        assert!(error.contains("`[2].type`: found \"sentence_transformers.models.Dense\""), "{error}");
        for (from, to, place) in [
            ("sentence_transformers.models.Transformer", "custom_st.Transformer", "`[0].type`"),
            ("models.Pooling", "models.Normalize", "`[1].type`"),
            ("models.Normalize", "models.Pooling", "`[2].type`"),
        ] {
            let error = parse(&[("modules.json", &MODULES.replace(from, to)), (POOLING_FILE, pooling)]).unwrap_err();
            assert!(error.place.contains(place) && error.file.ends_with("modules.json"), "{error}");
        }
        let outside = MODULES.replace("1_Pooling", "../1_Pooling");
        assert!(parse(&[("modules.json", &outside)]).unwrap_err().place.contains("[1].path"));
    }

    #[test]
    fn modules_that_end_before_the_pooling_are_those_of_a_classifier() {
        let alone = r#"[{"path": "", "type": "sentence_transformers.base.modules.transformer.Transformer"}]"#;
        let config = parse(&[("modules.json", alone)]).unwrap();
        assert!(!config.has_pooling);
        let error = config.unpooled.unwrap().to_string();
        assert!(
            error.contains("modules.json: field `[1].type`: found nothing, expected the module Pooling"),
            "{error}"
        );
        let pooled = parse(&[("modules.json", MODULES), (POOLING_FILE, "{}")]).unwrap();
        assert_eq!((pooled.unpooled, pooled.has_pooling), (None, true));
        assert_eq!(parse(&[]).unwrap().unpooled, None);
    }

    #[test]
    fn prompts_have_names_and_a_default() {
        let file = |text: &str| JsonFile::parse("x".to_owned(), text.as_bytes()).unwrap();
        let prompts =
            Prompts::parse(&file(r#"{"prompts": {"query": "query: "}, "default_prompt_name": "query"}"#)).unwrap();
        assert_eq!((prompts.get(None), prompts.get(Some("query"))), (Some("query: "), Some("query: ")));
        assert_eq!(prompts.get(Some("other")), None);
        assert_eq!(Prompts::default().get(None), Some(""));
        assert!(Prompts::parse(&file(r#"{"prompts": {"a": "b"}, "default_prompt_name": "query"}"#)).is_err());
    }
}
