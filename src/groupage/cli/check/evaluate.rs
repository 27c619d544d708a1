//! Evaluation of the facts about a cluster: a pure function without I/O.

use std::collections::BTreeMap;

use serde_json::Value;

use super::facts::{CONTROLLER, ClusterFacts, WEBHOOK};
use crate::cli::pod_problem::UNPLACED;
use crate::controller::cluster_state::parse_minor_version;
use crate::controller::status::join_first;
use crate::injector::{COMPONENT, CONTAINER, INJECT, INJECTED};

/// Oldest Kubernetes minor version that the chart supports.
const VERSION_MIN: u32 = 30;
/// First Kubernetes minor version in which Services reach named ports of native sidecars
/// (kubernetes/kubernetes#127958). With an older kubelet in the cluster, sidecars are plain
/// containers.
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
    /// Description of the result.
    pub(super) what: String,
    /// Remedy, for a check that fails.
    pub(super) hint: Option<String>,
}

/// The collected results.
#[derive(Debug, Default)]
struct Findings(Vec<CheckResult>);

pub(super) fn worst_level(findings: &[CheckResult]) -> Severity {
    findings.iter().map(|finding| finding.level).max().unwrap_or(Severity::Ok)
}

/// Evaluates the facts. With `pre`, only the prerequisites of an installation are checked.
pub(super) fn evaluate(facts: &ClusterFacts, pre: bool) -> Vec<CheckResult> {
    let mut found = Findings::default();
    found.check_version(facts.minor);
    found.check_kubelets(&facts.kubelets);
    found.report_unreadable(facts);
    if !pre {
        found.check_crds(facts);
        if facts.is_readable("webhook") {
            found.check_webhook(&facts.webhook);
        }
        if facts.is_readable("controller") {
            found.check_controller(facts);
        }
        found.check_dry_run(facts.dry_run.as_ref());
        if facts.is_readable("pods") {
            found.check_missing_sidecars(facts);
            found.report_bypasses(&facts.pods);
            found.report_broken_pods(&facts.pods);
        }
        found.check_policies(&facts.policies);
    }
    found.0
}

// === impl Findings ===

impl Findings {
    fn ok(&mut self, category: &'static str, what: impl Into<String>) {
        self.push(category, Severity::Ok, what, None);
    }

    fn push(&mut self, category: &'static str, level: Severity, what: impl Into<String>, hint: Option<&str>) {
        self.0.push(CheckResult { category, level, what: what.into(), hint: hint.map(str::to_owned) });
    }

    fn check_version(&mut self, minor: Option<u32>) {
        match minor {
            Some(minor) if minor < VERSION_MIN => {
                let what = format!("the API server has version 1.{minor}, older than 1.{VERSION_MIN}");
                let hint = Some("upgrade the cluster: the injector needs matchConditions (1.30)");
                self.push("kubernetes-api", Severity::Error, what, hint);
            }
            Some(minor) => self.ok("kubernetes-api", format!("the API server is reachable, version 1.{minor}")),
            None => {
                let what = "the API server does not report its version";
                self.push("kubernetes-api", Severity::Warning, what, None);
            }
        }
    }

    fn check_kubelets(&mut self, versions: &[String]) {
        let is_old = |version: &&String| parse_minor_version(version).is_some_and(|minor| minor < VERSION_NATIVE);
        let old = versions.iter().filter(is_old).count();
        if old > 0 {
            let what = format!("{old} kubelets are older than 1.{VERSION_NATIVE}");
            let hint = Some("sidecars are plain containers until all kubelets are 1.33: Jobs are not injected");
            self.push("kubernetes-api", Severity::Warning, what, hint);
        } else if !versions.is_empty() {
            self.ok("kubernetes-api", "every kubelet supports native sidecars");
        }
    }

    fn report_unreadable(&mut self, facts: &ClusterFacts) {
        for (what, reason) in &facts.unreadable_parts {
            let hint = Some("checks that depend on it were skipped");
            self.push("kubernetes-api", Severity::Warning, format!("cannot read {what}: {reason}"), hint);
        }
        for reason in &facts.unreadable_referrers {
            let hint = Some("bypasses of sidecars are shown as recorded when their pods were created");
            self.push("kubernetes-api", Severity::Warning, format!("cannot read {reason}"), hint);
        }
    }

