//! The manifests of `examples/kubernetes`: their objects have no key that their kind does not have,
//! their policies are valid, and their pods get the sidecar that they request.

use std::path::{Path, PathBuf};

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::core::v1::Service;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::binary::groupage;

/// Kinds without a type here: those of Groupage, which `policy::config::crd` compares with their
/// schemas, and those of other projects.
const OTHER_KINDS: [&str; 4] = ["BatchPolicy", "BatchProfile", "Kustomization", "ScaledObject"];

/// Returns the paths of all examples, sorted.
fn examples() -> Vec<PathBuf> {
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/kubernetes")];
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "yaml" || end == "yml") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

fn parse_objects(text: &str) -> Vec<Value> {
    serde_saphyr::from_multiple(text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

// === Unknown keys ===

/// Returns the keys of an object that its kind does not have.
fn unknown_keys(object: &Value) -> Vec<String> {
    let mut object = object.clone();
    quote_quantities(&mut object);
    let known = match object["kind"].as_str().unwrap_or_default() {
        kind if OTHER_KINDS.contains(&kind) => return Vec::new(),
        "Deployment" => convert_to_type::<Deployment>(&object),
        "HorizontalPodAutoscaler" => convert_to_type::<HorizontalPodAutoscaler>(&object),
        "Service" => convert_to_type::<Service>(&object),
        kind => panic!("add the type of {kind:?} to this test"),
    };
    let mut unknown = Vec::new();
    collect_unknown(&object, &known, "", &mut unknown);
    unknown
}

/// Returns the object without the keys that its type does not have.
fn convert_to_type<T: DeserializeOwned + Serialize>(object: &Value) -> Value {
    let typed: T = serde_json::from_value(object.clone()).unwrap_or_else(|error| panic!("{error}: {object}"));
    serde_json::to_value(typed).unwrap()
}

/// Writes the numbers of requests and limits as text, the only form that the types accept.
fn quote_quantities(value: &mut Value) {
    match value {
        Value::Object(members) => {
            for (name, member) in members.iter_mut() {
                if !matches!(name.as_str(), "requests" | "limits") {
                    quote_quantities(member);
                    continue;
                }
                for quantity in member.as_object_mut().into_iter().flat_map(|list| list.values_mut()) {
                    if quantity.is_number() {
                        *quantity = Value::String(quantity.to_string());
                    }
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(quote_quantities),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn collect_unknown(written: &Value, known: &Value, path: &str, unknown: &mut Vec<String>) {
    match (written, known) {
        (Value::Object(written), Value::Object(known)) => {
            for (name, value) in written {
                let path = format!("{path}.{name}");
                match known.get(name) {
                    Some(own) => collect_unknown(value, own, &path, unknown),
                    None => unknown.push(path),
                }
            }
        }
        (Value::Array(written), Value::Array(known)) => {
            for (at, (value, own)) in written.iter().zip(known).enumerate() {
                collect_unknown(value, own, &format!("{path}[{at}]"), unknown);
            }
        }
        _ => {}
    }
}

// === Injection ===

fn requests_sidecar(object: &Value) -> bool {
    let metadata = &object["spec"]["template"]["metadata"];
    ["annotations", "labels"].into_iter().any(|place| metadata[place]["groupage.dev/inject"] == "enabled")
}

fn has_sidecar(object: &Value) -> bool {
    let pod = &object["spec"]["template"]["spec"];
    let containers = ["initContainers", "containers"].into_iter().filter_map(|list| pod[list].as_array()).flatten();
    containers.into_iter().any(|container| container["name"] == "groupage")
}

/// Returns the name of the policy that an injected pod has.
fn applied_policy(object: &Value) -> Option<String> {
    let status = object["spec"]["template"]["metadata"]["annotations"]["groupage.dev/status"].as_str()?;
    let status: Value = serde_json::from_str(status).ok()?;
    status["policy"].as_str().map(str::to_owned)
}

#[test]
fn the_objects_of_the_examples_have_no_unknown_key() {
    for path in examples() {
        for object in parse_objects(&std::fs::read_to_string(&path).unwrap()) {
            assert_eq!(unknown_keys(&object), [""; 0], "{}", path.display());
        }
    }
    let misspelt =
        "apiVersion: v1\nkind: Service\nmetadata: {name: s}\nspec: {ports: [{port: 80, targetport: 8080}]}\n";
    assert_eq!(unknown_keys(&parse_objects(misspelt)[0]), [".spec.ports[0].targetport"]);
}

#[test]
fn the_pods_of_the_examples_get_the_sidecar_that_they_request_and_its_policy() {
    let (mut injected, mut policies) = (0, 0);
    for path in examples() {
        let name = path.display().to_string();
        let ran = groupage(&["inject", "-f", &name, "--verbose", "--controller", "off", "-o", "json"], "");
        assert_eq!(ran.exit, 0, "{name}: {}", ran.report);
        let is_left = |line: &str| line.contains(" skipped (") || line.contains(" left unchanged");
        assert!(!ran.report.lines().any(is_left), "{name}: {}", ran.report);
        let out = ran.json();
        let objects = out["items"].as_array().cloned().unwrap_or_else(|| vec![out.clone()]);
        for object in objects.iter().filter(|object| requests_sidecar(object)) {
            assert!(has_sidecar(object), "{name}: {}", ran.report);
            injected += 1;
        }
        let applied: Vec<String> = objects.iter().filter_map(applied_policy).collect();
        for policy in objects.iter().filter(|object| object["kind"] == "BatchPolicy") {
            let policy = policy["metadata"]["name"].as_str().unwrap();
            assert!(applied.iter().any(|own| own == policy), "{name}: {policy} applies to no pod: {}", ran.report);
            policies += 1;
        }
    }
    assert!(injected >= 5 && policies >= 4, "{injected} pods, {policies} policies");
}
