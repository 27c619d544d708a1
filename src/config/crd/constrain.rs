//! The table laid over a schema: for every key its type, range, words, pattern, bounds and default, and whether it must be there.

use std::time::Duration;

use serde_json::{Value as Json, json};

use super::cel::Rule;
use super::number;
use crate::config::check::Check;
use crate::config::schema::{Key, Otherwise, Shape, Standing};
use crate::config::text::{PORTS, Text};
use crate::config::tree;
use crate::config::units::{CHARS_MAX, format_duration, format_size};

/// On and under these a key that is absent is filled in later, from an annotation, another policy or the chart (R23), or counts as absent (`generic`,
/// whose keys exclude each other): a default here would be taken for something that the user wrote.
const FILLED_LATER: [&str; 6] = ["limits", "scheduling", "profileRef", "injection", "proxy", "generic"];
/// So also this one: the installation may have set a mode.
const SAID: [&str; 1] = ["mode"];

/// A duration, but for its range: the units, each at most once, largest first.
const DURATION: &str = "^(0|([0-9]+h)?([0-9]+m)?([0-9]+s)?([0-9]+ms)?([0-9]+us)?)$";
/// Exactly what a share may be.
const SHARE: &str = r"^0*(100(\.0{1,4})?|[0-9]{1,2}(\.[0-9]{1,4})?)%$";
/// A quantity of Kubernetes that is not negative, but for its range.
const QUANTITY: &str =
    r"^\+?([0-9]{1,18}(\.[0-9]{0,18})?|\.[0-9]{1,18})(n|u|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei|[eE][+-]?[0-9]{1,2})?$";
/// Units of a size and how many bytes each is.
const UNITS: [(&str, u64); 4] = [("", 1), ("Ki", 1 << 10), ("Mi", 1 << 20), ("Gi", 1 << 30)];