    fn check_crds(&mut self, facts: &ClusterFacts) {
        if !facts.is_readable("CRDs") {
            return;
        }
        let names: Vec<&str> = facts.crds.iter().filter_map(|crd| crd["metadata"]["name"].as_str()).collect();
        for name in ["batchpolicies.groupage.dev", "batchprofiles.groupage.dev"] {
            if names.contains(&name) {
                self.ok("crds", format!("{name} exists"));
            } else {
                let hint = Some("groupage install | kubectl apply --server-side -f -");
                self.push("crds", Severity::Error, format!("{name} is missing"), hint);
            }
        }
    }

    fn check_webhook(&mut self, webhook: &Value) {
        let entries = webhook["webhooks"].as_array().map_or(&[][..], Vec::as_slice);
        if entries.is_empty() {
            let hint = Some("groupage install | kubectl apply --server-side -f -");
            return self.push("webhook", Severity::Error, format!("{WEBHOOK} is missing: no pod is injected"), hint);
        }
        let has_ca = |entry: &Value| {
            entry.pointer("/clientConfig/caBundle").and_then(Value::as_str).is_some_and(|bundle| !bundle.is_empty())
        };
        if entries.iter().all(has_ca) {
            self.ok("webhook", "the API server has a CA to verify the webhook");
        } else {
            let hint = Some("the controller's leader sets it; see its log");
            self.push("webhook", Severity::Error, "the API server has no CA to verify the webhook", hint);
        }
        if entries.iter().any(|entry| entry["failurePolicy"] == "Fail") {
            let what =
                "failurePolicy is Fail: pods that request a sidecar cannot start while the controller is unavailable";
            let hint = Some("give the controller a priority class, and run its replicas on different nodes");
            self.push("webhook", Severity::Warning, what, hint);
        }
    }

    fn check_controller(&mut self, facts: &ClusterFacts) {
        if facts.controller.is_null() {
            let hint = Some(
                "groupage install | kubectl apply --server-side -f -, or set its namespace with --controller-namespace",
            );
            return self.push("controller", Severity::Error, format!("deployment/{CONTROLLER} is missing"), hint);
        }
        let ready = facts.controller.pointer("/status/readyReplicas").and_then(Value::as_u64).unwrap_or(0);
        if ready > 0 {
            return self.ok("controller", format!("{ready} replicas of the controller are ready"));
        }
        let what = "no replica of the controller is ready";
        let own = |pod: &&Value| {
            pod["metadata"]["namespace"] == facts.controller_namespace.as_str()
                && pod["metadata"]["labels"][COMPONENT].is_string()
        };
        match facts.pods.iter().filter(own).find_map(|pod| pod["trouble"].as_str()) {
            Some(trouble) => self.push("controller", Severity::Error, format!("{what}: {trouble}"), None),
            // Logs exist only if the container has started. A container that has not started is
            // reported as trouble.
            None => {
                let hint = format!("kubectl logs -n {} deployment/{CONTROLLER}", facts.controller_namespace);
                self.push("controller", Severity::Error, what, Some(&hint));
            }
        }
    }

    fn check_dry_run(&mut self, dry_run: Option<&Result<Value, String>>) {
        match dry_run {
            None => {}
            Some(Ok(pod)) if has_sidecar(pod) => self.ok("injection", "a pod that requests a sidecar gets one"),
            Some(Ok(_)) => {
                let hint = Some(
                    "the API server cannot reach the webhook, or the webhook skipped the pod; see the log of the controller",
                );
                self.push("injection", Severity::Error, "a pod that requests a sidecar gets none", hint);
            }
            Some(Err(reason)) => {
                let what = format!("the dry run of a pod that requests a sidecar failed: {reason}");
                let hint = Some("set a namespace in which you may create pods");
                self.push("injection", Severity::Error, what, hint);
            }
        }
    }

    fn check_missing_sidecars(&mut self, facts: &ClusterFacts) {
        let is_missing =
            |pod: &&Value| requests_sidecar(pod, &facts.namespaces) && !has_sidecar(pod) && !has_ended(pod);
        let missing: Vec<String> = facts.pods.iter().filter(is_missing).map(pod_name).collect();
        if missing.is_empty() {
            let injected = facts.pods.iter().filter(|pod| pod["metadata"]["labels"][INJECTED] == "true").count();
            self.ok("injection", format!("every pod that requests a sidecar has one ({injected})"));
        } else {
            let what = format!("pods without the requested sidecar: {}", join_first(&missing, NAMED_MAX));
            let hint = Some(
                "kubectl get events -A shows why a pod was skipped; a pod that was missed gets the sidecar when it is recreated",
            );
            self.push("injection", Severity::Warning, what, hint);
        }
    }

