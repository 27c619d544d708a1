//! Tests of the injection's two properties on generated pods, and cases that no golden file covers:
//! changes by other components between two passes.

mod corners;
mod strategies;
mod recovery;
mod passes;
mod properties;
mod listen_target;
mod pod_resources;

use std::sync::Arc;

use serde_json::{Value, json};

use super::{InjectedPod, InjectionContext, InjectionOutcome, NamedPolicy, SkipReason, Workload, inject, uninject};

/// A pod with one container and one named port.
fn pod() -> Value {
    json!({
        "metadata": {"name": "p", "labels": {"app": "p"}, "annotations": {"groupage.dev/inject": "enabled"}},
        "spec": {"containers": [{"name": "app", "image": "app", "ports": [{"name": "http", "containerPort": 8080}]}]},
    })
}

/// Context of the webhook in a current cluster.
fn context() -> InjectionContext {
    InjectionContext {
        supports_native_sidecars: true,
        token: Some("0123456789abcdef0123456789abcdef".to_owned()),
        ..InjectionContext::default()
    }
}

/// The pod with an `app-listen` override in mode `Loopback`.
fn pod_with_app_listen(app_listen: &str) -> Value {
    let mut pod = pod();
    pod["metadata"]["annotations"]["groupage.dev/capture"] = json!("Loopback");
    pod["metadata"]["annotations"]["groupage.dev/app-listen"] = json!(app_listen);
    pod
}

/// A policy with this spec.
fn policies(spec: Value) -> Arc<[NamedPolicy]> {
    let spec = serde_json::from_value(spec).unwrap();
    Arc::from([NamedPolicy { name: "p".to_owned(), spec, ..NamedPolicy::default() }])
}

fn inject_pod(pod: &Value, context: &InjectionContext) -> InjectedPod {
    match inject(pod, context) {
        InjectionOutcome::Injected(injected) => *injected,
        other => panic!("{other:?}"),
    }
}

fn injected(pod: &Value, context: &InjectionContext) -> Value {
    inject_pod(pod, context).pod
}

