//! The two kinds as an API server is told of them: the schemas of the types, under what the table of `schema` allows.
//!
//! The derive says which keys there are and what they are for; types, ranges, words, patterns, required keys and defaults are laid over it from the one
//! table that the loader judges files by, so that an object which the API server takes is one that the loader takes. What no schema can say is a rule
//! in CEL. What neither can say (a pointer inside another, a log filter that is none) the controller finds with the loader, and tells in `Accepted`.
//!
//! It leaves out who installs them, and the status, whose bounds stand at its types.

mod cel;
mod constrain;
mod number;
#[cfg(test)]
mod tests;

use serde::Serialize;
use serde_json::Value as Json;

use super::schema::{self, Key};
use crate::api::v1alpha1;
use cel::Rule;

/// `CustomResourceDefinition`s of `BatchPolicy` and `BatchProfile`, complete.
#[must_use]
pub fn crds() -> Vec<Json> {
    let [policy, profile] = v1alpha1::definitions();
    vec![
        definition(&policy, schema::SPEC, &cel::of_policies()),
        definition(&profile, schema::PROFILE, &cel::of_profiles()),
    ]
}

fn definition(derived: &impl Serialize, keys: &'static [Key], rules: &[Rule]) -> Json {
    let mut crd = serde_json::to_value(derived).expect("a definition holds nothing that JSON cannot");
    for version in crd["spec"]["versions"].as_array_mut().into_iter().flatten() {
        let whole = &mut version["schema"]["openAPIV3Schema"];
        plain(whole);
        constrain::map(&mut whole["properties"]["spec"], keys, "", rules);
    }
    crd
}

/// Takes out what the derive adds and an API server warns of or would act on: `nullable` for every `Option`, formats
/// of Rust's own, defaults and names of types.
fn plain(schema: &mut Json) {
    let Some(entries) = schema.as_object_mut() else { return };
    entries.remove("nullable");
    entries.remove("default");
    entries.remove("title");
    if !matches!(entries.get("format").and_then(Json::as_str), Some("date-time" | "int32" | "int64")) {
        entries.remove("format");
    }
    for bound in ["minimum", "maximum"] {
        if let Some(whole) = entries.get(bound).and_then(Json::as_f64).and_then(whole) {
            entries.insert(bound.to_owned(), whole);
        }
    }
    if entries.get("type").is_some_and(|kind| kind == "array") {
        entries.entry("x-kubernetes-list-type").or_insert_with(|| Json::from("atomic"));
    }
    for inner in ["items", "additionalProperties"] {
        if let Some(inner) = entries.get_mut(inner) {
            plain(inner);
        }
    }
    for property in entries.get_mut("properties").and_then(Json::as_object_mut).into_iter().flatten() {
        plain(property.1);
    }
}

/// A whole number as such: `0`, not `0.0`.
fn whole(number: f64) -> Option<Json> {
    let text = number.to_string();
    text.parse::<i64>().ok().map(Json::from)
}
