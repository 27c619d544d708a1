//! The place of one case: a namespace of its own, and words for what a case does in it.
//!
//! Manifests are what a user would write, but for a few names that stand for what a run decides: see [`Space::apply`].

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

use super::Fault;
use super::cluster::{Cluster, until};

/// Ten times what the slowest thing that cases wait for takes on two busy cores: a Python server with a model.
const WAIT_MAX: Duration = Duration::from_secs(120);
/// Where a sidecar shows its metrics.
const METRICS: u16 = 9190;
/// What Pod Security `restricted` asks of a container, and a read-only root beside it.
const RESTRICTED: &str = "{allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}, readOnlyRootFilesystem: true, \
                          runAsNonRoot: true, seccompProfile: {type: RuntimeDefault}}";

/// A case's namespace.
#[derive(Debug, Clone)]
pub(crate) struct Space {
    /// The cluster it is in.
    pub(crate) cluster: Arc<Cluster>,
    /// Its name.
    pub(crate) name: String,
}

/// Series of `/metrics`, as one scrape found them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Metrics(Vec<(String, f64)>);

// === impl Space ===

impl Space {
    /// Makes the namespace, and waits until pods may be made in it.
    pub(crate) async fn make(cluster: Arc<Cluster>, name: String) -> Result<Self, Fault> {
        let namespaces: Api<Namespace> = Api::all(cluster.client.clone());
        let mut namespace = Namespace::default();
        namespace.metadata.name = Some(name.clone());
        namespaces.create(&PostParams::default(), &namespace).await?;
        let space = Self { cluster, name };
        space.wait("default", "is there", |account: Option<&ServiceAccount>| account.is_some()).await?;
        Ok(space)
    }

    /// Lets go of everything in it; on a cluster that others use too, until it is gone.
    pub(crate) async fn drop_all(self) -> Result<(), Fault> {
        let namespaces: Api<Namespace> = Api::all(self.cluster.client.clone());
        namespaces.delete(&self.name, &DeleteParams::default()).await?;
        if self.cluster.node.is_none() {
            let gone = await_condition(namespaces, &self.name, |namespace: Option<&Namespace>| namespace.is_none());
            tokio::time::timeout(WAIT_MAX, gone).await??;
        }
        Ok(())
    }

    /// Whether what takes minutes is to be done at full length.
    pub(crate) fn at_length(&self) -> bool {
        self.cluster.kit.all
    }

