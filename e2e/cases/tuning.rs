//! Tuning and rollouts by the controller: a missed SLO is reported, tuned for and met again, and a
//! profile that causes a regression is rolled back.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use groupage::testkit::Route;
use groupage::testkit::remote::ModelUpdate;
use kube::ResourceExt;

use super::manifests::ModelManifest;
use super::policies::{POLICY, status, wait_for_condition_within, wait_for_pod_counts};
use super::{TestCase, case};
use crate::cluster::retry_until;
use crate::installation::ensure_installed;
use crate::programs::now;
use crate::test_client::{RunningLoad, TestClient, change_model};
use crate::test_namespace::TestNamespace;
use crate::{CaseResult, TestError};

pub(super) const CASES: &[TestCase] = &[
    case!("tuning", a_canary_with_a_bad_profile_is_rolled_back_automatically),
    case!("tuning", of_two_arms_the_worse_is_found_and_gets_no_more_pods),
    case!("tuning", a_missed_slo_is_reported_and_tuned_until_it_is_met),
    case!("tuning", a_new_pod_starts_with_the_values_learned_by_others_of_its_node_class),
];

/// The controller evaluates every five seconds, acts after half a minute of late answers, and
/// discards measurements after a minute.
const MOVES_MAX: Duration = Duration::from_secs(180);
/// Canary steps take ten seconds, with an evaluation every five.
const ROLLED_BACK_MAX: Duration = Duration::from_secs(120);
/// Switchback period of a single pod, which serves each arm every other period.
const PERIOD: Duration = Duration::from_secs(20);
const TAKES_TURNS_MAX: Duration = Duration::from_secs(600);

const CANARY: &str = "
apiVersion: groupage.dev/v1alpha1
kind: BatchPolicy
metadata: {name: model}
spec:
  targetRefs: [{group: apps, kind: Deployment, name: model}]
  rollout:
    strategy: Canary
    canary: {steps: [{percent: 50, hold: 10s}]}
    analysis: {interval: 5s}
";

/// Every call waits for a third of a second for further calls that never arrive.
const BAD: &str =
    r#"{"spec":{"scheduling":{"policy":"Static","items":128,"delay":"300ms"},"limits":{"queueDelayMax":"300ms"}}}"#;

async fn a_canary_with_a_bad_profile_is_rolled_back_automatically(space: &TestNamespace) -> CaseResult {
    ensure_installed(space).await?;
    space.apply(CANARY).await?;
    space.apply(&ModelManifest { replicas: 2, args: ", --base, 5ms", ..ModelManifest::default() }.yaml()).await?;
    space.deployment_ready("model").await?;
    wait_for_pod_counts(space, "model", |pods| (pods.connected, pods.on_current) == (2, 2)).await?;
    let good = status(space, "model").await?.current_profile.ok_or("no profile is in force")?;
    let caller = TestClient::start_for(space, "model:80").await?;
    let load = caller.start_load("model:80", Route::Predict, 100.0).await?;
    space.kubectl(&["patch", "bpol", "model", "--type=merge", "--patch", BAD]).await?;
    let begun = now();
    retry_until("a candidate", ROLLED_BACK_MAX, async || match status(space, "model").await?.candidate_profile {
        Some(candidate) if candidate != good => Ok(()),
        other => Err(TestError::from(format!("{other:?}"))),
    })
    .await?;
    let why = wait_for_condition_within(space, "model", "RolloutHealthy=False/RolledBack", ROLLED_BACK_MAX).await?;
    let took = now().duration_since(begun);
    let after = status(space, "model").await?;
    if after.current_profile.as_deref() != Some(&good) {
        return Err(format!("{good} was in force before, {:?} is now", after.current_profile).into());
    }
    wait_for_pod_counts(space, "model", |pods| (pods.connected, pods.on_current) == (2, 2)).await?;
    let report = load.stop().await?;
    let summary = format!(
        "back after {:.0} s: {why}; {} calls, {} lost",
        took.as_secs_f64(),
        report.offered,
        report.not_served()
    );
    if report.not_served() > 0 { Err(format!("{summary}: {report:?}").into()) } else { Ok(summary) }
}

