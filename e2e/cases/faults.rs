//! Fault injection: processes that crash or hang.

use std::time::Duration;

use groupage::testkit::Route;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use rustix::process::Signal;

use super::manifests::{ModelManifest, batched, merged};
use super::policies::{POLICY, wait_for_pod_counts};
use super::{TestCase, case};
use crate::cluster::retry_until;
use crate::installation::ensure_installed;
use crate::programs::now;
use crate::test_client::TestClient;
use crate::test_namespace::{TestNamespace, is_ready};
use crate::{CaseResult, TestError};

pub(super) const CASES: &[TestCase] = &[
    case!("faults", a_killed_sidecar_restarts_and_the_pod_serves_again, Node),
    case!("faults", a_model_that_hangs_makes_no_sidecar_restart, Node),
    case!("faults", calls_are_served_while_the_control_plane_is_unreachable, Node),
    case!("faults", control_streams_stay_while_the_api_server_is_away, Node),
];

/// Timeout after which a component counts as hung.
const HANGS: Duration = Duration::from_secs(2);
/// Longer than the leader lease, so that no replica is the leader.
const AWAY: Duration = Duration::from_secs(20);
/// Timeout for the API server, which restarts within three seconds on an idle machine.
const BACK_MAX: Duration = Duration::from_secs(60);

async fn a_killed_sidecar_restarts_and_the_pod_serves_again(space: &TestNamespace) -> CaseResult {
    space.apply(&batched(1, "", "", "")).await?;
    let pod = space.deployment_ready("model").await?.pop().ok_or("no pod")?;
    let caller = TestClient::start_for(space, "model:80").await?;
    space.cluster.node()?.signal(&pod, "groupage", Signal::KILL)?;
    let restarted = |pod: Option<&Pod>| pod.is_some_and(|pod| restart_count(pod, "groupage") == 1 && is_ready(pod));
    let pod = space.wait(&pod.name_any(), "the sidecar was started again", restarted).await?;
    caller.wait_until_reachable("model:80", "/health").await?;
    match restart_count(&pod, "model") {
        0 => Ok("one restart of the sidecar, none of the model".to_owned()),
        count => Err(format!("the model was restarted {count} times").into()),
    }
}

async fn a_model_that_hangs_makes_no_sidecar_restart(space: &TestNamespace) -> CaseResult {
    space.apply(&merged(&batched(1, "", "", ""))).await?;
    let pod = space.deployment_ready("model").await?.pop().ok_or("no pod")?;
    let caller = TestClient::start_for(space, "model:80").await?;
    let load = caller.start_load("model:80", Route::Predict, 50.0).await?;
    let node = space.cluster.node()?;
    node.signal(&pod, "model", Signal::STOP)?;
    // Connections are accepted but not answered: first the queue of the model fills, then that of
    // the sidecar, until clients receive errors.
    let queued = retry_until("a queue", Duration::from_secs(30), async || {
        let queued = space.metrics(&pod).await?.sum("groupage_queue_items", &[]);
        if queued > 5.0 { Ok(queued) } else { Err(TestError::from(format!("{queued} items wait"))) }
    });
    let queued = queued.await?;
    node.signal(&pod, "model", Signal::CONT)?;
    load.wait_until_served(50).await?;
    let report = load.stop().await?;
    let pod = space.pod_ready(&pod.name_any()).await?;
    let restarted = restart_count(&pod, "groupage") + restart_count(&pod, "model");
    if restarted > 0 || report.wrong > 0 {
        return Err(format!("{restarted} restarts, {report:?}").into());
    }
    Ok(format!("{queued} items waited, then {} of {} calls were served, none wrong", report.served, report.offered))
}