    /// Reports sidecars that are bypassed. Pods of one workload share a remedy, so they are
    /// reported together.
    fn report_bypasses(&mut self, pods: &[Value]) {
        let mut bypassed: BTreeMap<(&str, &str), Vec<String>> = BTreeMap::new();
        for pod in pods.iter().filter(|pod| !has_ended(pod)) {
            if let (Some(bypass), Some(remedy)) = (pod["around"][0].as_str(), pod["remedy"].as_str()) {
                bypassed.entry((remedy, bypass)).or_default().push(pod_name(pod));
            }
        }
        for ((remedy, bypass), pods) in bypassed {
            let what = format!("calls bypass the sidecar of {}: {bypass}", join_first(&pods, NAMED_MAX));
            self.push("injection", Severity::Warning, what, Some(remedy));
        }
    }

    /// Reports pods with a sidecar that do not run. The messages for pods of one workload differ
    /// only in the pod's name, which is removed to group them.
    fn report_broken_pods(&mut self, pods: &[Value]) {
        // By the message without the name: the message of the first pod, and the names of all.
        let mut broken: BTreeMap<String, (&str, Vec<String>)> = BTreeMap::new();
        for pod in pods.iter().filter(|pod| has_sidecar(pod)) {
            if let Some(trouble) = pod["trouble"].as_str() {
                let unnamed = trouble.replace(pod["metadata"]["name"].as_str().unwrap_or_default(), "");
                broken.entry(unnamed).or_insert_with(|| (trouble, Vec::new())).1.push(pod_name(pod));
            }
        }
        for (trouble, pods) in broken.into_values() {
            let level = if trouble.starts_with(UNPLACED) { Severity::Warning } else { Severity::Error };
            let what = format!("{} does not run: {trouble}", join_first(&pods, NAMED_MAX));
            self.push("injection", level, what, None);
        }
    }

    fn check_policies(&mut self, policies: &[Value]) {
        for policy in policies {
            let metadata = |key: &str| policy["metadata"][key].as_str().unwrap_or("?");
            let (own, space) = (metadata("name"), metadata("namespace"));
            let name = format!("batchpolicy/{own} in {space}");
            let conditions = policy["status"]["conditions"].as_array().map_or(&[][..], Vec::as_slice);
            // `NoGain` is a property of the server: batches do not pay, and nothing needs to be
            // fixed.
            let is_bad = |condition: &&Value| condition["status"] == "False" && condition["reason"] != "NoGain";
            if conditions.is_empty() {
                let hint = Some("the controller has not processed it yet");
                self.push("policy", Severity::Warning, format!("{name} has no status"), hint);
            } else if let Some(worst) = conditions.iter().find(is_bad) {
                let field = |key: &str| worst[key].as_str().unwrap_or_default();
                let what = format!("{name}: {}=False ({}): {}", field("type"), field("reason"), field("message"));
                let hint = format!("kubectl describe bpol -n {space} {own}");
                self.push("policy", Severity::Warning, what, Some(&hint));
            } else {
                self.ok("policy", format!("{name} is in force"));
            }
        }
    }
}

/// Returns `true` if the pod, or else its namespace, requests a sidecar.
fn requests_sidecar(pod: &Value, namespaces: &[Value]) -> bool {
    let namespace = namespaces.iter().find(|space| space["metadata"]["name"] == pod["metadata"]["namespace"]);
    // The first one that is present decides.
    let values = [
        pod["metadata"]["annotations"][INJECT].as_str(),
        pod["metadata"]["labels"][INJECT].as_str(),
        namespace.and_then(|space| space["metadata"]["labels"][INJECT].as_str()),
    ];
    let first = values.into_iter().flatten().next();
    first.is_some_and(|value| matches!(value.to_ascii_lowercase().as_str(), "enabled" | "true"))
}

fn has_ended(pod: &Value) -> bool {
    matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"))
}

pub(super) fn has_sidecar(pod: &Value) -> bool {
    ["containers", "initContainers"].iter().any(|key| {
        let containers = pod["spec"][key].as_array().map_or(&[][..], Vec::as_slice);
        containers.iter().any(|container| container["name"] == CONTAINER)
    })
}

pub(super) fn pod_name(pod: &Value) -> String {
    format!(
        "{}/{}",
        pod["metadata"]["namespace"].as_str().unwrap_or("?"),
        pod["metadata"]["name"].as_str().unwrap_or("?")
    )
}
