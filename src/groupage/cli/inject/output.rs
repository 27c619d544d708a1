//! Output of changed manifests: as YAML, as JSON, or as patches.

use std::collections::BTreeSet;

use clap::ValueEnum;
use serde_json::{Map, Value, json};

use super::super::yaml;
use super::{ManifestFile, display_name};
use crate::injector;

/// Format of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Output {
    /// Every object as YAML; unchanged objects keep their text.
    Yaml,
    /// Every object as JSON; several objects as one list.
    Json,
    /// Changes as JSON Patch (RFC 6902): one patch for one object, a map of patches by object for
    /// several.
    Patch,
}

/// An object that is being changed.
pub(super) struct ManifestObject {
    /// The object as read.
    pub(super) before: Value,
    pub(super) after: Value,
    /// Index of its file, and of the document in that file.
    pub(super) file: usize,
    pub(super) document: usize,
}

/// Formats the objects. Patches leave out those that did not change.
pub(super) fn format_objects(sources: &[ManifestFile], objects: &[ManifestObject], output: Output) -> String {
    match output {
        Output::Yaml => {
            objects.iter().enumerate().map(|(index, object)| as_yaml(sources, object, index == 0)).collect()
        }
        Output::Json => {
            let items: Vec<&Value> =
                objects.iter().map(|object| &object.after).filter(|value| !value.is_null()).collect();
            let whole = match items.as_slice() {
                [one] => (*one).clone(),
                items => json!({"apiVersion": "v1", "kind": "List", "items": items}),
            };
            format!("{whole:#}\n")
        }
        Output::Patch => {
            let changed: Vec<&ManifestObject> = objects.iter().filter(|object| object.before != object.after).collect();
            let patch = |object: &ManifestObject| json!(injector::patch(&object.before, &object.after));
            let is_one = objects.iter().filter(|object| !object.before.is_null()).count() == 1;
            let whole = match changed.as_slice() {
                [] if is_one => json!([]),
                [one] if is_one => patch(one),
                changed => {
                    let mut taken = BTreeSet::new();
                    let keyed = changed
                        .iter()
                        .map(|object| (unique(qualified_name(&object.before), &mut taken), patch(object)));
                    Value::Object(keyed.collect::<Map<_, _>>())
                }
            };
            format!("{whole:#}\n")
        }
    }
}

/// Returns the name, with a number appended if it is taken: several objects may have the same
/// `generateName`.
fn unique(name: String, taken: &mut BTreeSet<String>) -> String {
    let again = (2..).map(|again| format!("{name}#{again}"));
    let free = std::iter::once(name.clone()).chain(again).find(|name| !taken.contains(name)).unwrap_or(name);
    taken.insert(free.clone());
    free
}

/// Formats an object; an unchanged one keeps its text.
fn as_yaml(sources: &[ManifestFile], object: &ManifestObject, first: bool) -> String {
    let Some(source) = sources.get(object.file) else { return String::new() };
    let Some(document) = source.documents.get(object.document) else { return String::new() };
    let marker = if document.marked || !first { "---\n" } else { "" };
    if object.before != object.after {
        // Every JSON value can be written, so that an error here would fail the first test.
        return format!("{marker}{}", yaml::write(&object.after).unwrap_or_else(|error| format!("# {error}\n")));
    }
    let text = source.text.get(document.text.clone()).unwrap_or_default();
    // A directive requires an end marker of the document before it.
    let is_directed = !first && text.trim_start().starts_with('%');
    let marker = match (is_directed, document.marked) {
        (true, _) => "...\n",
        (false, true) => "",
        (false, false) => marker,
    };
    let end = if text.ends_with('\n') || text.is_empty() { "" } else { "\n" };
    format!("{marker}{text}{end}")
}

/// Returns a name that distinguishes an object from all others of a file.
fn qualified_name(object: &Value) -> String {
    let namespace = object.pointer("/metadata/namespace").and_then(Value::as_str);
    namespace.map_or_else(|| display_name(object), |namespace| format!("{namespace}/{}", display_name(object)))
}
