//! Rules of structural schemas, as defined by apiextensions, and conditions that an API server only
//! warns about.

use regex::Regex;
use serde_json::Value as Json;

use super::*;

/// Keywords that are allowed beside a type.
const STRUCTURE: [&str; 11] = [
    "type",
    "description",
    "default",
    "properties",
    "items",
    "additionalProperties",
    "x-kubernetes-int-or-string",
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-validations",
];
/// Keywords that validate a value. Only these are allowed in `not` and similar keywords.
const JUDGEMENT: [&str; 15] = [
    "enum",
    "format",
    "pattern",
    "minimum",
    "maximum",
    "multipleOf",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
    "required",
    "not",
    "allOf",
];

/// Collects everything that prevents a schema from being structural, or that an API server warns
/// about.
fn faults(schema: &Json, path: &str, out: &mut Vec<String>) {
    let Some(entries) = schema.as_object() else { return out.push(format!("{path}: no schema")) };
    let mut fault = |what: String| out.push(format!("{path}: {what}"));
    for name in entries.keys() {
        if !STRUCTURE.contains(&name.as_str()) && !JUDGEMENT.contains(&name.as_str()) {
            fault(format!("the keyword {name}"));
        }
    }
    let is = |name: &str| schema[name] == true;
    let free = is("x-kubernetes-int-or-string") || is("x-kubernetes-preserve-unknown-fields");
    match schema.get("type").and_then(Json::as_str) {
        Some("object" | "array" | "string" | "integer" | "boolean") if !free => {}
        None if free => {}
        other => fault(format!("type {other:?}")),
    }
    if is("x-kubernetes-int-or-string") && is("x-kubernetes-preserve-unknown-fields") {
        fault("two extensions that exclude each other".to_owned());
    }
    if schema.get("properties").is_some() && schema.get("additionalProperties").is_some() {
        fault("properties and additionalProperties".to_owned());
    }
    if let Some(format) = schema.get("format")
        && !(["date-time", "int32", "int64"].iter().any(|known| format == known))
    {
        fault(format!("format {format}"));
    }
    if let Some(pattern) = schema.get("pattern").and_then(Json::as_str)
        && Regex::new(pattern).is_err()
    {
        fault(format!("pattern {pattern}"));
    }
    if schema.get("enum").is_some_and(|words| words.as_array().is_none_or(Vec::is_empty)) {
        fault("an empty enum".to_owned());
    }
    let lists = schema["type"] == "array";
    if lists && schema.get("items").is_none() {
        fault("a list of what".to_owned());
    }
    match schema.get("x-kubernetes-list-type").and_then(Json::as_str) {
        Some("atomic" | "set") if lists => {}
        Some("map") if lists => {
            let keys = schema["x-kubernetes-list-map-keys"].as_array().cloned().unwrap_or_default();
            let required = schema["items"]["required"].as_array().cloned().unwrap_or_default();
            if keys.is_empty() || !keys.iter().all(|key| required.contains(key)) {
                fault(format!("a map of a list by {keys:?}"));
            }
        }
        None if !lists => {}
        other => fault(format!("list type {other:?}")),
    }
    if lists && schema.get("maxItems").is_none() {
        fault("a list without an end".to_owned());
    }
    if let Some(default) = schema.get("default") {
        for wrong in schema_errors(schema, default) {
            fault(format!("a default that it refuses: {wrong}"));
        }
    }
    for required in schema["required"].as_array().into_iter().flatten().filter_map(Json::as_str) {
        if schema["properties"].get(required).is_none() {
            fault(format!("{required} is required and not there"));
        }
    }
    if let Some(not) = schema.get("not") {
        judgement(not, &format!("{path}.not"), out);
    }
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        faults(property, &format!("{path}.{name}"), out);
    }
    for (inner, name) in [("items", "[]"), ("additionalProperties", ".*")] {
        if let Some(inner) = schema.get(inner) {
            faults(inner, &format!("{path}{name}"), out);
        }
    }
}