/// The second arm holds every call for further calls that never arrive.
const ARMS: &str = "
apiVersion: groupage.dev/v1alpha1
kind: BatchProfile
metadata: {name: prompt}
spec:
  scheduling: {policy: WorkConserving}
---
apiVersion: groupage.dev/v1alpha1
kind: BatchProfile
metadata: {name: patient}
spec:
  limits: {queueDelayMax: 300ms}
  scheduling: {policy: Static, items: 128, delay: 300ms}
---
apiVersion: groupage.dev/v1alpha1
kind: BatchPolicy
metadata: {name: model}
spec:
  targetRefs: [{group: apps, kind: Deployment, name: model}]
  profileRef: {name: prompt}
  rollout:
    strategy: Experiment
    experiment:
      arms: [{profileRef: {name: prompt}}, {profileRef: {name: patient}}]
      minSamples: 500
    analysis: {interval: 5s}
";

async fn of_two_arms_the_worse_is_found_and_gets_no_more_pods(space: &TestNamespace) -> CaseResult {
    ensure_installed(space).await?;
    space.apply(ARMS).await?;
    space.apply(&ModelManifest { replicas: 2, args: ", --base, 5ms", ..ModelManifest::default() }.yaml()).await?;
    space.deployment_ready("model").await?;
    wait_for_pod_counts(space, "model", |pods| pods.connected == 2).await?;
    let caller = TestClient::start_for(space, "model:80").await?;
    let load = caller.start_load("model:80", Route::Predict, 100.0).await?;
    let begun = now();
    retry_until("a pod for each arm", ROLLED_BACK_MAX, async || {
        let rollout = status(space, "model").await?.rollout.unwrap_or_default();
        match rollout.arms.iter().map(|arm| arm.pods).collect::<Vec<_>>()[..] {
            [1, 1] => Ok(()),
            _ => Err(TestError::from(format!("{rollout:?}"))),
        }
    })
    .await?;
    let verdict = wait_for_verdict(space, ROLLED_BACK_MAX).await?;
    let took = now().duration_since(begun);
    wait_for_pod_counts(space, "model", |pods| (pods.connected, pods.on_current) == (2, 2)).await?;
    let after = status(space, "model").await?;
    if after.current_profile.as_deref() != Some("prompt") {
        return Err(format!("{:?} is in force", after.current_profile).into());
    }
    let mut summary = format!("after {:.0} s patient was found worse than prompt: {verdict}", took.as_secs_f64());
    // Repeat the experiment with a single pod, which alternates between the arms. This takes
    // several periods, hence minutes.
    if space.is_full_length() {
        space.kubectl(&["delete", "bpol/model", "bprof/patient", "bprof/prompt"]).await?;
        space.kubectl(&["scale", "deploy/model", "--replicas=1"]).await?;
        let turns = ARMS.replace("minSamples", "assignment: Switchback\n      period: 20s\n      minSamples");
        space.apply(&turns).await?;
        let begun = now();
        let verdict = wait_for_verdict(space, TAKES_TURNS_MAX).await?;
        let took = now().duration_since(begun);
        if took < PERIOD {
            return Err(format!("{summary}; a verdict within the first turn: {verdict}").into());
        }
        summary = format!("{summary}; one pod that takes turns: after {:.0} s: {verdict}", took.as_secs_f64());
    }
    let report = load.stop().await?;
    summary = format!("{summary}; {} calls, {} lost", report.offered, report.not_served());
    if report.not_served() > 0 { Err(format!("{summary}: {report:?}").into()) } else { Ok(summary) }
}

