//! Pods with a sidecar that executes a model itself: a tiny model with random weights, as a
//! `ConfigMap`.

use std::time::Duration;

use groupage::api::v1alpha1::PodCounts;
use groupage::testkit::remote::HttpCall;
use kube::ResourceExt;

use super::policies::{status, wait_for_condition, wait_for_pod_counts};
use super::sidecar::is_same_answer;
use super::{TestCase, case};
use crate::cluster::retry_until;
use crate::installation::{ensure_installed, has_sidecar};
use crate::programs::repository_root;
use crate::test_client::TestClient;
use crate::test_namespace::TestNamespace;
use crate::{CaseResult, TestError};

pub(super) const CASES: &[TestCase] = &[
    case!("engine", a_policy_makes_the_sidecar_serve_embeddings_on_the_cpu),
    case!("engine", a_pod_whose_model_has_no_volume_is_reported),
    case!("engine", the_image_with_cuda_support_serves_a_model_without_a_gpu, CudaImage),
];

/// Number of calls. Each that goes alone waits for the delay of the policy.
const CALLS: usize = 16;
/// Timeout for an Event, which is published within seconds.
const EVENT_MAX: Duration = Duration::from_secs(30);
/// Timeout for the verdict on the target: several reports of the sidecar, and a window of the tuner.
const SLO_MAX: Duration = Duration::from_secs(180);
/// Folder of the model.
const MODEL: &str = "src/engine/tests/goldens/bert";
/// Files of the model, by key: a `ConfigMap` has no folders.
const FILES: [(&str, &str); 8] = [
    ("config.json", "config.json"),
    ("modules.json", "modules.json"),
    ("sentence.json", "sentence_bert_config.json"),
    ("pooling.json", "1_Pooling/config.json"),
    ("tokenizer.json", "tokenizer.json"),
    ("index.json", "model.safetensors.index.json"),
    ("weights-1", "model-00001-of-00002.safetensors"),
    ("weights-2", "model-00002-of-00002.safetensors"),
];

/// A policy whose batches are of 8 calls, or of those of the last 200 ms. The requests fit on a node
/// of two cores beside the pods of other cases.
const POLICY: &str = "
apiVersion: groupage.dev/v1alpha1
kind: BatchPolicy
metadata: {name: embedder}
spec:
  targetRefs: [{group: apps, kind: Deployment, name: embedder}]
  scheduling: {policy: Static, items: 8, delay: 200ms}
  limits: {queueDelayMax: 200ms}
  engine: {model: /models/bert}
  injection: {cpuRequest: 100m, memoryRequest: 128Mi}
";

/// A change of that policy to the scheduler that learns, with a target for the latency.
const LEARNING: &str = r#"{"spec":{"scheduling":null,"limits":null,"slo":{"latencyP99":"2s"}}}"#;

/// A workload that serves nothing itself, with a Service. `ITEMS` are the files of the model.
const DEPLOYMENT: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: embedder}
spec:
  selector: {matchLabels: {app: embedder}}
  template:
    metadata: {labels: {app: embedder}, annotations: {groupage.dev/inject: enabled}}
    spec:
      volumes: [{name: models, configMap: {name: model, items: [ITEMS]}}]
      containers:
        - name: idle
          image: $stand-in
          args: [caller]
          volumeMounts: [{name: models, mountPath: /models}]
          securityContext: $restricted
---
apiVersion: v1
kind: Service
metadata: {name: embedder}
spec:
  selector: {app: embedder}
  ports: [{name: http, port: 80, targetPort: http}]
";

/// A server on its own, from the image with CUDA support. `ITEMS` are the files of the model.
const CUDA_POD: &str = "
apiVersion: v1
kind: Pod
metadata: {name: cuda, labels: {app: cuda}}
spec:
  volumes: [{name: models, configMap: {name: model, items: [ITEMS]}}]
  containers:
    - name: groupage
      image: $cuda
      args: [proxy, --engine=/models/bert, '--listen=0.0.0.0:8080']
      ports: [{name: http, containerPort: 8080}]
      readinessProbe: {httpGet: {path: /health, port: http}}
      volumeMounts: [{name: models, mountPath: /models}]
      securityContext: $restricted
---
apiVersion: v1
kind: Service
metadata: {name: cuda}
spec:
  selector: {app: cuda}
  ports: [{name: http, port: 80, targetPort: http}]
";

/// A workload with a model that no volume has.
const NO_VOLUME: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: lost}
spec:
  selector: {matchLabels: {app: lost}}
  template:
    metadata:
      labels: {app: lost}
      annotations: {groupage.dev/inject: enabled, groupage.dev/engine: /models/bert}
    spec:
      containers:
        - {name: idle, image: $stand-in, args: [caller], securityContext: $restricted}
";

