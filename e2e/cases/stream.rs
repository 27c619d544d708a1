//! The control stream on a cluster: connections of sidecars, propagation of an edit, verification
//! of tokens, and failure of the controller.

use std::time::Duration;

use groupage::testkit::Route;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::DeleteParams;

use super::manifests::ModelManifest;
use super::policies::{POLICY, status, wait_for_condition, wait_for_pod_counts};
use super::{TestCase, case};
use crate::cluster::retry_until;
use crate::installation::ensure_installed;
use crate::programs::now;
use crate::test_client::TestClient;
use crate::test_namespace::{MetricsSnapshot, TestNamespace};
use crate::{CaseResult, TestError};

pub(super) const CASES: &[TestCase] = &[
    case!("stream", sidecars_connect_and_an_edit_is_in_force_within_two_seconds),
    case!("stream", an_invalid_or_foreign_token_opens_no_stream),
    case!("stream", calls_are_served_while_the_controller_is_killed_and_streams_reconnect),
];

/// Maximum time until an edit takes effect.
const IN_FORCE_MAX: Duration = Duration::from_secs(2);
/// Timeout for reconnection: a leader lease expires after 15 s, and a sidecar waits for up to 30 s
/// before its next attempt.
const BACK_MAX: Duration = Duration::from_secs(90);
/// Successive edits.
const EDITS: [u32; 5] = [4, 9, 16, 25, 36];

