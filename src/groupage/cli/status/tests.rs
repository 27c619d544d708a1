use super::*;
use kube::api::DynamicObject;

fn pod(annotations: &Value) -> Pod {
    serde_json::from_value(json!({
        "metadata": {
            "name": "web-1", "namespace": "ml", "labels": {"app": "web"}, "annotations": annotations,
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-5d", "uid": "u", "controller": true}],
        },
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }))
    .unwrap()
}

/// Returns the annotations of a pod that was created when neither policy nor Service existed.
fn early() -> Value {
    let capture = json!([{"container": "c", "name": "http", "port": 8080, "mode": "Named", "listen": 15080}]);
    let status =
        json!({"version": "0.1.0", "form": "native", "metrics": 9190, "admin": 9191, "hash": "h", "capture": capture});
    json!({STATUS: status.to_string()})
}

fn known(policies: &[Value], services: &[Value]) -> ClusterSnapshot {
    let object = |value: &Value| serde_json::from_value::<DynamicObject>(value.clone()).unwrap();
    let set = json!({
        "apiVersion": "apps/v1", "kind": "ReplicaSet",
        "metadata": {
            "name": "web-5d", "namespace": "ml",
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "d", "controller": true}],
        },
    });
    let cluster = ClusterState {
        policies: table(policies.iter().map(|policy| cluster_state::from_policy(&object(policy)))),
        replica_sets: table(std::iter::once(cluster_state::from_owner(&object(&set).metadata))),
        ..ClusterState::default()
    };
    let bypass_objects = BypassObjects::of("v1", "Service", services.iter().map(object).collect());
    let own = PodMetrics {
        calls: 100,
        passed: 8,
        passed_reason: Some("unrecognised".to_owned()),
        batch_items: Some(7),
        latency: Some(std::time::Duration::from_millis(88)),
        saved: Some(91),
    };
    let metrics = BTreeMap::from([(("ml".to_owned(), "web-1".to_owned()), own)]);
    ClusterSnapshot { cluster: Some(cluster), policies: Some(policies.to_vec()), bypass_objects, metrics }
}

fn policy(namespace: &str, spec: &Value, status: &Value) -> Value {
    json!({
        "apiVersion": "groupage.dev/v1alpha1", "kind": "BatchPolicy",
        "metadata": {"name": "web", "namespace": namespace}, "spec": spec, "status": status,
    })
}

#[test]
fn a_row_contains_the_state_of_a_policy_that_was_created_later() {
    let targets = json!([{"group": "apps", "kind": "Deployment", "name": "web"}]);
    let spec = json!({"targetRefs": targets, "slo": {"latencyP99": "150ms"}});
    let status = json!({
        "summary": {"batchItems": {"p50": 11}, "latencyP99": "88ms", "saved": "91%"},
        "podTunings": [{"pod": "web-1", "message": "p99 212ms over slo 150ms"}],
    });
    let other = policy("other", &json!({"mode": "Observe"}), &json!({}));
    let known = known(&[other, policy("ml", &spec, &status)], &[]);
    let row = pod_row(&pod(&early()), &known);
    assert_eq!(
        (row.policy.as_deref(), row.mode.as_str(), row.batch),
        (Some("web"), "Batch", Some(7)),
        "its own numbers, not its policy's"
    );
    assert_eq!((row.merged, row.passed, row.passed_why.as_deref()), (Some(92), Some(8), Some("unrecognised")));
    assert!(row.ready && row.captured == Some(true) && !row.predicted);
    let text = format_table(&[row], true, false);
    assert_eq!(text.lines().count(), 2);
    assert!(text.contains(" 88ms   150ms   91%") && text.contains("p99 212ms over slo 150ms"), "{text}");
}

