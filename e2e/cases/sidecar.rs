//! A sidecar from a hand-written manifest: the product's image as a native sidecar of the simulated
//! model server.

use std::time::Duration;

use groupage::testkit::Route;
use groupage::testkit::remote::{CallResponse, HttpCall, ModelUpdate};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use super::manifests::{batched, merged};
use super::{TestCase, case};
use crate::cluster::retry_until;
use crate::test_client::{TestClient, change_model, model_stats, start_listening};
use crate::test_namespace::{TestNamespace, has_condition, is_ready};
use crate::{CaseResult, TestError};

pub(super) const CASES: &[TestCase] = &[
    case!("sidecar", batched_answers_equal_those_to_unbatched_calls),
    case!("sidecar", a_pod_is_ready_only_when_model_and_sidecar_are),
    case!("sidecar", a_model_that_becomes_slower_is_learned_anew),
];

/// Timeout for learning: a server that becomes slower has to finish the calls it holds, and then
/// hundreds of calls show its new curve.
const LEARNED_MAX: Duration = Duration::from_secs(120);
/// Number of concurrent clients, each with a connection of its own.
pub(super) const CALLERS: usize = 64;

/// Calls with different texts, some of which contain sequences that a parser may normalize.
pub(super) fn embeddings() -> Vec<HttpCall> {
    let body = |at| format!(r#"{{"model":"stand-in","input":"parcel {at} \u00e5 å \" \\"}}"#);
    (0..CALLERS).map(|at| HttpCall::post("/v1/embeddings", body(at))).collect()
}

/// Calls with rows of numbers in unusual notations, which no serializer produces.
pub(super) fn predictions() -> Vec<HttpCall> {
    let body = |at| format!(r#"{{"instances": [[{at}.50, 1e2, -0.0], [ 7 ,{at}]]}}"#);
    (0..CALLERS).map(|at| HttpCall::post("/v1/models/stand-in:predict", body(at))).collect()
}

async fn batched_answers_equal_those_to_unbatched_calls(space: &TestNamespace) -> CaseResult {
    space.enforce_restricted().await?;
    space.apply(&merged(&batched(1, ", --items-max, '0', --base, 20ms", "", ""))).await?;
    let pods = space.deployment_ready("model").await?;
    let model = pods.first().ok_or("no pod")?.name_any();
    let caller = TestClient::start_for(space, "direct:80").await?;
    caller.wait_until_reachable("model:80", "/health").await?;
    let mut summary = Vec::new();
    for (name, calls) in [("embeddings", embeddings()), ("predict", predictions())] {
        let unbatched = caller.call_sequentially("direct:80", &calls).await?;
        let before = model_stats(space, &model).await?;
        let batched = caller.call_concurrently("model:80", &calls).await?;
        let runs = model_stats(space, &model).await?.since(&before).calls;
        let equal =
            unbatched.iter().zip(&batched).filter(|(unbatched, batched)| is_same_answer(unbatched, batched)).count();
        if equal != CALLERS {
            let other = unbatched.iter().zip(&batched).find(|(unbatched, batched)| !is_same_answer(unbatched, batched));
            return Err(format!("{name}: {equal} of {CALLERS} answers are equal; {other:?}").into());
        }
        if runs * 2 > CALLERS as u64 {
            return Err(format!("{name}: {CALLERS} calls at once became {runs} calls of the model").into());
        }
        summary.push(format!("{CALLERS} {name} answers equal, {runs} calls of the model"));
    }
    let metrics = space.merged_metrics(&pods).await?;
    let (mean, shared) = (metrics.batch_mean(), metrics.shared_batches());
    let served = metrics.sum("groupage_calls_total", &["outcome=\"served\""]);
    #[expect(clippy::cast_precision_loss, reason = "a few calls")]
    let sent = (2 * CALLERS) as f64;
    if shared < 1.0 || mean <= 1.0 || served < sent {
        return Err(format!("mean batch {mean:.1}, {shared} shared, {served} served").into());
    }
    Ok(format!("{}; the sidecar counts {served} calls, mean batch {mean:.1}", summary.join(", ")))
}

/// Compares all that a client can observe. The `usage` of an embeddings response covers the
/// client's own part only, so the whole body is compared.
pub(super) fn is_same_answer(unbatched: &CallResponse, batched: &CallResponse) -> bool {
    (unbatched.status, unbatched.header("content-type"), &unbatched.body)
        == (batched.status, batched.header("content-type"), &batched.body)
}

async fn a_pod_is_ready_only_when_model_and_sidecar_are(space: &TestNamespace) -> CaseResult {
    space.apply(&batched(1, ", --closed", "", "")).await?;
    let pod = wait_until_started(space, "app=model").await?;
    // The sidecar reports unready while its upstream refuses connections, and so does the pod. The
    // model's container has no probe of its own.
    if is_ready(&pod) {
        return Err("the pod is ready before its model listens".into());
    }
    start_listening(space, &pod.name_any()).await?;
    space.pod_ready(&pod.name_any()).await?;
    space.deployment_ready("model").await?;
    TestClient::start_for(space, "model:80").await?;
    Ok("not ready while the model was closed, ready when it listened".to_owned())
}

async fn a_model_that_becomes_slower_is_learned_anew(space: &TestNamespace) -> CaseResult {
    space.apply(&batched(1, ", --base, 5ms, --per-item, 50us", "", "")).await?;
    let pod = space.deployment_ready("model").await?.pop().ok_or("no pod")?;
    let caller = TestClient::start_for(space, "model:80").await?;
    let load = caller.start_load("model:80", Route::Predict, 100.0).await?;
    let before = wait_until_learned(space, &pod, 0.004, 0.012).await?;
    let curve = Some((Duration::from_millis(40), Duration::from_micros(50)));
    change_model(space, &pod.name_any(), &ModelUpdate { curve, ..ModelUpdate::default() }).await?;
    let after = wait_until_learned(space, &pod, 0.035, 0.060).await?;
    let report = load.stop().await?;
    if report.wrong > 0 {
        return Err(format!("{report:?}").into());
    }
    let (before, after, lost) = (before * 1e3, after * 1e3, report.not_served());
    Ok(format!("{before:.1} ms a call, then {after:.1} ms; {} calls, {lost} lost", report.offered))
}

/// Waits until the learned fixed cost of a call lies within these bounds, in seconds. Returns it.
async fn wait_until_learned(space: &TestNamespace, pod: &Pod, least: f64, most: f64) -> Result<f64, TestError> {
    retry_until("the learned state of the sidecar", LEARNED_MAX, async || {
        let metrics = space.metrics(pod).await?;
        let fixed = metrics.sum("groupage_model_fixed_seconds", &[]);
        let (limit, batch) = (metrics.sum("groupage_slots_limit", &[]), metrics.batch_mean());
        let described = || TestError::from(format!("{fixed} s; limit {limit}, mean batch {batch:.1}"));
        if (least..most).contains(&fixed) { Ok(fixed) } else { Err(described()) }
    })
    .await
}

/// Waits until both containers of the only pod with this label have started and the sidecar's
/// readiness was probed. Returns the pod.
pub(super) async fn wait_until_started(space: &TestNamespace, label: &str) -> Result<Pod, TestError> {
    let named = retry_until("a pod", Duration::from_secs(30), async || {
        space.pods(label).await?.pop().ok_or_else(|| "none".into())
    });
    let name = named.await?.name_any();
    let both = |pod: Option<&Pod>| {
        let Some(status) = pod.and_then(|pod| pod.status.as_ref()) else { return false };
        let models = status.container_statuses.iter().flatten();
        let mut all = status.init_container_statuses.iter().flatten().chain(models);
        pod.is_some_and(|pod| has_condition(pod, "Initialized")) && all.all(|one| one.started == Some(true))
    };
    space.wait(&name, "both containers have started", both).await
}
