//! Evaluation of the facts about a cluster: a pure function without I/O.

use std::collections::BTreeMap;

use serde_json::Value;

use super::facts::{CONTROLLER, ClusterFacts, WEBHOOK};
use crate::cli::pod_problem::UNPLACED;
use crate::controller::status::join_first;
use crate::controller::world::parse_minor_version;
use crate::injector::{COMPONENT, CONTAINER, INJECT, INJECTED};

/// Oldest Kubernetes minor version that the chart supports.
const VERSION_MIN: u32 = 30;
/// First Kubernetes minor version in which Services reach named ports of native sidecars
/// (kubernetes/kubernetes#127958).
const VERSION_NATIVE: u32 = 33;
/// Maximum number of pods named in one finding; the others are only counted.
const NAMED_MAX: usize = 5;

/// Severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Severity {
    Ok,
    Warning,
    Error,
}

/// Result of one check.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub(super) struct CheckResult {
    pub(super) category: &'static str,
    pub(super) level: Severity,
    pub(super) what: String,
    /// Remedy, for a check that fails.
    pub(super) hint: Option<String>,
}

pub(super) fn worst_level(findings: &[CheckResult]) -> Severity {
    findings.iter().map(|finding| finding.level).max().unwrap_or(Severity::Ok)
}

/// Evaluates the facts. With `pre`, only the prerequisites of an installation are checked.
pub(super) fn evaluate(facts: &ClusterFacts, pre: bool) -> Vec<CheckResult> {
    let mut found = Vec::new();
    let mut say = |category, level, what: String, hint: Option<&str>| {
        found.push(CheckResult { category, level, what, hint: hint.map(str::to_owned) });
    };
    match facts.minor {
        Some(minor) if minor < VERSION_MIN => {
            let hint = Some("upgrade the cluster: the injector needs matchConditions (1.30)");
            say(
                "kubernetes-api",
                Severity::Error,
                format!("the API server has version 1.{minor}, older than 1.{VERSION_MIN}"),
                hint,
            );
        }
        Some(minor) => {
            say("kubernetes-api", Severity::Ok, format!("the API server is reachable, version 1.{minor}"), None);
        }
        None => say("kubernetes-api", Severity::Warning, "the API server does not report its version".to_owned(), None),
    }
    let old: Vec<&String> = facts
        .kubelets
        .iter()
        .filter(|version| parse_minor_version(version).is_some_and(|minor| minor < VERSION_NATIVE))
        .collect();
    if !facts.kubelets.is_empty() {
        if old.is_empty() {
            say("kubernetes-api", Severity::Ok, "every kubelet supports native sidecars".to_owned(), None);
        } else {
            let hint = Some("sidecars are plain containers until all kubelets are 1.33: Jobs are not injected");
            say(
                "kubernetes-api",
                Severity::Warning,
                format!("{} kubelets are older than 1.{VERSION_NATIVE}", old.len()),
                hint,
            );
        }
    }
    for (what, reason) in &facts.unreadable_parts {
        let hint = Some("checks that depend on it were skipped");
        say("kubernetes-api", Severity::Warning, format!("cannot read {what}: {reason}"), hint);
    }
    for reason in &facts.unreadable_referrers {
        let hint = Some("bypasses of sidecars are shown as recorded when their pods were created");
        say("kubernetes-api", Severity::Warning, format!("cannot read {reason}"), hint);
    }
    if pre {
        return found;
    }
    let names: Vec<&str> = facts.crds.iter().filter_map(|crd| crd["metadata"]["name"].as_str()).collect();
    for name in
        ["batchpolicies.groupage.dev", "batchprofiles.groupage.dev"].into_iter().filter(|_| facts.is_readable("CRDs"))
    {
        if names.contains(&name) {
            say("crds", Severity::Ok, format!("{name} exists"), None);
        } else {
            let hint = Some("groupage install | kubectl apply --server-side -f -");
            say("crds", Severity::Error, format!("{name} is missing"), hint);
        }
    }
    if facts.is_readable("webhook") {
        check_webhook(&facts.webhook, &mut say);
    }
    let ready = facts.controller.pointer("/status/readyReplicas").and_then(Value::as_u64).unwrap_or(0);
    match (facts.controller.is_null(), ready) {
        _ if !facts.is_readable("controller") => {}
        (true, _) => {
            let hint = Some(
                "groupage install | kubectl apply --server-side -f -, or set its namespace with --controller-namespace",
            );
            say("controller", Severity::Error, format!("deployment/{CONTROLLER} is missing"), hint);
        }
        (false, 0) => {
            let what = "no replica of the controller is ready";
            let own = |pod: &&Value| {
                pod["metadata"]["namespace"] == facts.controller_namespace.as_str()
                    && pod["metadata"]["labels"][COMPONENT].is_string()
            };
            match facts.pods.iter().filter(own).find_map(|pod| pod["trouble"].as_str()) {
                Some(trouble) => say("controller", Severity::Error, format!("{what}: {trouble}"), None),
                // Logs exist only if the container has started. A container that has not started is
                // reported as trouble.
                None => {
                    let hint = format!("kubectl logs -n {} deployment/{CONTROLLER}", facts.controller_namespace);
                    say("controller", Severity::Error, what.to_owned(), Some(&hint));
                }
            }
        }
        (false, ready) => {
            say("controller", Severity::Ok, format!("{ready} replicas of the controller are ready"), None);
        }
    }
    check_injection(facts, &mut say);
    check_policies(&facts.policies, &mut say);
    found
}

