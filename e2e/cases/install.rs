//! The installation: installation and upgrade of the chart by a user, permissions of the
//! controller, and its logs.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use super::{TestCase, case};
use crate::installation::{self, NAMESPACE, RELEASE, ensure_installed};
use crate::programs::repository_root;
use crate::test_namespace::TestNamespace;
use crate::{CaseResult, TestError};

pub(super) const CASES: &[TestCase] = &[
    case!("install", replicas_are_ready_under_their_own_account_and_inject),
    case!("install", the_manifest_equals_the_rendered_chart_and_is_accepted_by_the_api_server, Helm),
    case!("install", the_charts_own_test_passes, Helm),
    case!("install", an_upgrade_keeps_the_certificates_of_the_webhook, Helm),
];

/// Run after the other cases, to verify the logs of all their requests.
pub(super) const FINAL_CASES: &[TestCase] = &[case!("install", the_controller_logged_no_error_and_never_restarted)];

/// Service account created by the chart.
const ACCOUNT: &str = "groupage-controller";

async fn replicas_are_ready_under_their_own_account_and_inject(space: &TestNamespace) -> CaseResult {
    let installation = ensure_installed(space).await?;
    let pods = installation.pods().await?;
    let account = |pod: &Pod| pod.spec.as_ref().and_then(|spec| spec.service_account_name.clone());
    if pods.len() != 2 || pods.iter().any(|pod| account(pod).as_deref() != Some(ACCOUNT)) {
        return Err(format!("{} pods, accounts {:?}", pods.len(), pods.iter().map(account).collect::<Vec<_>>()).into());
    }
    verify_log(&installation.logs().await?)?;
    let leader = installation
        .kubectl(&["get", "lease", "groupage-controller", "--output=jsonpath={.spec.holderIdentity}"])
        .await?;
    if !pods.iter().any(|pod| leader.starts_with(&pod.name_any())) {
        return Err(format!("no leader: the lease is held by {leader:?}").into());
    }
    let checked = space.cluster.groupage(&["check", "--try-in", &space.name], "").await?;
    if checked.contains('×') || !checked.contains("a pod that requests a sidecar gets one") {
        return Err(format!("groupage check: {checked}").into());
    }
    Ok(format!("{} replicas, leader {leader}, groupage check finds nothing wrong", pods.len()))
}

async fn the_manifest_equals_the_rendered_chart_and_is_accepted_by_the_api_server(space: &TestNamespace) -> CaseResult {
    ensure_installed(space).await?;
    let chart = repository_root().join("charts/groupage").to_string_lossy().into_owned();
    space.cluster.helm(&["lint", "--strict", &chart]).await?;
    // The same command as in `manifests/render.sh`.
    let template =
        ["template", RELEASE, &chart, "--namespace", NAMESPACE, "--set", "crds.enabled=false", "--skip-tests"];
    let rendered = space.cluster.helm(&template).await?;
    let rendered: Vec<_> = rendered.lines().filter(|line| !line.starts_with("# Source: ")).collect();
    let manifest = std::fs::read_to_string(repository_root().join("manifests/install.yaml"))?;
    if !manifest.trim_end().ends_with(rendered.join("\n").trim_end()) {
        return Err("manifests/install.yaml is not what the chart renders: run manifests/render.sh".into());
    }
    let all = space.cluster.groupage(&["install", "--create-namespace", "--namespace", &space.name], "").await?;
    // Rendered for an existing namespace, since a dry run does not create one for the objects that
    // follow.
    let apply = ["apply", "--server-side", "--dry-run=server", "--force-conflicts"];
    let accepted = space.cluster.kubectl.run_with(&[&apply[..], &["--filename", "-"]].concat(), &all).await?;
    let accepted = accepted.lines().count();
    // The kustomize base for overlays, in the namespace of the installation.
    let base = repository_root().join("manifests").to_string_lossy().into_owned();
    let accepted_by_kustomize = space.cluster.kubectl.run(&[&apply[..], &["--kustomize", &base]].concat()).await?;
    let accepted_by_kustomize = accepted_by_kustomize.lines().count();
    if accepted_by_kustomize != accepted {
        return Err(format!(
            "`groupage install` prints {accepted} objects, the kustomize base has {accepted_by_kustomize}"
        )
        .into());
    }
    // A custom image must also be used for the injected pods.
    let overlay = repository_root().join("examples/kubernetes/overlay").to_string_lossy().into_owned();
    let own = space.cluster.kubectl.run(&["kustomize", &overlay]).await?;
    let images: Vec<&str> = own.lines().filter(|line| line.contains("/groupage:")).map(str::trim).collect();
    if images.len() != 2 || !images.iter().all(|line| line.contains("registry.example/groupage:1")) {
        return Err(format!("an overlay with an image of its own has {images:?}").into());
    }
    Ok(format!(
        "lint passes; install.yaml equals the rendered chart; the API server accepts {accepted} objects, also from kustomize"
    ))
}

async fn the_charts_own_test_passes(space: &TestNamespace) -> CaseResult {
    ensure_installed(space).await?;
    let output = space.cluster.helm(&["test", RELEASE, "--namespace", NAMESPACE, "--logs"]).await?;
    if !output.contains("Succeeded") {
        return Err(output.into());
    }
    Ok("helm test succeeded".to_owned())
}

async fn an_upgrade_keeps_the_certificates_of_the_webhook(space: &TestNamespace) -> CaseResult {
    let installation = ensure_installed(space).await?;
    let before = installation.ca_bundles().await?;
    let chart = repository_root().join("charts/groupage").to_string_lossy().into_owned();
    let values = installation::chart_values(&space.cluster)?;
    let upgrade = ["upgrade", RELEASE, &chart, "--namespace", NAMESPACE, "--wait", "--timeout", "2m"];
    let other = ["--set=controller.logLevel=debug", "--set=injector.excludedNamespaces={left-alone}"];
    space.cluster.helm(&[&upgrade[..], &other, &values.each_ref().map(String::as_str)].concat()).await?;
    installation.wait_until_ready().await?;
    let after = installation.ca_bundles().await?;
    if before != after {
        return Err("the webhook's certificates differ after an upgrade".into());
    }
    let revision = space.cluster.helm(&["status", RELEASE, "--namespace", NAMESPACE, "--output=json"]).await?;
    let revision: serde_json::Value = serde_json::from_str(&revision)?;
    Ok(format!("revision {}, {} entries trust the same certificate", revision["version"], after.len()))
}

async fn the_controller_logged_no_error_and_never_restarted(space: &TestNamespace) -> CaseResult {
    let installation = ensure_installed(space).await?;
    let logs = installation.logs().await?;
    verify_log(&logs)?;
    let pods = installation.pods().await?;
    let restarts: i32 = pods
        .iter()
        .flat_map(|pod| pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten()))
        .map(|status| status.restart_count)
        .sum();
    if restarts > 0 {
        return Err(format!("{restarts} restarts of the controller").into());
    }
    Ok(format!("{} lines of logs, none about a missing permission, none an error; no restart", logs.lines().count()))
}

/// Verifies that a controller's log contains no errors and no missing permissions.
fn verify_log(logs: &str) -> Result<(), TestError> {
    // A library logs an error if the API server is briefly unavailable.
    let error = |line: &str| line.contains(r#""level":"ERROR","target":"groupage"#);
    let bad = |line: &&str| error(line) || line.to_ascii_lowercase().contains("forbidden") || line.contains("panicked");
    let bad: Vec<_> = logs.lines().filter(bad).take(5).collect();
    if bad.is_empty() { Ok(()) } else { Err(bad.join("\n").into()) }
}
