//! Policies as seen by the controller: their status in general, and while traffic bypasses a
//! sidecar.

use std::time::Duration;

use groupage::api::v1alpha1::{BatchPolicyStatus, PodCounts};
use kube::ResourceExt;
use serde_json::Value;

use super::cli_injection::batched_at_every_address;
use super::manifests::{INJECT_ANNOTATION, ModelManifest};
use super::{TestCase, case};
use crate::cluster::retry_until;
use crate::installation::ensure_installed;
use crate::test_namespace::TestNamespace;
use crate::{CaseResult, TestError};

pub(super) const CASES: &[TestCase] = &[
    case!("policies", the_status_of_a_policy_counts_its_pods_and_names_problems),
    case!("policies", a_numeric_target_port_is_reported_and_loopback_captures_it),
];

/// Timeout for a condition. The controller reconciles one second after a change, and every five
/// seconds.
const CONDITION_TIMEOUT: Duration = Duration::from_secs(30);

/// Policy for [`ModelManifest`].
pub(super) const POLICY: &str = "
apiVersion: groupage.dev/v1alpha1
kind: BatchPolicy
metadata: {name: model}
spec:
  targetRefs: [{group: apps, kind: Deployment, name: model}]
  slo: {latencyP99: 500ms}
";

/// Returns the status of a policy.
pub(super) async fn status(space: &TestNamespace, name: &str) -> Result<BatchPolicyStatus, TestError> {
    let output = space.kubectl(&["get", "bpol", name, "--output=json"]).await?;
    let mut policy: Value = serde_json::from_str(&output)?;
    match policy["status"].take() {
        Value::Null => Err("the policy has no status".into()),
        status => Ok(serde_json::from_value(status)?),
    }
}

/// Waits for a condition of a policy, such as `Accepted=True` or `Accepted=False/Invalid`. Returns
/// its message.
pub(super) async fn wait_for_condition(
    space: &TestNamespace,
    name: &str,
    condition: &str,
) -> Result<String, TestError> {
    wait_for_condition_within(space, name, condition, CONDITION_TIMEOUT).await
}

/// Like [`wait_for_condition`], with another time limit.
pub(super) async fn wait_for_condition_within(
    space: &TestNamespace,
    name: &str,
    condition: &str,
    limit: Duration,
) -> Result<String, TestError> {
    retry_until(&format!("policy {name}, {condition}"), limit, async || {
        let status = status(space, name).await?;
        let conditions: Vec<_> = status
            .conditions
            .iter()
            .map(|one| (format!("{}={}/{}", one.type_, one.status, one.reason), &one.message))
            .collect();
        let wanted =
            |found: &str| found == condition || found.strip_prefix(condition).is_some_and(|rest| rest.starts_with('/'));
        match conditions.iter().find(|(found, _)| wanted(found)) {
            Some((_, message)) => Ok((*message).clone()),
            None => Err(format!("{conditions:?}").into()),
        }
    })
    .await
}

/// Waits until the pod counts of a policy meet a predicate.
pub(super) async fn wait_for_pod_counts(
    space: &TestNamespace,
    name: &str,
    matches: impl Fn(&PodCounts) -> bool,
) -> Result<PodCounts, TestError> {
    retry_until(&format!("the pods of policy {name}"), CONDITION_TIMEOUT, async || {
        let pods = status(space, name).await?.pods.ok_or("no counts")?;
        if matches(&pods) { Ok(pods) } else { Err(format!("{pods:?}").into()) }
    })
    .await
}

async fn the_status_of_a_policy_counts_its_pods_and_names_problems(space: &TestNamespace) -> CaseResult {
    ensure_installed(space).await?;
    space.apply(POLICY).await?;
    wait_for_condition(space, "model", "Accepted=False/TargetNotFound").await?;
    space.apply(&ModelManifest { replicas: 2, ..ModelManifest::default() }.yaml()).await?;
    space.deployment_ready("model").await?;
    wait_for_condition(space, "model", "Accepted=True").await?;
    let captured = wait_for_condition(space, "model", "TrafficCaptured=True").await?;
    let pods =
        wait_for_pod_counts(space, "model", |pods| (pods.matched, pods.injected, pods.captured) == (2, 2, 2)).await?;
    let profile = status(space, "model").await?.current_profile.ok_or("no profile is in force")?;
    space.kubectl(&["get", "bprof", &profile]).await?;
    // If two policies target the same workload, the newer one is rejected.
    space.apply(&POLICY.replace("name: model}\nspec", "name: younger}\nspec")).await?;
    let conflict = wait_for_condition(space, "younger", "Accepted=False/Conflicted").await?;
    space.kubectl(&["delete", "bpol", "younger"]).await?;
    let table = space.kubectl(&["get", "bpol"]).await?;
    if !table.contains("500ms") {
        return Err(format!("kubectl get bpol does not show the SLO: {table}").into());
    }
    let listed = space.cluster.groupage(&["status", "--namespace", &space.name], "").await?;
    let named = space.pods("app=model").await?;
    if let Some(pod) = named.iter().find(|pod| !listed.contains(&pod.name_any())) {
        return Err(format!("groupage status does not name {}: {listed}", pod.name_any()).into());
    }
    Ok(format!(
        "{} matched, {} injected, profile {profile}; {captured}; the younger one: {conflict}",
        pods.matched, pods.injected
    ))
}

async fn a_numeric_target_port_is_reported_and_loopback_captures_it(space: &TestNamespace) -> CaseResult {
    ensure_installed(space).await?;
    // Pod Security `restricted` excludes redirection.
    space.enforce_restricted().await?;
    space.apply(&format!("{POLICY}  scheduling: {{policy: WorkConserving}}\n")).await?;
    space.apply(&ModelManifest { target: "8080", ..ModelManifest::default() }.yaml()).await?;
    space.deployment_ready("model").await?;
    let around = wait_for_condition(space, "model", "TrafficCaptured=False/Bypassed").await?;
    if !around.contains("svc/model") {
        return Err(format!("the message does not name the Service: {around}").into());
    }
    let annotations = format!("{INJECT_ANNOTATION}, groupage.dev/app-listen: 'arg:--listen=127.0.0.1:8080'");
    let model =
        ModelManifest { target: "8080", annotations: &annotations, args: ", --base, 20ms", ..ModelManifest::default() };
    space.apply(&model.yaml()).await?;
    let pods = space.deployment_ready("model").await?;
    wait_for_condition(space, "model", "TrafficCaptured=True").await?;
    let shared = batched_at_every_address(space, &pods).await?;
    Ok(format!("reported as \"{around}\"; with app-listen {shared}"))
}
