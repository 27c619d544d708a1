//! The test environment of one case: a namespace of its own, and helpers to act in it.
//!
//! Manifests are those that a user would write, except for placeholders that depend on the run: see
//! [`TestNamespace::apply`].

use std::fmt::Debug;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Namespace, Pod, ServiceAccount};
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::runtime::wait::{Condition, await_condition};
use kube::{Api, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::TestError;
use super::cluster::{Cluster, retry_until};

/// Ten times the longest wait on two busy cores: the start of a Python server with a model.
const WAIT_MAX: Duration = Duration::from_secs(120);
/// Port of a sidecar's metrics.
const METRICS: u16 = 9190;
/// Security context that Pod Security `restricted` demands of a container, and a read-only root
/// file system in addition.
const RESTRICTED: &str = "{allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}, readOnlyRootFilesystem: true, \
                          runAsNonRoot: true, seccompProfile: {type: RuntimeDefault}}";

/// Namespace of a case.
#[derive(Debug, Clone)]
pub(crate) struct TestNamespace {
    /// Cluster that contains it.
    pub(crate) cluster: Arc<Cluster>,
    /// Name of the namespace.
    pub(crate) name: String,
}

/// Series of `/metrics` from one scrape: the name with its labels, and the value.
#[derive(Debug, Clone, Default)]
pub(crate) struct MetricsSnapshot(Vec<(String, f64)>);

// === impl TestNamespace ===

impl TestNamespace {
    /// Creates the namespace, and waits until pods can be created in it.
    pub(crate) async fn create(cluster: Arc<Cluster>, name: String) -> Result<Self, TestError> {
        let namespaces: Api<Namespace> = Api::all(cluster.client.clone());
        let mut namespace = Namespace::default();
        namespace.metadata.name = Some(name.clone());
        namespaces.create(&PostParams::default(), &namespace).await?;
        let space = Self { cluster, name };
        space.wait("default", "is there", |account: Option<&ServiceAccount>| account.is_some()).await?;
        Ok(space)
    }

    /// Deletes the namespace. On an existing cluster it also waits until it is deleted.
    pub(crate) async fn delete(self) -> Result<(), TestError> {
        let namespaces: Api<Namespace> = Api::all(self.cluster.client.clone());
        namespaces.delete(&self.name, &DeleteParams::default()).await?;
        if self.cluster.node.is_none() {
            let gone = await_condition(namespaces, &self.name, |namespace: Option<&Namespace>| namespace.is_none());
            tokio::time::timeout(WAIT_MAX, gone).await??;
        }
        Ok(())
    }

    /// Returns `true` if steps that take minutes are to run at full length.
    pub(crate) fn is_full_length(&self) -> bool {
        self.cluster.kit.all
    }

    /// Returns the API for objects of one kind in this namespace.
    pub(crate) fn api<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.cluster.client.clone(), &self.name)
    }

    /// Runs `kubectl` in this namespace.
    pub(crate) async fn kubectl(&self, args: &[&str]) -> Result<String, TestError> {
        self.cluster.kubectl.run(&[&["--namespace", &self.name], args].concat()).await
    }

    /// Runs `kubectl apply`. In the manifest, `$groupage`, `$cuda` and `$stand-in` are replaced by
    /// the images, `$namespace` by the name of this namespace, and `$restricted` by the security
    /// context that Pod Security `restricted` demands of a container.
    pub(crate) async fn apply(&self, manifest: &str) -> Result<String, TestError> {
        let args = ["--namespace", &self.name, "apply", "--server-side", "--filename", "-"];
        self.cluster.kubectl.run_with(&args, &self.fill_placeholders(manifest)).await
    }

    /// Applies a manifest that the API server must reject. Returns the error message.
    pub(crate) async fn apply_rejected(&self, manifest: &str) -> Result<String, TestError> {
        match self.apply(manifest).await {
            Ok(output) => Err(format!("expected a refusal: {output}").into()),
            Err(error) => Ok(error.to_string()),
        }
    }

    /// Replaces the placeholders of a manifest: see [`Self::apply`].
    pub(crate) fn fill_placeholders(&self, manifest: &str) -> String {
        let images = &self.cluster.kit.images;
        let cuda = images.cuda.as_ref().map_or("", |image| image.reference.as_str());
        manifest
            .replace("$cuda", cuda)
            .replace("$groupage", &images.groupage.reference)
            .replace("$stand-in", &images.stand_in.reference)
            .replace("$namespace", &self.name)
            .replace("$restricted", RESTRICTED)
    }

    /// Enforces Pod Security `restricted` in this namespace.
    pub(crate) async fn enforce_restricted(&self) -> Result<(), TestError> {
        let label = "pod-security.kubernetes.io/enforce=restricted";
        self.cluster.kubectl.run(&["label", "namespace", &self.name, label]).await.map(drop)
    }

    /// Waits until a watched object meets a condition, which `what` describes. The error of a
    /// timeout contains its current status.
    pub(crate) async fn wait<K>(&self, name: &str, what: &str, condition: impl Condition<K>) -> Result<K, TestError>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
        K: Clone + Debug + DeserializeOwned + Serialize + Send + 'static,
    {
        let kind = K::kind(&());
        match tokio::time::timeout(WAIT_MAX, await_condition(self.api::<K>(), name, condition)).await {
            Ok(object) => object?.ok_or_else(|| format!("{kind} {name} is gone").into()),
            Err(_) => {
                let object = serde_json::to_value(self.api::<K>().get_opt(name).await?)?;
                let status = describe_status(object.get("status").unwrap_or(&Value::Null));
                Err(format!("{kind} {name}: \"{what}\" is not true within {} s; {status}", WAIT_MAX.as_secs()).into())
            }
        }
    }

    /// Waits until a pod is ready.
    pub(crate) async fn pod_ready(&self, name: &str) -> Result<Pod, TestError> {
        self.wait(name, "is ready", |pod: Option<&Pod>| pod.is_some_and(is_ready)).await
    }

    /// Waits until a deployment is rolled out: all of its pods are ready and belong to its current
    /// template. Returns them.
    pub(crate) async fn deployment_ready(&self, name: &str) -> Result<Vec<Pod>, TestError> {
        let deployment: Deployment = self
            .wait(name, "is rolled out", |deployment: Option<&Deployment>| deployment.is_some_and(is_rolled_out))
            .await?;
        let wanted = wanted_replicas(&deployment);
        let labels = deployment.spec.and_then(|spec| spec.selector.match_labels).unwrap_or_default();
        let selector: Vec<_> = labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let selector = selector.join(",");
        // The pods are listed after the deployment's status was observed. A single slow probe can
        // make one not ready in between, so the list is repeated.
        retry_until(name, WAIT_MAX, async || {
            let ready: Vec<Pod> = self.pods(&selector).await?.into_iter().filter(is_ready).collect();
            match i32::try_from(ready.len()) {
                Ok(count) if count == wanted => Ok(ready),
                _ => Err(format!("{} of {wanted} pods are ready", ready.len()).into()),
            }
        })
        .await
    }

    /// Like [`Self::deployment_ready`], but also waits until pods of an earlier template are
    /// deleted. If such a pod exits at once, calls to it are refused until all nodes have removed
    /// its endpoint.
    pub(crate) async fn deployment_settled(&self, name: &str) -> Result<Vec<Pod>, TestError> {
        let ready = self.deployment_ready(name).await?;
        let labels = ready.first().and_then(|pod| pod.metadata.labels.clone()).unwrap_or_default();
        let selector = labels.get("app").map(|app| format!("app={app}")).unwrap_or_default();
        retry_until(name, WAIT_MAX, async || {
            match self.api::<Pod>().list(&ListParams::default().labels(&selector)).await?.items.len() {
                count if count == ready.len() => Ok(()),
                count => Err(format!("{count} pods, of which {} are to stay", ready.len()).into()),
            }
        })
        .await?;
        Ok(ready)
    }

    /// Returns the pods with these labels that are not being deleted.
    pub(crate) async fn pods(&self, selector: &str) -> Result<Vec<Pod>, TestError> {
        let mut pods = self.api::<Pod>().list(&ListParams::default().labels(selector)).await?.items;
        pods.retain(|pod| pod.metadata.deletion_timestamp.is_none());
        Ok(pods)
    }

    /// Requests a token of a service account through `TokenRequest`, for the API server or for
    /// another audience.
    pub(crate) async fn token(&self, account: &str, audience: Option<&str>) -> Result<String, TestError> {
        let spec = TokenRequestSpec {
            audiences: audience.map(str::to_owned).into_iter().collect(),
            ..TokenRequestSpec::default()
        };
        self.request_token(account, spec).await
    }

    /// Requests a token bound to a pod, as in a projected volume: it contains the name and UID of
    /// the pod and expires with it.
    pub(crate) async fn pod_token(&self, pod: &Pod, audience: &str) -> Result<String, TestError> {
        let account = pod.spec.as_ref().and_then(|spec| spec.service_account_name.as_deref()).unwrap_or("default");
        let bound = BoundObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            name: pod.metadata.name.clone(),
            uid: pod.metadata.uid.clone(),
        };
        let spec = TokenRequestSpec {
            audiences: vec![audience.to_owned()],
            bound_object_ref: Some(bound),
            ..TokenRequestSpec::default()
        };
        self.request_token(account, spec).await
    }

    async fn request_token(&self, account: &str, spec: TokenRequestSpec) -> Result<String, TestError> {
        let request = TokenRequest { spec, ..TokenRequest::default() };
        let accounts = self.api::<ServiceAccount>();
        let answer = accounts.create_token_request(account, &PostParams::default(), &request).await?;
        Ok(answer.status.ok_or("no token")?.token)
    }

    /// Sends a request to a port of a pod, through the API server.
    pub(crate) async fn send_to_pod(
        &self,
        pod: &str,
        port: u16,
        request: http::Request<Vec<u8>>,
    ) -> Result<String, TestError> {
        let (mut head, body) = request.into_parts();
        let uri = format!("/api/v1/namespaces/{}/pods/{pod}:{port}/proxy{}", self.name, head.uri);
        head.uri = uri.parse()?;
        let request = self.cluster.client.request_text(http::Request::from_parts(head, body));
        match tokio::time::timeout(WAIT_MAX, request).await {
            Ok(Ok(text)) => Ok(text),
            // The client interprets an error response of the pod as a status of the API server.
            Ok(Err(kube::Error::Api(status))) => Err(format!("{} {}", status.code, status.message).into()),
            Ok(Err(error)) => Err(error.into()),
            Err(_) => Err(format!("{pod}:{port} does not answer").into()),
        }
    }

    /// Scrapes the metrics of a sidecar through the API server.
    pub(crate) async fn metrics(&self, pod: &Pod) -> Result<MetricsSnapshot, TestError> {
        let text = self.send_to_pod(&pod.name_any(), METRICS, http::Request::get("/metrics").body(Vec::new())?).await?;
        Ok(MetricsSnapshot::parse(&text))
    }

    /// Scrapes the metrics of a sidecar directly from the node, for use while the API server is
    /// unavailable.
    pub(crate) async fn metrics_from_node(&self, pod: &Pod) -> Result<MetricsSnapshot, TestError> {
        let ip = pod.status.as_ref().and_then(|status| status.pod_ip.as_ref()).ok_or("no address")?;
        let request = async {
            let mut stream = TcpStream::connect((ip.parse::<IpAddr>()?, METRICS)).await?;
            stream.write_all(b"GET /metrics HTTP/1.0\r\nhost: pod\r\n\r\n").await?;
            let mut response = String::new();
            stream.read_to_string(&mut response).await?;
            Ok::<_, TestError>(response)
        };
        let response = tokio::time::timeout(WAIT_MAX, request).await??;
        let (_, text) =
            response.split_once("\r\n\r\n").filter(|(head, _)| head.contains(" 200 ")).ok_or("no metrics")?;
        Ok(MetricsSnapshot::parse(text))
    }

    /// Scrapes the metrics of several sidecars as one set of series.
    pub(crate) async fn merged_metrics(&self, pods: &[Pod]) -> Result<MetricsSnapshot, TestError> {
        let mut all = MetricsSnapshot::default();
        for pod in pods {
            all.0.extend(self.metrics(pod).await?.0);
        }
        Ok(all)
    }
}

