//! Validation of an object against a schema as an API server does it: the part of JSON Schema that
//! structural schemas use, with the server's messages.

use regex::Regex;
use serde_json::{Value as Json, json};

/// Returns the problems of an object.
pub(super) fn schema_errors(schema: &Json, object: &Json) -> Vec<String> {
    let mut wrong = Vec::new();
    validate(schema, object, "", &mut wrong);
    wrong
}

fn validate(schema: &Json, value: &Json, path: &str, wrong: &mut Vec<String>) {
    let mut report = |what: String| wrong.push(format!("{path}: {what}"));
    let number = |key: &str| schema.get(key).and_then(Json::as_f64);
    let count = |key: &str| schema.get(key).and_then(Json::as_u64).and_then(|count| usize::try_from(count).ok());
    let kind = match value {
        Json::Null => "null",
        Json::Bool(_) => "boolean",
        Json::Number(number) if number.is_i64() || number.is_u64() => "integer",
        Json::Number(_) => "number",
        Json::String(_) => "string",
        Json::Array(_) => "array",
        Json::Object(_) => "object",
    };
    let two = schema["x-kubernetes-int-or-string"] == true;
    if two && !matches!(kind, "integer" | "string") {
        report(format!("Invalid value: {value}: must be of type integer or string: {kind}"));
        return;
    }
    if let Some(required) = schema.get("type").and_then(Json::as_str)
        && required != kind
    {
        report(format!("Invalid value: {value}: must be of type {required}: {kind}"));
        return;
    }
    if let Some(words) = schema.get("enum").and_then(Json::as_array)
        && !words.contains(value)
    {
        let words: Vec<String> = words.iter().map(Json::to_string).collect();
        report(format!("Unsupported value: {value}: supported values: {}", words.join(", ")));
    }
    if let Some(not) = schema.get("not") {
        let mut inner = Vec::new();
        validate(not, value, path, &mut inner);
        if inner.is_empty() {
            report("Invalid value: must not validate the schema (not)".to_owned());
        }
    }
    match value {
        Json::Number(found) => {
            let found = found.as_f64().unwrap();
            if number("minimum").is_some_and(|min| found < min) {
                report(format!("Invalid value: {value}: should be greater than or equal to {}", schema["minimum"]));
            }
            if number("maximum").is_some_and(|max| found > max) {
                report(format!("Invalid value: {value}: should be less than or equal to {}", schema["maximum"]));
            }
            if number("multipleOf").is_some_and(|of| found % of != 0.0) {
                report(format!("Invalid value: {value}: should be a multiple of {}", schema["multipleOf"]));
            }
        }
        Json::String(text) => {
            let chars = text.chars().count();
            if count("maxLength").is_some_and(|max| chars > max) || count("minLength").is_some_and(|min| chars < min) {
                report(format!("Too long or too short: {value}"));
            }
            if let Some(pattern) = schema.get("pattern").and_then(Json::as_str)
                && !Regex::new(pattern).unwrap().is_match(text)
            {
                report(format!("Invalid value: {value}: should match '{pattern}'"));
            }
        }
        Json::Array(items) => {
            if count("maxItems").is_some_and(|max| items.len() > max) {
                report(format!("Too many: {}: must have at most {} items", items.len(), schema["maxItems"]));
            }
            if count("minItems").is_some_and(|min| items.len() < min) {
                report(format!("Invalid value: {value}: should have at least {} items", schema["minItems"]));
            }
            for (index, item) in items.iter().enumerate() {
                validate(schema.get("items").unwrap_or(&Json::Null), item, &format!("{path}[{index}]"), wrong);
            }
        }
        Json::Object(entries) => {
            let (least, most) = (count("minProperties").unwrap_or(0), count("maxProperties").unwrap_or(usize::MAX));
            if !(least..=most).contains(&entries.len()) {
                report(format!("Too many: {}: must have at most {most} items", entries.len()));
            }
            map(schema, entries, path, wrong);
        }
        Json::Null | Json::Bool(_) => {}
    }
}

fn map(schema: &Json, entries: &serde_json::Map<String, Json>, path: &str, wrong: &mut Vec<String>) {
    let below = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
    for name in schema["required"].as_array().into_iter().flatten().filter_map(Json::as_str) {
        if !entries.contains_key(name) {
            wrong.push(format!("{}: Required value", below(name)));
        }
    }
    for (name, value) in entries {
        if let Some(property) = schema["properties"].get(name) {
            validate(property, value, &below(name), wrong);
        } else if let Some(of) = schema.get("additionalProperties") {
            validate(of, value, &below(name), wrong);
        } else if schema.get("properties").is_some() && !(path.is_empty() && always(name)) {
            // An API server prunes it, or rejects it if field validation is strict, as `kubectl`
            // requests.
            wrong.push(format!("unknown field \"{}\"", below(name)));
        }
    }
}

/// Returns `true` for a field that every object has.
fn always(name: &str) -> bool {
    ["apiVersion", "kind", "metadata"].contains(&name)
}

#[test]
fn the_schema_checker_finds_every_violation() {
    let schema = json!({
        "type": "object",
        "required": ["a"],
        "properties": {
            "a": { "type": "integer", "minimum": 1, "maximum": 3 },
            "b": { "type": "string", "pattern": "^x+$", "maxLength": 3 },
            "c": { "type": "array", "maxItems": 1, "items": { "type": "string", "enum": ["A"] } },
            "d": { "x-kubernetes-int-or-string": true, "maximum": 2 },
            "e": { "x-kubernetes-preserve-unknown-fields": true, "not": { "enum": [true, null] } },
            "f": { "type": "object", "additionalProperties": { "type": "boolean" }, "maxProperties": 1 },
        }
    });
    for right in [
        json!({ "a": 1 }),
        json!({ "a": 3, "b": "xxx", "c": ["A"], "d": "9", "e": "x", "f": { "k": true }, "kind": "K" }),
        json!({ "a": 2, "c": [], "d": 2, "e": false, "f": {} }),
    ] {
        assert_eq!(schema_errors(&schema, &right), [""; 0], "{right}");
    }
    for (path, more) in [
        ("a", json!({ "a": 0 })),
        ("a", json!({ "a": 4 })),
        ("a", json!({ "a": 1.5 })),
        ("a", json!({ "a": "1" })),
        ("a", json!({ "a": null })),
        ("b", json!({ "b": "y" })),
        ("b", json!({ "b": "xxxx" })),
        ("c", json!({ "c": ["A", "A"] })),
        ("c[0]", json!({ "c": ["B"] })),
        ("d", json!({ "d": 3 })),
        ("d", json!({ "d": true })),
        ("e", json!({ "e": true })),
        ("e", json!({ "e": null })),
        ("f", json!({ "f": { "k": true, "l": true } })),
        ("f.k", json!({ "f": { "k": 1 } })),
        ("unknown field \"z\"", json!({ "z": 1 })),
    ] {
        let mut object = json!({ "a": 1 });
        for (key, value) in more.as_object().unwrap() {
            object[key] = value.clone();
        }
        let wrong = schema_errors(&schema, &object);
        assert_eq!(wrong.len(), 1, "{object}: {wrong:?}");
        assert!(wrong[0].starts_with(path), "{wrong:?}");
    }
    assert_eq!(schema_errors(&schema, &json!({})), ["a: Required value"]);
}
