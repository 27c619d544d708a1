//! Facts about the sidecars of a workload, read from the admin port of each. That port listens on
//! the pod's loopback interface only, so the API server forwards the connection
//! (`pods/portforward`), as for `kubectl port-forward`.

use std::time::Duration;

use futures_util::stream::{self, StreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::DynamicObject;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::facts::ProxyFacts;
use super::live;
use crate::cli::cluster::{ClusterClient, WorkloadName, describe_api_error};
use crate::cli::{admin_client, pods};
use crate::injector::STATUS;

/// Time limit for one pod. A node that cannot be reached does not refuse the connection.
const ANSWER: Duration = Duration::from_secs(10);
/// Maximum number of pods read concurrently.
const READ_MAX: usize = 8;

/// Admin port of a pod's sidecar.
#[derive(Debug, Clone, PartialEq, Eq)]
struct AdminPort {
    pod: String,
    port: u16,
}

/// Reads the facts of every sidecar of a workload, ordered by pod name. The second list contains
/// the pods that could not be read, each with the reason.
///
/// # Errors
/// The workload cannot be read, or none of its pods has a sidecar.
pub(super) async fn read(
    cluster: &ClusterClient,
    workload: &WorkloadName,
) -> Result<(Vec<ProxyFacts>, Vec<String>), String> {
    let ClusterClient { client, namespace } = cluster;
    let objects: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &workload.resource());
    let object = objects.get(&workload.name).await.map_err(|error| describe_api_error(&error))?;
    let found = pods::list_live_pods(cluster, &object).await?;
    let mut ports: Vec<AdminPort> = found.iter().filter_map(AdminPort::from_annotation).collect();
    ports.sort_by(|one, other| one.pod.cmp(&other.pod));
    if ports.is_empty() {
        let display_name = workload.display_name();
        return Err(format!(
            "no pod of {display_name} has a sidecar; add it with groupage enable -n {namespace} {display_name}"
        ));
    }
    let api: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let requests = ports.iter().map(|port| {
        let api = &api;
        async move { (port, port.facts(api).await) }
    });
    let mut answers = stream::iter(requests).buffered(READ_MAX);
    let (mut facts, mut failed) = (Vec::new(), Vec::new());
    while let Some((port, answer)) = answers.next().await {
        match answer {
            Ok(own) => facts.extend(own),
            Err(reason) => failed.push(format!("pod/{}: {reason}", port.pod)),
        }
    }
    Ok((facts, failed))
}

// === impl AdminPort ===

impl AdminPort {
    /// Returns the admin port that was recorded at injection.
    fn from_annotation(pod: &Pod) -> Option<Self> {
        let record: Value = serde_json::from_str(pod.metadata.annotations.as_ref()?.get(STATUS)?).ok()?;
        let port = record["admin"].as_u64().and_then(|port| u16::try_from(port).ok())?;
        Some(Self { pod: pod.metadata.name.clone()?, port })
    }

    async fn facts(&self, pods: &Api<Pod>) -> Result<Vec<ProxyFacts>, String> {
        let read = async {
            let (scheduler, stats) = (self.get(pods, "/api/scheduler").await?, self.get(pods, "/api/stats").await?);
            Ok(live::facts_per_port(&format!("pod/{}", self.pod), &scheduler, &stats))
        };
        let answer = tokio::time::timeout(ANSWER, read).await;
        answer.unwrap_or_else(|_| Err(format!("no answer within {ANSWER:?}")))
    }

    /// Reads one page over a forwarded connection of its own.
    async fn get(&self, pods: &Api<Pod>, path: &str) -> Result<Value, String> {
        let mut forwarded =
            pods.portforward(&self.pod, &[self.port]).await.map_err(|error| describe_api_error(&error))?;
        let mut stream = forwarded.take_stream(self.port).ok_or("the API server did not forward the port")?;
        let mut answer = Vec::new();
        stream.write_all(admin_client::get_request(path).as_bytes()).await.map_err(|error| error.to_string())?;
        let whole = (&mut stream).take(admin_client::ANSWER_BYTES_MAX).read_to_end(&mut answer).await;
        whole.map_err(|error| format!("port {} cannot be read: {error}", self.port))?;
        let body = admin_client::body(&format!("port {}", self.port), path, &answer)?;
        serde_json::from_slice(body).map_err(|error| format!("{path} is not JSON: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_admin_port_is_the_one_that_was_recorded() {
        let pod = |record: &str| {
            let pod = json!({"metadata": {"name": "web-1", "annotations": {STATUS: record}}});
            AdminPort::from_annotation(&serde_json::from_value(pod).unwrap())
        };
        assert_eq!(pod(r#"{"admin": 9191}"#), Some(AdminPort { pod: "web-1".to_owned(), port: 9191 }));
        assert_eq!(pod(r#"{"admin": 99999}"#), None);
        assert_eq!(pod("broken"), None);
    }
}
