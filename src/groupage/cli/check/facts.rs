//! Facts about a cluster, collected before any of them is evaluated.

use std::collections::BTreeMap;

use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Container, Namespace, Node, Pod};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Client;
use kube::api::{Api, DynamicObject, ListParams, PostParams};
use serde_json::{Value, json};

use crate::cli::bypasses::{self, BypassObjects};
use crate::cli::cluster::{self, describe_api_error};
use crate::cli::pod_problem::pod_problem;
use crate::controller::cluster_state;
use crate::injector::INJECT;

/// Name of the `MutatingWebhookConfiguration` that an installation creates.
pub(super) const WEBHOOK: &str = "groupage-injector";
/// Name of the controller's Deployment.
pub(super) const CONTROLLER: &str = "groupage-controller";

/// Facts about a cluster, as raw JSON. A value is null where the object does not exist or cannot be
/// read.
#[derive(Debug, Clone, Default)]
pub(super) struct ClusterFacts {
    /// Minor version of the API server; `None` if it is not a number.
    pub(super) minor: Option<u32>,
    /// Kubelet versions, one per node.
    pub(super) kubelets: Vec<String>,
    pub(super) crds: Vec<Value>,
    pub(super) webhook: Value,
    /// The controller's Deployment.
    pub(super) controller: Value,
    /// Namespace in which the controller is looked up.
    pub(super) controller_namespace: String,
    pub(super) namespaces: Vec<Value>,
    pub(super) pods: Vec<Value>,
    pub(super) policies: Vec<Value>,
    /// Result of the dry run: the pod that the API server would create, or the reason it refuses
    /// it.
    pub(super) dry_run: Option<Result<Value, String>>,
    /// Parts that could not be read, each with the reason.
    pub(super) unreadable_parts: Vec<(&'static str, String)>,
    /// Kinds that route traffic to pods and could not be read. The bypasses recorded at injection
    /// are shown instead.
    pub(super) unreadable_referrers: Vec<String>,
}

// === impl ClusterFacts ===

impl ClusterFacts {
    /// Returns `true` if the part could be read. A part that could not be read is not judged.
    pub(super) fn is_readable(&self, what: &str) -> bool {
        self.unreadable_parts.iter().all(|(refused, _)| *refused != what)
    }
}

pub(super) async fn collect(client: &Client, namespace: &str, pre: bool) -> Result<ClusterFacts, String> {
    let version = client.apiserver_version().await.map_err(|error| describe_api_error(&error))?;
    let mut facts = ClusterFacts {
        minor: version.minor.trim_end_matches('+').parse().ok(),
        controller_namespace: namespace.to_owned(),
        ..ClusterFacts::default()
    };
    let all = ListParams::default();
    let mut refused = Vec::new();
    let mut take = |what: &'static str, found: Result<Vec<Value>, kube::Error>| match found {
        Ok(found) => found,
        Err(kube::Error::Api(status)) if status.code == 404 => Vec::new(),
        Err(error) => {
            refused.push((what, describe_api_error(&error)));
            Vec::new()
        }
    };
    let nodes = Api::<Node>::all(client.clone()).list(&all).await;
    let nodes = take("nodes", nodes.map(to_values));
    facts.kubelets = nodes
        .iter()
        .filter_map(|node| node.pointer("/status/nodeInfo/kubeletVersion").and_then(Value::as_str).map(str::to_owned))
        .collect();
    if pre {
        facts.unreadable_parts = refused;
        return Ok(facts);
    }
    let (objects, recorded) = BypassObjects::read(client, None).await;
    facts.unreadable_referrers = recorded;
    let crds = Api::<CustomResourceDefinition>::all(client.clone());
    for name in ["batchpolicies.groupage.dev", "batchprofiles.groupage.dev"] {
        facts.crds.extend(take("CRDs", crds.get_opt(name).await.map(to_values_opt)));
    }
    let webhooks = Api::<MutatingWebhookConfiguration>::all(client.clone()).get_opt(WEBHOOK).await;
    facts.webhook = take("webhook", webhooks.map(to_values_opt)).pop().unwrap_or_default();
    let controller = Api::<Deployment>::namespaced(client.clone(), namespace).get_opt(CONTROLLER).await;
    facts.controller = take("controller", controller.map(to_values_opt)).pop().unwrap_or_default();
    facts.namespaces = take("namespaces", Api::<Namespace>::all(client.clone()).list(&all).await.map(to_values));
    facts.pods = take(
        "pods",
        bypasses::list_pages(&Api::<Pod>::all(client.clone()), &all, |pod| summarize_pod(&pod, &objects)).await,
    );
    let policies = cluster::groupage_resource("BatchPolicy", "batchpolicies");
    let policies = Api::<DynamicObject>::all_with(client.clone(), &policies).list(&all).await;
    facts.policies = take("policies", policies.map(to_values));
    facts.unreadable_parts = refused;
    Ok(facts)
}

