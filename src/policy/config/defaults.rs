//! Defaults of the schema in the form of a file, and their merge with written values.
//!
//! The elements of a list have defaults too. They can only be filled in once the list is known, so
//! the routes and the priority classes have a function each.

use serde_json::Value as Json;

use super::check::Validator;
use super::schema::{self, KeyDefault, SchemaKey, ValueType};
use super::tree;

/// Returns the defaults of these keys in the form of a file.
pub(super) fn of(keys: &'static [SchemaKey]) -> Json {
    let mut out = serde_json::Map::new();
    let mut check = Validator::default();
    for key in keys {
        let value = match (&key.default, &key.value_type) {
            (KeyDefault::Nested, ValueType::Map(keys)) => Some(of(keys)),
            (KeyDefault::Value(text), value_type) => {
                tree::parse(text).ok().and_then(|node| check.value(value_type, &node, key.name))
            }
            _ => None,
        };
        if let Some(value) = value {
            out.insert(key.name.to_owned(), value);
        }
    }
    Json::Object(out)
}

/// Merges `over` into `under`: maps key by key, any other value as a whole.
pub(super) fn merge(under: &mut Json, over: &Json) {
    match (under, over) {
        (Json::Object(under), Json::Object(over)) => {
            for (key, value) in over {
                merge(under.entry(key.clone()).or_insert(Json::Null), value);
            }
        }
        (under, over) => *under = over.clone(),
    }
}

/// Fills in the defaults of every route, and of maps that have defaults only if they are written.
pub(super) fn fill_routes(json: &mut Json) {
    let inner = |name: &str, keys: &'static [SchemaKey]| match keys
        .iter()
        .find(|key| key.name == name)
        .map(|key| &key.value_type)
    {
        Some(ValueType::Map(keys) | ValueType::List(ValueType::Map(keys), _)) => keys,
        _ => &[][..],
    };
    let route_keys = inner("routes", schema::SPEC);
    let generic_keys = inner("generic", route_keys);
    let error_keys = inner("perItemError", generic_keys);
    for route in json["routes"].as_array_mut().into_iter().flatten() {
        fill(route, route_keys);
        if route["generic"].is_object() {
            fill(&mut route["generic"], generic_keys);
            if route["generic"]["perItemError"].is_object() {
                fill(&mut route["generic"]["perItemError"], error_keys);
            }
        }
    }
}

/// Fills in the defaults of every priority class.
pub(super) fn fill_classes(json: &mut Json) {
    let Some(ValueType::List(ValueType::Map(keys), _)) =
        schema::find_key("priority.classes").map(|key| &key.value_type)
    else {
        return;
    };
    for class in json["priority"]["classes"].as_array_mut().into_iter().flatten() {
        fill(class, keys);
    }
}

/// Fills in the defaults of the keys that a map does not have.
fn fill(json: &mut Json, keys: &'static [SchemaKey]) {
    let mut filled = of(keys);
    merge(&mut filled, json);
    *json = filled;
}