    /// Objects of a kind, in this namespace.
    pub(crate) fn api<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.cluster.client.clone(), &self.name)
    }

    /// `kubectl` in this namespace.
    pub(crate) async fn kubectl(&self, args: &[&str]) -> Result<String, Fault> {
        self.cluster.kubectl.run(&[&["--namespace", &self.name], args].concat()).await
    }

    /// `kubectl apply`. In the text, `$groupage` and `$stand-in` are the images, `$namespace` is this one, `$restricted` the security context that Pod
    /// Security `restricted` wants of a container.
    pub(crate) async fn apply(&self, manifest: &str) -> Result<String, Fault> {
        let args = ["--namespace", &self.name, "apply", "--server-side", "--filename", "-"];
        self.cluster.kubectl.run_with(&args, &self.fill(manifest)).await
    }

    /// The same, where the API server is to refuse; what it says.
    pub(crate) async fn refused(&self, manifest: &str) -> Result<String, Fault> {
        match self.apply(manifest).await {
            Ok(said) => Err(format!("this was to be refused: {said}").into()),
            Err(fault) => Ok(fault.to_string()),
        }
    }

    pub(crate) fn fill(&self, manifest: &str) -> String {
        let images = &self.cluster.kit.images;
        manifest
            .replace("$groupage", &images.groupage.reference)
            .replace("$stand-in", &images.stand_in.reference)
            .replace("$namespace", &self.name)
            .replace("$restricted", RESTRICTED)
    }

    /// Puts this namespace under Pod Security `restricted`.
    pub(crate) async fn restrict(&self) -> Result<(), Fault> {
        let label = "pod-security.kubernetes.io/enforce=restricted";
        self.cluster.kubectl.run(&["label", "namespace", &self.name, label]).await.map(drop)
    }

    /// Waits until an object is as it should be, by watching it; otherwise says how it is instead.
    pub(crate) async fn wait<K>(&self, name: &str, what: &str, is_so: impl Condition<K>) -> Result<K, Fault>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
        K: Clone + Debug + DeserializeOwned + Serialize + Send + 'static,
    {
        let kind = K::kind(&());
        match tokio::time::timeout(WAIT_MAX, await_condition(self.api::<K>(), name, is_so)).await {
            Ok(object) => object?.ok_or_else(|| format!("{kind} {name} is gone").into()),
            Err(_) => {
                let object = serde_json::to_value(self.api::<K>().get_opt(name).await?)?;
                let so = brief(object.get("status").unwrap_or(&Value::Null));
                Err(format!("{kind} {name}: \"{what}\" is not so within {} s; {so}", WAIT_MAX.as_secs()).into())
            }
        }
    }

    /// Waits until a pod is ready.
    pub(crate) async fn pod_ready(&self, name: &str) -> Result<Pod, Fault> {
        self.wait(name, "is ready", |pod: Option<&Pod>| pod.is_some_and(is_ready)).await
    }

    /// Waits until all pods of a deployment are there, ready and of its present template, and no others; these pods.
    pub(crate) async fn deployment_ready(&self, name: &str) -> Result<Vec<Pod>, Fault> {
        let deployment: Deployment = self
            .wait(name, "is rolled out", |deployment: Option<&Deployment>| deployment.is_some_and(is_rolled_out))
            .await?;
        let labels = deployment.spec.and_then(|spec| spec.selector.match_labels).unwrap_or_default();
        let selector: Vec<_> = labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let pods = self.pods(&selector.join(",")).await?;
        Ok(pods.into_iter().filter(is_ready).collect())
    }

    /// The same once those of an earlier template are gone: who ends without lingering refuses calls until the last node knows that it is gone.
    pub(crate) async fn deployment_alone(&self, name: &str) -> Result<Vec<Pod>, Fault> {
        let ready = self.deployment_ready(name).await?;
        let labels = ready.first().and_then(|pod| pod.metadata.labels.clone()).unwrap_or_default();
        let selector = labels.get("app").map(|app| format!("app={app}")).unwrap_or_default();
        until(name, WAIT_MAX, async || {
            match self.api::<Pod>().list(&ListParams::default().labels(&selector)).await?.items.len() {
                all if all == ready.len() => Ok(()),
                all => Err(format!("{all} pods, of which {} are to stay", ready.len()).into()),
            }
        })
        .await?;
        Ok(ready)
    }

    /// Pods with these labels that are not on their way out.
    pub(crate) async fn pods(&self, selector: &str) -> Result<Vec<Pod>, Fault> {
        let mut pods = self.api::<Pod>().list(&ListParams::default().labels(selector)).await?.items;
        pods.retain(|pod| pod.metadata.deletion_timestamp.is_none());
        Ok(pods)
    }

    /// A token of a service account, as `TokenRequest` gives it: for the API server, or for an audience.
    pub(crate) async fn token(&self, account: &str, audience: Option<&str>) -> Result<String, Fault> {
        let spec = TokenRequestSpec {
            audiences: audience.map(str::to_owned).into_iter().collect(),
            ..TokenRequestSpec::default()
        };
        self.request_token(account, spec).await
    }

    /// The same for a pod of that account, as a projected volume holds it: it names the pod and its UID, and ends with it.
    pub(crate) async fn token_of(&self, pod: &Pod, audience: &str) -> Result<String, Fault> {
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

    async fn request_token(&self, account: &str, spec: TokenRequestSpec) -> Result<String, Fault> {
        let request = TokenRequest { spec, ..TokenRequest::default() };
        let accounts = self.api::<ServiceAccount>();
        let answer = accounts.create_token_request(account, &PostParams::default(), &request).await?;
        Ok(answer.status.ok_or("no token")?.token)
    }

    /// Asks a port of a pod, through the API server.
    pub(crate) async fn ask(&self, pod: &str, port: u16, request: http::Request<Vec<u8>>) -> Result<String, Fault> {
        let (mut head, body) = request.into_parts();
        let uri = format!("/api/v1/namespaces/{}/pods/{pod}:{port}/proxy{}", self.name, head.uri);
        head.uri = uri.parse()?;
        let asked = self.cluster.client.request_text(http::Request::from_parts(head, body));
        match tokio::time::timeout(WAIT_MAX, asked).await {
            Ok(Ok(said)) => Ok(said),
            // What the pod said is taken for a message of the API server.
            Ok(Err(kube::Error::Api(status))) => Err(format!("{} {}", status.code, status.message).into()),
            Ok(Err(error)) => Err(error.into()),
            Err(_) => Err(format!("{pod}:{port} does not answer").into()),
        }
    }

    /// A sidecar's metrics.
    pub(crate) async fn metrics(&self, pod: &Pod) -> Result<Metrics, Fault> {
        let text = self.ask(&pod.name_any(), METRICS, http::Request::get("/metrics").body(Vec::new())?).await?;
        Ok(Metrics::read(&text))
    }

    /// The same, asked at the pod's address from the node: while there is no API server.
    pub(crate) async fn metrics_from_node(&self, pod: &Pod) -> Result<Metrics, Fault> {
        let ip = pod.status.as_ref().and_then(|status| status.pod_ip.as_ref()).ok_or("no address")?;
        let asked = async {
            let mut stream = TcpStream::connect((ip.parse::<IpAddr>()?, METRICS)).await?;
            stream.write_all(b"GET /metrics HTTP/1.0\r\nhost: pod\r\n\r\n").await?;
            let mut said = String::new();
            stream.read_to_string(&mut said).await?;
            Ok::<_, Fault>(said)
        };
        let said = tokio::time::timeout(WAIT_MAX, asked).await??;
        let (_, text) = said.split_once("\r\n\r\n").filter(|(head, _)| head.contains(" 200 ")).ok_or("no metrics")?;
        Ok(Metrics::read(text))
    }

    /// The metrics of several, added up.
    pub(crate) async fn metrics_of(&self, pods: &[Pod]) -> Result<Metrics, Fault> {
        let mut all = Metrics::default();
        for pod in pods {
            all.0.extend(self.metrics(pod).await?.0);
        }
        Ok(all)
    }
}