/// Waits until one arm is found worse than the other.
async fn wait_for_verdict(space: &TestNamespace, limit: Duration) -> Result<String, TestError> {
    retry_until("a verdict", limit, async || {
        let output = space.kubectl(&["get", "bprof", "patient", "--output=json"]).await?;
        let verdict = serde_json::from_str::<serde_json::Value>(&output)?["status"]["verdict"].take();
        match (verdict["outcome"].as_str(), verdict["against"].as_str(), verdict["message"].as_str()) {
            (Some("Worse"), Some("prompt"), Some(message)) => Ok(message.to_owned()),
            _ => Err(TestError::from(verdict.to_string())),
        }
    })
    .await
}

/// Sixteen calls in flight, configured manually and as a limit, for a server that executes
/// serially: each call waits there for fifteen others.
const SLO_POLICY: &str = "
apiVersion: groupage.dev/v1alpha1
kind: BatchPolicy
metadata: {name: model}
spec:
  targetRefs: [{group: apps, kind: Deployment, name: model}]
  slo: {latencyP99: 1160ms}
  limits: {slotsMax: 16}
  scheduling: {policy: WorkConserving, slots: 16}
  tuning: {bounds: {deadlineShift: {max: '0%'}}}
";
const PROMISED: Duration = Duration::from_millis(1160);
const SLOTS: u32 = 16;
/// Execution time after the change, up from 10 ms: 16 executions and the wait for the first of them
/// exceed the SLO, 12 and that wait do not.
const SLOW: Duration = Duration::from_millis(80);
const RATE: f64 = 100.0;
/// Number of consecutive calls in time that proves that the SLO is met again.
const IN_TIME: u64 = 300;

async fn a_missed_slo_is_reported_and_tuned_until_it_is_met(space: &TestNamespace) -> CaseResult {
    ensure_installed(space).await?;
    space.apply(SLO_POLICY).await?;
    space.apply(&ModelManifest { args: ", --base, 10ms, --per-item, 10us", ..ModelManifest::default() }.yaml()).await?;
    let pod = space.deployment_ready("model").await?.pop().ok_or("no pod")?;
    wait_for_pod_counts(space, "model", |pods| pods.connected == 1).await?;
    let caller = TestClient::start_for(space, "model:80").await?;
    let load = caller.start_load("model:80", Route::Predict, RATE).await?;
    wait_for_condition_within(space, "model", "SLOMet=True", MOVES_MAX).await?;
    let begun = now();
    let after = || now().duration_since(begun).as_secs_f64();
    let curve = |base| ModelUpdate { curve: Some((base, Duration::from_micros(10))), ..ModelUpdate::default() };
    change_model(space, &pod.name_any(), &curve(SLOW)).await?;
    let missed = wait_for_condition_within(space, "model", "SLOMet=False/Missed", MOVES_MAX).await?;
    let missed_after = after();
    let slots = retry_until("a step of the tuner", MOVES_MAX, async || {
        let tunings = status(space, "model").await?.pod_tunings;
        let moved = tunings.iter().find(|one| one.reason.is_some() && one.message.is_some());
        let moved = moved.and_then(|one| one.slots_max).filter(|slots| *slots < SLOTS);
        moved.ok_or_else(|| TestError::from(format!("{tunings:?}")))
    })
    .await?;
    let moved_after = after();
    // The status may already show the state after the step. The Event describes the step itself.
    let why = retry_until("an Event about the step", MOVES_MAX, async || {
        let selector = "reason=SlotsLowered,involvedObject.kind=BatchPolicy,involvedObject.name=model";
        let events = ["get", "events", "--field-selector", selector, "--output=jsonpath={.items[*].message}"];
        let events = space.kubectl(&events).await?;
        if events.contains("slotsMax 16 → ") {
            Ok(events)
        } else {
            Err(TestError::from(format!("the Event is {events:?}")))
        }
    })
    .await?;
    retry_until("the sidecar's slots", MOVES_MAX, async || {
        let found = space.metrics(&pod).await?.sum("groupage_limit", &["limit=\"slots_max\"", "source=\"policy\""]);
        if (1.0..=f64::from(slots)).contains(&found) { Ok(()) } else { Err(TestError::from(format!("{found}"))) }
    })
    .await?;
    wait_until_in_time(&load).await?;
    let kept_after = after();
    let mut summary = format!(
        "missed after {missed_after:.0} s ({missed}); moved after {moved_after:.0} s ({why}); \
         callers are answered in time after {kept_after:.0} s, the model as slow as before"
    );
    // The status reports over a full minute, which has to pass first.
    if space.is_full_length() {
        wait_for_condition_within(space, "model", "SLOMet=True", MOVES_MAX).await?;
        summary = format!("{summary}; met again after {:.0} s", after());
    }
    let report = load.stop().await?;
    summary = format!("{summary}; {} calls, {} lost", report.offered, report.not_served());
    if report.not_served() > 0 { Err(format!("{summary}: {report:?}").into()) } else { Ok(summary) }
}

