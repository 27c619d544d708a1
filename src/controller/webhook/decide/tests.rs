use serde_json::json;

use super::*;
use crate::cluster_state::ObjectTable;
use crate::cluster_state::fixtures::*;

fn cluster() -> ClusterState {
    let mut cluster = ClusterState { is_synced: true, server_native: Some(true), ..ClusterState::default() };
    namespace(&mut cluster, "a", &[]);
    insert(&mut cluster.replica_sets, ObjectKey::new("a", "emb-1"), owner_of("u", Some(deployment("emb"))));
    cluster
}

fn pod(annotations: &Value) -> Value {
    json!({
        "metadata": {"generateName": "emb-1-", "labels": {"app": "x"}, "annotations": annotations,
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "emb-1", "uid": "u", "controller": true}]},
        "spec": {"containers": [{"name": "server", "image": "i", "ports": [{"name": "http", "containerPort": 8080}]}]},
    })
}

fn request_for(pod: Value) -> AdmissionRequest {
    AdmissionRequest { uid: "u".into(), makes_pod: true, namespace: "a".into(), pod, dry_run: false }
}

fn review_of(cluster: &ClusterState, question: &AdmissionRequest) -> (ReviewResponse, Value) {
    let base = InjectionContext::default();
    let known = ReviewContext { cluster, base: &base, own_namespace: "groupage-system", token: "secret", native: None };
    let answer = answer(question, known).unwrap();
    let review: Value = serde_json::from_slice(&answer.body).unwrap();
    let response = review["response"].clone();
    assert_eq!((&response["uid"], &response["allowed"]), (&json!("u"), &json!(true)), "a pod is always allowed");
    (answer, response)
}

/// Applies the patch of the response to the pod.
fn patched(question: &AdmissionRequest, response: &Value) -> Value {
    let mut pod = question.pod.clone();
    if let Some(bytes) = response.get("patch").filter(|patch| !patch.is_null()) {
        let bytes: Vec<u8> = serde_json::from_value(bytes.clone()).unwrap();
        let patch: json_patch::Patch = serde_json::from_slice(&bytes).unwrap();
        json_patch::patch(&mut pod, &patch).unwrap();
    }
    pod
}

#[test]
fn an_enabled_pod_gets_the_sidecar_once() {
    let cluster = cluster();
    let question = request_for(pod(&json!({"groupage.dev/inject": "enabled"})));
    let (answer, response) = review_of(&cluster, &question);
    assert_eq!(answer.admission, AdmissionResult::Injected);
    let injected = patched(&question, &response);
    assert_eq!(injected["metadata"]["labels"]["groupage.dev/injected"], "true");
    assert!(injected["spec"]["initContainers"].as_array().unwrap().iter().any(|one| one["name"] == "groupage"));
    assert!(injected.to_string().contains("secret"), "the token of the drain hook");
    let again = request_for(injected.clone());
    let (answer, response) = review_of(&cluster, &again);
    assert_eq!(answer.admission, AdmissionResult::Injected);
    assert_eq!(patched(&again, &response), injected);
}

#[test]
fn the_policy_of_a_deployment_applies_before_its_replica_set_is_observed() {
    let mut cluster = ClusterState { replica_sets: ObjectTable::default(), ..cluster() };
    let target = json!({"kind": "Deployment", "name": "emb"});
    policy(&mut cluster, "a", "emb", 1, json!({"targetRefs": [target], "mode": "Passthrough"}));
    let mut question = request_for(pod(&json!({"groupage.dev/inject": "enabled"})));
    question.pod["metadata"]["labels"]["pod-template-hash"] = json!("1");
    let (_, response) = review_of(&cluster, &question);
    let injected = patched(&question, &response);
    assert!(injected.to_string().contains("Passthrough"), "{injected}");
}

#[test]
fn a_new_pod_is_not_admitted_with_a_profile_that_was_taken_back() {
    let mut cluster = cluster();
    let target = json!({"kind": "Deployment", "name": "emb"});
    policy(&mut cluster, "a", "emb", 1, json!({"targetRefs": [target], "limits": {"batchItemsMax": 77}}));
    profile(&mut cluster, "a", "good", json!({"limits": {"batchItemsMax": 33}}));
    let key = ObjectKey::new("a", "emb");
    for (phase, expected, other) in [("RolledBack", "33", "77"), ("Progressing", "33", "77"), ("Promoted", "77", "33")]
    {
        let mut one = (**cluster.policies.get(&key).unwrap()).clone();
        one.status = serde_json::from_value(json!({"currentProfile": "good", "rollout": {"phase": phase}})).unwrap();
        insert(&mut cluster.policies, key.clone(), one);
        let question = request_for(pod(&json!({"groupage.dev/inject": "enabled"})));
        let (_, response) = review_of(&cluster, &question);
        let injected = patched(&question, &response).to_string();
        let has = |items: &str| injected.contains(&format!("batchItemsMax\\\":{items}"));
        assert!(has(expected) && !has(other), "{phase}: {injected}");
    }
}

#[test]
fn without_native_sidecars_the_form_is_classic() {
    let mut cluster = cluster();
    let node = crate::cluster_state::Node { kubelet: Some(31), machine: None };
    insert(&mut cluster.nodes, ObjectKey::new("", "old"), node);
    let question = request_for(pod(&json!({"groupage.dev/inject": "enabled"})));
    let (_, response) = review_of(&cluster, &question);
    let containers = patched(&question, &response)["spec"]["containers"].clone();
    assert!(containers.as_array().unwrap().iter().any(|one| one["name"] == "groupage"));
}

