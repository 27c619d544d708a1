//! Commands that replace `kubectl annotate`: `groupage inject` and `uninject`, each followed by
//! `kubectl apply`, and `groupage enable` and `disable`.

use std::time::Duration;

use groupage::testkit::Route;
use k8s_openapi::api::core::v1::Pod;

use super::manifests::{MERGING_POLICY, ModelManifest};
use super::sidecar::{CALLERS, is_same_answer, predictions};
use super::{TestCase, case};
use crate::cluster::retry_until;
use crate::installation::{ensure_installed, has_sidecar};
use crate::test_client::TestClient;
use crate::test_namespace::TestNamespace;
use crate::{CaseResult, TestError};

/// Calls per second.
const RATE: f64 = 100.0;
/// Timeout for an Event.
const EVENT_TIMEOUT: Duration = Duration::from_secs(30);

pub(super) const CASES: &[TestCase] = &[
    case!("by_hand", injected_manifests_serve_through_batches_and_can_be_restored),
    case!("by_hand", enable_adds_the_sidecar_and_disable_removes_it),
    case!("by_hand", enable_reports_a_bypass_with_the_command_that_fixes_it),
    case!("by_hand", a_redirect_captures_calls_to_the_port_number),
];

async fn injected_manifests_serve_through_batches_and_can_be_restored(space: &TestNamespace) -> CaseResult {
    let model = ModelManifest { annotations: "", args: ", --items-max, '0', --base, 20ms", ..ModelManifest::default() };
    let manifest = space.fill_placeholders(&model.yaml());
    space.apply(&manifest).await?;
    let before = space.deployment_ready("model").await?;
    let caller = TestClient::start_for(space, "model:80").await?;
    let unbatched = caller.call_sequentially("model:80", &predictions()).await?;
    let injected = inject_manifest(space, &manifest, &[]).await?;
    space.apply(&injected).await?;
    let pods = space.deployment_settled("model").await?;
    if before.iter().any(has_sidecar) || !pods.iter().all(has_sidecar) {
        return Err("the injected manifest makes no sidecar".into());
    }
    caller.wait_until_reachable("model:80", "/health").await?;
    let batched = caller.call_concurrently("model:80", &predictions()).await?;
    if let Some((unbatched, batched)) =
        unbatched.iter().zip(&batched).find(|(unbatched, batched)| !is_same_answer(unbatched, batched))
    {
        return Err(format!("unbatched {unbatched:?}, batched {batched:?}").into());
    }
    let metrics = space.merged_metrics(&pods).await?;
    if metrics.shared_batches() < 1.0 {
        return Err("nothing was shared".into());
    }
    let plain = space.cluster.groupage(&["uninject", "--file", "-"], &injected).await?;
    space.apply(&plain).await?;
    let after = space.deployment_settled("model").await?;
    let template =
        |pods: &[Pod]| pods.first().and_then(|pod| pod.metadata.labels.as_ref()?.get("pod-template-hash").cloned());
    if template(&before).is_none() || template(&before) != template(&after) {
        return Err("the template without the sidecar differs from the original".into());
    }
    caller.wait_until_reachable("model:80", "/health").await?;
    Ok(format!(
        "{CALLERS} answers equal, mean batch {:.1}; after uninject the template is the original",
        metrics.batch_mean()
    ))
}

/// Returns the manifest with sidecars that merge from the first call on. It requires neither a
/// controller nor the custom resource definitions, since the policy is only used by the command and
/// removed from its output.
async fn inject_manifest(space: &TestNamespace, manifest: &str, more: &[&str]) -> Result<String, TestError> {
    let image = &space.cluster.kit.images.groupage.reference;
    let inject = ["inject", "--file", "-", "--namespace", &space.name, "--image", image, "--controller", "off"];
    let injected =
        space.cluster.groupage(&[&inject[..], more].concat(), &format!("{MERGING_POLICY}---{manifest}")).await?;
    let objects = injected.split("---\n").filter(|object| !object.contains("kind: BatchPolicy"));
    Ok(objects.collect::<Vec<_>>().join("---\n"))
}

async fn enable_adds_the_sidecar_and_disable_removes_it(space: &TestNamespace) -> CaseResult {
    ensure_installed(space).await?;
    space.apply(&ModelManifest { annotations: "", ..ModelManifest::default() }.yaml()).await?;
    space.deployment_ready("model").await?;
    let groupage = async |args: &[&str]| {
        space.cluster.groupage(&[args, &["deploy/model", "--namespace", &space.name]].concat(), "").await
    };
    let enabled = groupage(&["enable", "--slo-p99", "400ms", "--slo-late", "Refuse"]).await?;
    let with = space.deployment_ready("model").await?;
    if !with.iter().all(has_sidecar) || !enabled.contains("has the sidecar") {
        return Err(format!("after enable, the output is {enabled}").into());
    }
    let slo =
        space.kubectl(&["get", "bpol", "model", "--output=jsonpath={.spec.slo.latencyP99} {.spec.slo.late}"]).await?;
    let listed = space.cluster.groupage(&["status", "--namespace", &space.name], "").await?;
    if slo != "400ms Refuse" || !listed.contains("400ms (Refuse)") {
        return Err(format!("the policy promises {slo}, and the status is {listed}").into());
    }
    let disabled = groupage(&["disable"]).await?;
    let without = space.deployment_ready("model").await?;
    if without.iter().any(has_sidecar) || !disabled.contains("has no sidecar") {
        return Err(format!("after disable, the output is {disabled}").into());
    }
    Ok(format!("the sidecar was added and removed, with a policy of {slo}"))
}

