//! Effective values and their sources, as shown by `groupage config` and `/api/config`.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value as Json;

use super::env::SettingSource;
use super::schema::{Availability, KeyDefault, SPEC, SchemaKey, ValueType};

/// An effective value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Setting {
    /// Path of the key.
    pub path: String,
    /// Value, as it would be written in a file.
    pub value: String,
    /// Source of the value.
    pub source: SettingSource,
}

/// Lists every leaf. Keys without effect, in this version or outside a cluster, are left out.
pub(super) fn list(spec: &Json, sources: &BTreeMap<String, SettingSource>) -> Vec<Setting> {
    let mut out = Vec::new();
    push_keys(SPEC, spec, "", sources, &mut out);
    out
}

fn push_keys(
    keys: &'static [SchemaKey],
    json: &Json,
    prefix: &str,
    sources: &BTreeMap<String, SettingSource>,
    out: &mut Vec<Setting>,
) {
    for key in keys.iter().filter(|key| key.availability == Availability::Stable) {
        let path = if prefix.is_empty() { key.name.to_owned() } else { format!("{prefix}.{}", key.name) };
        let value = &json[key.name];
        match &key.value_type {
            ValueType::Map(inner) => push_map(key, inner, value, &path, sources, out),
            ValueType::List(ValueType::Map(inner), _) if value.as_array().is_some_and(|items| !items.is_empty()) => {
                for (index, item) in value.as_array().into_iter().flatten().enumerate() {
                    push_keys(inner, item, &format!("{path}[{index}]"), sources, out);
                }
            }
            // This happens only in a map that is written but not filled in, such as the limits of a
            // route. There the policy's value applies, which is listed above.
            _ if value.is_null() && matches!(key.default, KeyDefault::Value(_)) => {}
            _ => out.push(Setting { value: format_value(key, value), source: source(sources, &path), path }),
        }
    }
}

/// Lists the keys of a map. If the whole map is absent, it is one line inside a route, since the
/// policy's values are listed above, and all of its keys elsewhere.
fn push_map(
    key: &SchemaKey,
    inner: &'static [SchemaKey],
    value: &Json,
    path: &str,
    sources: &BTreeMap<String, SettingSource>,
    out: &mut Vec<Setting>,
) {
    let absent =
        matches!(key.default, KeyDefault::Absent(_)) && value.as_object().is_none_or(serde_json::Map::is_empty);
    if absent && path.contains('[') {
        out.push(Setting {
            path: path.to_owned(),
            value: format_value(key, &Json::Null),
            source: source(sources, path),
        });
    } else {
        push_keys(inner, value, path, sources, out);
    }
}

/// Returns the source of a key; the default if no source is recorded.
fn source(sources: &BTreeMap<String, SettingSource>, path: &str) -> SettingSource {
    sources.get(path).cloned().unwrap_or(SettingSource::Default)
}

fn format_value(key: &SchemaKey, value: &Json) -> String {
    match (value, &key.default) {
        (Json::Null, KeyDefault::Absent(meaning)) => format!("absent: {meaning}"),
        (Json::Array(items), KeyDefault::Absent(meaning)) if items.is_empty() => format!("absent: {meaning}"),
        _ => text(value),
    }
}

/// Formats a value as it would be written in a file.
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
