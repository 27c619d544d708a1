//! Absence of harm: a model that becomes slow serves as many calls as without a sidecar, and a
//! model that accepts one item per call loses none.

use std::time::Duration;

use groupage::testkit::Route;
use groupage::testkit::remote::{LoadReport, ModelUpdate};
use kube::ResourceExt;

use super::manifests::ModelManifest;
use super::policies::{status, wait_for_condition_within, wait_for_pod_counts};
use super::{TestCase, case};
use crate::cluster::retry_until;
use crate::installation::ensure_installed;
use crate::programs::now;
use crate::test_client::{RunningLoad, TestClient, change_model};
use crate::test_namespace::TestNamespace;
use crate::{CaseResult, TestError};

pub(super) const CASES: &[TestCase] = &[
    case!("no_harm", a_model_that_slows_down_under_an_slo_answers_as_many_calls_as_without_a_sidecar),
    case!("no_harm", a_model_that_takes_one_item_a_call_loses_nothing_and_the_policy_reports_it),
];

const SLO_POLICY: &str = "
apiVersion: groupage.dev/v1alpha1
kind: BatchPolicy
metadata: {name: model}
spec:
  targetRefs: [{group: apps, kind: Deployment, name: model}]
  slo: {latencyP99: 100ms}
";

/// The queue of the model is long enough never to refuse a call.
const ARGS: &str = ", --base, 5ms, --per-item, 100us";
const QUICK: (Duration, Duration) = (Duration::from_millis(5), Duration::from_micros(100));
const TIMES: u32 = 12;
/// Half of the model's initial capacity, and five times its serial capacity when it is slow.
const RATE: f64 = 80.0;
/// Number of comparisons of both loads, and the interval between them, which covers many answers of
/// the slow model.
const COMPARISONS: usize = 8;
const COMPARISON_INTERVAL: Duration = Duration::from_secs(3);
/// Minimum ratio of the rates with and without a sidecar, for each comparison and for the first one
/// after the change.
const RATE_RATIO_MIN: f64 = 0.9;
const FIRST_RATE_RATIO_MIN: f64 = 0.85;
/// Timeout for a condition: reports arrive every five seconds, and a status is written at most
/// every fifteen.
const CONDITION_TIMEOUT: Duration = Duration::from_secs(60);
/// Timeout for the model without a sidecar to answer its backlog, once it is fast again.
const DRAINED_MAX: Duration = Duration::from_secs(60);

async fn a_model_that_slows_down_under_an_slo_answers_as_many_calls_as_without_a_sidecar(
    space: &TestNamespace,
) -> CaseResult {
    ensure_installed(space).await?;
    space.apply(SLO_POLICY).await?;
    let model = ModelManifest { args: ARGS, ..ModelManifest::default() };
    space.apply(&model.yaml()).await?;
    let plain = ModelManifest { annotations: "", ..model }.yaml();
    let plain = plain.replace("{name: model}", "{name: plain}").replace("app: model", "app: plain");
    space.apply(&plain).await?;
    let pod = space.deployment_ready("model").await?.pop().ok_or("no pod")?.name_any();
    let other = space.deployment_ready("plain").await?.pop().ok_or("no pod")?.name_any();
    wait_for_pod_counts(space, "model", |pods| pods.connected == 1).await?;
    let (caller, direct_client) = (TestClient::start(space).await?, TestClient::start_as(space, "direct").await?);
    caller.wait_until_reachable("model:80", "/health").await?;
    direct_client.wait_until_reachable("plain:80", "/health").await?;
    let load = caller.start_load("model:80", Route::Predict, RATE).await?;
    let direct = direct_client.start_load("plain:80", Route::Predict, RATE).await?;
    wait_for_condition_within(space, "model", "SLOMet=True", CONDITION_TIMEOUT).await?;

    let curve = |times| ModelUpdate { curve: Some((QUICK.0 * times, QUICK.1 * times)), ..ModelUpdate::default() };
    for pod in [&pod, &other] {
        change_model(space, pod, &curve(TIMES)).await?;
    }
    let begun = now();
    let comparisons = compare_loads(&load, &direct).await?;
    let missed = wait_for_condition_within(space, "model", "SLOMet=False/Missed", CONDITION_TIMEOUT).await?;
    let missed_after = now().duration_since(begun).as_secs_f64();
    let merging = verify_status(space, &pod, &missed).await?;

    for pod in [&pod, &other] {
        change_model(space, pod, &curve(1)).await?;
    }
    wait_until_drained(&direct).await?;
    let (report, plain) = (load.stop().await?, direct.stop().await?);
    let summary = format!(
        "slow for {COMPARISONS} intervals: {comparisons}; SLOMet=False after {missed_after:.0} s: {missed}; {merging}; {} calls, {} refused, {} failed, p99 {:?}; \
         without a sidecar {} calls, {} lost, p99 {:?}",
        report.offered,
        report.refused,
        report.failed,
        report.p99,
        plain.offered,
        plain.not_served(),
        plain.p99
    );
    if report.not_served() > 0 { Err(format!("{summary}: {report:?}").into()) } else { Ok(summary) }
}

