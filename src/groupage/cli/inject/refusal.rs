//! Refusal of an object, with the line of the key that causes it.

use serde_json::Value;

use super::super::yaml::{self, YamlDocument};
use super::{ManifestFile, one_line};

/// A refusal of an object, with its location.
pub(super) struct LocatedRefusal {
    pub(super) path: Vec<String>,
    /// Namespace with the annotation or label that causes the refusal, if not the object itself.
    pub(super) namespace: Option<String>,
    pub(super) message: String,
}

/// Formats a refusal with its location: the line of the key that causes it.
pub(super) fn format_refusal(
    sources: &[ManifestFile],
    source: &ManifestFile,
    document: &YamlDocument,
    wrong: &LocatedRefusal,
) -> String {
    let LocatedRefusal { path, namespace, message } = wrong;
    let namespaces = namespace.as_ref().and_then(|name| namespace_of(sources, name));
    let (source, document, path) = match namespaces {
        Some((source, document, within)) => (source, document, [&within[..], &path[..]].concat()),
        None => (source, document, path.clone()),
    };
    let text = source.text.get(document.text.clone()).unwrap_or_default();
    let before = source.text.get(..document.text.start).unwrap_or_default().matches('\n').count();
    let message = one_line(message);
    let line = before + yaml::line_of(text, &path);
    format!("{message}  --> {}:{line}\n   = help: groupage explain {}\n", source.name, code_of(&message))
}

/// Finds the definition of a namespace: its manifest, its document, and its path in a list. The
/// last one applies, as for `kubectl`.
fn namespace_of<'a>(
    sources: &'a [ManifestFile],
    name: &str,
) -> Option<(&'a ManifestFile, &'a YamlDocument, Vec<String>)> {
    let documents = sources.iter().flat_map(|source| source.documents.iter().map(move |document| (source, document)));
    documents.rev().find_map(|(source, document)| Some((source, document, namespace_path(&document.value, name)?)))
}

fn namespace_path(object: &Value, name: &str) -> Option<Vec<String>> {
    let is = |pointer: &str, text: &str| object.pointer(pointer).and_then(Value::as_str) == Some(text);
    if is("/kind", "Namespace") && is("/metadata/name", name) {
        return Some(Vec::new());
    }
    let items = object.get("items").and_then(Value::as_array)?;
    items.iter().enumerate().rev().find_map(|(index, item)| {
        let within = namespace_path(item, name)?;
        Some([vec!["items".to_owned(), index.to_string()], within].concat())
    })
}

fn code_of(message: &str) -> &str {
    message.split_once("error[").and_then(|(_, rest)| rest.split_once(']')).map_or("", |(code, _)| code)
}
