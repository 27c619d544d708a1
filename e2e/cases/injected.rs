//! Pods with a sidecar injected by the webhook, as requested by an annotation or a namespace label.

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::ResourceExt;

use super::cli_injection::batched_at_every_address;
use super::manifests::{INJECT_ANNOTATION, MERGING_POLICY, ModelManifest};
use super::sidecar::{CALLERS, embeddings, is_same_answer, predictions};
use super::{TestCase, case};
use crate::installation::{ensure_installed, has_sidecar};
use crate::test_client::{TestClient, model_stats};
use crate::test_namespace::TestNamespace;
use crate::{CaseResult, TestError};

pub(super) const CASES: &[TestCase] = &[
    case!("injected", an_annotation_enables_batches_and_changes_no_answer),
    case!("injected", a_plain_container_serves_where_a_native_one_is_not_wanted),
    case!("injected", both_families_lead_through_the_sidecar),
    case!("injected", a_namespace_label_enables_injection_and_a_pod_annotation_disables_it),
    case!("injected", a_guaranteed_pod_stays_guaranteed),
    case!("injected", a_job_completes),
    case!("injected", a_port_number_is_redirected_unless_the_installation_forbids_it, Helm),
];

/// Name of the init container that installs the redirection rules, before all other containers.
const REDIRECT: &str = "groupage-redirect";
/// The patch given in the notes of the chart.
const ANNOTATE: &str = r#"{"spec":{"template":{"metadata":{"annotations":{"groupage.dev/inject":"enabled"}}}}}"#;

async fn an_annotation_enables_batches_and_changes_no_answer(space: &TestNamespace) -> CaseResult {
    ensure_installed(space).await?;
    space.apply(MERGING_POLICY).await?;
    space.enforce_restricted().await?;
    let model = ModelManifest { annotations: "", args: ", --items-max, '0', --base, 20ms", ..ModelManifest::default() };
    space.apply(&model.yaml()).await?;
    let bare = space.deployment_ready("model").await?;
    if bare.iter().any(has_sidecar) {
        return Err("a pod that did not request a sidecar has one".into());
    }
    let caller = TestClient::start_for(space, "model:80").await?;
    let mut unbatched = Vec::new();
    for calls in [embeddings(), predictions()] {
        unbatched.push(caller.call_sequentially("model:80", &calls).await?);
    }
    space.kubectl(&["patch", "deployment", "model", "--patch", ANNOTATE]).await?;
    let pods = space.deployment_settled("model").await?;
    let pod = pods.first().ok_or("no pod")?;
    if !has_sidecar(pod) {
        return Err("the pod requested a sidecar and has none".into());
    }
    caller.wait_until_reachable("model:80", "/health").await?;
    let mut summary = Vec::new();
    for (calls, unbatched) in [embeddings(), predictions()].iter().zip(&unbatched) {
        let before = model_stats(space, &pod.name_any()).await?;
        let batched = caller.call_concurrently("model:80", calls).await?;
        let runs = model_stats(space, &pod.name_any()).await?.since(&before).calls;
        if let Some((unbatched, batched)) =
            unbatched.iter().zip(&batched).find(|(unbatched, batched)| !is_same_answer(unbatched, batched))
        {
            return Err(format!("unbatched {unbatched:?}, batched {batched:?}").into());
        }
        summary.push(format!("{CALLERS} answers equal, {runs} calls of the model"));
    }
    let metrics = space.merged_metrics(&pods).await?;
    let (mean, shared) = (metrics.batch_mean(), metrics.shared_batches());
    if mean <= 1.0 || shared < 1.0 {
        return Err(format!("{}: mean batch {mean:.2}, {shared} shared", summary.join(", ")).into());
    }
    Ok(format!("{}; mean batch {mean:.1}, {shared} shared", summary.join(", ")))
}

async fn a_plain_container_serves_where_a_native_one_is_not_wanted(space: &TestNamespace) -> CaseResult {
    ensure_installed(space).await?;
    space.apply(MERGING_POLICY).await?;
    space.enforce_restricted().await?;
    let annotations = format!("{INJECT_ANNOTATION}, groupage.dev/native-sidecar: Never");
    space
        .apply(&ModelManifest { annotations: &annotations, args: ", --base, 20ms", ..ModelManifest::default() }.yaml())
        .await?;
    let pods = space.deployment_ready("model").await?;
    let plain =
        |pod: &Pod| pod.spec.iter().flat_map(|spec| &spec.containers).any(|container| container.name == "groupage");
    if !pods.iter().all(plain) {
        return Err("the sidecar is not a plain container".into());
    }
    let caller = TestClient::start_for(space, "model:80").await?;
    let answers = caller.call_concurrently("model:80", &predictions()).await?;
    let good = answers.iter().filter(|answer| answer.status == 200).count();
    let shared = space.merged_metrics(&pods).await?.shared_batches();
    if good != CALLERS || shared < 1.0 {
        return Err(format!("{good} of {CALLERS} answered 200, {shared} shared batches").into());
    }
    Ok(format!("{good} answered, {shared} shared batches"))
}

