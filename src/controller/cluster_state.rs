//! The observed cluster state: small plain values extracted from objects as they arrive.
//!
//! Every decision (`matching`, `recompute`, the webhook) is a function of a [`ClusterState`]. It
//! holds only the parts of an object that some decision reads, so ten thousand pods take a few
//! megabytes. A clone copies a few pointers; a table is copied on write only while an older
//! snapshot still references it.

mod convert;
mod recipe_failure;

#[cfg(test)]
pub(crate) mod fixtures;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

pub use self::convert::{
    from_namespace, from_node, from_owner, from_pod, from_pod_metadata, from_policy, from_profile, from_referrer,
    parse_minor_version,
};
pub use self::recipe_failure::recipe_failure;
use crate::api::v1alpha1::{BatchPolicySpec, BatchPolicyStatus, BatchProfileSpec, BatchProfileStatus};

/// Namespace and name of an object; the namespace is empty for cluster-scoped objects.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ObjectKey {
    /// Empty for a cluster-scoped object.
    pub namespace: String,
    /// Unique in the namespace among objects of one kind.
    pub name: String,
}

/// All objects of one kind, shared between snapshots.
pub type ObjectTable<T> = Arc<BTreeMap<ObjectKey, Arc<T>>>;

/// A snapshot of the cluster.
#[derive(Debug, Clone, Default)]
pub struct ClusterState {
    /// `BatchPolicy`s.
    pub policies: ObjectTable<Policy>,
    /// `BatchProfile`s.
    pub profiles: ObjectTable<Profile>,
    /// Namespaces, keyed by name alone.
    pub namespaces: ObjectTable<Namespace>,
    /// Injected pods.
    pub pods: ObjectTable<Pod>,
    /// Pods without a sidecar.
    pub uninjected_pods: ObjectTable<Pod>,
    /// Services as objects, reduced to the fields that a decision reads.
    pub services: ObjectTable<Value>,
    /// `NetworkPolicy`s, reduced likewise.
    pub network_policies: ObjectTable<Value>,
    /// `InferencePool`s, reduced likewise; `None` if the kind is not installed.
    pub pools: Option<ObjectTable<Value>>,
    /// `InferenceService`s; `None` if the kind is not installed.
    pub inference_services: Option<ObjectTable<OwnerObject>>,
    /// Deployments, to which policies refer and which own the `ReplicaSet`s of pods.
    pub deployments: ObjectTable<OwnerObject>,
    /// `StatefulSet`s.
    pub stateful_sets: ObjectTable<OwnerObject>,
    /// `DaemonSet`s.
    pub daemon_sets: ObjectTable<OwnerObject>,
    /// `ReplicaSet`s.
    pub replica_sets: ObjectTable<OwnerObject>,
    /// Nodes, keyed by name alone.
    pub nodes: ObjectTable<Node>,
    /// `true` if the API server fully supports native sidecars; `None` until its version is known.
    pub server_native: Option<bool>,
    /// `true` once every mandatory kind was listed.
    pub is_synced: bool,
}

/// Metadata common to all objects.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ObjectMetadata {
    /// Namespace and name.
    pub key: ObjectKey,
    /// Identifies the object among those that had the same name.
    pub uid: String,
    /// The generation of the spec.
    pub generation: i64,
    /// Creation time in RFC 3339 and UTC, so that comparing the strings compares the times.
    pub created: String,
}

/// A reference to the controlling owner of an object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct OwnerRef {
    /// API version, for example `apps/v1`.
    pub api_version: String,
    /// Kind of the owner, for example `ReplicaSet`.
    pub kind: String,
    /// Name of the owner, in the namespace of the object.
    pub name: String,
    /// UID of the owner; it differs from that of a deleted owner of the same name.
    pub uid: String,
}

/// A `BatchPolicy`.
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    /// Common metadata.
    pub meta: ObjectMetadata,
    /// Annotations with the prefix `groupage.dev/`.
    pub annotations: BTreeMap<String, String>,
    /// The spec, or the error of parsing it.
    pub spec: Result<BatchPolicySpec, String>,
    /// Validation error, found by the loader that also validates a local policy file.
    pub invalid: Option<String>,
    /// The last status; empty if it cannot be parsed.
    pub status: BatchPolicyStatus,
}

/// A `BatchProfile`.
#[derive(Debug, Clone, PartialEq)]
pub struct Profile {
    /// Common metadata.
    pub meta: ObjectMetadata,
    /// The spec, or the error of parsing it.
    pub spec: Result<BatchProfileSpec, String>,
    /// The last status.
    pub status: BatchProfileStatus,
    /// UID of the policy that generated the profile.
    pub owner: Option<String>,
    /// `true` if the profile is being deleted.
    pub is_deleting: bool,
}

/// A namespace.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Namespace {
    /// Labels, one of which may request or forbid injection for its pods.
    pub labels: BTreeMap<String, String>,
    /// Its annotations; a service mesh may be enabled there.
    pub annotations: BTreeMap<String, String>,
}