/// Waits until a number of consecutive answers have met the SLO.
async fn wait_until_in_time(load: &RunningLoad<'_>) -> Result<(), TestError> {
    let late = AtomicU64::new(load.now().await?.served);
    retry_until("answers in time", MOVES_MAX, async || {
        let report = load.now().await?;
        if report.p99 > PROMISED {
            late.store(report.served, Ordering::Relaxed);
        }
        match report.served - late.load(Ordering::Relaxed) {
            enough if enough >= IN_TIME => Ok(()),
            few => Err(TestError::from(format!("{few} since the last late one; p99 {:?}", report.p99))),
        }
    })
    .await
}

const BEGINS: &str = "starting with values that other pods learned";

async fn a_new_pod_starts_with_the_values_learned_by_others_of_its_node_class(space: &TestNamespace) -> CaseResult {
    ensure_installed(space).await?;
    space.apply(POLICY).await?;
    let model = ModelManifest { args: ", --base, 10ms, --per-item, 1ms", ..ModelManifest::default() };
    space.apply(&model.yaml()).await?;
    let first = space.deployment_ready("model").await?.pop().ok_or("no pod")?;
    let node = first.spec.as_ref().and_then(|spec| spec.node_name.clone()).ok_or("no node")?;
    let kind = "--output=jsonpath={.metadata.labels.node\\.kubernetes\\.io/instance-type}";
    let kind = space.kubectl(&["get", "node", &node, kind]).await?;
    wait_for_pod_counts(space, "model", |pods| pods.connected == 1).await?;
    let caller = TestClient::start_for(space, "model:80").await?;
    let load = caller.start_load("model:80", Route::Predict, RATE).await?;
    let learned = retry_until("the learned state of the pod in the status", MOVES_MAX, async || {
        let learned = status(space, "model").await?.learned;
        learned.into_iter().find(|one| one.accelerator == kind && !one.curve.is_empty()).ok_or("nothing".into())
    })
    .await?;
    let report = load.stop().await?;
    space.kubectl(&["scale", "deploy/model", "--replicas=2"]).await?;
    let pods = space.deployment_ready("model").await?;
    let other = pods.iter().find(|pod| pod.name_any() != first.name_any()).ok_or("no second pod")?;
    let begun = retry_until("the initial state of the second pod", MOVES_MAX, async || {
        let log = space.kubectl(&["logs", &other.name_any(), "--container", "groupage"]).await?;
        log.lines().find(|line| line.contains(BEGINS)).map(str::to_owned).ok_or_else(|| log.into())
    })
    .await?;
    let log = space.kubectl(&["logs", &first.name_any(), "--container", "groupage"]).await?;
    let summary = format!(
        "{} sizes learned on {kind}, limit {:?}, an unbatched call {:?}, of {} calls, {} lost: {begun}",
        learned.curve.len(),
        learned.slots,
        learned.base.as_ref().map(|base| base.0.as_str()),
        report.offered,
        report.not_served()
    );
    if log.contains(BEGINS) || report.not_served() > 0 { Err(format!("{summary}; {log}").into()) } else { Ok(summary) }
}