fn check_webhook(webhook: &Value, say: &mut impl FnMut(&'static str, Severity, String, Option<&str>)) {
    let entries = webhook["webhooks"].as_array().map_or(&[][..], Vec::as_slice);
    if entries.is_empty() {
        let hint = Some("groupage install | kubectl apply --server-side -f -");
        return say("webhook", Severity::Error, format!("{WEBHOOK} is missing: no pod is injected"), hint);
    }
    if entries
        .iter()
        .any(|entry| entry.pointer("/clientConfig/caBundle").and_then(Value::as_str).is_none_or(str::is_empty))
    {
        let hint = Some("the controller's leader sets it; see its log");
        say("webhook", Severity::Error, "the API server has no CA to verify the webhook".to_owned(), hint);
    } else {
        say("webhook", Severity::Ok, "the API server has a CA to verify the webhook".to_owned(), None);
    }
    if entries.iter().any(|entry| entry["failurePolicy"] == "Fail") {
        let hint = Some("give the controller a priority class, and run its replicas on different nodes");
        say(
            "webhook",
            Severity::Warning,
            "failurePolicy is Fail: pods that request a sidecar cannot start while the controller is unavailable"
                .to_owned(),
            hint,
        );
    }
}

/// Reports pods that request a sidecar and have none, sidecars that are bypassed, and pods that do
/// not run.
fn check_injection(facts: &ClusterFacts, say: &mut impl FnMut(&'static str, Severity, String, Option<&str>)) {
    let requests_sidecar = |pod: &&Value| {
        let labels = facts.namespaces.iter().find(|space| space["metadata"]["name"] == pod["metadata"]["namespace"]);
        let words = [
            pod["metadata"]["annotations"][INJECT].as_str(),
            pod["metadata"]["labels"][INJECT].as_str(),
            labels.and_then(|space| space["metadata"]["labels"][INJECT].as_str()),
        ];
        words
            .into_iter()
            .flatten()
            .next()
            .is_some_and(|word| matches!(word.to_ascii_lowercase().as_str(), "enabled" | "true"))
    };
    match &facts.dry_run {
        None => {}
        Some(Ok(pod)) if has_sidecar(pod) => {
            say("injection", Severity::Ok, "a pod that requests a sidecar gets one".to_owned(), None);
        }
        Some(Ok(_)) => {
            let hint = Some(
                "the API server cannot reach the webhook, or the webhook skipped the pod; see the log of the controller",
            );
            say("injection", Severity::Error, "a pod that requests a sidecar gets none".to_owned(), hint);
        }
        Some(Err(reason)) => {
            let hint = Some("set a namespace in which you may create pods");
            say(
                "injection",
                Severity::Error,
                format!("the dry run of a pod that requests a sidecar failed: {reason}"),
                hint,
            );
        }
    }
    let ended = |pod: &&Value| matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
    let missing: Vec<String> = facts
        .pods
        .iter()
        .filter(requests_sidecar)
        .filter(|pod| !has_sidecar(pod) && !ended(pod))
        .map(pod_name)
        .collect();
    if !facts.is_readable("pods") {
        return;
    }
    if missing.is_empty() {
        let injected = facts.pods.iter().filter(|pod| pod["metadata"]["labels"][INJECTED] == "true").count();
        say("injection", Severity::Ok, format!("every pod that requests a sidecar has one ({injected})"), None);
    } else {
        let hint = Some(
            "kubectl get events -A shows why a pod was skipped; a pod that was missed gets the sidecar when it is recreated",
        );
        say(
            "injection",
            Severity::Warning,
            format!("pods without the requested sidecar: {}", join_first(&missing, NAMED_MAX)),
            hint,
        );
    }
    // Pods of one workload share a remedy, so they are reported together.
    let mut around: BTreeMap<(&str, &str), Vec<String>> = BTreeMap::new();
    for pod in facts.pods.iter().filter(|pod| !ended(pod)) {
        if let (Some(way), Some(remedy)) = (pod["around"][0].as_str(), pod["remedy"].as_str()) {
            around.entry((remedy, way)).or_default().push(pod_name(pod));
        }
    }
    for ((remedy, way), pods) in around {
        let what = format!("calls bypass the sidecar of {}: {way}", join_first(&pods, NAMED_MAX));
        say("injection", Severity::Warning, what, Some(remedy));
    }
    // The messages for pods of one workload differ only in the pod's name, which is removed to
    // group them.
    let mut broken: BTreeMap<String, (&str, Vec<String>)> = BTreeMap::new();
    for pod in facts.pods.iter().filter(|pod| has_sidecar(pod)) {
        if let Some(trouble) = pod["trouble"].as_str() {
            let kind = trouble.replace(pod["metadata"]["name"].as_str().unwrap_or_default(), "");
            broken.entry(kind).or_insert_with(|| (trouble, Vec::new())).1.push(pod_name(pod));
        }
    }
    for (trouble, pods) in broken.into_values() {
        let level = if trouble.starts_with(UNPLACED) { Severity::Warning } else { Severity::Error };
        say("injection", level, format!("{} does not run: {trouble}", join_first(&pods, NAMED_MAX)), None);
    }
}

pub(super) fn has_sidecar(pod: &Value) -> bool {
    ["containers", "initContainers"].iter().any(|key| {
        let containers = pod["spec"][key].as_array().map_or(&[][..], Vec::as_slice);
        containers.iter().any(|container| container["name"] == CONTAINER)
    })
}

fn check_policies(policies: &[Value], say: &mut impl FnMut(&'static str, Severity, String, Option<&str>)) {
    for policy in policies {
        let word = |key: &str| policy["metadata"][key].as_str().unwrap_or("?");
        let (own, space) = (word("name"), word("namespace"));
        let name = format!("batchpolicy/{own} in {space}");
        let conditions = policy["status"]["conditions"].as_array().map_or(&[][..], Vec::as_slice);
        // `NoGain` is a property of the server: batches do not pay, and nothing needs to be fixed.
        let is_bad = |condition: &&Value| condition["status"] == "False" && condition["reason"] != "NoGain";
        let bad: Vec<&Value> = conditions.iter().filter(is_bad).collect();
        if conditions.is_empty() {
            say(
                "policy",
                Severity::Warning,
                format!("{name} has no status"),
                Some("the controller has not processed it yet"),
            );
        } else if let Some(worst) = bad.first() {
            let word = |key: &str| worst[key].as_str().unwrap_or_default().to_owned();
            say(
                "policy",
                Severity::Warning,
                format!("{name}: {}=False ({}): {}", word("type"), word("reason"), word("message")),
                Some(&format!("kubectl describe bpol -n {space} {own}")),
            );
        } else {
            say("policy", Severity::Ok, format!("{name} is in force"), None);
        }
    }
}

pub(super) fn pod_name(pod: &Value) -> String {
    format!(
        "{}/{}",
        pod["metadata"]["namespace"].as_str().unwrap_or("?"),
        pod["metadata"]["name"].as_str().unwrap_or("?")
    )
}