/// Constrains the keys of a map, and the map itself by the rules of its path.
pub(super) fn map(schema: &mut Json, keys: &'static [Key], path: &str, rules: &[Rule]) {
    for key in keys {
        let at = if path.is_empty() { key.name.to_owned() } else { format!("{path}.{}", key.name) };
        let property = &mut schema["properties"][key.name];
        value(property, &key.shape, &at, rules);
        describe(property, key);
        match (key.standing, default(key, &at)) {
            (Standing::Later, _) => says_nothing(property, key),
            (Standing::Built | Standing::Cluster, Some(default)) => property["default"] = default,
            (Standing::Built | Standing::Cluster, None) => {}
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

pub(super) fn value(schema: &mut Json, shape: &'static Shape, path: &str, rules: &[Rule]) {
    match shape {
        Shape::Map(keys) => map(schema, keys, path, rules),
        Shape::Names(of, max) => {
            schema["maxProperties"] = json!(max);
            value(&mut schema["additionalProperties"], of, &format!("{path}.*"), rules);
        }
        Shape::List(of, max) => {
            schema["maxItems"] = json!(max);
            value(&mut schema["items"], of, &format!("{path}[]"), rules);
        }
        Shape::OneOrList(of, max) => {
            let mut item = json!({ "type": "string" });
            value(&mut item, of, &format!("{path}[]"), rules);
            // What is said of texts holds for texts only, so it may stand here too.
            for said in ["pattern", "maxLength"] {
                schema[said] = item[said].clone();
            }
            lay(schema, json!({ "items": item, "minItems": 1, "maxItems": max }));
            lay(schema, json!({ "minimum": 1, "maximum": 0, "minProperties": 1, "maxProperties": 0 }));
            schema["not"] = json!({ "enum": [true, false, null] });
        }
        Shape::IntOrMap(min, max, keys) => {
            map(schema, keys, path, rules);
            for key in *keys {
                typed(&mut schema["properties"][key.name], &key.shape);
            }
            lay(schema, json!({ "minimum": min, "maximum": max, "multipleOf": 1, "maxProperties": keys.len() }));
            lay(schema, json!({ "minLength": 1, "maxLength": 0, "minItems": 1, "maxItems": 0 }));
            schema["not"] = json!({ "enum": [true, false, null] });
        }
        Shape::Int(min, max) => lay(schema, json!({ "minimum": min, "maximum": max })),
        Shape::Time(min, max) => {
            lay(schema, json!({ "minLength": 1, "maxLength": CHARS_MAX }));
            push(schema, duration(*min, *max, &shape.allowed()));
        }
        Shape::Size(min, max) => size(schema, *min, *max, path, &shape.allowed()),
        Shape::Share => lay(schema, json!({ "pattern": SHARE, "maxLength": CHARS_MAX })),
        Shape::Switch => {}
        Shape::Word(words, _) => schema["enum"] = json!(words),
        Shape::Text(rule) => text(schema, rule),
        Shape::Quantity(amount) => {
            lay(schema, json!({ "pattern": QUANTITY, "maxLength": CHARS_MAX }));
            let rule = format!(
                "!isQuantity(self) || (quantity(self).compareTo(quantity('{}')) >= 0 && quantity(self).compareTo(quantity('{}')) <= 0)",
                amount.min, amount.max
            );
            push(schema, json!({ "rule": rule, "message": format!("must be {}", amount.allowed()) }));
        }
    }
}

/// The type of a key in a map whose own type a schema cannot name, so that the derive says nothing of it.
fn typed(schema: &mut Json, shape: &Shape) {
    schema["type"] = json!(match shape {
        Shape::Int(..) => "integer",
        Shape::Switch => "boolean",
        _ => "string",
    });
}

fn text(schema: &mut Json, rule: &Text) {
    if !rule.pattern.is_empty() {
        schema["pattern"] = json!(rule.pattern);
    }
    schema["maxLength"] = json!(rule.chars_max);
    // The one text that may also be a number is a port's.
    if schema["x-kubernetes-int-or-string"] == true {
        lay(schema, json!({ "minimum": PORTS.0, "maximum": PORTS.1 }));
    }
}

/// The form and range of a duration. The form is in the rule too: of a schema's pattern the API
/// server would show the expression, and not what is allowed.
fn duration(min: u64, max: u64, allowed: &str) -> Json {
    let literal = |micros| format!("duration('{}')", format_duration(Duration::from_micros(micros)));
    let from = if min > 0 { format!("duration(self) >= {} && ", literal(min)) } else { String::new() };
    json!({
        "rule": format!("self.matches('{DURATION}') && {from}duration(self) <= {}", literal(max)),
        "message": format!("must be {allowed}"),
    })
}

/// A size. Where it stands once, a rule says its range, and in words. In a list a rule would cost too much for API servers that take a text beside a
/// number for three megabytes whatever its bound (before 1.35), so a pattern has to.
fn size(schema: &mut Json, min: u64, max: u64, path: &str, allowed: &str) {
    lay(schema, json!({ "minimum": min, "maximum": max, "maxLength": CHARS_MAX }));
    if path.contains("[]") {
        let ways: Vec<String> = UNITS
            .iter()
            .map(|(unit, bytes)| (unit, min.div_ceil(*bytes), max / bytes))
            .filter(|(_, min, max)| min <= max)
            .map(|(unit, min, max)| format!("{}{unit}", number::pattern(min, max)))
            .collect();
        schema["pattern"] = json!(format!("^0*({})$", ways.join("|")));
        return;
    }
    schema["pattern"] = json!("^[0-9]+(Ki|Mi|Gi)?$");
    let compare = |sign: &str, bytes| format!("quantity(self).compareTo(quantity('{}')) {sign} 0", format_size(bytes));
    // Of a number that is another value than itself as text; `type(self)` would say so too, but not to every evaluator of CEL.
    let rule =
        format!("string(self) != self || (isQuantity(self) && {} && {})", compare(">=", min), compare("<=", max));
    push(schema, json!({ "rule": rule, "message": format!("must be {allowed}") }));
}

/// What a key that is not built yet may be: as the loader has it, what changes nothing.
fn says_nothing(schema: &mut Json, key: &Key) {
    match (&key.shape, key.default) {
        (Shape::Map(_) | Shape::Names(..), _) => schema["maxProperties"] = json!(0),
        (Shape::List(..), _) => schema["maxItems"] = json!(0),
        (_, Otherwise::Is(default)) => schema["enum"] = json!([default]),
        (_, Otherwise::Absent(_) | Otherwise::Within) => schema["not"] = json!({}),
    }
}

/// The default, where the schema may say it.
fn default(key: &'static Key, path: &str) -> Option<Json> {
    let Otherwise::Is(text) = key.default else { return None };
    let filled_later = path.split('.').any(|name| FILLED_LATER.contains(&name.trim_end_matches("[]")));
    // An empty list or text is no more than an absent one.
    if filled_later || SAID.contains(&path) || matches!(text, "" | "[]" | "{}") {
        return None;
    }
    let mut check = Check::default();
    tree::parse(text).ok().and_then(|node| check.value(&key.shape, &node, path))
}

/// The doc comment of the field, then what is allowed and the default, so that `kubectl explain` says all there is.
fn describe(schema: &mut Json, key: &Key) {
    let mut said = schema["description"].as_str().unwrap_or_default().to_owned();
    let told = match &key.shape {
        Shape::Map(_) | Shape::Switch | Shape::Word(..) | Shape::List(Shape::Map(_), _) => String::new(),
        shape => shape.allowed(),
    };
    let told = if told.is_empty() { told } else { format!("Allowed: {told}.") };
    for sentence in [told, otherwise(key)] {
        if !sentence.is_empty() {
            if !said.is_empty() {
                said.push(' ');
            }
            said.push_str(&sentence);
        }
    }
    schema["description"] = json!(said);
}

fn otherwise(key: &Key) -> String {
    match (key.standing, key.default) {
        (Standing::Later, _) => "Not supported yet.".to_owned(),
        (_, Otherwise::Is("" | "[]" | "{}") | Otherwise::Absent(_) | Otherwise::Within) => String::new(),
        (_, Otherwise::Is(default)) => format!("Default: {default}."),
    }
}

/// Lays entries over a schema.
fn lay(schema: &mut Json, entries: Json) {
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
