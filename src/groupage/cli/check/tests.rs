//! Tests of the evaluation of facts.

use serde_json::{Value, json};

use super::Output;
use super::evaluate::{Severity, evaluate, has_sidecar, pod_name, worst_level};
use super::facts::{ClusterFacts, summarize_pod};
use super::print::format_results;
use crate::cli::bypasses::BypassObjects;
use crate::injector::{COMPONENT, CONTAINER, INJECT, INJECTED, STATUS};

fn sound() -> ClusterFacts {
    ClusterFacts {
        minor: Some(36),
        kubelets: vec!["v1.36.3".to_owned()],
        crds: vec![
            json!({"metadata": {"name": "batchpolicies.groupage.dev"}}),
            json!({"metadata": {"name": "batchprofiles.groupage.dev"}}),
        ],
        webhook: json!({"webhooks": [{"clientConfig": {"caBundle": "eA=="}, "failurePolicy": "Ignore"}]}),
        controller: json!({"status": {"readyReplicas": 2}}),
        ..ClusterFacts::default()
    }
}

fn first(facts: &ClusterFacts) -> (Severity, String) {
    let findings = evaluate(facts, false);
    let worst = findings.iter().max_by_key(|finding| finding.level).unwrap();
    (worst.level, worst.what.clone())
}

fn breaks(change: impl Fn(&mut ClusterFacts), level: Severity, message: &str) {
    let mut facts = sound();
    change(&mut facts);
    let (found, what) = first(&facts);
    assert!(found == level && what.contains(message), "{what}");
}

#[test]
fn a_sound_installation_has_no_finding() {
    assert_eq!(first(&sound()).0, Severity::Ok);
}

#[test]
fn every_part_that_is_missing_is_named() {
    breaks(|facts| facts.minor = Some(29), Severity::Error, "older than 1.30");
    breaks(|facts| facts.kubelets.push("v1.32.1".to_owned()), Severity::Warning, "1 kubelets");
    breaks(|facts| facts.crds.truncate(1), Severity::Error, "batchprofiles.groupage.dev is missing");
    breaks(|facts| facts.webhook = Value::Null, Severity::Error, "no pod is injected");
    breaks(|facts| facts.webhook["webhooks"][0]["clientConfig"] = json!({}), Severity::Error, "no CA");
    breaks(|facts| facts.webhook["webhooks"][0]["failurePolicy"] = json!("Fail"), Severity::Warning, "Fail");
    breaks(|facts| facts.controller = Value::Null, Severity::Error, "is missing");
    breaks(|facts| facts.controller = json!({"status": {}}), Severity::Error, "no replica");
    breaks(
        |facts| {
            facts.controller = json!({"status": {}});
            facts.controller_namespace = "g".to_owned();
            let pod = json!({"metadata": {"name": "c", "namespace": "g", "labels": {COMPONENT: "controller"}}, "trouble": "ImagePullBackOff"});
            facts.pods = vec![pod];
        },
        Severity::Error,
        "is ready: ImagePullBackOff",
    );
    breaks(
        |facts| facts.unreadable_parts.push(("pods", "not allowed".to_owned())),
        Severity::Warning,
        "cannot read pods: not",
    );
    breaks(
        |facts| facts.unreadable_referrers.push("services: not allowed".to_owned()),
        Severity::Warning,
        "cannot read services",
    );
    breaks(
        |facts| {
            facts.policies.push(json!({"metadata": {"name": "p", "namespace": "n"}, "status": {"conditions": [{"type": "SLOMet", "status": "False", "reason": "Slow", "message": "m"}]}}));
        },
        Severity::Warning,
        "SLOMet=False (Slow): m",
    );
}

#[test]
fn unreadable_parts_are_warnings_and_not_reported_as_missing() {
    let what = ["CRDs", "webhook", "controller", "pods"];
    let refused = what.map(|what| (what, "not allowed".to_owned())).into();
    let findings = evaluate(
        &ClusterFacts { unreadable_parts: refused, ..ClusterFacts { minor: Some(33), ..ClusterFacts::default() } },
        false,
    );
    assert_eq!(worst_level(&findings), Severity::Warning, "{findings:?}");
    assert!(findings.iter().all(|finding| finding.category == "kubernetes-api"), "{findings:?}");
}