async fn a_policy_makes_the_sidecar_serve_embeddings_on_the_cpu(space: &TestNamespace) -> CaseResult {
    ensure_installed(space).await?;
    space.enforce_restricted().await?;
    create_model(space).await?;
    space.apply(POLICY).await?;
    wait_for_condition(space, "embedder", "Accepted=False/TargetNotFound").await?;
    space.apply(&with_model(DEPLOYMENT)).await?;
    let pod = space.deployment_ready("embedder").await?.pop().ok_or("no pod")?;
    if !has_sidecar(&pod) {
        return Err("the pod has no sidecar".into());
    }
    // A pod that is ready has loaded its model.
    let log = space.kubectl(&["logs", &pod.name_any(), "--container=groupage"]).await?;
    if !log.contains("engine is ready") {
        return Err(format!("the pod is ready and its model is not loaded: {log}").into());
    }
    let caller = TestClient::start_for(space, "embedder:80").await?;
    compare_answers(&caller, "embedder:80").await?;
    let metrics = space.metrics(&pod).await?;
    let (shared, sequences) = (metrics.shared_batches(), metrics.sum("groupage_engine_sequences_total", &[]));
    #[expect(clippy::cast_precision_loss, reason = "a few calls")]
    if shared < 1.0 || sequences < (2 * CALLS) as f64 {
        return Err(format!("{shared} shared batches, {sequences} sequences").into());
    }
    wait_for_condition(space, "embedder", "Programmed=True").await?;
    wait_for_condition(space, "embedder", "TrafficCaptured=True").await?;
    let all = |pods: &PodCounts| (pods.matched, pods.injected, pods.connected) == (1, 1, 1);
    wait_for_pod_counts(space, "embedder", all).await?;
    let device = wait_for_event(space, &pod.name_any(), "EngineDevice", "is executed on the CPU").await?;
    space.kubectl(&["patch", "bpol", "embedder", "--type=merge", "--patch", LEARNING]).await?;
    let judged = wait_until_slo_is_met(space, &caller).await?;
    Ok(format!("{CALLS} answers equal, {shared} shared batches, {sequences} sequences; {device}; {judged}"))
}

async fn a_pod_whose_model_has_no_volume_is_reported(space: &TestNamespace) -> CaseResult {
    ensure_installed(space).await?;
    space.apply(NO_VOLUME).await?;
    let pods = space.deployment_ready("lost").await?;
    if pods.iter().any(has_sidecar) {
        return Err("a pod without a volume has a sidecar".into());
    }
    retry_until("the Event InjectionSkipped", EVENT_MAX, async || {
        let events =
            ["get", "events", "--field-selector=reason=InjectionSkipped", "--output=jsonpath={.items[*].message}"];
        let events = space.kubectl(&events).await?;
        if events.contains("/models/bert") { Ok(events) } else { Err(events.into()) }
    })
    .await
}

async fn the_image_with_cuda_support_serves_a_model_without_a_gpu(space: &TestNamespace) -> CaseResult {
    space.enforce_restricted().await?;
    create_model(space).await?;
    space.apply(&with_model(CUDA_POD)).await?;
    let caller = TestClient::start_for(space, "cuda:80").await?;
    compare_answers(&caller, "cuda:80").await?;
    // A static binary, or one without the feature, gives another reason.
    let log = space.kubectl(&["logs", "cuda"]).await?;
    let line = log.lines().find(|line| line.contains("device of the engine")).ok_or(log.clone())?;
    if !line.contains("libcuda.so.1 of the NVIDIA driver is not installed") {
        return Err(line.into());
    }
    Ok(format!("{CALLS} answers equal; {line}"))
}

/// Replaces `ITEMS` in a manifest by the files of the model.
fn with_model(manifest: &str) -> String {
    let items = FILES.map(|(key, path)| format!("{{key: {key}, path: bert/{path}}}"));
    manifest.replace("ITEMS", &items.join(", "))
}

/// Sends calls until the controller finds that the target is met. Returns its message.
async fn wait_until_slo_is_met(space: &TestNamespace, caller: &TestClient) -> CaseResult {
    retry_until("SLOMet=True", SLO_MAX, async || {
        for answer in caller.call_concurrently("embedder:80", &calls()).await? {
            if answer.status != 200 {
                return Err(format!("{answer:?}").into());
            }
        }
        let conditions = status(space, "embedder").await?.conditions;
        let met = conditions.iter().find(|one| one.type_ == "SLOMet" && one.status == "True");
        met.map(|met| met.message.clone()).ok_or_else(|| format!("{conditions:?}").into())
    })
    .await
}

/// Creates the `ConfigMap` with the model.
async fn create_model(space: &TestNamespace) -> Result<(), TestError> {
    let folder = repository_root().join(MODEL);
    let files = FILES.map(|(key, path)| format!("--from-file={key}={}", folder.join(path).display()));
    let args: Vec<String> = ["create", "configmap", "model"].map(str::to_owned).into_iter().chain(files).collect();
    space.kubectl(&args.iter().map(String::as_str).collect::<Vec<_>>()).await.map(drop)
}

/// Sends calls one after the other and then at once, and requires the same answers.
async fn compare_answers(caller: &TestClient, address: &str) -> Result<(), TestError> {
    let calls = calls();
    let unbatched = caller.call_sequentially(address, &calls).await?;
    let together = caller.call_concurrently(address, &calls).await?;
    for (unbatched, together) in unbatched.iter().zip(&together) {
        if unbatched.status != 200 || !is_same_answer(unbatched, together) {
            return Err(format!("unbatched {unbatched:?}, in a batch {together:?}").into());
        }
    }
    Ok(())
}

/// Calls with different texts of different lengths.
fn calls() -> Vec<HttpCall> {
    let body = |at: usize| format!(r#"{{"model":"bert","input":"parcel {at}{}"}}"#, " b c".repeat(at % 4));
    (0..CALLS).map(|at| HttpCall::post("/v1/embeddings", body(at))).collect()
}

/// Waits for an Event about a pod with a text in its message. Returns the message.
async fn wait_for_event(space: &TestNamespace, pod: &str, reason: &str, text: &str) -> Result<String, TestError> {
    let selector = format!("--field-selector=involvedObject.name={pod},reason={reason}");
    retry_until(&format!("the Event {reason}"), EVENT_MAX, async || {
        let events = space.kubectl(&["get", "events", &selector, "--output=jsonpath={.items[*].message}"]).await?;
        if events.contains(text) { Ok(events) } else { Err(TestError::from(events)) }
    })
    .await
}
