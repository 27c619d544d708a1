use serde_json::json;

use super::*;
use crate::cluster_state::fixtures::*;
use crate::cluster_state::{ObjectTable, OwnerObject};

fn chosen(cluster: &ClusterState, pod: &Pod) -> Option<String> {
    let namespace = pod.meta.key.namespace.as_str();
    let workload = cluster.workload(namespace, pod.owner.as_ref(), &pod.labels);
    let subject =
        PodSubject { namespace, labels: &pod.labels, annotations: &pod.annotations, workload: workload.as_ref() };
    choose(cluster, subject).policy().map(|policy| policy.meta.key.name.clone())
}

fn with(policies: &[(&str, u32, Value)]) -> ClusterState {
    let mut cluster = ClusterState::default();
    for (name, second, spec) in policies {
        policy(&mut cluster, "a", name, *second, spec.clone());
    }
    cluster
}

#[test]
fn the_oldest_policy_that_selects_a_pod_takes_precedence() {
    let app = spec_for("x", &json!({}));
    let mut cluster = with(&[("everyone", 0, json!({})), ("young", 9, app.clone()), ("old", 3, app)]);
    let x = pod("a", "p", &[("app", "x")]);
    assert_eq!(chosen(&cluster, &x).as_deref(), Some("old"));
    assert_eq!(chosen(&cluster, &pod("a", "p", &[("app", "y")])).as_deref(), Some("everyone"));
    assert_eq!(chosen(&cluster, &pod("b", "p", &[("app", "x")])), None, "another namespace");
    cluster.policies = ObjectTable::default();
    assert_eq!(chosen(&cluster, &x), None);
}

#[test]
fn of_two_policies_of_equal_age_the_first_by_name_takes_precedence() {
    let app = spec_for("x", &json!({}));
    let cluster = with(&[("b", 1, app.clone()), ("a", 1, app)]);
    assert_eq!(chosen(&cluster, &pod("a", "p", &[("app", "x")])).as_deref(), Some("a"));
}

#[test]
fn a_pod_that_names_a_policy_follows_no_other() {
    let cluster = with(&[("old", 0, spec_for("x", &json!({}))), ("named", 5, spec_for("z", &json!({})))]);
    let mut x = pod("a", "p", &[("app", "x")]);
    x.annotations = labels(&[(POLICY_ANNOTATION, "named")]);
    assert_eq!(chosen(&cluster, &x).as_deref(), Some("named"));
    x.annotations = labels(&[(POLICY_ANNOTATION, "gone")]);
    assert_eq!(chosen(&cluster, &x), None);
}

#[test]
fn references_lead_through_replica_sets_services_pools_and_inference_services() {
    let to = |kind: &str, name: &str| json!({"targetRefs": [{"kind": kind, "name": name}]});
    let cases = [
        ("Deployment", "emb"),
        ("Service", "svc"),
        ("InferencePool", "pool"),
        ("InferenceService", "isvc"),
        ("StatefulSet", "set"),
    ];
    for (kind, name) in cases {
        let mut cluster = with(&[("p", 0, to(kind, name))]);
        insert(&mut cluster.replica_sets, ObjectKey::new("a", "emb-1"), owner_of("u", Some(deployment("emb"))));
        let service = json!({"kind": "Service", "spec": {"selector": {"app": "x"}}});
        insert(&mut cluster.services, ObjectKey::new("a", "svc"), service);
        let pool = json!({"kind": "InferencePool", "spec": spec_for("x", &json!({}))});
        insert(cluster.pools.get_or_insert_default(), ObjectKey::new("a", "pool"), pool);
        let mut led = pod("a", "p", &[("app", "x"), (INFERENCE_SERVICE, "isvc")]);
        let owner = if kind == "StatefulSet" { ("StatefulSet", "set") } else { ("ReplicaSet", "emb-1") };
        led.owner = Some(OwnerRef { kind: owner.0.into(), name: owner.1.into(), ..OwnerRef::default() });
        assert_eq!(chosen(&cluster, &led).as_deref(), Some("p"), "{kind}");
        let other = pod("a", "q", &[("app", "y")]);
        assert_eq!(chosen(&cluster, &other), None, "{kind}");
    }
}

#[test]
fn a_service_without_a_selector_and_an_external_one_select_no_pod() {
    let labels = labels(&[("app", "x")]);
    assert!(!selected_by(&json!({"kind": "Service", "spec": {}}), &labels));
    assert!(!selected_by(&json!({"kind": "Service", "spec": {"selector": {}}}), &labels));
    assert!(!selected_by(
        &json!({"kind": "Service", "spec": {"type": "ExternalName", "selector": {"app": "x"}}}),
        &labels
    ));
    assert!(
        selected_by(&json!({"kind": "NetworkPolicy", "spec": {"podSelector": {}}}), &labels),
        "an empty selector selects all pods"
    );
}

