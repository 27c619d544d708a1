//! Constraints of the table, applied to a schema: type, range, words, pattern, bounds and default
//! of every key, and the required keys.

use std::time::Duration;

use serde_json::{Value as Json, json};

use super::cel::CelRule;
use super::number;
use crate::config::check::Validator;
use crate::config::schema::{Availability, KeyDefault, SchemaKey, ValueType};
use crate::config::text::{PORTS, TextRule};
use crate::config::tree;
use crate::config::units::{CHARS_MAX, format_duration, format_size};

/// Keys on and under which an absent value is filled in later, from an annotation, another policy
/// or the chart, or counts as absent (`generic`, in which keys exclude each other). A default in
/// the schema would be mistaken for a value that the user wrote.
const FILLED_LATER: [&str; 7] = ["limits", "scheduling", "profileRef", "injection", "engine", "proxy", "generic"];
/// Keys without a default for the same reason: the installation may have set a mode.
const NO_DEFAULT: [&str; 1] = ["mode"];

/// Pattern of a duration without its range: the units, each at most once, largest first.
const DURATION: &str = "^(0|([0-9]+h)?([0-9]+m)?([0-9]+s)?([0-9]+ms)?([0-9]+us)?)$";
/// Exact pattern of a share.
const SHARE: &str = r"^0*(100(\.0{1,4})?|[0-9]{1,2}(\.[0-9]{1,4})?)%$";
/// Pattern of a non-negative Kubernetes quantity without its range.
const QUANTITY: &str =
    r"^\+?([0-9]{1,18}(\.[0-9]{0,18})?|\.[0-9]{1,18})(n|u|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei|[eE][+-]?[0-9]{1,2})?$";
/// Units of a size, and their number of bytes.
const UNITS: [(&str, u64); 4] = [("", 1), ("Ki", 1 << 10), ("Mi", 1 << 20), ("Gi", 1 << 30)];

/// Constrains the keys of a map, and the map itself by the rules of its path.
pub(super) fn map(schema: &mut Json, keys: &'static [SchemaKey], path: &str, rules: &[CelRule]) {
    for key in keys {
        let at = if path.is_empty() { key.name.to_owned() } else { format!("{path}.{}", key.name) };
        let property = &mut schema["properties"][key.name];
        value(property, &key.value_type, &at, rules);
        describe(property, key);
        match (key.availability, default(key, &at)) {
            (Availability::Later, _) => constrain_planned(property, key),
            (Availability::Stable | Availability::ClusterOnly, Some(default)) => property["default"] = default,
            (Availability::Stable | Availability::ClusterOnly, None) => {}
        }
    }
    let required: Vec<&str> = keys.iter().filter(|key| key.required).map(|key| key.name).collect();
    if !required.is_empty() {
        schema["required"] = json!(required);
    }
    for rule in rules.iter().filter(|rule| rule.at == path) {
        push(schema, rule.json());
    }
}

pub(super) fn value(schema: &mut Json, value_type: &'static ValueType, path: &str, rules: &[CelRule]) {
    match value_type {
        ValueType::Map(keys) => map(schema, keys, path, rules),
        ValueType::Names(of, max) => {
            schema["maxProperties"] = json!(max);
            value(&mut schema["additionalProperties"], of, &format!("{path}.*"), rules);
        }
        ValueType::List(of, max) => {
            schema["maxItems"] = json!(max);
            value(&mut schema["items"], of, &format!("{path}[]"), rules);
        }
        ValueType::OneOrList(of, max) => {
            let mut item = json!({ "type": "string" });
            value(&mut item, of, &format!("{path}[]"), rules);
            // Constraints of texts apply to texts only, so they can be used here too.
            for keyword in ["pattern", "maxLength"] {
                schema[keyword] = item[keyword].clone();
            }
            insert_all(schema, json!({ "items": item, "minItems": 1, "maxItems": max }));
            insert_all(schema, json!({ "minimum": 1, "maximum": 0, "minProperties": 1, "maxProperties": 0 }));
            schema["not"] = json!({ "enum": [true, false, null] });
        }
        ValueType::IntOrMap(min, max, keys) => {
            map(schema, keys, path, rules);
            for key in *keys {
                set_type(&mut schema["properties"][key.name], &key.value_type);
            }
            insert_all(schema, json!({ "minimum": min, "maximum": max, "multipleOf": 1, "maxProperties": keys.len() }));
            insert_all(schema, json!({ "minLength": 1, "maxLength": 0, "minItems": 1, "maxItems": 0 }));
            schema["not"] = json!({ "enum": [true, false, null] });
        }
        ValueType::Int(min, max) => insert_all(schema, json!({ "minimum": min, "maximum": max })),
        ValueType::Time(min, max) => {
            insert_all(schema, json!({ "minLength": 1, "maxLength": CHARS_MAX }));
            push(schema, duration(*min, *max, &value_type.allowed()));
        }
        ValueType::Size(min, max) => size(schema, *min, *max, path, &value_type.allowed()),
        ValueType::Share => insert_all(schema, json!({ "pattern": SHARE, "maxLength": CHARS_MAX })),
        ValueType::Switch => {}
        ValueType::Word(words, _) => schema["enum"] = json!(words),
        ValueType::Text(rule) => text(schema, rule),
        ValueType::Quantity(amount) => {
            insert_all(schema, json!({ "pattern": QUANTITY, "maxLength": CHARS_MAX }));
            let rule = format!(
                "!isQuantity(self) || (quantity(self).compareTo(quantity('{}')) >= 0 && quantity(self).compareTo(quantity('{}')) <= 0)",
                amount.min, amount.max
            );
            push(schema, json!({ "rule": rule, "message": format!("must be {}", amount.allowed()) }));
        }
    }
}