async fn sidecars_connect_and_an_edit_is_in_force_within_two_seconds(space: &TestNamespace) -> CaseResult {
    ensure_installed(space).await?;
    space.apply(POLICY).await?;
    space.apply(&ModelManifest { replicas: 2, ..ModelManifest::default() }.yaml()).await?;
    let pods = space.deployment_ready("model").await?;
    wait_for_pod_counts(space, "model", |pods| (pods.injected, pods.connected, pods.on_current) == (2, 2, 2)).await?;
    wait_for_condition(space, "model", "Programmed=True").await?;
    let caller = TestClient::start_for(space, "model:80").await?;
    let load = caller.start_load("model:80", Route::Predict, 100.0).await?;
    let (mut times, mut reported) = (Vec::new(), Vec::new());
    for edit in EDITS {
        let patch = format!(r#"{{"spec":{{"limits":{{"batchItemsMax":{edit}}}}}}}"#);
        // An edit is complete once the API server has acknowledged it.
        let patch =
            ["patch", "bpol", "model", "--type=merge", "--patch", &patch, "--output=jsonpath={.metadata.generation}"];
        let generation = space.kubectl(&patch).await?.trim().parse::<i64>()?;
        let begun = now();
        retry_until(&format!("batchItemsMax {edit}"), IN_FORCE_MAX * 5, async || {
            for pod in &pods {
                let wanted = ["limit=\"batch_items_max\"", "source=\"policy\""];
                let found = space.metrics(pod).await?.sum("groupage_limit", &wanted);
                if (found - f64::from(edit)).abs() > 0.5 {
                    return Err(TestError::from(format!("{} has {found}", pod.name_any())));
                }
            }
            Ok(())
        })
        .await?;
        times.push(now().duration_since(begun));
        let begun = now();
        retry_until(&format!("Programmed of generation {generation}"), IN_FORCE_MAX * 5, async || {
            let status = status(space, "model").await?;
            let is_so = status.conditions.iter().any(|one| {
                one.type_ == "Programmed" && one.status == "True" && one.observed_generation == Some(generation)
            });
            if is_so { Ok(()) } else { Err(format!("{:?}", status.conditions).into()) }
        })
        .await?;
        reported.push(now().duration_since(begun));
    }
    let report = load.stop().await?;
    times.sort_unstable();
    reported.sort_unstable();
    // The median is used: each time includes the duration of the check, and the machine may pause
    // during any of them.
    let (middle, slowest) = (times[times.len() / 2], times[times.len() - 1]);
    let summary = format!(
        "{} edits in force in both sidecars after {:.2} s, {:.2} s at most, and Programmed {:.2} s later; {} calls, {} lost",
        EDITS.len(),
        middle.as_secs_f64(),
        slowest.as_secs_f64(),
        reported[reported.len() / 2].as_secs_f64(),
        report.offered,
        report.not_served()
    );
    if middle > IN_FORCE_MAX
        || reported[reported.len() / 2] > IN_FORCE_MAX
        || slowest > IN_FORCE_MAX * 2
        || report.not_served() > 0
    {
        return Err(format!("{summary}: {report:?}").into());
    }
    wait_for_pod_counts(space, "model", |pods| (pods.connected, pods.on_current) == (2, 2)).await?;
    Ok(summary)
}

/// A hand-written sidecar with a token that it is not entitled to. The case fills in `$name`,
/// `$uid`, `$token` and `$ca`.
const IMPOSTOR_POD: &str = "
apiVersion: v1
kind: Pod
metadata: {name: $name, labels: {thief: $name}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
    - name: groupage
      image: $groupage
      args: [proxy, --upstream, 'http://127.0.0.1:8080', --listen, '[::]:15080', --metrics, '[::]:9190']
      env:
        - {name: GROUPAGE_CONTROLLER, value: 'https://groupage-stream.groupage-system.svc:9444'}
        - {name: GROUPAGE_TOKEN_FILE, value: /token/token}
        - {name: GROUPAGE_POD_UID, value: $uid}
        - {name: GROUPAGE_POD_NAME, value: $name}
        - {name: GROUPAGE_POD_NAMESPACE, value: $namespace}
        - name: GROUPAGE_CA
          value: |
$ca      volumeMounts: [{name: token, mountPath: /token, readOnly: true}]
      securityContext: $restricted
  volumes: [{name: token, secret: {secretName: $name}}]
---
apiVersion: v1
kind: Secret
metadata: {name: $name}
stringData: {token: $token}
";

/// A policy that is visible in the metrics of every sidecar that receives it.
const VISIBLE_POLICY: &str = "
apiVersion: groupage.dev/v1alpha1
kind: BatchPolicy
metadata: {name: model}
spec:
  targetRefs: [{group: apps, kind: Deployment, name: model}]
  limits: {batchItemsMax: 7}
";

/// Returns `true` if a sidecar has received the policy [`VISIBLE_POLICY`].
fn has_received_policy(metrics: &MetricsSnapshot) -> bool {
    metrics.sum("groupage_limit", &["limit=\"batch_items_max\"", "source=\"policy\""]) > 0.0
}

async fn an_invalid_or_foreign_token_opens_no_stream(space: &TestNamespace) -> CaseResult {
    let installation = ensure_installed(space).await?;
    space.apply(VISIBLE_POLICY).await?;
    space.apply(&ModelManifest::default().yaml()).await?;
    let victim = space.deployment_ready("model").await?.pop().ok_or("no pod")?;
    retry_until("the message to the victim", BACK_MAX, async || {
        match has_received_policy(&space.metrics(&victim).await?) {
            true => Ok(()),
            false => Err(TestError::from("nothing")),
        }
    })
    .await?;
    space.apply(&uninjected_pod("plain")).await?;
    let plain = space.pod_ready("plain").await?;
    let ended = space.pod_token(&plain, "groupage.dev").await?;
    space.apply(&uninjected_pod("other")).await?;
    let other = space.pod_ready("other").await?;
    space.api::<Pod>().delete("plain", &DeleteParams::default().grace_period(0)).await?;
    let bundle = installation.ca_bundles().await?.pop().unwrap_or_default();
    let ca: String = String::from_utf8(bundle)?.lines().map(|line| format!("            {line}\n")).collect();
    let stolen = space.pod_token(&victim, "groupage.dev").await?;
    // The claims of the victim's token with an invalid signature.
    let (payload, signature) = stolen.rsplit_once('.').ok_or("a token has three parts")?;
    let made_up = format!("{payload}.{}", signature.chars().rev().collect::<String>());
    // Name of the pod, its token, the pod that it impersonates, and the expected end of the stream.
    let thieves = [
        ("wrong-audience", space.pod_token(&victim, "somebody.else").await?, &victim, "unauthorized"),
        ("of-the-api-server", space.token("default", None).await?, &victim, "unauthorized"),
        ("no-token", "no-token".to_owned(), &victim, "unauthorized"),
        ("made-up", made_up, &victim, "unauthorized"),
        ("of-a-pod-that-is-gone", ended, &plain, "forbidden"),
        ("not-injected", space.pod_token(&other, "groupage.dev").await?, &other, "forbidden"),
        ("stolen-for-itself", stolen, &other, "goaway"),
    ];
    for (name, token, impersonated, _) in &thieves {
        let uid = impersonated.metadata.uid.as_deref().unwrap_or_default();
        let manifest = IMPOSTOR_POD
            .replace("$namespace", &space.name)
            .replace("$name", name)
            .replace("$uid", uid)
            .replace("$token", token)
            .replace("$ca", &ca);
        space.apply(&manifest).await?;
    }
    let mut summary = Vec::new();
    for (name, _, _, reason) in &thieves {
        let pod = space
            .wait(name, "has started", |pod: Option<&Pod>| {
                let status = pod.and_then(|pod| pod.status.as_ref());
                status.is_some_and(|status| {
                    status.container_statuses.iter().flatten().any(|one| one.started == Some(true))
                })
            })
            .await?;
        let what = format!("the end of {name}'s stream");
        let count = retry_until(&what, BACK_MAX, async || {
            let metrics = space.metrics(&pod).await?;
            // A stream is open until its first message has been verified. That is when a stream
            // with the pod's own valid token is closed.
            let open = *reason != "goaway" && metrics.sum("groupage_controller_connected", &[]) > 0.0;
            if open || has_received_policy(&metrics) {
                return Ok(Err(TestError::from(format!("{name} has a stream"))));
            }
            let ends =
                |reason: &str| metrics.sum("groupage_controller_stream_ends_total", &[&format!("reason=\"{reason}\"")]);
            match ends(reason) {
                none if none < 1.0 => {
                    let all: Vec<_> = metrics.named("groupage_controller_stream_ends_total");
                    Err(format!("not {reason}: {all:?}").into())
                }
                count => Ok(Ok(count)),
            }
        });
        count.await??;
        summary.push(format!("{name}: {reason}"));
    }
    // The impersonated pod must still have its stream.
    let connected = space.metrics(&victim).await?.sum("groupage_controller_connected", &[]);
    if connected < 1.0 {
        return Err(format!("{}, and {} has no stream", summary.join(", "), victim.name_any()).into());
    }
    Ok(summary.join(", "))
}

/// Returns a pod that does not request a sidecar.
fn uninjected_pod(name: &str) -> String {
    format!(
        "
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{{name: model, image: $stand-in, args: [model]}}]
"
    )
}

async fn calls_are_served_while_the_controller_is_killed_and_streams_reconnect(space: &TestNamespace) -> CaseResult {
    let installation = ensure_installed(space).await?;
    space.apply(POLICY).await?;
    space.apply(&ModelManifest { replicas: 2, ..ModelManifest::default() }.yaml()).await?;
    let pods = space.deployment_ready("model").await?;
    wait_for_pod_counts(space, "model", |pods| pods.connected == 2).await?;
    let caller = TestClient::start_for(space, "model:80").await?;
    let load = caller.start_load("model:80", Route::Predict, 100.0).await?;
    let begun = now();
    for pod in installation.pods().await? {
        // Deleted without a grace period, as if the node had failed: no peer is notified.
        installation.kubectl(&["delete", "pod", &pod.name_any(), "--grace-period=0", "--force"]).await?;
    }
    retry_until("the break", BACK_MAX, async || {
        let open = space.merged_metrics(&pods).await?.sum("groupage_controller_connected", &[]);
        if open < 2.0 { Ok(()) } else { Err(TestError::from("both streams are open")) }
    })
    .await?;
    let back = retry_until("the streams", BACK_MAX, async || {
        let open = space.merged_metrics(&pods).await?.sum("groupage_controller_connected", &[]);
        if open > 1.5 { Ok(now().duration_since(begun)) } else { Err(TestError::from(format!("{open} are open"))) }
    })
    .await?;
    installation.wait_until_ready().await?;
    wait_for_pod_counts(space, "model", |pods| pods.connected == 2).await?;
    load.wait_until_served(100).await?;
    let report = load.stop().await?;
    let summary = format!(
        "both streams were back after {:.1} s, the status after {:.1} s; {} calls, {} lost",
        back.as_secs_f64(),
        now().duration_since(begun).as_secs_f64(),
        report.offered,
        report.not_served()
    );
    if report.not_served() > 0 { Err(format!("{summary}: {report:?}").into()) } else { Ok(summary) }
}