/// Compares the number of answers with and without the sidecar, interval by interval.
async fn compare_loads(load: &RunningLoad<'_>, direct: &RunningLoad<'_>) -> Result<String, TestError> {
    let both = async || Ok::<_, TestError>((load.now().await?, direct.now().await?));
    let (mut before, mut summary) = (both().await?, Vec::new());
    let mut ticks = tokio::time::interval(COMPARISON_INTERVAL);
    ticks.tick().await;
    for comparison in 0..COMPARISONS {
        ticks.tick().await;
        let after = both().await?;
        let served = |after: &LoadReport, before: &LoadReport| after.served - before.served;
        let (ours, theirs) = (served(&after.0, &before.0), served(&after.1, &before.1));
        summary.push(format!("{ours}:{theirs}"));
        let ratio_min = if comparison == 0 { FIRST_RATE_RATIO_MIN } else { RATE_RATIO_MIN };
        #[expect(clippy::cast_precision_loss, reason = "some hundreds of calls")]
        if (ours as f64) < ratio_min * theirs as f64 {
            return Err(format!(
                "comparison {comparison}, answers through the sidecar and without one: {}",
                summary.join(" ")
            )
            .into());
        }
        before = after;
    }
    Ok(format!(
        "answers through the sidecar and without one in {} s each {}",
        COMPARISON_INTERVAL.as_secs(),
        summary.join(" ")
    ))
}

/// Verifies the status and the Events while the model is slow: the SLO is missed, but not
/// infeasible, since a call alone takes 61 ms. Returns the status of merging.
async fn verify_status(space: &TestNamespace, pod: &str, missed: &str) -> Result<String, TestError> {
    let found = status(space, "model").await?;
    let merging = found.conditions.iter().find(|one| one.type_ == "Merging").ok_or("no condition Merging")?;
    let events = ["get", "events", "--output=jsonpath={range .items[*]}{.involvedObject.name}/{.reason} {end}"];
    let events = space.kubectl(&events).await?;
    let tunings = &found.pod_tunings;
    let infeasible = tunings.iter().any(|one| one.reason.as_deref() == Some("Infeasible"));
    let wrong = ["MergeRefused", "Infeasible", "ConfigRefused", "SteppedAside", "CrashGuard"];
    let summary = format!("Merging={} ({}); Events {events}; {tunings:?}", merging.status, merging.message);
    // The benefit of a batch is measured again after the change, so no particular result is
    // required while the measurement may be incomplete.
    if merging.reason == "MergeRefused" || infeasible || !missed.contains("(slo 100ms)") {
        return Err(summary.into());
    }
    if events.split_whitespace().any(|event| wrong.iter().any(|word| event.ends_with(word))) {
        return Err(format!("{pod}: {summary}").into());
    }
    Ok(format!("Merging={}/{}", merging.status, merging.reason))
}

/// Waits until the model has almost no backlog.
async fn wait_until_drained(load: &RunningLoad<'_>) -> Result<(), TestError> {
    retry_until("the calls that wait without a sidecar", DRAINED_MAX, async || match load.now().await? {
        now if now.offered <= now.served + now.not_served() + 20 => Ok(()),
        now => Err(TestError::from(format!("{now:?}"))),
    })
    .await
}

/// The model rejects a list without a number in its answer. The reason only shows when the members
/// succeed individually.
const ONE_ITEM: &str = ", --base, 5ms, --items-max, '1', --refuse-bare";
/// Temporarily more than the model's serial capacity, so that calls queue and are batched.
const BUSY: f64 = 150.0;
const CALLS: u64 = 600;

async fn a_model_that_takes_one_item_a_call_loses_nothing_and_the_policy_reports_it(
    space: &TestNamespace,
) -> CaseResult {
    ensure_installed(space).await?;
    space
        .apply(&SLO_POLICY.replace("  slo: {latencyP99: 100ms}\n", "  scheduling: {policy: WorkConserving}\n"))
        .await?;
    space.apply(&ModelManifest { args: ONE_ITEM, ..ModelManifest::default() }.yaml()).await?;
    space.deployment_ready("model").await?;
    wait_for_pod_counts(space, "model", |pods| pods.connected == 1).await?;
    let caller = TestClient::start_for(space, "model:80").await?;
    let load = caller.start_load("model:80", Route::Predict, BUSY).await?;
    let refused = wait_for_condition_within(space, "model", "Merging=False/MergeRefused", CONDITION_TIMEOUT).await?;
    load.wait_until_served(CALLS).await?;
    let report = load.stop().await?;
    let ready = wait_for_condition_within(space, "model", "Ready=True", CONDITION_TIMEOUT).await?;
    let events = retry_until("an Event about refused merging", CONDITION_TIMEOUT, async || {
        let selector = "reason=MergeRefused,involvedObject.kind=BatchPolicy";
        let events = ["get", "events", "--field-selector", selector, "--output=jsonpath={.items[*].message}"];
        let messages = space.kubectl(&events).await?;
        if messages.is_empty() { Err(TestError::from("there is none")) } else { Ok(messages) }
    })
    .await?;
    let summary = format!("{refused}; Ready: {ready}; {} calls, {} lost", report.offered, report.not_served());
    if report.not_served() > 0 || events != refused {
        Err(format!("{summary}; Events {events:?}; {report:?}").into())
    } else {
        Ok(summary)
    }
}