/// An object that owns pods or other owners.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OwnerObject {
    /// UID to which the references of owned objects point.
    pub uid: String,
    /// The controlling owner.
    pub owner: Option<OwnerRef>,
}

/// A pod.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pod {
    /// Common metadata.
    pub meta: ObjectMetadata,
    /// Labels, which the selectors of policies and Services match.
    pub labels: BTreeMap<String, String>,
    /// Annotations with the prefix `groupage.dev/`.
    pub annotations: BTreeMap<String, String>,
    /// The controlling owner.
    pub owner: Option<OwnerRef>,
    /// The node that it runs on.
    pub node: Option<String>,
    /// `true` if the pod's condition `Ready` is true.
    pub ready: bool,
    /// Description of the failure if the application does not start at the listen address to which
    /// a recipe has moved it.
    pub recipe_failure: Option<String>,
    /// `true` if the pod is being deleted.
    pub ending: bool,
}

/// A node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Node {
    /// Minor version of its kubelet, where the major version is 1.
    pub kubelet: Option<u32>,
    /// Machine type: the accelerator if a label names one, otherwise the instance type.
    pub machine: Option<String>,
}

/// First minor version of Kubernetes 1 with kubelets that run native sidecars with named ports that
/// Services can target.
pub const NATIVE_SIDECAR_MINOR_MIN: u32 = 33;

// === impl ObjectKey ===

impl ObjectKey {
    /// Creates a key from a namespace and a name.
    #[must_use]
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl std::fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.namespace.is_empty() { f.write_str(&self.name) } else { write!(f, "{}/{}", self.namespace, self.name) }
    }
}

// === impl ClusterState ===

impl ClusterState {
    /// Returns `true` if pods may get the native sidecar form: the API server and every kubelet
    /// support it. A node of unknown version counts as not supporting it.
    #[must_use]
    pub fn supports_native_sidecars(&self) -> bool {
        self.server_native == Some(true)
            && self.nodes.values().all(|node| node.kubelet.is_some_and(|minor| minor >= NATIVE_SIDECAR_MINOR_MIN))
    }

    /// Returns the labels of a namespace.
    #[must_use]
    pub fn namespace_labels(&self, name: &str) -> Option<&BTreeMap<String, String>> {
        self.namespaces.get(&ObjectKey::new("", name)).map(|namespace| &namespace.labels)
    }

    /// Returns the annotations of a namespace.
    #[must_use]
    pub fn namespace_annotations(&self, name: &str) -> Option<&BTreeMap<String, String>> {
        self.namespaces.get(&ObjectKey::new("", name)).map(|namespace| &namespace.annotations)
    }

    /// Returns the workload of a pod with these labels. A `ReplicaSet` that belongs to a Deployment
    /// is replaced by the Deployment.
    ///
    /// The first pods of a rollout may be admitted before their `ReplicaSet` was observed. The name
    /// of the Deployment is then derived: a `ReplicaSet` is named after its Deployment and the
    /// `pod-template-hash` that is also a label of the pods. The UID is empty if the Deployment was
    /// not observed either.
    #[must_use]
    pub fn workload(
        &self,
        namespace: &str,
        owner: Option<&OwnerRef>,
        labels: &BTreeMap<String, String>,
    ) -> Option<OwnerRef> {
        let owner = owner?;
        if owner.kind != "ReplicaSet" {
            return Some(owner.clone());
        }
        if let Some(set) = self.replica_sets.get(&ObjectKey::new(namespace, &owner.name)) {
            return Some(set.owner.clone().unwrap_or_else(|| owner.clone()));
        }
        let hash = labels.get("pod-template-hash").filter(|hash| !hash.is_empty());
        let name = hash.and_then(|hash| owner.name.strip_suffix(hash.as_str())?.strip_suffix('-'));
        let Some(name) = name.filter(|name| !name.is_empty()) else { return Some(owner.clone()) };
        let deployment = self.deployments.get(&ObjectKey::new(namespace, name));
        Some(OwnerRef {
            api_version: "apps/v1".to_owned(),
            kind: "Deployment".to_owned(),
            name: name.to_owned(),
            uid: deployment.map(|deployment| deployment.uid.clone()).unwrap_or_default(),
        })
    }

    /// Returns the injected pod that a token identifies. Namespace, name and UID must all match.
    #[must_use]
    pub fn find_pod(&self, key: &ObjectKey, uid: &str) -> Option<&Arc<Pod>> {
        self.pods.get(key).filter(|pod| pod.meta.uid == uid)
    }

    /// Returns the machine type of the node that a pod runs on.
    #[must_use]
    pub fn machine(&self, pod: &Pod) -> Option<&str> {
        self.nodes.get(&ObjectKey::new("", pod.node.as_deref()?))?.machine.as_deref()
    }
}

/// Returns the entries of a table in one namespace.
pub fn in_namespace<'a, T>(
    table: &'a ObjectTable<T>,
    namespace: &'a str,
) -> impl Iterator<Item = (&'a ObjectKey, &'a Arc<T>)> {
    table.range(ObjectKey::new(namespace, "")..).take_while(move |(key, _)| key.namespace == namespace)
}

#[cfg(test)]
mod tests;
