//! Unavailability of the controller: pods start without it, and are reported once it is back.

use std::time::Duration;

use super::manifests::ModelManifest;
use super::policies::{POLICY, wait_for_condition, wait_for_condition_within, wait_for_pod_counts};
use super::{TestCase, case};
use crate::CaseResult;
use crate::cluster::retry_until;
use crate::installation::{Installation, ensure_installed, has_sidecar};
use crate::test_client::TestClient;
use crate::test_namespace::TestNamespace;

pub(super) const CASES: &[TestCase] =
    &[case!("webhook", pods_created_without_the_webhook_start_without_a_sidecar_and_are_reported)];

/// Timeout for the report: the old leader lease expires, and the new leader lists the cluster,
/// inspects its pods and writes the status.
const REPORTED_MAX: Duration = Duration::from_secs(60);

async fn pods_created_without_the_webhook_start_without_a_sidecar_and_are_reported(
    space: &TestNamespace,
) -> CaseResult {
    let installation = ensure_installed(space).await?;
    installation.scale(0).await?;
    let summary = while_away(space, &installation).await;
    // Restored in any case, since the other cases require it.
    installation.scale(2).await?;
    installation.wait_until_ready().await?;
    summary?;
    let message =
        wait_for_condition_within(space, "model", "TrafficCaptured=False/SidecarMissing", REPORTED_MAX).await?;
    let event = retry_until("the event", REPORTED_MAX, async || {
        let args = ["get", "events", "--field-selector", "reason=SidecarMissing,involvedObject.kind=Deployment"];
        let events = space.kubectl(&[&args[..], &["--output=jsonpath={.items[*].message}"]].concat()).await?;
        if events.contains("the requested sidecar was not injected") { Ok(events) } else { Err("no event".into()) }
    });
    let event = event.await?;
    // The command given in the notes of the chart.
    let ours = space.kubectl(&["get", "events", "--field-selector", "reportingComponent=groupage-controller"]).await?;
    if !ours.contains("SidecarMissing") {
        return Err(format!("not found under its reporter: {ours}").into());
    }
    space.kubectl(&["rollout", "restart", "deployment/model"]).await?;
    let pods = space.deployment_ready("model").await?;
    if !pods.iter().all(has_sidecar) {
        return Err("a recreated pod has no sidecar".into());
    }
    wait_for_pod_counts(space, "model", |pods| (pods.matched, pods.injected) == (1, 1)).await?;
    wait_for_condition(space, "model", "TrafficCaptured=True").await?;
    Ok(format!("policy: {message}; event: {event}; injected after it was recreated"))
}

async fn while_away(space: &TestNamespace, installation: &Installation) -> CaseResult {
    space.apply(POLICY).await?;
    space.apply(&ModelManifest::default().yaml()).await?;
    let pods = space.deployment_ready("model").await?;
    if pods.iter().any(has_sidecar) || !installation.pods().await?.is_empty() {
        return Err("injected although the controller is not running".into());
    }
    TestClient::start_for(space, "model:80").await?;
    Ok(String::new())
}