#[test]
fn an_enabled_pod_without_a_sidecar_is_named() {
    let pod = |name: &str, annotations: Value, containers: Value| json!({"metadata": {"name": name, "namespace": "ml", "annotations": annotations}, "spec": {"initContainers": containers}});
    let mut facts = sound();
    facts.namespaces = vec![json!({"metadata": {"name": "ml", "labels": {INJECT: "enabled"}}})];
    facts.pods = vec![
        pod("has", json!({}), json!([{"name": CONTAINER}])),
        pod("lacks", json!({}), json!([])),
        pod("opted-out", json!({INJECT: "disabled"}), json!([])),
    ];
    assert_eq!(first(&facts), (Severity::Warning, "pods without the requested sidecar: ml/lacks".to_owned()));
}

#[test]
fn a_pod_summary_keeps_all_fields_that_the_checks_examine() {
    let record =
        json!({"capture": [{"port": 80, "bypass": ["hostPort 80 leads directly to the application"]}]}).to_string();
    let pod = json!({
        "metadata": {"name": "p", "namespace": "ml", "labels": {INJECTED: "true"}, "annotations": {INJECT: "enabled", STATUS: record, "other": "x"}},
        "spec": {"containers": [{"name": "model", "image": "i"}], "initContainers": [{"name": CONTAINER}]},
        "status": {"phase": "Running"},
    });
    let short = summarize_pod(&serde_json::from_value(pod).unwrap(), &BypassObjects::default());
    assert!(has_sidecar(&short) && pod_name(&short) == "ml/p");
    assert_eq!(short["metadata"]["annotations"], json!({INJECT: "enabled"}));
    let facts = ClusterFacts { pods: vec![short.clone()], ..sound() };
    let what = "calls bypass the sidecar of ml/p: hostPort 80 leads directly to the application";
    assert_eq!(first(&facts), (Severity::Warning, what.to_owned()));
    let waiting = json!({"reason": "ImagePullBackOff", "message": "no such image"});
    let mut broken = short.clone();
    broken["trouble"] = json!(format!("container {CONTAINER}: {}", waiting["reason"].as_str().unwrap()));
    let facts = ClusterFacts { pods: vec![broken], ..sound() };
    assert_eq!(first(&facts), (Severity::Error, "ml/p does not run: container groupage: ImagePullBackOff".to_owned()));
    assert_eq!(
        (&short["metadata"]["labels"][INJECTED], &short["status"]["phase"]),
        (&json!("true"), &json!("Running"))
    );
}

#[test]
fn a_dry_run_pod_shows_whether_injection_works() {
    let pod = |containers: Value| Some(Ok(json!({"spec": {"initContainers": containers}})));
    let mut facts = sound();
    facts.dry_run = pod(json!([{"name": CONTAINER}]));
    assert_eq!(first(&facts).0, Severity::Ok);
    breaks(|facts| facts.dry_run = pod(json!([])), Severity::Error, "gets none");
    breaks(|facts| facts.dry_run = Some(Err("not allowed".to_owned())), Severity::Error, "not allowed");
}

#[test]
fn before_an_installation_only_the_cluster_is_checked() {
    let facts = ClusterFacts { minor: Some(33), ..ClusterFacts::default() };
    assert!(
        evaluate(&facts, true)
            .iter()
            .all(|finding| finding.category == "kubernetes-api" && finding.level == Severity::Ok)
    );
}

#[test]
fn short_output_omits_passed_checks() {
    let text = format_results(&evaluate(&sound(), false), Output::Short);
    assert_eq!(text, "\nstatus: √\n");
    assert!(
        format_results(&evaluate(&ClusterFacts::default(), false), Output::Short)
            .contains("× batchpolicies.groupage.dev is missing")
    );
}
