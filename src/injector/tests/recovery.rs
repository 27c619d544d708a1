//! Injected manifests edited by users: the undo record is lost, or a container is renamed.

use serde_json::{Value, json};

use super::super::uninject;
use super::{context, inject_pod, injected, pod};

fn with_probe() -> Value {
    let mut plain = pod();
    let app = &mut plain["spec"]["containers"][0];
    app["ports"].as_array_mut().unwrap().push(json!({"name": "web", "containerPort": 8080}));
    app["ports"].as_array_mut().unwrap().push(json!({"name": "grpc", "containerPort": 8081}));
    app["readinessProbe"] = json!({"httpGet": {"path": "/", "port": 8080}});
    app["resources"] = json!({"requests": {"cpu": "1"}});
    plain
}

fn without_record(pod: &Value) -> Value {
    let mut bare = injected(pod, &context());
    bare["metadata"]["annotations"].as_object_mut().unwrap().remove("groupage.dev/status");
    bare
}

#[test]
fn without_a_record_names_and_hooks_are_restored_from_the_sidecar() {
    let plain = with_probe();
    let bare = without_record(&plain);
    assert_eq!(uninject(&bare).unwrap().pod["spec"]["containers"], plain["spec"]["containers"]);
    let mut other = context();
    other.token = Some("ffffffffffffffffffffffffffffffff".to_owned());
    let again = injected(&bare, &other);
    assert_eq!(again["spec"]["containers"][0]["ports"][0]["name"], "gpg-8080");
    assert_eq!(again["spec"]["initContainers"], injected(&plain, &other)["spec"]["initContainers"]);
    let hook = &again["spec"]["containers"][0]["lifecycle"]["preStop"]["httpGet"]["path"];
    assert_eq!(*hook, "/drain/ffffffffffffffffffffffffffffffff?wait");
    assert_eq!(injected(&again, &other), again);
}

#[test]
fn without_a_record_a_probe_of_the_sidecar_is_restored_to_a_direct_one() {
    let mut plain = with_probe();
    plain["metadata"]["annotations"]["groupage.dev/capture"] = json!("Loopback");
    plain["spec"]["containers"][0]["startupProbe"] = json!({"tcpSocket": {"port": 8080}, "periodSeconds": 3});
    plain["spec"]["containers"][0]["livenessProbe"] = json!({"httpGet": {"path": "/connect/own", "port": 8080}});
    let bare = without_record(&plain);
    assert_eq!(uninject(&bare).unwrap().pod["spec"]["containers"], plain["spec"]["containers"]);
}

#[test]
fn a_container_renamed_after_injection_is_recognised_by_its_changes() {
    let mut plain = with_probe();
    plain["spec"]["containers"][0]["livenessProbe"] = json!({"httpGet": {"path": "/", "port": "grpc"}});
    plain["spec"]["containers"].as_array_mut().unwrap().push(json!({"name": "second", "image": "x"}));
    let mut edited = injected(&plain, &context());
    edited["spec"]["containers"][0]["name"] = json!("model");
    plain["spec"]["containers"][0]["name"] = json!("model");
    let undone = uninject(&edited).unwrap();
    assert_eq!((undone.pod, undone.warnings), (plain.clone(), Vec::new()));
    assert_eq!(injected(&edited, &context())["spec"], injected(&plain, &context())["spec"]);
    // A container in which only variables were set is recognized too.
    plain["metadata"]["annotations"]["groupage.dev/capture"] = json!("Loopback");
    plain["metadata"]["annotations"]["groupage.dev/app-listen"] = json!("env:HOST=127.0.0.1");
    let mut edited = injected(&plain, &context());
    edited["spec"]["containers"][0]["name"] = json!("server");
    plain["spec"]["containers"][0]["name"] = json!("server");
    let undone = uninject(&edited).unwrap();
    assert_eq!((undone.pod, undone.warnings), (plain, Vec::new()));
}

#[test]
fn a_name_that_an_injection_gave_is_never_moved() {
    let mut plain = with_probe();
    plain["spec"]["containers"][0]["ports"] = json!([{"name": "gpg-8080", "containerPort": 8080}]);
    let done = inject_pod(&plain, &context());
    assert_eq!(done.pod["spec"]["containers"], plain["spec"]["containers"]);
    let warning = &done.report.warnings[0];
    assert!(warning.contains("named gpg-8080") && warning.contains("restore its original name"), "{warning}");
    plain["spec"]["containers"][0]["ports"][0]["name"] = json!("gpg-metrics");
    let whole = injected(&plain, &context());
    assert_eq!(whole["spec"]["containers"][0]["ports"][0]["name"], "gpg-8080");
}