#[test]
fn a_late_setting_of_refuse_and_suspended_merging_are_shown() {
    let refused = json!([
        {"type": "SLOMet", "status": "False", "message": "late"},
        {"type": "Merging", "status": "False", "reason": "MergeRefused", "message": "the server refuses batches"},
    ]);
    let spec = json!({"slo": {"latencyP99": "150ms", "late": "Refuse"}});
    let row = pod_row(&pod(&early()), &known(&[policy("ml", &spec, &json!({"conditions": refused}))], &[]));
    assert_eq!(row.slo_late.as_deref(), Some("Refuse"));
    let text = format_table(&[row], true, false);
    assert!(text.contains(" 150ms (Refuse) ") && text.contains("the server refuses batches"), "{text}");
    let merging = json!([{"type": "Merging", "status": "True", "message": "merged"}]);
    let spec = json!({"slo": {"latencyP99": "150ms"}});
    let row = pod_row(&pod(&early()), &known(&[policy("ml", &spec, &json!({"conditions": merging}))], &[]));
    assert_eq!((row.slo_late.as_deref(), row.unmerged), (Some("Serve"), None));
}

#[test]
fn the_mode_annotation_of_a_pod_takes_precedence_over_its_policy() {
    let known = known(&[policy("ml", &json!({"mode": "Passthrough"}), &json!({}))], &[]);
    assert_eq!(pod_row(&pod(&early()), &known).mode, "Passthrough");
    let mut own = early();
    own[MODE] = json!("observe");
    assert_eq!(pod_row(&pod(&own), &known).mode, "Observe");
}

#[test]
fn predicted_values_are_marked_with_a_tilde() {
    let predicted = json!({"batchItems": {"p50": 11}, "latencyP99": "88ms", "saved": "91%"});
    let status = json!({"summary": {"latencyP99": "70ms"}, "predicted": predicted});
    let row = pod_row(&pod(&early()), &known(&[policy("ml", &json!({"mode": "Observe"}), &status)], &[]));
    let text = format_table(&[row], false, false);
    assert!(text.contains(" ~11 ") && text.contains(" ~88ms ") && text.contains(" ~91% "), "{text}");
    let row = pod_row(&pod(&early()), &known(&[policy("ml", &json!({"mode": "Batch"}), &status)], &[]));
    assert_eq!((row.predicted, row.latency_p99.as_deref()), (false, Some("88ms")), "an old prediction");
}

#[test]
fn bypasses_are_those_of_the_current_services() {
    let service = |port: Value| {
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "ml"},
            "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": port}]},
        })
    };
    let row = pod_row(&pod(&early()), &known(&[], &[service(json!(8080))]));
    assert!(row.captured == Some(false) && row.around[0].starts_with("svc/web:80"), "{:?}", row.around);
    assert!(format_table(&[row], true, false).contains("svc/web:80"));
    assert_eq!(pod_row(&pod(&early()), &known(&[], &[service(json!("http"))])).captured, Some(true));
}

#[test]
fn without_access_to_policies_a_row_shows_the_injection_record() {
    let mut record: Value = serde_json::from_str(early()[STATUS].as_str().unwrap()).unwrap();
    record["policy"] = json!("web");
    record["capture"][0]["bypass"] = json!(["hostPort 80 leads directly to the application"]);
    let row = pod_row(&pod(&json!({STATUS: record.to_string()})), &ClusterSnapshot::default());
    assert_eq!((row.policy.as_deref(), row.captured, row.mode.as_str()), (Some("web"), Some(false), "-"));
    let bare =
        Pod { metadata: kube::core::ObjectMeta { name: Some("a".into()), ..Default::default() }, ..Pod::default() };
    let row = pod_row(&bare, &ClusterSnapshot::default());
    assert_eq!(row, PodRow { pod: "a".to_owned(), mode: "-".to_owned(), ..PodRow::default() });
    let line = format_table(&[row], false, false).lines().nth(1).unwrap().to_owned();
    assert_eq!(
        line.split_whitespace().collect::<Vec<_>>(),
        ["a", "no", "-", "-", "-", "-", "-", "-", "-", "-", "-", "-"],
        "no guess"
    );
}
