//! Every value in effect and where it comes from: what `groupage config` and `/api/config` show.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value as Json;

use super::env::Source;
use super::schema::{Key, Otherwise, SPEC, Shape, Standing};

/// A value in effect.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Setting {
    /// The key's path.
    pub path: String,
    /// As it would be written.
    pub value: String,
    /// Where it comes from.
    pub source: Source,
}

/// Lists every leaf. Keys that do nothing here, in this version or outside a cluster, are left out.
pub(super) fn list(spec: &Json, sources: &BTreeMap<String, Source>) -> Vec<Setting> {
    let mut out = Vec::new();
    keys(SPEC, spec, "", sources, &mut out);
    out
}

fn keys(keys: &'static [Key], json: &Json, prefix: &str, sources: &BTreeMap<String, Source>, out: &mut Vec<Setting>) {
    for key in keys.iter().filter(|key| key.standing == Standing::Built) {
        let path = if prefix.is_empty() { key.name.to_owned() } else { format!("{prefix}.{}", key.name) };
        let value = &json[key.name];
        match &key.shape {
            Shape::Map(inner) => group(key, inner, value, &path, sources, out),
            Shape::List(Shape::Map(inner), _) if value.as_array().is_some_and(|items| !items.is_empty()) => {
                for (index, item) in value.as_array().into_iter().flatten().enumerate() {
                    self::keys(inner, item, &format!("{path}[{index}]"), sources, out);
                }
            }
            // Only inside a map that is written but not filled in, as a route's own limits: the policy's value stands above.
            _ if value.is_null() && matches!(key.default, Otherwise::Is(_)) => {}
            _ => out.push(Setting { value: shown(key, value), source: source(sources, &path), path }),
        }
    }
}

/// A map that is absent as a whole is one line inside a route, whose readers know it from above, and all its keys elsewhere.
fn group(
    key: &Key,
    inner: &'static [Key],
    value: &Json,
    path: &str,
    sources: &BTreeMap<String, Source>,
    out: &mut Vec<Setting>,
) {
    let absent = matches!(key.default, Otherwise::Absent(_)) && value.as_object().is_none_or(serde_json::Map::is_empty);
    if absent && path.contains('[') {
        out.push(Setting { path: path.to_owned(), value: shown(key, &Json::Null), source: source(sources, path) });
    } else {
        keys(inner, value, path, sources, out);
    }
}

/// The source of a key; what nobody said is the default.
fn source(sources: &BTreeMap<String, Source>, path: &str) -> Source {
    sources.get(path).cloned().unwrap_or(Source::Default)
}

fn shown(key: &Key, value: &Json) -> String {
    match (value, &key.default) {
        (Json::Null, Otherwise::Absent(meaning)) => format!("absent: {meaning}"),
        (Json::Array(items), Otherwise::Absent(meaning)) if items.is_empty() => format!("absent: {meaning}"),
        _ => text(value),
    }
}

/// A value as it would be written in a file.
pub(super) fn text(value: &Json) -> String {
    match value {
        Json::Null => "absent".to_owned(),
        Json::String(text) if text.is_empty() => "\"\"".to_owned(),
        Json::String(text) => text.clone(),
        Json::Bool(_) | Json::Number(_) => value.to_string(),
        Json::Array(items) => {
            let items: Vec<String> = items.iter().map(text).collect();
            format!("[{}]", items.join(", "))
        }
        Json::Object(entries) => {
            let entries: Vec<String> = entries.iter().map(|(name, value)| format!("{name}: {}", text(value))).collect();
            format!("{{{}}}", entries.join(", "))
        }
    }
}
