//! Selection of the container of an `app-listen` override, and the warnings for overrides without
//! effect.

use std::sync::Arc;

use serde_json::{Value, json};

use super::super::{InjectionContext, InjectionOutcome, inject, uninject};
use super::{context, inject_pod, injected, pod_with_app_listen, policies};

/// Two application containers. A Service refers to the port number of the second.
fn ollama(app_listen: &str) -> (Value, InjectionContext) {
    let pod = json!({
        "metadata": {"name": "p", "labels": {"app": "p"}, "annotations": {"groupage.dev/inject": "enabled", "groupage.dev/app-listen": app_listen}},
        "spec": {"containers": [
            {"name": "exporter", "image": "e", "ports": [{"name": "metrics", "containerPort": 9100}]},
            {"name": "ollama", "image": "o", "ports": [{"name": "http", "containerPort": 11434}]},
            {"name": "daprd", "image": "d", "ports": [{"containerPort": 3500}]},
        ]},
    });
    let service = json!({"kind": "Service", "metadata": {"name": "s"}, "spec": {"selector": {"app": "p"}, "ports": [{"port": 80, "targetPort": 11434}]}});
    (pod, InjectionContext { referrers: Arc::from([service]), ..context() })
}

fn warnings(pod: &Value, context: &InjectionContext) -> Vec<String> {
    let mut warnings = inject_pod(pod, context).report.warnings;
    // Ignores the warning about resources, which these pods do not have.
    warnings.retain(|warning| !warning.contains("BestEffort"));
    warnings
}

fn refused(pod: &Value, context: &InjectionContext) -> String {
    match inject(pod, context) {
        InjectionOutcome::Refused(problems) => format!("{}: {}", problems[0].code, problems[0].message),
        other => panic!("{other:?}"),
    }
}

#[test]
fn only_the_container_that_declares_the_port_is_changed() {
    let (plain, context) = ollama("env:OLLAMA_HOST=127.0.0.1:11434");
    let whole = injected(&plain, &context);
    assert_eq!(whole["spec"]["containers"][0].get("env"), None);
    assert_eq!(whole["spec"]["containers"][1]["env"][0]["name"], "OLLAMA_HOST");
    assert_eq!(warnings(&plain, &context), [] as [&str; 0]);
    assert_eq!(injected(&whole, &context), whole);
    assert_eq!(uninject(&whole).unwrap().pod, plain);
}

#[test]
fn an_ambiguous_annotation_refuses_the_pod_and_an_ambiguous_policy_is_ignored() {
    let (mut plain, mut context) = ollama("env:OLLAMA_HOST=127.0.0.1");
    let found = refused(&plain, &context);
    assert!(found.starts_with("GRP2101") && found.contains("CONTAINER/ in front"), "{found}");
    assert!(found.contains("exporter and ollama"), "{found}");
    plain["metadata"]["annotations"].as_object_mut().unwrap().remove("groupage.dev/app-listen");
    for (app_listen, reason) in [
        ("env:OLLAMA_HOST=127.0.0.1", "CONTAINER/ in front"),
        ("gone/env:HOST=127.0.0.1", "exporter and ollama"),
        ("ollama/env:BACKEND_HOST=127.0.0.1", "a known setting"),
        ("ollama/env:OLLAMA_HOST=127.0.0.1,env:LD_HOST=127.0.0.1", "a known setting"),
    ] {
        context.policies = policies(json!({"injection": {"appListen": app_listen}}));
        let found = warnings(&plain, &context);
        assert!(found[0].starts_with("appListen of policy p is not used") && found[0].contains(reason), "{found:?}");
    }
}

#[test]
fn a_container_added_between_two_passes_does_not_change_the_selection() {
    let plain = pod_with_app_listen("env:HOST=127.0.0.1");
    let mut grown = injected(&plain, &context());
    let late = json!({"name": "late", "image": "l", "ports": [{"containerPort": 4317}]});
    grown["spec"]["containers"].as_array_mut().unwrap().push(late);
    let again = injected(&grown, &context());
    assert_eq!(again["spec"]["containers"], grown["spec"]["containers"]);
    assert_eq!(injected(&again, &context()), again);
    assert!(refused(&uninject(&grown).unwrap().pod, &context()).contains("app and late"));
}

#[test]
fn the_container_of_another_proxy_does_not_belong_to_the_application() {
    let (plain, context) = ollama("daprd/env:A=127.0.0.1");
    let refusal = refused(&plain, &context);
    assert!(refusal.contains("a container of the application: exporter and ollama"), "{refusal}");
}

#[test]
fn an_unused_app_listen_value_is_reported() {
    let (mut plain, context) = ollama("env:OLLAMA_HOST=127.0.0.1:11434");
    plain["metadata"]["annotations"]["groupage.dev/capture"] = json!("Named");
    let found = warnings(&plain, &context);
    assert!(
        found.contains(
            &"app-listen for container ollama is not used: capture is Named: remove one of the two settings".to_owned()
        ),
        "{found:?}"
    );
    plain["metadata"]["annotations"]["groupage.dev/capture"] = json!("Auto");
    plain["metadata"]["annotations"]["groupage.dev/ports"] = json!("metrics");
    let found = warnings(&plain, &context);
    assert!(
        found[0].starts_with("app-listen for container ollama is not used: the container has no captured port"),
        "{found:?}"
    );
    // All callers use the port's name, so they reach the sidecar without the override.
    let (plain, _) = ollama("env:OLLAMA_HOST=127.0.0.1:11434");
    assert_eq!(warnings(&plain, &super::context()), [] as [&str; 0]);
}

#[test]
fn a_value_with_another_port_than_the_captured_one_is_reported() {
    let found = warnings(&pod_with_app_listen("env:HOST=127.0.0.1:11434"), &context());
    assert_eq!(
        found,
        [
            "app-listen sets container app to port 11434, but the sidecar connects to 8080: set that port, or declare 11434"
        ]
    );
}

#[test]
fn ports_other_than_tcp_on_loopback_are_reported() {
    let mut plain = super::pod();
    plain["metadata"]["annotations"]["groupage.dev/capture"] = json!("Loopback");
    let udp = json!({"containerPort": 5353, "protocol": "UDP"});
    plain["spec"]["containers"][0]["ports"].as_array_mut().unwrap().push(udp);
    let about = |pod: &Value| warnings(pod, &context()).iter().any(|warning| warning.contains("5353 (UDP)"));
    assert!(!about(&plain), "the container has no override");
    plain["metadata"]["annotations"]["groupage.dev/app-listen"] = json!("env:HOST=127.0.0.1");
    assert!(about(&plain));
}
