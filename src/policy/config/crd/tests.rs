//! Tests of the definitions against the table, the loader and stored objects: what one of them
//! accepts or rejects, the others accept or reject too.
//!
//! A separate suite sends the same objects to a real API server. Here schema and rules are
//! evaluated without one.

use std::path::Path;
use std::time::Duration;

use kube_cel::{CompiledSchema, ErrorKind, Validator, compile_schema};
use proptest::prelude::*;
use serde_json::{Value as Json, json};

use super::*;
use crate::config::schema::{KeyDefault, SPEC, ValueType, walk};
use crate::config::tests::reference_policy::{examples, file_with, leaves};
use crate::config::tests::{root, yaml_files};
use crate::config::{ConfigCode, format_duration, load};

mod openapi;
mod structural;

use openapi::schema_errors;

/// A definition that is ready to validate objects.
struct Definition {
    name: String,
    schema: Json,
    rules: CompiledSchema,
}

// === impl Definition ===

impl Definition {
    fn all() -> Vec<Self> {
        let kind = |crd: Json| {
            let schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone();
            let rules = compile_schema(&schema);
            assert!(!rules.has_errors(), "{:?}", rules.compilation_errors());
            Self { name: crd["spec"]["names"]["kind"].as_str().unwrap().to_owned(), schema, rules }
        };
        crds().into_iter().map(kind).collect()
    }

    fn policy() -> Self {
        Self::all().into_iter().find(|kind| kind.name == "BatchPolicy").unwrap()
    }

    /// Returns the problems of an object as an API server reports them: `path: message`. Rules are
    /// evaluated unless the schema finds a problem that would make them fail.
    fn wrong(&self, object: &Json, old: Option<&Json>) -> Vec<String> {
        let mut wrong = schema_errors(&self.schema, object);
        let blocks = ["Required value", "Unsupported value", "Too long", "Too many", "must be of type"];
        if !wrong.iter().any(|wrong| blocks.iter().any(|block| wrong.contains(block))) {
            wrong.extend(self.broken(object, old, wrong.is_empty()));
        }
        wrong
    }

    /// Returns the rules that an object violates.
    fn broken(&self, object: &Json, old: Option<&Json>, right: bool) -> Vec<String> {
        let Err(errors) = Validator::new().validate_compiled(&self.rules, object, old) else { return Vec::new() };
        for error in errors.iter() {
            // A text that is not a duration, which its pattern has already reported.
            let untyped = error.kind == ErrorKind::EvaluationError && !right;
            assert!(error.kind == ErrorKind::ValidationFailure || untyped, "{error:?}");
        }
        errors.iter().filter(|error| error.kind == ErrorKind::ValidationFailure).map(ToString::to_string).collect()
    }

    /// Returns the problems of a policy with this spec.
    fn spec(&self, yaml: &str) -> Vec<String> {
        self.wrong(&policy(&yaml_of(yaml)), None)
    }
}

fn policy(spec: &Json) -> Json {
    json!({ "apiVersion": "groupage.dev/v1alpha1", "kind": "BatchPolicy", "metadata": { "name": "p" }, "spec": spec })
}