/// Reduces a pod to the fields that are judged.
pub(super) fn summarize_pod(pod: &Pod, objects: &BypassObjects) -> Value {
    let spec = pod.spec.as_ref();
    let names = |containers: Vec<&Container>| -> Vec<Value> {
        containers.iter().map(|container| json!({"name": container.name})).collect()
    };
    let inject_annotation = pod.metadata.annotations.as_ref().and_then(|annotations| annotations.get(INJECT));
    let annotations: BTreeMap<_, _> = inject_annotation.map(|word| (INJECT, word)).into_iter().collect();
    json!({
        "metadata": {
            "name": pod.metadata.name,
            "namespace": pod.metadata.namespace,
            "labels": pod.metadata.labels,
            "annotations": annotations,
        },
        "spec": {
            "containers": names(spec.iter().flat_map(|spec| &spec.containers).collect()),
            "initContainers": names(spec.iter().flat_map(|spec| spec.init_containers.iter().flatten()).collect()),
        },
        "status": {"phase": pod.status.as_ref().and_then(|status| status.phase.as_ref())},
        // These keys are not fields of a Pod.
        "around": objects.bypasses_of(&cluster_state::from_pod(pod).1),
        "remedy": objects.remedy(&cluster_state::from_pod(pod).1),
        "trouble": pod_problem(pod),
    })
}

/// Creates a pod that requests a sidecar, as a dry run: the API server calls the webhook as it does
/// for any other pod.
pub(super) async fn dry_run_injection(client: &Client, namespace: &str, controller: &Value) -> Result<Value, String> {
    // Nothing runs, but an admission controller that verifies images must find one that exists,
    // hence the image of the controller.
    let image = controller.pointer("/spec/template/spec/containers/0/image").and_then(Value::as_str);
    let pod = json!({
        "metadata": {"generateName": "groupage-check-", "annotations": {INJECT: "enabled"}},
        "spec": {
            "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{
                "name": "model",
                "image": image.unwrap_or(concat!("groupage.dev/groupage:", env!("CARGO_PKG_VERSION"))),
                "ports": [{"name": "http", "containerPort": 8080}],
                "resources": {"requests": {"cpu": "1m", "memory": "1Mi"}, "limits": {"cpu": "1m", "memory": "1Mi"}},
                "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
            }],
        },
    });
    let pod: Pod = serde_json::from_value(pod).map_err(|error| error.to_string())?;
    let only = PostParams { dry_run: true, ..PostParams::default() };
    let made = Api::<Pod>::namespaced(client.clone(), namespace).create(&only, &pod).await;
    made.map(|pod| json!(pod)).map_err(|error| describe_api_error(&error))
}

fn to_values<T: serde::Serialize + Clone>(list: kube::core::ObjectList<T>) -> Vec<Value> {
    list.items.into_iter().map(|item| json!(item)).collect()
}

fn to_values_opt<T: serde::Serialize>(found: Option<T>) -> Vec<Value> {
    found.into_iter().map(|item| json!(item)).collect()
}