#[test]
fn expressions_have_the_meaning_of_kubernetes() {
    let labels = labels(&[("app", "x"), ("tier", "gpu")]);
    let check = |key: &str, operator: &str, values: &[&str]| {
        let selector = json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]});
        selects(&serde_json::from_value(selector).unwrap(), &labels)
    };
    assert!(check("app", "In", &["x", "y"]) && !check("app", "In", &["y"]) && !check("no", "In", &["x"]));
    assert!(check("app", "NotIn", &["y"]) && !check("app", "NotIn", &["x"]) && check("no", "NotIn", &["x"]));
    assert!(check("app", "Exists", &[]) && !check("no", "Exists", &[]));
    assert!(check("no", "DoesNotExist", &[]) && !check("app", "DoesNotExist", &[]));
    assert!(!check("app", "Similar", &["x"]), "an unknown operator selects nothing");
}

#[test]
fn a_target_reference_is_found_missing_unknown_or_not_installed() {
    let mut cluster = ClusterState::default();
    insert(&mut cluster.deployments, ObjectKey::new("a", "emb"), OwnerObject::default());
    let find = |cluster: &ClusterState, group: Option<&str>, kind: &str, name: &str| {
        let target = TargetRef { group: group.map(str::to_owned), kind: Some(kind.into()), name: Some(name.into()) };
        resolve_target(cluster, "a", &target)
    };
    assert_eq!(find(&cluster, Some("apps"), "Deployment", "emb"), TargetLookup::There);
    assert_eq!(find(&cluster, None, "Deployment", "emb"), TargetLookup::There);
    assert_eq!(find(&cluster, None, "Deployment", "other"), TargetLookup::Missing);
    assert_eq!(find(&cluster, Some("batch"), "Deployment", "emb"), TargetLookup::Unknown);
    assert_eq!(find(&cluster, None, "Job", "emb"), TargetLookup::Unknown);
    assert_eq!(find(&cluster, None, "InferencePool", "p"), TargetLookup::NotInstalled);
    cluster.pools = Some(ObjectTable::default());
    assert_eq!(find(&cluster, None, "InferencePool", "p"), TargetLookup::Missing);
}

#[test]
fn a_policy_with_a_selector_and_target_refs_applies_to_no_pod() {
    let both = spec_for("x", &json!({"targetRefs": [{"kind": "Service", "name": "s"}]}));
    let cluster = with(&[("both", 0, both)]);
    assert_eq!(chosen(&cluster, &pod("a", "p", &[("app", "x")])), None);
    let empty = with(&[("empty", 0, json!({"selector": {}, "targetRefs": []}))]);
    assert_eq!(chosen(&empty, &pod("a", "p", &[])).as_deref(), Some("empty"), "both empty is the namespace's default");
}

#[test]
fn the_targets_of_a_policy_are_abbreviated() {
    let short = |spec: Value| describe_target(&serde_json::from_value(spec).unwrap());
    assert_eq!(short(json!({})), "*");
    assert_eq!(short(json!({"targetRefs": [{"kind": "Deployment", "name": "a"}]})), "Deployment/a");
    assert_eq!(
        short(json!({"targetRefs": [{"kind": "Deployment", "name": "a"}, {"kind": "Service", "name": "b"}, {}]})),
        "Deployment/a +2"
    );
    let selector = json!({"matchLabels": {"app": "x"}, "matchExpressions": [{"key": "b", "operator": "In", "values": ["1", "2"]}]});
    assert_eq!(short(json!({"selector": selector})), "app=x,b in (1,2)");
}

#[test]
fn the_most_specific_injection_setting_counts_and_an_unknown_value_disables() {
    let yes = labels(&[("groupage.dev/inject", "enabled")]);
    let mut pod = pod("a", "p", &[]);
    assert!(
        requests_injection(&pod, Some(&yes), false)
            && !requests_injection(&pod, None, false)
            && requests_injection(&pod, None, true)
    );
    let spelled = labels(&[("groupage.dev/inject", "Enabled")]);
    assert!(!requests_injection(&pod, Some(&spelled), false), "the selector of the webhook is case-sensitive");
    pod.labels = labels(&[("groupage.dev/inject", "disabled")]);
    assert!(!requests_injection(&pod, Some(&yes), true));
    pod.annotations = labels(&[("groupage.dev/inject", "True")]);
    assert!(requests_injection(&pod, None, false));
    pod.annotations = labels(&[("groupage.dev/inject", "perhaps")]);
    assert!(!requests_injection(&pod, Some(&yes), true));
}
