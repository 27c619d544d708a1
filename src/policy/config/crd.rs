//! The `CustomResourceDefinition`s of the two kinds: the derived schemas of the types, constrained
//! by the table in `schema`.
//!
//! The derive provides the keys and their descriptions. Types, ranges, words, patterns, required
//! keys and defaults come from the one table by which the loader validates files, so that an object
//! accepted by the API server is accepted by the loader. Constraints that no schema can express are
//! CEL rules. Those that neither can express (a pointer inside another, an invalid log filter) are
//! found by the controller with the loader, and reported in the condition `Accepted`.
//!
//! Not covered are the installation of the definitions, and the status, which has its bounds at its
//! types.

mod cel;
mod constrain;
mod number;
#[cfg(test)]
mod tests;

use kube::CustomResourceExt as _;
use serde::Serialize;
use serde_json::Value as Json;

use super::schema::{self, SchemaKey};
use crate::api::v1alpha1::{BatchPolicy, BatchProfile};
use cel::CelRule;

/// Returns the complete `CustomResourceDefinition`s of `BatchPolicy` and `BatchProfile`.
#[must_use]
pub fn crds() -> Vec<Json> {
    vec![
        definition(&BatchPolicy::crd(), schema::SPEC, &cel::policy_rules()),
        definition(&BatchProfile::crd(), schema::PROFILE, &cel::profile_rules()),
    ]
}

fn definition(derived: &impl Serialize, keys: &'static [SchemaKey], rules: &[CelRule]) -> Json {
    let mut crd = serde_json::to_value(derived).expect("a definition can always be represented in JSON");
    for version in crd["spec"]["versions"].as_array_mut().into_iter().flatten() {
        let whole = &mut version["schema"]["openAPIV3Schema"];
        strip_derived(whole);
        constrain::map(&mut whole["properties"]["spec"], keys, "", rules);
    }
    crd
}

/// Joins the lines of descriptions, and removes what the derive adds and an API server warns about
/// or would act on: `nullable` for every `Option`, formats specific to Rust, defaults and names of
/// types.
fn strip_derived(schema: &mut Json) {
    let Some(entries) = schema.as_object_mut() else { return };
    // Doc comments wrap; `kubectl explain` wraps descriptions by itself.
    if let Some(Json::String(text)) = entries.get_mut("description") {
        *text = text.replace('\n', " ");
    }
    entries.remove("nullable");
    entries.remove("default");
    entries.remove("title");
    if !matches!(entries.get("format").and_then(Json::as_str), Some("date-time" | "int32" | "int64")) {
        entries.remove("format");
    }
    for bound in ["minimum", "maximum"] {
        // Without a fraction: `0`, not `0.0`.
        if let Some(number) = entries.get(bound).and_then(Json::as_f64)
            && let Ok(whole) = number.to_string().parse::<i64>()
        {
            entries.insert(bound.to_owned(), whole.into());
        }
    }
    if entries.get("type").is_some_and(|kind| kind == "array") {
        entries.entry("x-kubernetes-list-type").or_insert_with(|| Json::from("atomic"));
    }
    for inner in ["items", "additionalProperties"] {
        if let Some(inner) = entries.get_mut(inner) {
            strip_derived(inner);
        }
    }
    for property in entries.get_mut("properties").and_then(Json::as_object_mut).into_iter().flatten() {
        strip_derived(property.1);
    }
}
