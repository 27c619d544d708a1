//! Convergence with a container or volume that an earlier pass added.
//!
//! Between two passes of one admission, other components change it: the API server fills in
//! defaults, a mesh rewrites the probes, a registry mirror replaces the image, another webhook adds
//! proxy variables. They do not run again after the injector. So a field with the same desired
//! value as in the earlier pass keeps its current value, whatever it is. A field with another
//! desired value is written, and one that is no longer desired is removed. Foreign entries are kept
//! in `env` and `volumeMounts` only.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::access::text;

pub(super) fn field_hashes(container: &Value) -> BTreeMap<String, String> {
    let hash = |value: &Value| blake3::hash(value.to_string().as_bytes()).to_hex().chars().take(8).collect();
    container.as_object().into_iter().flatten().map(|(key, value)| (key.clone(), hash(value))).collect()
}

/// Merges the existing container `there` with the desired container `desired`. `before` are the
/// field hashes of the container that the earlier pass wrote.
pub(super) fn merge_container(
    there: Option<&Value>,
    desired: Value,
    before: Option<&BTreeMap<String, String>>,
) -> Value {
    let (Some(Value::Object(there)), Some(before)) = (there, before) else { return desired };
    let hashes = field_hashes(&desired);
    let Value::Object(desired) = desired else { return desired };
    let mut merged: Map<String, Value> = there.clone();
    merged.retain(|key, _| desired.contains_key(key) || !before.contains_key(key));
    for (key, value) in desired {
        if merged.contains_key(&key) && before.get(&key) == hashes.get(&key) {
            continue;
        }
        let is_ours: Option<fn(&str) -> bool> = match key.as_str() {
            "env" => Some(|name| name.starts_with("GROUPAGE_")),
            "volumeMounts" => Some(|name| name.starts_with("groupage-")),
            _ => None,
        };
        let value = match (merged.get(&key), is_ours) {
            (Some(Value::Array(now)), Some(is_ours)) => append_foreign(value, now, is_ours),
            _ => value,
        };
        merged.insert(key, value);
    }
    Value::Object(merged)
}

/// Returns the existing volume or hook if it covers the desired one, otherwise the desired one.
pub(super) fn existing_or(there: Option<&Value>, desired: Value) -> Value {
    there.filter(|there| covers(there, &desired)).cloned().unwrap_or(desired)
}

/// Returns the injector's entries, followed by the foreign entries of a list.
fn append_foreign(ours: Value, now: &[Value], is_ours: impl Fn(&str) -> bool) -> Value {
    let Value::Array(mut all) = ours else { return ours };
    let theirs = now.iter().filter(|entry| !text(entry, &["name"]).is_some_and(&is_ours));
    all.extend(theirs.cloned());
    Value::Array(all)
}

/// Returns `true` if a value contains everything that another contains.
fn covers(there: &Value, desired: &Value) -> bool {
    match (there, desired) {
        (Value::Object(there), Value::Object(desired)) => {
            desired.iter().all(|(key, desired)| there.get(key).is_some_and(|there| covers(there, desired)))
        }
        (Value::Array(there), Value::Array(desired)) => {
            there.len() == desired.len() && there.iter().zip(desired).all(|(there, desired)| covers(there, desired))
        }
        (there, desired) => there == desired,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_with_unchanged_values_keep_foreign_changes() {
        let desired = json!({"image": "a", "env": [{"name": "GROUPAGE_X", "value": "1"}], "ports": [1]});
        let before = field_hashes(&desired);
        let there = json!({"image": "mirror/a", "env": [{"name": "GROUPAGE_X", "value": "1"}, {"name": "P"}], "ports": [1], "tty": false});
        assert_eq!(merge_container(Some(&there), desired.clone(), Some(&before)), there);
        assert_eq!(merge_container(Some(&there), desired.clone(), None), desired);
        assert_eq!(merge_container(None, desired.clone(), Some(&before)), desired);
    }

    #[test]
    fn changed_fields_are_written_and_foreign_additions_are_kept() {
        let before =
            field_hashes(&json!({"image": "a", "env": [{"name": "GROUPAGE_X", "value": "1"}], "ports": [1], "old": 1}));
        let there = json!({"image": "mirror/a", "env": [{"name": "P"}, {"name": "GROUPAGE_X", "value": "1"}], "ports": [1], "old": 1, "tty": false});
        let desired = json!({"image": "a", "env": [{"name": "GROUPAGE_Y", "value": "2"}], "ports": [1, 2]});
        assert_eq!(
            merge_container(Some(&there), desired, Some(&before)),
            json!({"image": "mirror/a", "env": [{"name": "GROUPAGE_Y", "value": "2"}, {"name": "P"}], "ports": [1, 2], "tty": false})
        );
    }

    #[test]
    fn a_volume_with_server_defaults_is_kept_and_a_different_one_is_replaced() {
        let desired = json!({"name": "v", "projected": {"sources": [{"a": 1}]}});
        let filled = json!({"name": "v", "projected": {"defaultMode": 420, "sources": [{"a": 1, "b": 2}]}});
        assert_eq!(existing_or(Some(&filled), desired.clone()), filled);
        let more = json!({"name": "v", "projected": {"sources": [{"a": 1}, {"secret": "x"}]}});
        assert_eq!(existing_or(Some(&more), desired.clone()), desired);
    }
}
