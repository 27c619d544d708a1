//! Local configuration file: a complete `BatchPolicy` or its bare spec.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::path::Path;

use serde_json::Value as Json;

use super::check::Validator;
use super::code::ConfigCode;
use super::env::SettingSource;
use super::finding::{ConfigErrors, Finding, Notice};
use super::rules;
use super::tree::{self, FILE_BYTES_MAX, Span};
use crate::api::v1alpha1::BatchPolicySpec;

/// Keys under `proxy` that have a meaning in a file only. In a pod the injector sets them.
pub const LOCAL_PROXY_KEYS: [&str; 7] = ["listen", "upstream", "tls", "upstreamTls", "admin", "log", "state"];

/// A file that was parsed and is valid.
#[derive(Debug, Clone)]
pub struct LoadedPolicy {
    /// Contents of the file, without defaults.
    pub spec: BatchPolicySpec,
    /// Remarks about the contents.
    pub notices: Vec<Notice>,
    /// The validated contents, from which `spec` is converted.
    pub(super) json: Json,
    /// Line of each key, by path.
    pub(super) lines: BTreeMap<String, usize>,
    pub(super) origin: Origin,
}

/// Origin of a set of settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Origin {
    /// A file that was written for this process.
    #[default]
    File,
    /// The environment of the pod, set when the pod was admitted.
    Snapshot,
    /// The state folder, which contains the settings that were last in effect.
    State,
    /// The controller, over the control stream.
    Controller,
}

/// Error of reading or parsing a policy.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file cannot be read.
    #[error("cannot read {path}: {error}")]
    Unreadable {
        /// Path of the file, as given.
        path: String,
        /// Error of the operating system.
        error: io::Error,
    },
    /// The contents are invalid.
    #[error(transparent)]
    Invalid(#[from] ConfigErrors),
}

/// Parses a policy. `source_name` precedes the line number in messages.
///
/// # Errors
///
/// Every problem of the text at once.
pub fn load(text: &str, source_name: &str) -> Result<LoadedPolicy, ConfigErrors> {
    let mut check = Validator::default();
    // A byte order mark of an editor is not part of the text, and positions are counted without it.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let json = match tree::parse(text) {
        Ok(root) => Json::Object(check.document(&root)),
        Err(unreadable) => {
            let at = Span { line: unreadable.at.line.max(1), column: unreadable.at.column.max(1), ..unreadable.at };
            let finding =
                Finding::new(ConfigCode::BadValue, "", at, &unreadable.message).help("the file is not valid YAML");
            check.findings.push(finding);
            Json::Object(serde_json::Map::new())
        }
    };
    rules::apply(&mut check, &json);
    if !check.findings.is_empty() {
        return Err(ConfigErrors::for_text(source_name, text, check.findings));
    }
    let lines = check.places.into_iter().map(|(path, place)| (path, place.key.line)).collect();
    match to_spec(&json) {
        Ok(spec) => Ok(LoadedPolicy { spec, notices: check.notices, json, lines, origin: Origin::File }),
        Err(error) => {
            let finding = Finding::new(ConfigCode::BadValue, "", Span::default(), &error);
            Err(ConfigErrors::for_text(source_name, text, vec![finding]))
        }
    }
}

/// Reads a policy from a file.
///
/// # Errors
///
/// The file cannot be read, or every problem of its contents.
pub fn read(path: &Path) -> Result<LoadedPolicy, LoadError> {
    Ok(load(&read_text(path)?, &path.display().to_string())?)
}

/// Reads the text that [`load`] parses, so that a caller that reads a file again can detect whether
/// it has changed.
///
/// # Errors
///
/// The file cannot be read, or is not UTF-8.
pub fn read_text(path: &Path) -> Result<String, LoadError> {
    let name = path.display().to_string();
    let file = std::fs::File::open(path).map_err(|error| LoadError::Unreadable { path: name.clone(), error })?;
    read_from(file, &name)
}