async fn calls_are_served_while_the_control_plane_is_unreachable(space: &TestNamespace) -> CaseResult {
    space.apply(&batched(2, "", "", "")).await?;
    space.deployment_ready("model").await?;
    let caller = TestClient::start_for(space, "model:80").await?;
    let load = caller.start_load("model:80", Route::Predict, 100.0).await?;
    let node = space.cluster.node()?;
    node.kill("kube-apiserver")?;
    node.kill("etcd")?;
    let client = &space.cluster.client;
    if client.apiserver_version().await.is_ok() {
        return Err("the API server answers although it was killed".into());
    }
    node.start("etcd")?;
    node.start("kube-apiserver")?;
    retry_until("the API server", BACK_MAX, async || Ok(client.apiserver_version().await.map(drop)?)).await?;
    // A hung server is worse than a stopped one, since its connections stay open.
    node.set_suspended("kube-apiserver", true)?;
    let hung = tokio::time::timeout(HANGS, client.apiserver_version()).await.is_err();
    node.set_suspended("kube-apiserver", false)?;
    if !hung {
        return Err("the API server answers although it was stopped".into());
    }
    retry_until("the load", BACK_MAX, async || load.now().await.map(drop)).await?;
    load.wait_until_served(100).await?;
    let report = load.stop().await?;
    let summary = format!("{} calls, {} lost", report.offered, report.not_served());
    if report.not_served() > 0 { Err(format!("{summary}: {report:?}").into()) } else { Ok(summary) }
}

async fn control_streams_stay_while_the_api_server_is_away(space: &TestNamespace) -> CaseResult {
    ensure_installed(space).await?;
    space.apply(POLICY).await?;
    space.apply(&ModelManifest { replicas: 2, ..ModelManifest::default() }.yaml()).await?;
    let pods = space.deployment_ready("model").await?;
    wait_for_pod_counts(space, "model", |pods| pods.connected == 2).await?;
    let caller = TestClient::start_for(space, "model:80").await?;
    let load = caller.start_load("model:80", Route::Predict, 100.0).await?;
    let before = stream_counts(space, &pods).await?;
    let node = space.cluster.node()?;
    node.kill("kube-apiserver")?;
    let begun = now();
    let stayed =
        retry_until("a while without an API server", AWAY * 2, async || match stream_counts(space, &pods).await? {
            now_open if now_open != before => Ok(Err(TestError::from(format!(
                "open and ended streams: {before:?} before, {now_open:?} after {:.0} s without an API server",
                now().duration_since(begun).as_secs_f64()
            )))),
            _ if now().duration_since(begun) >= AWAY => Ok(Ok(())),
            _ => Err(TestError::from("it is not over yet")),
        })
        .await?;
    node.start("kube-apiserver")?;
    let client = &space.cluster.client;
    retry_until("the API server", BACK_MAX, async || Ok(client.apiserver_version().await.map(drop)?)).await?;
    stayed?;
    load.wait_until_served(100).await?;
    // If another replica has become the leader, sidecars are redirected to it.
    wait_for_pod_counts(space, "model", |pods| pods.connected == 2).await?;
    let after = stream_counts(space, &pods).await?;
    let report = load.stop().await?;
    let summary = format!(
        "{before:?} streams open and ended before, the same for {} s, {after:?} after; {} calls, {} lost",
        AWAY.as_secs(),
        report.offered,
        report.not_served()
    );
    if report.not_served() > 0 { Err(format!("{summary}: {report:?}").into()) } else { Ok(summary) }
}

/// Returns the number of open control streams, and the number of those that have ended.
async fn stream_counts(space: &TestNamespace, pods: &[Pod]) -> Result<(f64, f64), TestError> {
    let (mut open, mut ended) = (0.0, 0.0);
    for pod in pods {
        let metrics = space.metrics_from_node(pod).await?;
        open += metrics.sum("groupage_controller_connected", &[]);
        ended += metrics.sum("groupage_controller_stream_ends_total", &[]);
    }
    Ok((open, ended))
}

fn restart_count(pod: &Pod, container: &str) -> i32 {
    let Some(status) = &pod.status else { return 0 };
    let lists = [&status.container_statuses, &status.init_container_statuses];
    let all = lists.into_iter().flatten().flatten();
    all.filter(|one| one.name == container).map(|one| one.restart_count).sum()
}