/// What of a status says why something is not so: conditions, and states of containers.
fn brief(status: &Value) -> String {
    let mut said = Vec::new();
    for list in ["conditions", "initContainerStatuses", "containerStatuses"] {
        for one in status.get(list).and_then(Value::as_array).into_iter().flatten() {
            let keys = ["type", "status", "reason", "message", "name", "ready", "restartCount", "state"];
            let parts = keys.iter().filter_map(|key| one.get(key)).map(ToString::to_string);
            said.push(parts.collect::<Vec<_>>().join(" "));
        }
    }
    if said.is_empty() { status.to_string() } else { said.join("\n  ") }
}

/// Whether a pod is ready.
pub(crate) fn is_ready(pod: &Pod) -> bool {
    condition(pod, "Ready")
}

/// Whether a condition of a pod is true.
pub(crate) fn condition(pod: &Pod, kind: &str) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.is_some_and(|all| all.iter().any(|one| one.type_ == kind && one.status == "True"))
}

/// As `kubectl rollout status` has it.
pub(crate) fn is_rolled_out(deployment: &Deployment) -> bool {
    let wanted = deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
    let Some(status) = &deployment.status else { return false };
    let counts = [status.replicas, status.updated_replicas, status.available_replicas];
    status.observed_generation >= deployment.metadata.generation
        && counts.iter().all(|count| count.unwrap_or(0) == wanted)
}

// === impl Metrics ===

impl Metrics {
    fn read(text: &str) -> Self {
        let series = text.lines().filter(|line| !line.starts_with('#'));
        let series = series.filter_map(|line| {
            let (name, value) = line.rsplit_once(' ')?;
            Some((name.to_owned(), value.parse().ok()?))
        });
        Self(series.collect())
    }

    /// The sum of every series of that name which has all these labels, each as `name="value"`.
    pub(crate) fn sum(&self, name: &str, labels: &[&str]) -> f64 {
        let of_it = |series: &str| {
            let (its, its_labels) = series.split_once('{').unwrap_or((series, ""));
            its == name && labels.iter().all(|label| its_labels.contains(label))
        };
        self.0.iter().filter(|(series, _)| of_it(series)).map(|(_, value)| value).sum()
    }

    /// Every series of that name.
    pub(crate) fn named(&self, name: &str) -> Vec<&(String, f64)> {
        self.0.iter().filter(|(series, _)| series.split('{').next() == Some(name)).collect()
    }

    /// Mean items in an execution.
    pub(crate) fn batch_mean(&self) -> f64 {
        let count = self.sum("groupage_batch_items_count", &[]);
        if count > 0.0 { self.sum("groupage_batch_items_sum", &[]) / count } else { 0.0 }
    }

    /// Executions with more than one item.
    pub(crate) fn shared_batches(&self) -> f64 {
        self.sum("groupage_batch_items_count", &[]) - self.sum("groupage_batch_items_bucket", &["le=\"1\""])
    }
}