fn skipped(pod: &Value, context: &InjectionContext) -> SkipReason {
    match inject(pod, context) {
        InjectionOutcome::Skipped(skipped) => skipped.reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn pod_without_opt_in_is_not_injected_in_a_cluster() {
    let mut quiet = pod();
    quiet["metadata"]["annotations"] = json!({});
    assert_eq!(skipped(&quiet, &context()), SkipReason::NotEnabled);
    let mut opted_in = context();
    opted_in.namespace.labels.insert("groupage.dev/inject".to_owned(), "enabled".to_owned());
    let _whole = injected(&quiet, &opted_in);
    opted_in.namespace.labels.insert("groupage.dev/inject".to_owned(), "Enabled".to_owned());
    let InjectionOutcome::Refused(problems) = inject(&quiet, &opted_in) else { panic!("no selector takes this label") };
    assert!(problems[0].message.starts_with("the label of the namespace"), "{}", problems[0].message);
    quiet["metadata"]["annotations"]["groupage.dev/inject"] = json!("disabled");
    assert_eq!(skipped(&quiet, &opted_in), SkipReason::Disabled);
}

#[test]
fn the_namespace_is_the_requests_and_not_the_objects() {
    let mut system = context();
    system.namespace.name = "kube-system".to_owned();
    assert_eq!(skipped(&pod(), &system), SkipReason::Excluded);
    let own = InjectionContext { own_namespace: "g".to_owned(), ..context() };
    let _elsewhere = injected(&pod(), &own);
    let mut own_too = own;
    own_too.namespace.name = "g".to_owned();
    assert_eq!(skipped(&pod(), &own_too), SkipReason::Excluded);
}

#[test]
fn a_pod_that_completes_is_skipped_without_native_sidecars_under_any_restart_policy() {
    let classic = |kind: &str| {
        let workload = Workload { kind: kind.to_owned(), ..Workload::default() };
        InjectionContext { supports_native_sidecars: false, workload, ..context() }
    };
    let with = |owner: &str, restart: Option<&str>| {
        let mut owned = pod();
        owned["metadata"]["ownerReferences"] = json!([{"kind": owner, "name": "j"}]);
        if let Some(restart) = restart {
            owned["spec"]["restartPolicy"] = json!(restart);
        }
        owned
    };
    for restart in [None, Some("Always"), Some("OnFailure"), Some("Never")] {
        for (owner, workload) in [("Job", ""), ("Other", "Job"), ("Other", "CronJob")] {
            let owned = with(owner, restart);
            assert_eq!(skipped(&owned, &classic(workload)), SkipReason::JobNeedsNativeSidecar, "{workload}: {owned}");
            let _whole = injected(&owned, &context());
        }
    }
    // A pod of another owner completes only under some of the policies.
    for restart in ["OnFailure", "Never"] {
        let owned = with("Other", Some(restart));
        assert_eq!(skipped(&owned, &classic("Other")), SkipReason::JobNeedsNativeSidecar, "{owned}");
    }
    for restart in [None, Some("Always")] {
        let _whole = injected(&with("Other", restart), &classic("Other"));
    }
}

#[test]
fn a_disabled_pod_keeps_the_sidecar_of_its_template() {
    let mut whole = injected(&pod(), &context());
    whole["metadata"]["annotations"]["groupage.dev/inject"] = json!("disabled");
    let InjectionOutcome::Skipped(skipped) = inject(&whole, &context()) else { panic!("the pod is disabled") };
    assert_eq!(skipped.reason, SkipReason::Disabled);
    assert!(skipped.detail.contains("remove it with groupage uninject"), "{}", skipped.detail);
}

#[test]
fn the_token_is_kept_on_later_passes_and_a_forged_one_is_not_used() {
    let first = injected(&pod(), &context());
    let another = InjectionContext { token: Some("ffffffffffffffffffffffffffffffff".to_owned()), ..context() };
    assert_eq!(injected(&first, &another), first);
    // A token that a user wrote by hand would become part of a path.
    let forged = first.to_string().replace("0123456789abcdef0123456789abcdef", "../../quit?x=");
    let forged: Value = serde_json::from_str(&forged).unwrap();
    // Annotations are readable by more principals than pod specs.
    assert_eq!(first["metadata"]["annotations"].to_string().matches("0123456789abcdef").count(), 0);
    assert_eq!(injected(&forged, &another).to_string().matches("quit").count(), 0);
    // Without a random token, the token is derived from the template.
    let offline = InjectionContext { token: None, ..context() };
    assert_eq!(injected(&pod(), &offline), injected(&pod(), &offline));
}

#[test]
fn pod_over_a_limit_is_skipped() {
    let mut ports = pod();
    let many: Vec<Value> = (1..=65).map(|port| json!({"containerPort": port})).collect();
    ports["spec"]["containers"][0]["ports"] = json!(many);
    assert_eq!(skipped(&ports, &context()), SkipReason::TooLarge);
    ports["metadata"]["annotations"]["groupage.dev/ports"] = json!("8,9");
    let _chosen = injected(&ports, &context());

    let mut containers = pod();
    let many: Vec<Value> = (0..257).map(|index| json!({"name": format!("c{index}")})).collect();
    containers["spec"]["containers"] = json!(many);
    assert_eq!(skipped(&containers, &context()), SkipReason::TooLarge);

    let mut annotations = pod();
    annotations["metadata"]["annotations"]["note"] = json!("x".repeat((256 << 10) - 500));
    assert_eq!(skipped(&annotations, &context()), SkipReason::TooLarge);

    let mut every = pod();
    let all: Vec<Value> = (9190..=9190 + 4095).map(|port| json!({"containerPort": port})).collect();
    every["spec"]["initContainers"] = json!([{"name": "hog", "ports": all}]);
    let whole = injected(&every, &context());
    assert_eq!(whole["spec"]["initContainers"][1]["ports"][1]["containerPort"], 9190 + 4096);
}

#[test]
fn a_policy_too_large_for_a_variable_is_replaced_by_passthrough() {
    let spec = json!({"tenants": {"weights": (0..9000).map(|n| (format!("t{n}"), json!(1))).collect::<serde_json::Map<_, _>>()}});
    let done = inject_pod(&pod(), &InjectionContext { policies: policies(spec), ..context() });
    assert!(done.report.warnings.iter().any(|warning| warning.contains("does not fit")), "{:?}", done.report);
    let env = done.pod["spec"]["initContainers"][0]["env"].as_array().unwrap();
    assert!(env.contains(&json!({"name": "GROUPAGE_POLICY", "value": "{\"mode\":\"Passthrough\"}"})), "{env:?}");
}

#[test]
fn values_of_the_installation_hold_below_policy_and_annotation() {
    let mut context = context();
    context.sidecar.image = "mirror/groupage@sha256:abc".to_owned();
    context.sidecar.pull_secrets = vec!["pull".to_owned()];
    context.sidecar.mode = crate::api::v1alpha1::Mode::Observe;
    context.controller = Some(super::ControllerEndpoint { address: "https://c:1".to_owned(), ca: "PEM $x".to_owned() });
    let whole = injected(&pod(), &context);
    let sidecar = &whole["spec"]["initContainers"][0];
    assert_eq!(sidecar["image"], "mirror/groupage@sha256:abc");
    let env = |name: &str| {
        let found = sidecar["env"].as_array().unwrap().iter().find(|entry| entry["name"] == name);
        found.map(|entry| entry["value"].clone())
    };
    assert_eq!(env("GROUPAGE_POLICY"), Some(json!("{\"mode\":\"Observe\"}")));
    assert_eq!((env("GROUPAGE_CONTROLLER"), env("GROUPAGE_CA")), (Some(json!("https://c:1")), Some(json!("PEM $$x"))));
    assert_eq!(whole["spec"]["imagePullSecrets"], json!([{"name": "pull"}]));
    assert_eq!(uninject(&whole).unwrap().pod, pod());
}
