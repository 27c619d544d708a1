//! Installation of the product, once in a run and as a user would do it: the chart by helm, or
//! `groupage install` if helm is missing.
//!
//! Its namespace enforces Pod Security `restricted`, and its controller runs under its own
//! `ServiceAccount`, so that missing permissions appear as `forbidden` in its log. The installation
//! is shared by all later cases. A case that removes it, such as one about faults, restores it.

use std::time::Duration;

use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::{Api, ListParams, PostParams};
use kube::runtime::wait::await_condition;

use super::TestError;
use super::cluster::{Cluster, retry_until};
use super::programs::repository_root;
use super::test_namespace::{TestNamespace, is_ready, is_rolled_out};

/// Namespace of the installation.
pub(crate) const NAMESPACE: &str = "groupage-system";
/// Name of the helm release.
pub(crate) const RELEASE: &str = "groupage";
/// Name of the controller's Deployment.
const CONTROLLER: &str = "groupage-controller";
/// Name of the webhook configuration.
pub(crate) const WEBHOOKS: &str = "groupage-injector";
/// Label of the controller's pods.
pub(crate) const LABEL: &str = "groupage.dev/component=controller";
/// Ten times the start time of two replicas on two busy cores.
const READY_MAX: Duration = Duration::from_secs(60);
/// Timeout for injection to work. The leader checks certificates every ten seconds.
const INJECTS_MAX: Duration = Duration::from_secs(60);

/// A pod that requests a sidecar, for dry runs.
const REQUESTING_POD: &str = r#"{
    "metadata": {"generateName": "asks-", "annotations": {"groupage.dev/inject": "enabled"}},
    "spec": {
        "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [{
            "name": "model", "image": "groupage.test/none", "ports": [{"name": "http", "containerPort": 8080}],
            "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}}
        }]
    }
}"#;

/// Handle of the installation for a case.
#[derive(Debug, Clone)]
pub(crate) struct Installation {
    space: TestNamespace,
}

/// Installs the product unless it is installed already, and waits until it is ready.
pub(crate) async fn ensure_installed(space: &TestNamespace) -> Result<Installation, TestError> {
    let cluster = &space.cluster;
    cluster.installed.get_or_try_init(|| install(cluster)).await?;
    let installation = Installation { space: space.clone() };
    installation.wait_until_ready().await?;
    Ok(installation)
}

async fn install(cluster: &Cluster) -> Result<(), TestError> {
    let namespaces: Api<Namespace> = Api::all(cluster.client.clone());
    let mut namespace = Namespace::default();
    namespace.metadata.name = Some(NAMESPACE.to_owned());
    let restricted = ("pod-security.kubernetes.io/enforce".to_owned(), "restricted".to_owned());
    namespace.metadata.labels = Some([restricted].into());
    match namespaces.create(&PostParams::default(), &namespace).await {
        Ok(_) => {}
        // On an existing cluster the namespace may exist already.
        Err(kube::Error::Api(status)) if status.is_already_exists() => {}
        Err(error) => return Err(error.into()),
    }
    if cluster.kit.helm.is_ok() {
        let chart = repository_root().join("charts/groupage").to_string_lossy().into_owned();
        let args = ["upgrade", "--install", RELEASE, &chart, "--namespace", NAMESPACE, "--wait", "--timeout", "2m"];
        cluster.helm(&[&args[..], &chart_values(cluster)?.each_ref().map(String::as_str)].concat()).await?;
        return Ok(());
    }
    let image = &cluster.kit.images.groupage.reference;
    let all = cluster.groupage(&["install", "--namespace", NAMESPACE, "--image", image], "").await?;
    cluster.kubectl.run_with(&["apply", "--server-side", "--filename", "-"], &all).await?;
    Ok(())
}

/// Chart values: the images of this run, which the nodes have already, and a slow loop that
/// evaluates every report.
pub(crate) fn chart_values(cluster: &Cluster) -> Result<[String; 4], TestError> {
    let (repository, tag) =
        cluster.kit.images.groupage.reference.rsplit_once(':').ok_or("a reference of an image without a tag")?;
    Ok([
        format!("--set=image.repository={repository}"),
        format!("--set=image.tag={tag}"),
        "--set=image.pullPolicy=IfNotPresent".to_owned(),
        "--set=tuner.interval=5s".to_owned(),
    ])
}

/// Uninstalls the product, so that another way of installation can be tested. Later cases run
/// without it.
pub(crate) async fn uninstall_for_case(cluster: &Cluster) -> Result<(), TestError> {
    if !cluster.installed.initialized() {
        return Ok(());
    }
    if cluster.kit.helm.is_ok() {
        cluster.helm(&["uninstall", RELEASE, "--namespace", NAMESPACE, "--wait"]).await?;
    } else {
        let all = cluster.groupage(&["install", "--namespace", NAMESPACE, "--without-crds"], "").await?;
        cluster.kubectl.run_with(&["delete", "--ignore-not-found", "--filename", "-"], &all).await?;
    }
    cluster.kubectl.run(&["delete", "namespace", NAMESPACE, "--ignore-not-found"]).await?;
    Ok(())
}

