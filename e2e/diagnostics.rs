//! Diagnostics of a failed case: the state of the whole cluster, collected in one folder.

use std::fs;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams};

use super::TestError;
use super::cluster::{Cluster, keep_logs};
use super::installation::has_sidecar;

/// Maximum number of lines of a container's log.
const LOG_LINES: &str = "5000";

/// Collects objects, events, logs and the sidecars' metrics. The file of an item that cannot be
/// fetched contains the error instead.
pub(crate) async fn collect_diagnostics(cluster: &Cluster, case: &str) -> Result<PathBuf, TestError> {
    let folder = cluster.kit.output_dir.join(case);
    // Remove the diagnostics of an earlier run.
    fs::remove_dir_all(&folder).ok();
    fs::create_dir_all(folder.join("pods"))?;
    let kinds = cluster.kubectl.run(&["api-resources", "--verbs=list", "--output=name"]).await;
    let kinds: Vec<_> =
        kinds.unwrap_or_default().lines().filter(|kind| !kind.starts_with("events")).map(str::to_owned).collect();
    let everything = ["get", &kinds.join(","), "--all-namespaces", "--output=yaml", "--ignore-not-found"];
    write(&folder.join("objects.yaml"), cluster.kubectl.run(&everything).await)?;
    let events = ["get", "events", "--all-namespaces", "--sort-by=.lastTimestamp"];
    write(&folder.join("events.txt"), cluster.kubectl.run(&events).await)?;
    let pods = Api::<Pod>::all(cluster.client.clone()).list(&ListParams::default()).await;
    for pod in pods.map(|list| list.items).unwrap_or_default() {
        collect_pod(cluster, &folder.join("pods"), &pod).await?;
    }
    if cluster.node.is_some() {
        keep_logs(&folder.join("components"))?;
    }
    Ok(folder)
}

async fn collect_pod(cluster: &Cluster, folder: &Path, pod: &Pod) -> Result<(), TestError> {
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let file = |what: &str| folder.join(format!("{namespace}.{name}.{what}"));
    let logs = ["logs", name, "--namespace", namespace, "--all-containers", "--prefix", "--tail", LOG_LINES];
    write(&file("log"), cluster.kubectl.run(&logs).await)?;
    if has_restarted(pod) {
        write(&file("previous.log"), cluster.kubectl.run(&[&logs[..], &["--previous"]].concat()).await)?;
    }
    if has_sidecar(pod) {
        let metrics = format!("/api/v1/namespaces/{namespace}/pods/{name}:9190/proxy/metrics");
        write(&file("metrics"), cluster.kubectl.run(&["get", "--raw", &metrics]).await)?;
    }
    Ok(())
}

fn write(file: &Path, found: Result<String, TestError>) -> Result<(), TestError> {
    Ok(fs::write(file, found.unwrap_or_else(|fault| format!("not available: {fault}\n")))?)
}

fn has_restarted(pod: &Pod) -> bool {
    let Some(status) = &pod.status else { return false };
    let lists = [&status.container_statuses, &status.init_container_statuses];
    lists.into_iter().flatten().flatten().any(|status| status.restart_count > 0)
}