fn yaml_of(text: &str) -> Json {
    serde_saphyr::from_str(text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// Returns the names and texts of the files in a folder.
fn files(folder: &str) -> Vec<(String, String)> {
    let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
    yaml_files(folder).iter().map(|path| (name(path), std::fs::read_to_string(path).unwrap())).collect()
}

/// Returns the objects of a file, which are successive states of the same object.
fn objects(text: &str) -> Vec<Json> {
    serde_saphyr::from_multiple(text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// Returns the document that the loader would receive.
fn last_document(text: &str) -> &str {
    text.rsplit("---\n").next().unwrap()
}

#[test]
fn both_kinds_have_the_documented_names_columns_and_subresources() {
    let crds = crds();
    let of = |index: usize, path: &str| crds[index].pointer(path).cloned().unwrap_or_default();
    for (index, (kind, plural, short)) in
        [("BatchPolicy", "batchpolicies", "bpol"), ("BatchProfile", "batchprofiles", "bprof")].into_iter().enumerate()
    {
        assert_eq!(of(index, "/metadata/name"), format!("{plural}.groupage.dev"));
        assert_eq!(of(index, "/spec/group"), "groupage.dev");
        assert_eq!(of(index, "/spec/scope"), "Namespaced");
        assert_eq!(
            of(index, "/spec/names"),
            json!({
                "kind": kind, "plural": plural, "singular": kind.to_lowercase(), "shortNames": [short], "categories": ["groupage"]
            })
        );
        assert_eq!(of(index, "/spec/versions/0/name"), "v1alpha1");
        assert_eq!(of(index, "/spec/versions/0/subresources"), json!({ "status": {} }));
        assert_eq!(of(index, "/spec/versions/0/schema/openAPIV3Schema/required"), json!(["spec"]));
    }
    let columns = of(0, "/spec/versions/0/additionalPrinterColumns");
    let columns: Vec<(&str, bool)> = columns
        .as_array()
        .unwrap()
        .iter()
        .map(|column| (column["name"].as_str().unwrap(), column["priority"] == 1))
        .collect();
    let narrow = ["Target", "Mode", "SLO", "P99", "Batch", "Saved", "Ready", "Age"].map(|name| (name, false));
    assert_eq!(columns, [narrow.as_slice(), &[("Profile", true), ("Pods", true)]].concat());
    // Installed by `kubectl apply` without `--server-side`, an object is also stored in an
    // annotation, which has this limit.
    for crd in &crds {
        assert!(serde_json::to_vec(crd).unwrap().len() < 262_144, "{} is too long", crd["metadata"]["name"]);
    }
}

#[test]
fn every_column_refers_to_a_field_of_the_schema() {
    for crd in crds() {
        let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        for column in crd["spec"]["versions"][0]["additionalPrinterColumns"].as_array().unwrap() {
            let path = column["jsonPath"].as_str().unwrap();
            if path.starts_with(".metadata") {
                continue;
            }
            let mut at = schema;
            for name in path.split('.').filter(|name| !name.is_empty() && !name.starts_with("type==")) {
                let (name, listed) = name.split_once('[').map_or((name, false), |(name, _)| (name, true));
                at = &at["properties"][name];
                if listed {
                    at = &at["items"];
                }
            }
            assert_eq!(at["type"], column["type"], "{path}");
        }
    }
}

#[test]
fn the_schema_has_the_keys_of_the_table_and_no_other() {
    fn paths(schema: &Json, prefix: &str, out: &mut Vec<String>) {
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            let path = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
            out.push(path.clone());
            paths(property, &path, out);
            paths(&property["items"], &format!("{path}[]"), out);
        }
    }
    let mut found = Vec::new();
    paths(&Definition::policy().schema["properties"]["spec"], "", &mut found);
    // The entries of a list of two forms have no brackets of their own.
    let mut known = Vec::new();
    walk(SPEC, "", &mut |path, _| known.push(path.to_owned()));
    found.sort();
    known.sort();
    assert_eq!(found, known);
}

#[test]
fn schema_defaults_equal_the_table_and_exist_only_where_absence_means_nothing() {
    fn defaults(schema: &Json, prefix: &str, out: &mut Vec<(String, Json)>) {
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            let path = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
            if let Some(default) = property.get("default") {
                out.push((path.clone(), default.clone()));
            }
            defaults(property, &path, out);
            defaults(&property["items"], &format!("{path}[]"), out);
        }
    }
    let mut found = Vec::new();
    defaults(&Definition::policy().schema["properties"]["spec"], "", &mut found);
    assert!(found.len() >= 20, "{found:?}");
    for (path, default) in &found {
        assert!(!["mode", "routes[].timeout"].contains(&path.as_str()), "{path}");
        for name in ["limits", "scheduling", "profileRef", "injection", "engine", "proxy"] {
            let inside = path.split('.').any(|part| part.trim_end_matches("[]") == name);
            assert!(!inside, "{path} has a default, and its absence means something");
        }
        assert!(!matches!(default.to_string().as_str(), "[]" | "{}" | "\"\"" | "null"), "{path}");
        let (_, key) = all_keys().into_iter().find(|(known, _)| known == path).unwrap();
        let KeyDefault::Value(text) = key.default else { panic!("{path} has no default in the table") };
        assert_eq!(yaml_of(text).to_string().replace('"', ""), default.to_string().replace('"', ""), "{path}");
    }
    assert!(found.iter().any(|(path, default)| path == "tuning.mode" && default == "Auto"));
    // A profile consists of limits and scheduling.
    let profile = Definition::all().into_iter().find(|kind| kind.name == "BatchProfile").unwrap();
    assert!(!profile.schema.to_string().contains("\"default\":"));
}

fn all_keys() -> Vec<(String, &'static SchemaKey)> {
    let mut keys = Vec::new();
    walk(SPEC, "", &mut |path, key| keys.push((path.to_owned(), key)));
    keys
}

#[test]
fn every_example_policy_is_accepted_by_the_schema() {
    let kind = Definition::policy();
    let examples = files("examples/policies");
    assert!(examples.len() >= 3);
    let servers: Vec<_> = std::fs::read_dir(root().join("examples/servers")).unwrap().collect();
    let servers = servers.into_iter().map(|server| server.unwrap().path()).filter(|path| path.is_dir());
    let of_servers = servers.flat_map(|path| files(&path.to_string_lossy()));
    for (name, text) in examples.into_iter().chain(of_servers) {
        let written = yaml_of(&text);
        let object = if written.get("kind").is_some() { written } else { policy(&written) };
        assert_eq!(kind.wrong(&object, None), [""; 0], "{name}");
    }
}

#[test]
fn every_policy_of_the_kubernetes_examples_is_accepted_by_schema_rules_and_loader() {
    let kinds = Definition::all();
    let mut policies = 0;
    for (name, text) in files("examples/kubernetes") {
        let is_own = |object: &Json| object["apiVersion"].as_str().is_some_and(|own| own.starts_with("groupage.dev/"));
        for object in objects(&text).into_iter().filter(is_own) {
            let kind = kinds.iter().find(|kind| object["kind"] == kind.name.as_str());
            let kind = kind.unwrap_or_else(|| panic!("{name}: {} is no kind", object["kind"]));
            assert_eq!(kind.wrong(&object, None), [""; 0], "{name}");
            if kind.name == "BatchPolicy" {
                let loaded = load(&object.to_string(), &name);
                assert!(loaded.is_ok(), "{name}: {}", loaded.unwrap_err().render(false));
            }
            policies += 1;
        }
    }
    assert!(policies >= 4, "{policies}");
}

#[test]
fn the_schema_and_the_loader_refuse_the_same_keys_of_the_reference_policy() {
    let design = yaml_of(&examples());
    let kind = Definition::policy();
    let wrong = [schema_errors(&kind.schema, &design), kind.broken(&design, None, true)].concat();
    let mut found: Vec<&str> = wrong.iter().map(|wrong| wrong.split(": ").next().unwrap()).collect();
    let errors = load(&examples(), "policy.yaml").unwrap_err();
    // For two keys that exclude each other, a rule reports one of them, the loader the later one.
    let mut expected: Vec<String> = errors.findings.iter().map(|finding| format!("spec.{}", finding.path)).collect();
    assert_eq!(expected.iter().filter(|path| *path == "spec.profileRef").count(), 1);
    expected.push("spec.profileRef".to_owned());
    // The loader reports nothing more about a declaration that should not be present.
    expected.push("spec.routes[0].generic.resultKey".to_owned());
    found.sort_unstable();
    expected.sort_unstable();
    assert_eq!(found, expected, "{wrong:#?}");
}

#[test]
fn valid_objects_are_accepted_by_schema_rules_and_loader() {
    let kinds = Definition::all();
    let accepted = files("tests/data/crd/accepted");
    assert!(accepted.len() >= 8, "the objects are gone");
    for (name, text) in accepted {
        for object in objects(&text) {
            let kind = kinds.iter().find(|kind| object["kind"] == kind.name.as_str()).unwrap();
            assert_eq!(kind.wrong(&object, None), [""; 0], "{name}");
        }
        if text.contains("kind: BatchPolicy") {
            let loaded = load(last_document(&text), &name);
            assert!(loaded.is_ok(), "{name}: {}", loaded.unwrap_err().render(false));
        }
    }
}

#[test]
fn objects_with_server_defaults_are_accepted_by_types_and_loader() {
    let kinds = Definition::all();
    for (name, text) in files("tests/data/crd/accepted") {
        for object in objects(&text) {
            let kind = kinds.iter().find(|kind| object["kind"] == kind.name.as_str()).unwrap();
            let stored = kube_cel::apply_defaults(&kind.schema, &object);
            if kind.name == "BatchProfile" {
                let profile: BatchProfile = serde_json::from_value(stored.clone()).unwrap();
                assert_eq!(serde_json::to_value(&profile.spec).unwrap(), stored["spec"], "{name}");
                continue;
            }
            let policy: BatchPolicy = serde_json::from_value(stored.clone()).unwrap();
            let spec = serde_json::to_value(&policy.spec).unwrap();
            assert_eq!(spec, stored["spec"], "{name}");
            let loaded = load(&spec.to_string(), &name);
            assert!(loaded.is_ok(), "{name}: {}", loaded.unwrap_err().render(false));
        }
    }
    let newer = json!({
        "apiVersion": "groupage.dev/v1alpha1",
        "kind": "BatchPolicy",
        "metadata": { "name": "newer" },
        "spec": { "mode": "Dream", "dreams": { "of": 7 }, "tuning": { "mode": "Perhaps" } },
        "status": { "rollout": { "phase": "Dreaming" }, "podTunings": [{ "pod": "a", "mode": "Perhaps", "more": 1 }] },
    });
    let policy: BatchPolicy = serde_json::from_value(newer.clone()).unwrap();
    assert_eq!(serde_json::to_value(&policy.spec).unwrap()["mode"], "Dream");
    assert_eq!(serde_json::to_value(&policy.status).unwrap()["rollout"], newer["status"]["rollout"]);
}

#[test]
fn invalid_objects_are_refused_by_schema_or_rules_and_by_the_loader() {
    let kinds = Definition::all();
    let refused = files("tests/data/crd/refused");
    for (name, text) in &refused {
        let reason =
            text.lines().find_map(|line| line.strip_prefix("# refused: ")).unwrap_or_else(|| panic!("{name}: why?"));
        let objects = objects(text);
        let (last, before) = objects.split_last().unwrap();
        let kind = kinds.iter().find(|kind| last["kind"] == kind.name.as_str()).unwrap();
        for object in before {
            assert_eq!(kind.wrong(object, None), [""; 0], "{name}: as it was before");
        }
        let wrong = kind.wrong(last, before.last());
        assert!(!wrong.is_empty() && wrong.iter().any(|wrong| wrong.contains(reason)), "{name}: {wrong:#?}");
        assert_eq!(wrong.len(), 1, "{name} is wrong in one way only: {wrong:#?}");
        if kind.name == "BatchPolicy" {
            assert!(load(last_document(text), name).is_err(), "{name}: the loader takes it");
        }
    }
    // Each rule has an object that no other rule rejects.
    let all: Vec<String> = cel::policy_rules()
        .iter()
        .chain(&cel::profile_rules())
        .map(|rule| rule.json()["message"].to_string())
        .collect();
    for message in all {
        let message = message.trim_matches('"');
        let is_refused = refused.iter().any(|(_, text)| {
            text.lines()
                .find_map(|line| line.strip_prefix("# refused: "))
                .is_some_and(|reason| message.contains(reason))
        });
        assert!(is_refused, "no object is refused with: {message}");
    }
}

#[test]
fn bad_values_of_the_loader_are_refused_by_the_schema() {
    let kind = Definition::policy();
    for (path, key) in leaves() {
        let odd: &[&str] = match &key.value_type {
            ValueType::Int(..) => &["-1", "1.5", "x", "true"],
            ValueType::IntOrMap(..) => {
                &["-1", "[x]", "[true]", "[399]", "[600]", "[{bodyContains: x}]", "[{status: x}]"]
            }
            ValueType::Time(..) => &["5 parsecs", "5", "1.5s", "-1s", "1s1m", "99999999999999999999h", "''"],
            ValueType::Size(..) => &["1 truck", "1K", "-1", "1.5Mi", "''", "true"],
            ValueType::Share => &["much", "5", "101%", "0.00001%", "''"],
            ValueType::Switch => &["'yes'", "1", "'true'"],
            ValueType::Word(..) => &["Nonsense", "1"],
            _ => &["[[1]]", "true"],
        };
        for value in odd.iter().chain(&["{zz: {}}", "[[1]]", "~"]) {
            let (text, _) = file_with(&path, value);
            let codes = load(&text, "one.yaml").map_or_else(|errors| errors.findings, |_| Vec::new());
            if codes
                .iter()
                .any(|finding| finding.code == ConfigCode::BadValue && finding.path.starts_with(path_of(&path)))
            {
                let wrong = kind.spec(&text);
                assert!(!wrong.is_empty(), "{path}: {value} is taken\n{text}");
            }
        }
    }
}

/// Returns a path up to its first list: findings have numbers where the table has brackets.
fn path_of(path: &str) -> &str {
    path.split("[]").next().unwrap_or(path)
}

#[test]
fn every_range_ends_where_that_of_the_loader_ends() {
    let kind = Definition::policy();
    let micros = |n: u64| format_duration(Duration::from_micros(n));
    let sizes: &dyn Fn(u64) -> String = &|n| format!("\"{n}\"");
    let mut compared = 0;
    for (path, key) in leaves() {
        let (min, max, writes): (u64, u64, Vec<&dyn Fn(u64) -> String>) = match &key.value_type {
            ValueType::Int(min, max) => (*min, *max, vec![&|n| n.to_string()]),
            ValueType::Size(min, max) => (*min, *max, vec![&|n| n.to_string(), sizes, &crate::config::format_size]),
            ValueType::Time(min, max) => (*min, *max, vec![&micros]),
            _ => continue,
        };
        for write in writes {
            let wrong = |value: u64| kind.spec(&file_with(&path, &write(value)).0);
            for value in [min, max] {
                assert_eq!(wrong(value), [""; 0], "{path}: {}", write(value));
            }
            assert!(!wrong(max + 1).is_empty(), "{path}: {} is taken", write(max + 1));
            assert!(min == 0 || !wrong(min - 1).is_empty(), "{path}: {} is taken", write(min - 1));
            compared += 1;
        }
    }
    assert!(compared > 80, "{compared}");
}

#[test]
fn words_of_the_table_are_accepted_and_planned_words_refused() {
    let kind = Definition::policy();
    for (path, key) in leaves() {
        let ValueType::Word(words, later) = &key.value_type else { continue };
        for word in *words {
            let wrong = kind.spec(&file_with(&path, word).0);
            // A word that requires another key is reported by a rule, not by the list of words.
            assert!(!wrong.iter().any(|wrong| wrong.contains("Unsupported value")), "{path}: {word}: {wrong:?}");
        }
        for word in *later {
            let wrong = kind.spec(&file_with(&path, word).0);
            assert!(wrong.iter().any(|wrong| wrong.contains("Unsupported value")), "{path}: {word}");
        }
    }
}

#[test]
fn a_missing_required_key_is_an_error() {
    let kind = Definition::policy();
    let wrong = kind.spec("{targetRefs: [{}], selector: {matchExpressions: [{}]}}");
    for key in ["targetRefs[0].kind", "targetRefs[0].name", "selector.matchExpressions[0].key"] {
        assert!(wrong.contains(&format!("spec.{key}: Required value")), "{wrong:?}");
    }
    let required: Vec<String> = all_keys().into_iter().filter(|(_, key)| key.required).map(|(path, _)| path).collect();
    assert!(required.len() >= 12, "{required:?}");
    for path in required {
        let (above, name) = path.rsplit_once('.').unwrap();
        let at = above.split('.').fold(&kind.schema["properties"]["spec"], |at, name| match name.strip_suffix("[]") {
            Some(name) => &at["properties"][name]["items"],
            None => &at["properties"][name],
        });
        assert!(at["required"].as_array().unwrap().iter().any(|known| known == name), "{path}");
    }
}

#[test]
fn a_status_round_trips_through_the_types_and_its_lists_are_bounded() {
    use crate::api::v1alpha1::{BatchPolicyStatus, BatchProfileStatus};
    let kinds = Definition::all();
    for (name, text) in files("tests/data/crd/accepted") {
        for object in objects(&text).into_iter().filter(|object| object.get("status").is_some()) {
            let status = object["status"].clone();
            let again = if object["kind"] == "BatchPolicy" {
                serde_json::to_value(serde_json::from_value::<BatchPolicyStatus>(status.clone()).unwrap()).unwrap()
            } else {
                serde_json::to_value(serde_json::from_value::<BatchProfileStatus>(status.clone()).unwrap()).unwrap()
            };
            assert_eq!(again, status, "{name}");
        }
    }
    let list =
        |kind: usize, path: &str| kinds[kind].schema["properties"]["status"].pointer(path).cloned().unwrap_or_default();
    assert_eq!(list(0, "/properties/podTunings/maxItems"), 100);
    assert_eq!(list(0, "/properties/podTunings/x-kubernetes-list-map-keys"), json!(["pod"]));
    assert_eq!(list(0, "/properties/podTunings/items/required"), json!(["pod"]));
    assert_eq!(list(0, "/properties/learned/maxItems"), 16);
    assert_eq!(list(0, "/properties/conditions/x-kubernetes-list-map-keys"), json!(["type"]));
    assert_eq!(list(1, "/properties/usedBy/x-kubernetes-list-type"), "atomic");
}

/// Generates text that resembles a value with a unit.
fn nearly_a_value() -> impl Strategy<Value = String> {
    let part =
        prop_oneof!["[0-9]{1,4}", "0{1,3}", "h|m|s|ms|us", "Ki|Mi|Gi", "%", "\\.", "[1-9][0-9]{6,20}", "-", " ", "é"];
    prop::collection::vec(part, 0..5).prop_map(|parts| parts.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn values_with_units_are_judged_as_by_the_loader(text in nearly_a_value()) {
        static SHAPES: [(ValueType, &str); 8] = [
            (ValueType::Time(0, 60_000_000), "limits.queueDelayMax"),
            (ValueType::Time(1_000, 3_600_000_000), "slo.latencyP99"),
            (ValueType::Size(1, 1 << 30), "limits.batchBytesMax"),
            (ValueType::Size(1, 1 << 30), "routes[].limits.batchBytesMax"),
            (ValueType::Size(8 << 10, 1 << 20), "routes[].limits.itemBytesMax"),
            (ValueType::Share, "verify"),
            (ValueType::Quantity(&crate::config::quantity::CPU), "injection.cpuRequest"),
            (ValueType::Quantity(&crate::config::quantity::MEMORY), "injection.memoryLimit"),
        ];
        for (value_type, path) in &SHAPES {
            let mut schema = match value_type {
                ValueType::Size(..) => json!({ "x-kubernetes-int-or-string": true }),
                _ => json!({ "type": "string" }),
            };
            constrain::value(&mut schema, value_type, path, &[]);
            let schema = json!({ "type": "object", "properties": { "key": schema } });
            let object = json!({ "key": text });
            let wrong = !schema_errors(&schema, &object).is_empty() || Validator::new().validate(&schema, &object, None).is_err();
            let mut check = crate::config::check::Validator::default();
            // A quantity that is a number without quotes is rejected by both; only texts are
            // compared here.
            let node = match value_type {
                ValueType::Quantity(_) => crate::config::tree::parse(&json!(text).to_string()).unwrap(),
                _ => crate::config::tree::YamlNode::from_text(&text),
            };
            let taken = check.value(value_type, &node, path).is_some();
            prop_assert_eq!(!wrong, taken, "{} {:?}", path, text);
        }
    }
}
