//! Access to raw JSON by path, without any assumption about its structure.

use serde_json::{Map, Value};

/// Returns the value at a path, or `Null` if there is none.
pub(super) fn at<'a>(value: &'a Value, path: &[&str]) -> &'a Value {
    path.iter().fold(value, |value, key| value.get(key).unwrap_or(&Value::Null))
}

/// Returns the string at a path.
pub(super) fn text<'a>(value: &'a Value, path: &[&str]) -> Option<&'a str> {
    at(value, path).as_str()
}

/// Returns the items at a path; empty if the value is not a list.
pub(super) fn list<'a>(value: &'a Value, path: &[&str]) -> &'a [Value] {
    at(value, path).as_array().map_or(&[], Vec::as_slice)
}

/// Returns the first item of a list with this name.
pub(super) fn find_named<'a>(items: &'a [Value], name: &str) -> Option<&'a Value> {
    items.iter().find(|item| text(item, &["name"]) == Some(name))
}

/// Returns the map at a path, created if it is absent or null.
pub(super) fn map_mut<'a>(value: &'a mut Value, path: &[&str]) -> &'a mut Map<String, Value> {
    let mut value = value;
    for key in path {
        value = as_map(value).entry(*key).or_insert(Value::Null);
    }
    as_map(value)
}

/// Returns the list at a path, created if it is absent or null.
pub(super) fn list_mut<'a>(value: &'a mut Value, path: &[&str]) -> &'a mut Vec<Value> {
    let Some((last, path)) = path.split_last() else { return as_list(value) };
    as_list(map_mut(value, path).entry(*last).or_insert(Value::Null))
}

fn as_map(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    value.as_object_mut().expect("the value was just set to a map")
}

fn as_list(value: &mut Value) -> &mut Vec<Value> {
    if !value.is_array() {
        *value = Value::Array(Vec::new());
    }
    value.as_array_mut().expect("the value was just set to a list")
}

/// Returns a mutable reference to the value at the keys of a JSON Pointer (RFC 6901).
pub(super) fn at_mut<'a>(value: &'a mut Value, path: &[&str]) -> Option<&'a mut Value> {
    path.iter().try_fold(value, |value, key| value.get_mut(key))
}

/// Returns the regular container of a pod with this name.
pub(super) fn container_mut<'a>(pod: &'a mut Value, name: &str) -> Option<&'a mut Value> {
    let containers = at_mut(pod, &["spec", "containers"])?.as_array_mut()?;
    containers.iter_mut().find(|container| text(container, &["name"]) == Some(name))
}

/// Returns a non-negative integer, including one in floating-point notation: JSON has a single
/// number type, and a program without an integer type writes `8000.0`.
pub(super) fn as_integer(value: &Value) -> Option<u64> {
    let spelt_otherwise = || {
        let float = value.as_f64().filter(|float| (0.0..=WHOLE_MAX).contains(float) && float.fract() == 0.0)?;
        format!("{float:.0}").trim_start_matches('-').parse().ok()
    };
    value.as_u64().or_else(spelt_otherwise)
}

/// Maximum integer up to which every integer has an exact `f64` representation (2^53).
const WHOLE_MAX: f64 = 9_007_199_254_740_992.0;

/// Returns a port number, if the value is a valid one.
pub(super) fn number(value: &Value) -> Option<u16> {
    as_integer(value).and_then(|number| u16::try_from(number).ok()).filter(|number| *number > 0)
}

/// Returns `true` if `labels` (a map or null) satisfy a map of required labels.
pub(super) fn matches_labels(labels: &Value, required: &Value) -> bool {
    required.as_object().is_some_and(|required| required.iter().all(|(key, value)| labels.get(key) == Some(value)))
}

/// Returns `true` if `labels` satisfy a label selector (`matchLabels`, `matchExpressions`). An
/// empty selector matches everything.
pub(super) fn matches_selector(labels: &Value, selector: &Value) -> bool {
    let required = at(selector, &["matchLabels"]);
    let all = !required.is_object() || matches_labels(labels, required);
    all && list(selector, &["matchExpressions"]).iter().all(|term| {
        let found = text(term, &["key"]).and_then(|key| labels.get(key));
        let among = || found.is_some_and(|found| list(term, &["values"]).contains(found));
        match text(term, &["operator"]) {
            Some("In") => among(),
            Some("NotIn") => !among(),
            Some("Exists") => found.is_some(),
            Some("DoesNotExist") => found.is_none(),
            _ => false,
        }
    })
}
