//! Mode `Observe`: nothing is batched and the status predicts the effect of batching. Then batching
//! is enabled under load.

use std::time::Duration;

use groupage::api::v1alpha1::BatchingSummary;
use groupage::testkit::Route;
use kube::ResourceExt;

use super::manifests::ModelManifest;
use super::policies::{status, wait_for_pod_counts};
use super::sidecar::{CALLERS, embeddings, is_same_answer, predictions};
use super::{TestCase, case};
use crate::cluster::retry_until;
use crate::installation::ensure_installed;
use crate::programs::now;
use crate::test_client::{TestClient, model_stats};
use crate::test_namespace::{MetricsSnapshot, TestNamespace};
use crate::{CaseResult, TestError};

pub(super) const CASES: &[TestCase] = &[case!("observe", mode_observe_predicts_the_effect_of_batching)];

/// Timeout for the prediction. A sidecar reports every five seconds, and the minimum interval
/// between writes of a status may delay it.
const PREDICTION_TIMEOUT: Duration = Duration::from_secs(60);
/// Timeout for the first shared batch: an edit takes effect within two seconds, and then two calls
/// have to coincide.
const BATCHED_MAX: Duration = Duration::from_secs(10);
/// Two thirds of the serial capacity of the model, so calls often find it busy.
const RATE: f64 = 80.0;

/// Number of calls sent after the latency of unbatched calls is known.
const FURTHER: u64 = 400;

const OBSERVE: &str = "
apiVersion: groupage.dev/v1alpha1
kind: BatchPolicy
metadata: {name: model}
spec:
  targetRefs: [{group: apps, kind: Deployment, name: model}]
  mode: Observe
  slo: {latencyP99: 1s}
";

async fn mode_observe_predicts_the_effect_of_batching(space: &TestNamespace) -> CaseResult {
    ensure_installed(space).await?;
    space.apply(OBSERVE).await?;
    space.apply(&ModelManifest { args: ", --items-max, '0', --base, 8ms", ..ModelManifest::default() }.yaml()).await?;
    let pod = space.deployment_ready("model").await?.pop().ok_or("no pod")?;
    let pods = [pod.clone()];
    let name = pod.name_any();
    wait_for_pod_counts(space, "model", |pods| (pods.connected, pods.on_current) == (1, 1)).await?;
    let caller = TestClient::start_for(space, "model:80").await?;

    // Verify answers, and the calls received by the server.
    let around = pod.status.as_ref().and_then(|status| status.pod_ip.as_ref()).ok_or("no address")?;
    let around = std::net::SocketAddr::new(around.parse()?, 8080).to_string();
    for calls in [embeddings(), predictions()] {
        let direct = caller.call_sequentially(&around, &calls).await?;
        let before = model_stats(space, &name).await?;
        let observed = caller.call_concurrently("model:80", &calls).await?;
        let seen = model_stats(space, &name).await?.since(&before);
        if let Some((direct, observed)) =
            direct.iter().zip(&observed).find(|(direct, observed)| !is_same_answer(direct, observed))
        {
            return Err(format!("direct {direct:?}, observed {observed:?}").into());
        }
        if seen.calls != CALLERS as u64 {
            return Err(format!("{CALLERS} calls were made, and the model had {}", seen.calls).into());
        }
    }
    let before = model_stats(space, &name).await?;
    let load = caller.start_load("model:80", Route::Predict, RATE).await?;
    let predicted = retry_until("the prediction", PREDICTION_TIMEOUT, async || {
        let predicted = status(space, "model").await?.predicted;
        predicted.as_ref().and_then(describe_prediction).ok_or_else(|| TestError::from(format!("{predicted:?}")))
    })
    .await?;
    // The latency of unbatched calls is known now, so a prediction is made for every further call.
    let known = space.metrics(&pod).await?;
    load.wait_until_served(FURTHER).await?;
    let unbatched = load.stop().await?;
    let seen = model_stats(space, &name).await?.since(&before);
    let metrics = space.metrics(&pod).await?;
    let counted = metrics.sum("groupage_predicted_calls_total", &[]);
    let further = counted - known.sum("groupage_predicted_calls_total", &[]);
    let left_out = |metrics: &MetricsSnapshot| metrics.sum("groupage_unpredicted_calls_total", &[]);
    let left_out = left_out(&metrics) - left_out(&known);
    let summary = format!("{} calls one by one, {counted} predicted: {predicted}", seen.calls);
    if (unbatched.not_served(), seen.calls, seen.items) != (0, unbatched.served, unbatched.served)
        || metrics.shared_batches() > 0.0
    {
        return Err(format!("{summary}; {} shared, {seen:?}, {unbatched:?}", metrics.shared_batches()).into());
    }
    #[expect(clippy::cast_precision_loss, reason = "some hundreds of calls")]
    if further < 0.9 * FURTHER as f64 || left_out > 0.1 * further {
        return Err(format!("{summary}: of the last {FURTHER} {further}, and {left_out} were left out").into());
    }

    // Enable batching under the same load.
    let load = caller.start_load("model:80", Route::Predict, RATE).await?;
    let begun = now();
    space.kubectl(&["patch", "bpol", "model", "--type=merge", "--patch", r#"{"spec":{"mode":"Batch"}}"#]).await?;
    retry_until("a shared batch", BATCHED_MAX, async || match space.merged_metrics(&pods).await?.shared_batches() {
        shared if shared > 0.0 => Ok(()),
        _ => Err(TestError::from("nothing was shared")),
    })
    .await?;
    let shared_after = now().duration_since(begun).as_secs_f64();
    load.wait_until_served(200).await?;
    let report = load.stop().await?;
    let mean = space.merged_metrics(&pods).await?.batch_mean();
    let summary = format!(
        "{summary}; a first shared batch {shared_after:.1} s after the edit, mean batch {mean:.2}; {} calls, {} lost",
        report.offered,
        report.not_served()
    );
    if report.not_served() > 0 { Err(format!("{summary}: {report:?}").into()) } else { Ok(summary) }
}

/// Describes the prediction if it is complete and batching would save time.
fn describe_prediction(predicted: &BatchingSummary) -> Option<String> {
    let items = predicted.batch_items.as_ref().filter(|items| items.p90 > 1)?;
    let (p99, saved) = (predicted.latency_p99.as_ref()?, predicted.saved.as_ref()?);
    let measured = predicted.measured_items.filter(|items| *items > 0)?;
    Some(format!(
        "{} items in nine of ten at most, p99 {}, {} saved, measured to {measured}",
        items.p90, p99.0, saved.0
    ))
}