/// Sets the type of a key in a map that may also be a number. A schema cannot express the type of
/// such a value, so the derive omits the types of its keys.
fn set_type(schema: &mut Json, value_type: &ValueType) {
    schema["type"] = json!(match value_type {
        ValueType::Int(..) => "integer",
        ValueType::Switch => "boolean",
        _ => "string",
    });
}

fn text(schema: &mut Json, rule: &TextRule) {
    if !rule.pattern.is_empty() {
        schema["pattern"] = json!(rule.pattern);
    }
    schema["maxLength"] = json!(rule.chars_max);
    // A port is the only text that may also be a number.
    if schema["x-kubernetes-int-or-string"] == true {
        insert_all(schema, json!({ "minimum": PORTS.0, "maximum": PORTS.1 }));
    }
}

/// Returns the rule for the form and range of a duration. The form is part of the rule because the
/// API server would show the expression of a pattern, and not the allowed values.
fn duration(min: u64, max: u64, allowed: &str) -> Json {
    let literal = |micros| format!("duration('{}')", format_duration(Duration::from_micros(micros)));
    let from = if min > 0 { format!("duration(self) >= {} && ", literal(min)) } else { String::new() };
    json!({
        "rule": format!("self.matches('{DURATION}') && {from}duration(self) <= {}", literal(max)),
        "message": format!("must be {allowed}"),
    })
}

/// Constrains a size. If the key occurs once, a rule contains the range, with a readable message.
/// In a list a rule would cost too much: API servers before 1.35 estimate a text beside a number at
/// three megabytes, whatever its bound. There a pattern contains the range.
fn size(schema: &mut Json, min: u64, max: u64, path: &str, allowed: &str) {
    insert_all(schema, json!({ "minimum": min, "maximum": max, "maxLength": CHARS_MAX }));
    if path.contains("[]") {
        let ways: Vec<String> = UNITS
            .iter()
            .map(|(unit, bytes)| (unit, min.div_ceil(*bytes), max / bytes))
            .filter(|(_, min, max)| min <= max)
            .map(|(unit, min, max)| format!("{}{unit}", number::range_pattern(min, max)))
            .collect();
        schema["pattern"] = json!(format!("^0*({})$", ways.join("|")));
        return;
    }
    schema["pattern"] = json!("^[0-9]+(Ki|Mi|Gi)?$");
    let compare = |sign: &str, bytes| format!("quantity(self).compareTo(quantity('{}')) {sign} 0", format_size(bytes));
    // For a number, `string(self)` is not equal to `self`. `type(self)` would be clearer, but not
    // every CEL evaluator supports it.
    let rule =
        format!("string(self) != self || (isQuantity(self) && {} && {})", compare(">=", min), compare("<=", max));
    push(schema, json!({ "rule": rule, "message": format!("must be {allowed}") }));
}

/// Restricts a key that is not supported yet to values that change nothing, as the loader does.
fn constrain_planned(schema: &mut Json, key: &SchemaKey) {
    match (&key.value_type, key.default) {
        (ValueType::Map(_) | ValueType::Names(..), _) => schema["maxProperties"] = json!(0),
        (ValueType::List(..), _) => schema["maxItems"] = json!(0),
        (_, KeyDefault::Value(default)) => schema["enum"] = json!([default]),
        (_, KeyDefault::Absent(_) | KeyDefault::Nested) => schema["not"] = json!({}),
    }
}

/// Returns the default, if the schema may contain it.
fn default(key: &'static SchemaKey, path: &str) -> Option<Json> {
    let KeyDefault::Value(text) = key.default else { return None };
    let filled_later = path.split('.').any(|name| FILLED_LATER.contains(&name.trim_end_matches("[]")));
    // An empty list or text is equivalent to an absent one.
    if filled_later || NO_DEFAULT.contains(&path) || matches!(text, "" | "[]" | "{}") {
        return None;
    }
    let mut check = Validator::default();
    tree::parse(text).ok().and_then(|node| check.value(&key.value_type, &node, path))
}

/// Extends the doc comment of the field by the allowed values and the default, so that `kubectl
/// explain` shows everything.
fn describe(schema: &mut Json, key: &SchemaKey) {
    let mut description = schema["description"].as_str().unwrap_or_default().to_owned();
    let allowed = match &key.value_type {
        ValueType::Map(_) | ValueType::Switch | ValueType::Word(..) | ValueType::List(ValueType::Map(_), _) => {
            String::new()
        }
        value_type => value_type.allowed(),
    };
    let allowed = if allowed.is_empty() { allowed } else { format!("Allowed: {allowed}.") };
    for sentence in [allowed, describe_default(key)] {
        if !sentence.is_empty() {
            if !description.is_empty() {
                description.push(' ');
            }
            description.push_str(&sentence);
        }
    }
    schema["description"] = json!(description);
}

fn describe_default(key: &SchemaKey) -> String {
    match (key.availability, key.default) {
        (Availability::Later, _) => "Not supported yet.".to_owned(),
        (_, KeyDefault::Value("" | "[]" | "{}") | KeyDefault::Absent(_) | KeyDefault::Nested) => String::new(),
        (_, KeyDefault::Value(default)) => format!("Default: {default}."),
    }
}

/// Inserts entries into a schema and replaces existing ones.
fn insert_all(schema: &mut Json, entries: Json) {
    if let Json::Object(entries) = entries {
        for (name, value) in entries {
            schema[name] = value;
        }
    }
}

fn push(schema: &mut Json, rule: Json) {
    let rules = &mut schema["x-kubernetes-validations"];
    match rules {
        Json::Array(rules) => rules.push(rule),
        none => *none = Json::Array(vec![rule]),
    }
}
