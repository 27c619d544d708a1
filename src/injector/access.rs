//! Reading and writing raw JSON by path, with nothing assumed about its shape.

use serde_json::{Map, Value};

/// The value at a path, `Null` where there is none.
pub(super) fn at<'a>(value: &'a Value, path: &[&str]) -> &'a Value {
    path.iter().fold(value, |value, key| value.get(key).unwrap_or(&Value::Null))
}

/// The text at a path.
pub(super) fn text<'a>(value: &'a Value, path: &[&str]) -> Option<&'a str> {
    at(value, path).as_str()
}

/// The items at a path; none where there is no list.
pub(super) fn list<'a>(value: &'a Value, path: &[&str]) -> &'a [Value] {
    at(value, path).as_array().map_or(&[], Vec::as_slice)
}

/// The map at a path, made where it is absent or null.
pub(super) fn map_mut<'a>(value: &'a mut Value, path: &[&str]) -> &'a mut Map<String, Value> {
    let mut value = value;
    for key in path {
        value = as_map(value).entry(*key).or_insert(Value::Null);
    }
    as_map(value)
}

/// The list at a path, made where it is absent or null.
pub(super) fn list_mut<'a>(value: &'a mut Value, path: &[&str]) -> &'a mut Vec<Value> {
    let Some((last, path)) = path.split_last() else { return as_list(value) };
    as_list(map_mut(value, path).entry(*last).or_insert(Value::Null))
}

fn as_map(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    value.as_object_mut().expect("it was just made one")
}

fn as_list(value: &mut Value) -> &mut Vec<Value> {
    if !value.is_array() {
        *value = Value::Array(Vec::new());
    }
    value.as_array_mut().expect("it was just made one")
}

/// The value at a JSON Pointer's keys, to be changed.
pub(super) fn at_mut<'a>(value: &'a mut Value, path: &[&str]) -> Option<&'a mut Value> {
    path.iter().try_fold(value, |value, key| value.get_mut(key))
}

/// A whole number, however it is spelt: JSON has one kind of number, and a program that knows only floats writes `8000.0`.
pub(super) fn whole(value: &Value) -> Option<u64> {
    let spelt_otherwise = || {
        let float = value.as_f64().filter(|float| (0.0..=WHOLE_MAX).contains(float) && float.fract() == 0.0)?;
        format!("{float:.0}").trim_start_matches('-').parse().ok()
    };
    value.as_u64().or_else(spelt_otherwise)
}

/// Up to here every whole number is a float of its own.
const WHOLE_MAX: f64 = 9_007_199_254_740_992.0;

/// A port number, where it is one.
pub(super) fn number(value: &Value) -> Option<u16> {
    whole(value).and_then(|number| u16::try_from(number).ok()).filter(|number| *number > 0)
}

/// Whether `labels` (a map, or nothing) satisfy a map of wanted labels.
pub(super) fn labelled(labels: &Value, wanted: &Value) -> bool {
    wanted.as_object().is_some_and(|wanted| wanted.iter().all(|(key, value)| labels.get(key) == Some(value)))
}

/// Whether `labels` satisfy a label selector (`matchLabels`, `matchExpressions`); an empty one selects everything.
pub(super) fn selected(labels: &Value, selector: &Value) -> bool {
    let all = at(selector, &["matchLabels"])
        .as_object()
        .is_none_or(|wanted| wanted.iter().all(|(key, value)| labels.get(key) == Some(value)));
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