/// A Service as created by `kubectl expose`, under Pod Security `restricted`: traffic bypasses the
/// sidecar, which is reported as an error with the same corrective command in every place. That
/// command must not lose calls.
async fn enable_reports_a_bypass_with_the_command_that_fixes_it(space: &TestNamespace) -> CaseResult {
    ensure_installed(space).await?;
    space.enforce_restricted().await?;
    let model = ModelManifest {
        annotations: "",
        args: ", --base, 5ms",
        target: "8080",
        replicas: 2,
        ..ModelManifest::default()
    };
    let manifest = model.yaml().replace("{name: http, containerPort: 8080}", "{containerPort: 8080}");
    // A preStop hook of the application keeps a pod running until no more calls arrive, since
    // without capture the sidecar cannot drain them.
    let lingers = "securityContext: $restricted\n          lifecycle: {preStop: {sleep: {seconds: 5}}}\n---";
    let manifest = manifest.replace("securityContext: $restricted\n---", lingers);
    space.apply(&manifest.replace("port: http}, periodSeconds", "port: 8080}, periodSeconds")).await?;
    space.deployment_ready("model").await?;
    let groupage = async |args: &[&str]| space.cluster.groupage(args, "").await;
    let enable = ["enable", "deploy/model", "--namespace", &space.name];
    let command = format!("groupage enable -n {} deployment/model --fix-services", space.name);
    match groupage(&enable).await {
        Ok(text) => return Err(format!("it captures nothing and ends well: {text}").into()),
        Err(fault) if !fault.to_string().contains(&command) => return Err(format!("no command in {fault}").into()),
        Err(_) => {}
    }
    for text in [groupage(&["status", "--namespace", &space.name]).await?, groupage(&["check"]).await?] {
        if !text.contains(&command) {
            return Err(format!("no command in {text}").into());
        }
    }
    retry_until("an Event on the Deployment", EVENT_TIMEOUT, async || {
        let events = space.kubectl(&["events", "--for=deployment/model"]).await?;
        if events.contains(&command) { Ok(()) } else { Err(events.into()) }
    })
    .await?;
    let caller = TestClient::start_for(space, "model:80").await?;
    let load = caller.start_load("model:80", Route::Predict, RATE).await?;
    let fixed = groupage(&[&enable[..], &["--fix-services"]].concat()).await?;
    load.wait_until_served(200).await?;
    let report = load.stop().await?;
    let pods = space.deployment_settled("model").await?;
    // Open connections keep leading to the application. Only new connections pass through the
    // sidecar.
    TestClient::start_as(space, "newcomer").await?.call_concurrently("model:80", &predictions()).await?;
    let through = space.merged_metrics(&pods).await?.sum("groupage_calls_total", &[]);
    if report.not_served() > 0 || through < 1.0 {
        return Err(
            format!("{} calls were lost, {through} went through the sidecars: {fixed}", report.not_served()).into()
        );
    }
    Ok(format!("{} calls, none lost; {through} of them through the sidecars", report.offered))
}

/// The kernel redirects inbound connections to the sidecar: for a port number, at every address,
/// and without changes to application or Service.
async fn a_redirect_captures_calls_to_the_port_number(space: &TestNamespace) -> CaseResult {
    let annotations = "groupage.dev/capture: Redirect";
    let model = ModelManifest { annotations, args: ", --base, 20ms", target: "8080", ..ModelManifest::default() };
    let injected = inject_manifest(space, &space.fill_placeholders(&model.yaml()), &["--redirect=WhenNeeded"]).await?;
    space.apply(&injected).await?;
    let pods = space.deployment_ready("model").await?;
    batched_at_every_address(space, &pods).await
}

/// Calls the Service and the port number at every address of the pods, and expects shared batches
/// at each.
pub(super) async fn batched_at_every_address(space: &TestNamespace, pods: &[Pod]) -> CaseResult {
    let caller = TestClient::start_for(space, "model:80").await?;
    let ips = pods.iter().flat_map(|pod| pod.status.iter().flat_map(|status| status.pod_ips.iter().flatten()));
    let mut places = vec!["model:80".to_owned()];
    for ip in ips {
        places.push(std::net::SocketAddr::new(ip.ip.parse()?, 8080).to_string());
    }
    let mut summary = Vec::new();
    for place in &places {
        let before = space.merged_metrics(pods).await?.shared_batches();
        let answers = caller.call_concurrently(place, &predictions()).await?;
        let good = answers.iter().filter(|answer| answer.status == 200).count();
        let shared = space.merged_metrics(pods).await?.shared_batches() - before;
        if good != CALLERS || shared < 1.0 {
            return Err(format!("{place}: {good} of {CALLERS} answered 200, {shared} shared batches").into());
        }
        summary.push(format!("{shared} shared batches at {place}"));
    }
    Ok(summary.join(", "))
}
