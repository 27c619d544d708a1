//! Pods with pod-level resources: the effective pod-level requests stay the same.

use serde_json::{Value, json};

use super::super::uninject;
use super::{context, inject_pod, injected, pod};

fn with(resources: &Value, own: &Value) -> Value {
    let mut whole = pod();
    whole["spec"]["resources"] = resources.clone();
    whole["spec"]["containers"][0]["resources"] = own.clone();
    whole
}

fn requests(pod: &Value) -> Value {
    let whole = injected(pod, &context());
    assert_eq!(injected(&whole, &context()), whole);
    let back = uninject(&whole).unwrap();
    assert_eq!((&back.pod, back.warnings.len()), (pod, 0));
    whole["spec"]["resources"]["requests"].clone()
}

#[test]
fn requests_that_the_api_server_would_take_from_the_pods_limits_are_written_out() {
    let limits = json!({"limits": {"cpu": 2, "memory": "4Gi"}});
    assert_eq!(requests(&with(&limits, &json!(null))), json!({"cpu": 2, "memory": "4Gi"}));
    let null = json!({"limits": {"cpu": "2", "memory": "4Gi"}, "requests": {"cpu": null}});
    assert_eq!(requests(&with(&null, &json!({}))), json!({"cpu": "2", "memory": "4Gi"}));
}

#[test]
fn explicit_resources_are_completed_as_by_the_api_server() {
    let limits = json!({"limits": {"cpu": "2", "memory": "4Gi"}});
    assert_eq!(requests(&with(&limits, &json!({"limits": {"cpu": "1"}}))), json!({"memory": "4Gi"}));
    assert_eq!(requests(&with(&limits, &json!({"requests": {"cpu": "1", "memory": "1Gi"}}))), json!(null));
    let both = json!({"limits": {"cpu": "2"}, "requests": {"cpu": "1"}});
    assert_eq!(requests(&with(&both, &json!(null))), json!({"cpu": "1"}));
    let mut init = with(&limits, &json!(null));
    init["spec"]["initContainers"] = json!([{"name": "load", "resources": {"requests": {"memory": "1Gi"}}}]);
    assert_eq!(requests(&init), json!({"cpu": "2"}));
}

#[test]
fn a_limit_that_was_raised_in_an_injected_manifest_raises_the_request_with_it() {
    let plain = with(&json!({"limits": {"cpu": "2"}}), &json!(null));
    let mut edited = injected(&plain, &context());
    edited["spec"]["resources"]["limits"]["cpu"] = json!("3");
    assert_eq!(injected(&edited, &context())["spec"]["resources"]["requests"], json!({"cpu": "3"}));
    edited["spec"]["resources"]["requests"]["cpu"] = json!("1");
    let undone = uninject(&edited).unwrap();
    assert_eq!(undone.pod["spec"]["resources"]["requests"], json!({"cpu": "1"}));
    assert!(undone.warnings[0].contains("pod-level request of cpu"), "{:?}", undone.warnings);
}

#[test]
fn the_loss_of_the_best_effort_class_is_a_warning() {
    let done = inject_pod(&pod(), &context());
    assert!(done.report.warnings.iter().any(|warning| warning.contains("was BestEffort")), "{:?}", done.report);
    let asking = with(&json!(null), &json!({"requests": {"cpu": "1"}}));
    assert_eq!(inject_pod(&asking, &context()).report.warnings, [] as [&str; 0]);
}