/// Checks that the contents of `not` validate a value and declare nothing.
fn judgement(schema: &Json, path: &str, out: &mut Vec<String>) {
    for name in schema.as_object().into_iter().flatten().map(|(name, _)| name) {
        if !JUDGEMENT.contains(&name.as_str()) {
            out.push(format!("{path}: {name} declares"));
        }
    }
}

/// Collects every rule with the maximum number of times that it can be evaluated for one object.
fn rules(schema: &Json, path: &str, times: u64, out: &mut Vec<(String, u64, Json)>) {
    for rule in schema["x-kubernetes-validations"].as_array().into_iter().flatten() {
        out.push((path.to_owned(), times, rule.clone()));
    }
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        rules(property, &format!("{path}.{name}"), times, out);
    }
    for (inner, most) in [("items", "maxItems"), ("additionalProperties", "maxProperties")] {
        if let Some(inner) = schema.get(inner) {
            rules(inner, &format!("{path}[]"), times.saturating_mul(schema[most].as_u64().unwrap_or(u64::MAX)), out);
        }
    }
}

#[test]
fn both_schemas_are_structural_without_unsupported_keywords() {
    for kind in Definition::all() {
        let mut found = Vec::new();
        faults(&kind.schema, &kind.name, &mut found);
        assert!(found.is_empty(), "{found:#?}");
        assert_eq!(kind.schema["type"], "object");
        let text = kind.schema.to_string();
        for artefact in
            ["$schema", "$ref", "nullable", "uint", "definitions", "anyOf", "oneOf", "\"default\":[]", "null,"]
        {
            assert!(!text.contains(artefact), "{}: {artefact}", kind.name);
        }
    }
}

#[test]
fn the_structural_checker_finds_every_fault() {
    for (schema, what) in [
        (json!({ "properties": {} }), "type None"),
        (json!({ "type": "object", "properties": { "a": {} } }), "type None"),
        (json!({ "type": ["string", "integer"] }), "type None"),
        (json!({ "type": "string", "nullable": true }), "keyword nullable"),
        (json!({ "type": "integer", "format": "uint32" }), "format"),
        (json!({ "type": "array", "items": { "type": "string" }, "maxItems": 1 }), "list type None"),
        (json!({ "type": "array", "x-kubernetes-list-type": "atomic", "maxItems": 1 }), "a list of what"),
        (
            json!({ "type": "array", "x-kubernetes-list-type": "atomic", "items": { "type": "string" } }),
            "without an end",
        ),
        (
            json!({ "type": "object", "properties": {}, "additionalProperties": { "type": "string" } }),
            "additionalProperties",
        ),
        (json!({ "type": "string", "not": { "type": "string" } }), "type declares"),
        (json!({ "type": "string", "enum": [] }), "empty enum"),
        (json!({ "type": "string", "enum": ["A"], "default": "B" }), "a default that it refuses"),
        (json!({ "type": "object", "required": ["a"], "properties": {} }), "required and not there"),
        (json!({ "type": "string", "pattern": "(" }), "pattern"),
        (json!({ "$ref": "#/x", "type": "string" }), "keyword $ref"),
    ] {
        let mut found = Vec::new();
        faults(&schema, "s", &mut found);
        assert!(found.iter().any(|found| found.contains(what)), "{schema}: {found:?}");
    }
}

#[test]
fn every_rule_has_a_plain_message_and_a_bounded_cost() {
    let mut all = Vec::new();
    for kind in Definition::all() {
        rules(&kind.schema, &kind.name, 1, &mut all);
    }
    assert!(all.len() > 40, "{}", all.len());
    for (path, times, rule) in all {
        let message = rule["message"].as_str().unwrap();
        let between_keys = rule.get("reason").is_some();
        assert!(message.starts_with("must be ") || (between_keys && message.contains(": ")), "{path}: {message}");
        assert!(!message.ends_with('.') && !message.contains('\n') && message.len() <= 2_048, "{path}: {message}");
        assert!(!message.starts_with(|c: char| c.is_uppercase()) || message.starts_with("In and"), "{path}: {message}");
        // In nested lists the factor is at most the length of the list of routes, once.
        assert!(times <= 256, "{path}: called {times} times");
    }
}