/// Extracts the parts of a status that explain an unmet condition: conditions and states of
/// containers.
fn describe_status(status: &Value) -> String {
    let mut entries = Vec::new();
    for list in ["conditions", "initContainerStatuses", "containerStatuses"] {
        for one in status.get(list).and_then(Value::as_array).into_iter().flatten() {
            let keys = ["type", "status", "reason", "message", "name", "ready", "restartCount", "state"];
            let parts = keys.iter().filter_map(|key| one.get(key)).map(ToString::to_string);
            entries.push(parts.collect::<Vec<_>>().join(" "));
        }
    }
    if entries.is_empty() { status.to_string() } else { entries.join("\n  ") }
}

/// Returns `true` if a pod is ready.
pub(crate) fn is_ready(pod: &Pod) -> bool {
    has_condition(pod, "Ready")
}

/// Returns `true` if a pod has this condition with status `True`.
pub(crate) fn has_condition(pod: &Pod, kind: &str) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.is_some_and(|all| all.iter().any(|one| one.type_ == kind && one.status == "True"))
}

/// Returns `true` if a deployment is rolled out, by the rules of `kubectl rollout status`.
pub(crate) fn is_rolled_out(deployment: &Deployment) -> bool {
    let wanted = wanted_replicas(deployment);
    let Some(status) = &deployment.status else { return false };
    let counts = [status.replicas, status.updated_replicas, status.available_replicas];
    status.observed_generation >= deployment.metadata.generation
        && counts.iter().all(|count| count.unwrap_or(0) == wanted)
}