/// Reads the text from an open reader. `name` is used in messages.
pub(super) fn read_from(file: impl Read, name: &str) -> Result<String, LoadError> {
    let unreadable = |error| LoadError::Unreadable { path: name.to_owned(), error };
    let mut bytes = Vec::new();
    // One byte more than is allowed shows that the file is too long, whatever length the file
    // system reports.
    let limit = u64::try_from(FILE_BYTES_MAX + 1).unwrap_or(u64::MAX);
    file.take(limit).read_to_end(&mut bytes).map_err(unreadable)?;
    match String::from_utf8(bytes) {
        Ok(text) => Ok(text),
        Err(error) => {
            let valid = error.utf8_error().valid_up_to();
            let line = 1 + error.as_bytes().iter().take(valid).filter(|byte| **byte == b'\n').count();
            let at = Span { line, column: 1, ..Span::default() };
            let finding = Finding::new(ConfigCode::BadValue, "", at, "the file is not UTF-8");
            Err(ConfigErrors::for_text(name, "", vec![finding]).into())
        }
    }
}

/// Converts to the typed form. This succeeds for everything that `check` accepts; a test covers
/// every key of the schema.
pub(super) fn to_spec(json: &Json) -> Result<BatchPolicySpec, String> {
    serde_json::from_value(json.clone()).map_err(|error| format!("the schema and its types differ: {error}"))
}

// === impl Origin ===

impl Origin {
    pub(super) const fn source(self, line: usize) -> SettingSource {
        match self {
            Self::File => SettingSource::File(line),
            Self::Snapshot => SettingSource::Snapshot,
            Self::State => SettingSource::LastGood,
            Self::Controller => SettingSource::Controller,
        }
    }
}

// === impl LoadedPolicy ===

impl LoadedPolicy {
    /// Converts the settings to those of a pod, from its snapshot, its state folder or the
    /// controller. Keys of [`LOCAL_PROXY_KEYS`] are removed with a notice: a policy applies to many
    /// pods, and the injection sets sockets, TLS, log and state folder of each. Earlier notices are
    /// dropped, because keys that are ignored outside a cluster have a meaning here.
    #[must_use]
    pub fn into_pod_settings(mut self, origin: Origin) -> Self {
        self.origin = origin;
        self.notices.clear();
        let ignored = LOCAL_PROXY_KEYS.map(|key| format!("proxy.{key}"));
        if let Some(proxy) = self.json.get_mut("proxy").and_then(Json::as_object_mut) {
            for (key, path) in LOCAL_PROXY_KEYS.iter().zip(&ignored) {
                if proxy.remove(*key).is_some() {
                    let message = format!("`{path}` is ignored in a pod: injection sets it");
                    self.notices.push(Notice { path: path.clone(), line: 0, message });
                }
            }
        }
        self.lines.retain(|path, _| {
            !ignored
                .iter()
                .any(|own| path.strip_prefix(own.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('.')))
        });
        if let Some(proxy) = &mut self.spec.proxy {
            (proxy.listen, proxy.upstream, proxy.state) = (None, None, None);
            (proxy.tls, proxy.upstream_tls, proxy.admin, proxy.log) = (None, None, None, None);
        }
        self
    }

    /// Returns the notices, without those about the ports of routes if ports are captured.
    #[must_use]
    pub fn notices(&self, captured: bool) -> Vec<Notice> {
        let of_ports = |notice: &&Notice| notice.path.starts_with("routes[") && notice.path.ends_with("].ports");
        self.notices.iter().filter(|notice| !(captured && of_ports(notice))).cloned().collect()
    }
}

// === impl LoadError ===

impl LoadError {
    /// Formats the error for a terminal, with snippets if a text is available.
    #[must_use]
    pub fn render(&self, colour: bool) -> String {
        match self {
            Self::Unreadable { .. } => format!("{self}\n"),
            Self::Invalid(errors) => errors.render(colour),
        }
    }
}
