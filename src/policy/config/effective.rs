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

/// The source of each value that is no default, by path.
pub(super) type SettingSources = BTreeMap<String, SettingSource>;

/// Sections of a route with keys that the policy's section of the same name provides if they are
/// absent.
const INHERITED: [&str; 2] = ["slo", "limits"];

/// The settings listed up to now, with the values and the sources that they are taken from.
struct SettingLister<'a> {
    spec: &'a Json,
    sources: &'a SettingSources,
    out: Vec<Setting>,
}

/// Sets the value of a key, and records its source.
pub(super) fn put(
    json: &mut Json,
    sources: &mut SettingSources,
    path: &str,
    value: impl Into<Json>,
    source: SettingSource,
) {
    let mut at = json;
    for name in path.split('.') {
        at = &mut at[name];
    }
    *at = value.into();
    sources.insert(path.to_owned(), source);
}

/// Lists every leaf. Keys without effect, in this version or outside a cluster, are left out.
pub(super) fn list(spec: &Json, sources: &SettingSources) -> Vec<Setting> {
    let mut lister = SettingLister { spec, sources, out: Vec::new() };
    lister.push_keys(SPEC, spec, "");
    lister.out
}

// === impl SettingLister ===

impl SettingLister<'_> {
    fn push_keys(&mut self, keys: &'static [SchemaKey], json: &Json, prefix: &str) {
        for key in keys.iter().filter(|key| key.availability == Availability::Stable) {
            let path = if prefix.is_empty() { key.name.to_owned() } else { format!("{prefix}.{}", key.name) };
            let value = &json[key.name];
            match &key.value_type {
                ValueType::Map(inner) => self.push_map(key, inner, value, path),
                ValueType::List(ValueType::Map(inner), _)
                    if value.as_array().is_some_and(|items| !items.is_empty()) =>
                {
                    for (index, item) in value.as_array().into_iter().flatten().enumerate() {
                        self.push_keys(inner, item, &format!("{path}[{index}]"));
                    }
                }
                // This happens only in a map that is written but not filled in, such as the limits
                // of a route. There the policy's value applies, which is listed above.
                _ if value.is_null() && matches!(key.default, KeyDefault::Value(_)) => {}
                _ => self.push(key, value, path),
            }
        }
    }

    /// Lists the keys of a map. If the whole map is absent, it is one line inside a route, since
    /// the policy's values are listed above, and all of its keys elsewhere.
    fn push_map(&mut self, key: &SchemaKey, inner: &'static [SchemaKey], value: &Json, path: String) {
        let absent =
            matches!(key.default, KeyDefault::Absent(_)) && value.as_object().is_none_or(serde_json::Map::is_empty);
        if absent && path.contains('[') {
            self.push(key, &Json::Null, path);
        } else {
            self.push_keys(inner, value, &path);
        }
    }

    /// Lists a value: that of the policy if the key is absent in a route and inherited, or if the
    /// policy overrides the route.
    fn push(&mut self, key: &SchemaKey, value: &Json, path: String) {
        let (from, value) = self.inherited(&path, value).unwrap_or((path.as_str(), value));
        let source = self.sources.get(from).cloned().unwrap_or(SettingSource::Default);
        let value = format_value(key, value);
        self.out.push(Setting { path, value, source });
    }

    /// Returns the policy's key that decides about a key of a route, with its value; `None` if the
    /// route's own key does.
    fn inherited<'b>(&'b self, path: &'b str, value: &Json) -> Option<(&'b str, &'b Json)> {
        let (_, key) = path.strip_prefix("routes[")?.split_once("].")?;
        // The kill switch overrides every route.
        if key == "mode" && !value.is_null() && self.spec["mode"] == "Passthrough" {
            return Some((key, &self.spec["mode"]));
        }
        let (section, name) = key.split_once('.')?;
        let policy = &self.spec[section][name];
        (value.is_null() && INHERITED.contains(&section) && !policy.is_null()).then_some((key, policy))
    }
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