fn wanted_replicas(deployment: &Deployment) -> i32 {
    deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1)
}

// === impl MetricsSnapshot ===

impl MetricsSnapshot {
    fn parse(text: &str) -> Self {
        let series = text.lines().filter(|line| !line.starts_with('#'));
        let series = series.filter_map(|line| {
            let (name, value) = line.rsplit_once(' ')?;
            Some((name.to_owned(), value.parse().ok()?))
        });
        Self(series.collect())
    }

    /// Returns the sum of all series with this name and all of these labels, each given as
    /// `name="value"`.
    pub(crate) fn sum(&self, name: &str, labels: &[&str]) -> f64 {
        let matches = |series: &str| {
            let (series_name, series_labels) = series.split_once('{').unwrap_or((series, ""));
            series_name == name && labels.iter().all(|label| series_labels.contains(label))
        };
        self.0.iter().filter(|(series, _)| matches(series)).map(|(_, value)| value).sum()
    }

    /// Returns every series with this name.
    pub(crate) fn named(&self, name: &str) -> Vec<&(String, f64)> {
        self.0.iter().filter(|(series, _)| series.split('{').next() == Some(name)).collect()
    }

    /// Returns the mean number of items in an execution.
    pub(crate) fn batch_mean(&self) -> f64 {
        let count = self.sum("groupage_batch_items_count", &[]);
        if count > 0.0 { self.sum("groupage_batch_items_sum", &[]) / count } else { 0.0 }
    }

    /// Returns the number of executions with more than one item.
    pub(crate) fn shared_batches(&self) -> f64 {
        self.sum("groupage_batch_items_count", &[]) - self.sum("groupage_batch_items_bucket", &["le=\"1\""])
    }
}