#[test]
fn no_pod_is_injected_before_the_cluster_is_known() {
    let cluster = ClusterState { is_synced: false, ..cluster() };
    let (answer, response) = review_of(&cluster, &request_for(pod(&json!({"groupage.dev/inject": "enabled"}))));
    assert_eq!(answer.admission, AdmissionResult::Unsynced);
    assert!(response.get("patch").is_none_or(Value::is_null) && !response["warnings"].is_null());
}

#[test]
fn a_skipped_pod_gets_a_warning_and_its_workload_an_event_except_in_a_dry_run() {
    let mut question = request_for(pod(&json!({"groupage.dev/inject": "enabled"})));
    question.pod["spec"]["hostNetwork"] = json!(true);
    let (answer, response) = review_of(&cluster(), &question);
    assert_eq!((answer.admission, answer.skipped), (AdmissionResult::Skipped, Some("HostNetwork")));
    let news = answer.event.unwrap();
    assert_eq!((news.about.kind.as_str(), news.about.name.as_str()), ("Deployment", "emb"));
    assert!(news.note.starts_with("HostNetwork: "), "{}", news.note);
    assert!(response["warnings"][0].as_str().unwrap().contains("HostNetwork"));
    assert_eq!(response["auditAnnotations"]["outcome"], "skipped");
    question.dry_run = true;
    assert_eq!(review_of(&cluster(), &question).0.event, None);
}

#[test]
fn a_pod_that_is_not_enabled_gets_no_warning() {
    let (answer, response) = review_of(&cluster(), &request_for(pod(&json!({}))));
    assert_eq!((answer.skipped, answer.event), (Some("NotEnabled"), None));
    assert!(response["warnings"].is_null());
}

#[test]
fn an_invalid_annotation_leaves_the_pod_unchanged_with_a_warning() {
    let question = request_for(pod(&json!({"groupage.dev/inject": "enabled", "groupage.dev/mode": "Fast"})));
    let (answer, response) = review_of(&cluster(), &question);
    assert_eq!(answer.admission, AdmissionResult::Refused);
    assert!(response["warnings"][0].as_str().unwrap().contains("GRP2101"));
    assert_eq!(patched(&question, &response), question.pod);
    assert!(answer.event.is_some());
}

#[test]
fn the_sidecar_gets_the_policy_that_the_cluster_selects() {
    let mut cluster = cluster();
    policy(&mut cluster, "a", "young", 9, spec_for("x", &json!({"mode": "Passthrough"})));
    let target = json!({"kind": "Deployment", "name": "emb"});
    policy(&mut cluster, "a", "old", 1, json!({"targetRefs": [target], "mode": "Observe"}));
    policy(&mut cluster, "a", "all", 0, json!({"mode": "Passthrough"}));
    let question = request_for(pod(&json!({"groupage.dev/inject": "enabled"})));
    let (_, response) = review_of(&cluster, &question);
    let injected = patched(&question, &response);
    let status: Value =
        serde_json::from_str(injected["metadata"]["annotations"]["groupage.dev/status"].as_str().unwrap()).unwrap();
    assert_eq!(status["policy"], "old");
    assert!(injected.to_string().contains("Observe"));
}

#[test]
fn an_invalid_policy_is_not_passed_to_the_sidecar() {
    let mut cluster = cluster();
    policy(&mut cluster, "a", "all", 0, json!({"mode": "Observe"}));
    let key = ObjectKey::new("a", "all");
    let mut broken = (*cluster.policies[&key]).clone();
    broken.invalid = Some("limits.batchItemsMax is 0".to_owned());
    insert(&mut cluster.policies, key, broken);
    let question = request_for(pod(&json!({"groupage.dev/inject": "enabled"})));
    let (answer, response) = review_of(&cluster, &question);
    assert_eq!(answer.admission, AdmissionResult::Injected);
    assert!(response["warnings"].to_string().contains("is invalid"), "{response}");
    assert!(!patched(&question, &response).to_string().contains("Observe"));
}

#[test]
fn only_services_that_select_the_pod_are_examined() {
    let mut cluster = cluster();
    let service = |app: &str| {
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": app, "namespace": "a"},
        "spec": {"selector": {"app": app}, "ports": [{"port": 80, "targetPort": 8080}]}})
    };
    for app in ["x", "y"] {
        insert(&mut cluster.services, ObjectKey::new("a", app), service(app));
    }
    cluster.pools = Some(ObjectTable::default());
    let question = request_for(pod(&json!({"groupage.dev/inject": "enabled"})));
    let base = InjectionContext::default();
    let known = ReviewContext { cluster: &cluster, base: &base, own_namespace: "", token: "t", native: None };
    let made = workload(&question, &cluster);
    let (context, _) = build_context(&question, known, made.as_ref());
    assert_eq!(context.referrers[..], [service("x")]);
    assert_eq!((context.workload.group.as_str(), context.workload.kind.as_str()), ("apps", "Deployment"));
    let (_, response) = review_of(&cluster, &question);
    assert!(response["warnings"].to_string().contains("x"), "a numeric target port bypasses the sidecar: {response}");
}

#[test]
fn our_own_namespace_and_other_objects_are_left_alone() {
    let mut question = request_for(pod(&json!({"groupage.dev/inject": "enabled"})));
    question.namespace = "groupage-system".to_owned();
    assert_eq!(review_of(&cluster(), &question).0.skipped, Some("Excluded"));
    question.makes_pod = false;
    assert_eq!(review_of(&cluster(), &question).0.admission, AdmissionResult::Ignored);
}