/// Uninstalls the product from an existing cluster.
pub(crate) async fn uninstall(cluster: &Cluster) -> Result<(), TestError> {
    if cluster.node.is_none() && cluster.installed.initialized() && cluster.kit.helm.is_ok() {
        cluster.helm(&["uninstall", RELEASE, "--namespace", NAMESPACE, "--ignore-not-found"]).await?;
        cluster.kubectl.run(&["delete", "namespace", NAMESPACE, "--ignore-not-found"]).await?;
    }
    Ok(())
}

// === impl Installation ===

impl Installation {
    fn client(&self) -> kube::Client {
        self.space.cluster.client.clone()
    }

    /// Waits until every replica is ready and sidecars are injected.
    pub(crate) async fn wait_until_ready(&self) -> Result<(), TestError> {
        let deployments: Api<Deployment> = Api::namespaced(self.client(), NAMESPACE);
        let ready = await_condition(deployments, CONTROLLER, |deployment: Option<&Deployment>| {
            deployment.is_some_and(is_rolled_out)
        });
        if tokio::time::timeout(READY_MAX, ready).await.is_err() {
            return Err(format!("the controller is not ready:\n{}", self.logs().await?).into());
        }
        self.wait_until_injecting().await
    }

    /// Waits until a pod that requests a sidecar receives one. Only dry runs are made.
    pub(crate) async fn wait_until_injecting(&self) -> Result<(), TestError> {
        retry_until("injection", INJECTS_MAX, async || match self.would_inject().await? {
            true => Ok(()),
            false => Err("a pod that requests a sidecar gets none".into()),
        })
        .await
    }

    /// Returns `true` if a pod that requests a sidecar would receive one.
    pub(crate) async fn would_inject(&self) -> Result<bool, TestError> {
        let pod: Pod = serde_json::from_str(REQUESTING_POD)?;
        let only = PostParams { dry_run: true, ..PostParams::default() };
        Ok(has_sidecar(&self.space.api::<Pod>().create(&only, &pod).await?))
    }

    /// Upgrades the helm release with additional values.
    pub(crate) async fn set(&self, values: &[&str]) -> Result<(), TestError> {
        let chart = repository_root().join("charts/groupage").to_string_lossy().into_owned();
        let upgrade = ["upgrade", RELEASE, &chart, "--namespace", NAMESPACE, "--reuse-values", "--wait"];
        self.space.cluster.helm(&[&upgrade[..], values].concat()).await?;
        self.wait_until_ready().await?;
        self.wait_for_replicas(None).await
    }

    /// Waits until only ready pods of the controller exist, since a terminating pod still answers
    /// with its old configuration.
    async fn wait_for_replicas(&self, replicas: Option<usize>) -> Result<(), TestError> {
        retry_until("the controller's pods", READY_MAX, async || {
            let pods: Api<Pod> = Api::namespaced(self.client(), NAMESPACE);
            let pods = pods.list(&ListParams::default().labels(LABEL)).await?.items;
            let ready = pods.iter().filter(|pod| is_ready(pod)).count();
            if pods.len() == replicas.unwrap_or(ready) && pods.len() == ready {
                Ok(())
            } else {
                Err(format!("{} pods, {ready} ready", pods.len()).into())
            }
        })
        .await
    }

    /// Returns the controller's pods, except for terminating ones.
    pub(crate) async fn pods(&self) -> Result<Vec<Pod>, TestError> {
        let pods: Api<Pod> = Api::namespaced(self.client(), NAMESPACE);
        let mut pods = pods.list(&ListParams::default().labels(LABEL)).await?.items;
        pods.retain(|pod| pod.metadata.deletion_timestamp.is_none());
        Ok(pods)
    }

    /// Runs `kubectl` in the controller's namespace.
    pub(crate) async fn kubectl(&self, args: &[&str]) -> Result<String, TestError> {
        self.space.cluster.kubectl.run(&[&["--namespace", NAMESPACE], args].concat()).await
    }

    /// Returns the logs of all its pods.
    pub(crate) async fn logs(&self) -> Result<String, TestError> {
        self.kubectl(&["logs", "--selector", LABEL, "--tail", "-1", "--prefix"]).await
    }

    /// Scales the controller to this number of replicas, and waits until it is reached.
    pub(crate) async fn scale(&self, replicas: usize) -> Result<(), TestError> {
        let count = replicas.to_string();
        self.kubectl(&["scale", &format!("deployment/{CONTROLLER}"), "--replicas", &count]).await?;
        self.wait_for_replicas(Some(replicas)).await
    }

    /// Returns the CA bundles with which the API server verifies the webhook, one for each entry.
    pub(crate) async fn ca_bundles(&self) -> Result<Vec<Vec<u8>>, TestError> {
        let webhooks: Api<MutatingWebhookConfiguration> = Api::all(self.client());
        let webhooks = webhooks.get(WEBHOOKS).await?.webhooks.unwrap_or_default();
        let bundle = |ca: Option<k8s_openapi::ByteString>| ca.map(|ca| ca.0).unwrap_or_default();
        Ok(webhooks.into_iter().map(|webhook| bundle(webhook.client_config.ca_bundle)).collect())
    }
}

/// Returns `true` if the pod has the sidecar container.
pub(crate) fn has_sidecar(pod: &Pod) -> bool {
    let Some(spec) = &pod.spec else { return false };
    spec.init_containers.iter().flatten().chain(&spec.containers).any(|container| container.name == "groupage")
}