async fn both_families_lead_through_the_sidecar(space: &TestNamespace) -> CaseResult {
    ensure_installed(space).await?;
    space.apply(&ModelManifest::default().yaml()).await?;
    let pods = space.deployment_ready("model").await?;
    let caller = TestClient::start(space).await?;
    let service: Service = space.api().get("model").await?;
    let ips = service.spec.and_then(|spec| spec.cluster_ips).unwrap_or_default();
    let mut summary = Vec::new();
    for ip in &ips {
        let to = std::net::SocketAddr::new(ip.parse()?, 80).to_string();
        caller.wait_until_reachable(&to, "/health").await?;
        let before = served(space, &pods).await?;
        let answers = caller.call_concurrently(&to, &predictions()).await?;
        let through = served(space, &pods).await? - before;
        let good = answers.iter().filter(|answer| answer.status == 200).count();
        #[expect(clippy::cast_precision_loss, reason = "a few calls")]
        if good != CALLERS || through < CALLERS as f64 {
            return Err(format!("{to}: {good} of {CALLERS} answered 200, {through} through the sidecar").into());
        }
        summary.push(format!("{good} through {to}"));
    }
    if space.cluster.node.is_some() && summary.len() != 2 {
        return Err(format!("{} addresses of the Service", summary.len()).into());
    }
    Ok(summary.join(", "))
}

/// Returns the number of calls that the sidecars have served.
async fn served(space: &TestNamespace, pods: &[Pod]) -> Result<f64, TestError> {
    Ok(space.merged_metrics(pods).await?.sum("groupage_calls_total", &["outcome=\"served\""]))
}

async fn a_namespace_label_enables_injection_and_a_pod_annotation_disables_it(space: &TestNamespace) -> CaseResult {
    ensure_installed(space).await?;
    space.cluster.kubectl.run(&["label", "namespace", &space.name, "groupage.dev/inject=enabled"]).await?;
    space.apply(&ModelManifest { annotations: "", ..ModelManifest::default() }.yaml()).await?;
    let no = ModelManifest { annotations: "groupage.dev/inject: disabled", ..ModelManifest::default() }.yaml();
    space.apply(&no.replace("name: model", "name: other").replace("app: model", "app: other")).await?;
    let labelled = space.deployment_ready("model").await?;
    let left = space.deployment_ready("other").await?;
    match (labelled.iter().all(has_sidecar), left.iter().any(has_sidecar)) {
        (true, false) => Ok("injected by the namespace's label, not injected by the pod's annotation".to_owned()),
        (labelled, left) => Err(format!("requested by its namespace: {labelled}; disabled by the pod: {left}").into()),
    }
}

async fn a_guaranteed_pod_stays_guaranteed(space: &TestNamespace) -> CaseResult {
    ensure_installed(space).await?;
    let resources = "{requests: {cpu: 100m, memory: 64Mi}, limits: {cpu: 100m, memory: 64Mi}}";
    space.apply(&ModelManifest { resources, ..ModelManifest::default() }.yaml()).await?;
    let pod = space.deployment_ready("model").await?.pop().ok_or("no pod")?;
    let class = pod.status.as_ref().and_then(|status| status.qos_class.clone()).unwrap_or_default();
    if class != "Guaranteed" || !has_sidecar(&pod) {
        return Err(format!("class {class}, sidecar {}", has_sidecar(&pod)).into());
    }
    Ok(format!("injected, and {class}"))
}

async fn a_job_completes(space: &TestNamespace) -> CaseResult {
    ensure_installed(space).await?;
    let job = format!(
        "
apiVersion: batch/v1
kind: Job
metadata: {{name: once}}
spec:
  backoffLimit: 0
  template:
    metadata: {{labels: {{job: once}}, annotations: {{{INJECT_ANNOTATION}}}}}
    spec:
      restartPolicy: Never
      containers:
        - name: once
          image: $stand-in
          command: [/stand-in, --version]
          ports: [{{name: http, containerPort: 8080}}]
          securityContext: $restricted
"
    );
    space.apply(&job).await?;
    let complete = |job: Option<&Job>| {
        let status = job.and_then(|job| job.status.as_ref());
        status.is_some_and(|status| {
            status.conditions.iter().flatten().any(|one| one.type_ == "Complete" && one.status == "True")
        })
    };
    space.wait("once", "is complete", complete).await?;
    match space.pods("job=once").await?.iter().all(has_sidecar) {
        true => Ok("complete, and its pod had the sidecar".to_owned()),
        false => Err("complete, but its pod was not injected".into()),
    }
}

async fn a_port_number_is_redirected_unless_the_installation_forbids_it(space: &TestNamespace) -> CaseResult {
    let installation = ensure_installed(space).await?;
    space.apply(MERGING_POLICY).await?;
    let redirects = |pod: &Pod| {
        pod.spec.iter().flat_map(|spec| spec.init_containers.iter().flatten()).any(|one| one.name == REDIRECT)
    };
    installation.set(&["--set=injector.redirect=Never"]).await?;
    let model = ModelManifest { args: ", --base, 20ms", target: "8080", ..ModelManifest::default() };
    let never = async {
        space.apply(&model.yaml()).await?;
        space.deployment_ready("model").await
    };
    let never = never.await;
    installation.set(&["--set=injector.redirect=WhenNeeded"]).await?;
    if !never?.iter().all(|pod| has_sidecar(pod) && !redirects(pod)) {
        return Err("it was redirected although the installation has Never".into());
    }
    space.kubectl(&["rollout", "restart", "deployment/model"]).await?;
    let pods = space.deployment_settled("model").await?;
    if !pods.iter().all(redirects) {
        return Err(format!("the pod has no {REDIRECT}").into());
    }
    let summary = batched_at_every_address(space, &pods).await?;
    Ok(format!("beside the sidecar at first, then {summary}"))
}
