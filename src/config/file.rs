//! Reads a local file: a whole `BatchPolicy` or its bare spec.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::path::Path;

use serde_json::Value as Json;

use super::check::Check;
use super::code::Code;
use super::env::Source;
use super::finding::{Errors, Finding, Notice};
use super::tree::{self, FILE_BYTES_MAX, Spot};
use super::{rules, schema};
use crate::api::v1alpha1::BatchPolicySpec;

/// Keys under `proxy` that mean something in a file only; in a pod the injection says what they say.
const LOCAL_ONLY: [&str; 7] = ["listen", "upstream", "tls", "upstreamTls", "admin", "log", "state"];

/// A file that was read and found right.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// What the file says, nothing filled in.
    pub spec: BatchPolicySpec,
    /// What there is to know about it.
    pub notices: Vec<Notice>,
    pub(super) json: Json,
    /// The lines of its keys, by path.
    pub(super) lines: BTreeMap<String, usize>,
    pub(super) origin: Origin,
}

/// Where settings were written down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Origin {
    /// In a file that somebody wrote for this process.
    #[default]
    File,
    /// In the environment, when the pod was admitted.
    Snapshot,
    /// In the folder for state: they were in force last.
    Kept,
    /// By the controller, just now.
    Controller,
}

/// Why there is no policy.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file cannot be read at all.
    #[error("{path}: {error}")]
    Unreadable {
        /// As it was named.
        path: String,
        /// What the system said.
        error: io::Error,
    },
    /// What it says is wrong.
    #[error(transparent)]
    Wrong(#[from] Errors),
}

/// Reads a policy from a text; the name stands before the line in what is said about it.
///
/// # Errors
///
/// Every problem of the text at once.
pub fn load(text: &str, source_name: &str) -> Result<Loaded, Errors> {
    let mut check = Check::default();
    // An editor's byte order mark is no part of the text; places are counted without it.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let json = match tree::parse(text) {
        Ok(root) => Json::Object(check.document(&root)),
        Err(unreadable) => {
            let at = Spot { line: unreadable.at.line.max(1), column: unreadable.at.column.max(1), ..unreadable.at };
            let finding =
                Finding::new(Code::BadValue, "", at, &unreadable.message).help("the file is not readable YAML");
            check.findings.push(finding);
            Json::Object(serde_json::Map::new())
        }
    };
    rules::apply(&mut check, &json);
    if !check.findings.is_empty() {
        return Err(Errors::of(source_name, text, check.findings));
    }
    let lines = check.places.into_iter().map(|(path, place)| (path, place.key.line)).collect();
    match typed(&json) {
        Ok(spec) => Ok(Loaded { spec, notices: check.notices, json, lines, origin: Origin::File }),
        Err(error) => {
            let finding = Finding::new(Code::BadValue, "", Spot::default(), &error);
            Err(Errors::of(source_name, text, vec![finding]))
        }
    }
}

/// Reads a policy from a file.
///
/// # Errors
///
/// The file cannot be read, or every problem of what it says.
pub fn read(path: &Path) -> Result<Loaded, LoadError> {
    Ok(load(&read_text(path)?, &path.display().to_string())?)
}

/// Reads what [`load`] judges, so that who reads a file again sees whether it says anything new.
///
/// # Errors
///
/// The file cannot be read, or is no text.
pub fn read_text(path: &Path) -> Result<String, LoadError> {
    let name = path.display().to_string();
    let file = std::fs::File::open(path).map_err(|error| LoadError::Unreadable { path: name.clone(), error })?;
    read_from(file, &name)
}

/// The same of what is open already, under a name for people.
pub(super) fn read_from(file: impl Read, name: &str) -> Result<String, LoadError> {
    let unreadable = |error| LoadError::Unreadable { path: name.to_owned(), error };
    let mut bytes = Vec::new();
    // One byte more than is allowed shows that there is more, whatever the file's length is said to be.
    let limit = u64::try_from(FILE_BYTES_MAX + 1).unwrap_or(u64::MAX);
    file.take(limit).read_to_end(&mut bytes).map_err(unreadable)?;
    match String::from_utf8(bytes) {
        Ok(text) => Ok(text),
        Err(error) => {
            let valid = error.utf8_error().valid_up_to();
            let line = 1 + error.as_bytes().iter().take(valid).filter(|byte| **byte == b'\n').count();
            let at = Spot { line, column: 1, ..Spot::default() };
            let finding = Finding::new(Code::BadValue, "", at, "the file is not UTF-8");
            Err(Errors::of(name, "", vec![finding]).into())
        }
    }
}

/// The typed form. What `check` let through always fits; a test reads every key of the schema.
pub(super) fn typed(json: &Json) -> Result<BatchPolicySpec, String> {
    serde_json::from_value(json.clone()).map_err(|error| format!("the schema and its types differ: {error}"))
}

/// The defaults of the schema, as a file would say them.
pub(super) fn defaults(keys: &'static [schema::Key]) -> Json {
    let mut out = serde_json::Map::new();
    let mut check = Check::default();
    for key in keys {
        let value = match (&key.default, &key.shape) {
            (schema::Otherwise::Within, schema::Shape::Map(keys)) => Some(defaults(keys)),
            (schema::Otherwise::Is(text), shape) => {
                tree::parse(text).ok().and_then(|node| check.value(shape, &node, key.name))
            }
            _ => None,
        };
        if let Some(value) = value {
            out.insert(key.name.to_owned(), value);
        }
    }
    Json::Object(out)
}

/// Lays `over` on `under`: maps key by key, all else whole.
pub(super) fn merge(under: &mut Json, over: &Json) {
    match (under, over) {
        (Json::Object(under), Json::Object(over)) => {
            for (key, value) in over {
                merge(under.entry(key.clone()).or_insert(Json::Null), value);
            }
        }
        (under, over) => *under = over.clone(),
    }
}

// === impl Origin ===

impl Origin {
    pub(super) const fn source(self, line: usize) -> Source {
        match self {
            Self::File => Source::File(line),
            Self::Snapshot => Source::Snapshot,
            Self::Kept => Source::Kept,
            Self::Controller => Source::Controller,
        }
    }
}

// === impl Loaded ===

impl Loaded {
    /// The same as the settings of a pod, from its snapshot or kept by it: sockets, TLS, log and state of the process come from the injection alone, whatever
    /// a policy for many pods says of them, and what has a meaning in a cluster only has it there.
    #[must_use]
    pub fn of_a_pod(mut self, origin: Origin) -> Self {
        self.origin = origin;
        self.notices.clear();
        let ignored = LOCAL_ONLY.map(|key| format!("proxy.{key}"));
        if let Some(proxy) = self.json.get_mut("proxy").and_then(Json::as_object_mut) {
            for (key, path) in LOCAL_ONLY.iter().zip(&ignored) {
                if proxy.remove(*key).is_some() {
                    let message = format!("`{path}` is ignored in a pod: the injection says it");
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

    /// What there is to know where ports are captured, or not.
    #[must_use]
    pub fn notices(&self, captured: bool) -> Vec<Notice> {
        let of_ports = |notice: &&Notice| notice.path.starts_with("routes[") && notice.path.ends_with("].ports");
        self.notices.iter().filter(|notice| !(captured && of_ports(notice))).cloned().collect()
    }
}

// === impl LoadError ===

impl LoadError {
    /// As people read it, with snippets where there is a text.
    #[must_use]
    pub fn render(&self, colour: bool) -> String {
        match self {
            Self::Unreadable { .. } => format!("{self}\n"),
            Self::Wrong(errors) => errors.render(colour),
        }
    }
}
