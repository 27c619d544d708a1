//! What is known of the cluster: small plain values, cut from objects as they come in.
//!
//! Everything that decides (`attach`, `recompute`, the webhook) is a function of a [`World`]. It holds of each object what some decision looks at and nothing
//! else, so ten thousand pods are some megabytes. A clone is a few pointers; a table is copied only where somebody still holds the one before.

mod read;
mod unmoved;

#[cfg(test)]
pub(crate) mod build;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

pub use self::read::{
    from_namespace, from_node, from_owner, from_pod, from_pod_metadata, from_policy, from_profile, from_referrer, minor,
};
pub use self::unmoved::recipe_failure;
use crate::api::v1alpha1::{BatchPolicySpec, BatchPolicyStatus, BatchProfileSpec, BatchProfileStatus};

/// Namespace and name; the namespace is empty for what has none.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Key {
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
}

/// The objects of a kind.
pub type Table<T> = Arc<BTreeMap<Key, Arc<T>>>;

/// What is known of the cluster.
#[derive(Debug, Clone, Default)]
pub struct World {
    /// `BatchPolicy`s.
    pub policies: Table<Policy>,
    /// `BatchProfile`s.
    pub profiles: Table<Profile>,
    /// Namespaces, by name alone.
    pub namespaces: Table<Namespace>,
    /// Pods with a sidecar.
    pub pods: Table<Pod>,
    /// Pods without.
    pub bare: Table<Pod>,
    /// Services as they are, without what no decision looks at.
    pub services: Table<Value>,
    /// `NetworkPolicy`s likewise.
    pub networks: Table<Value>,
    /// `InferencePool`s likewise; `None` where the kind is not installed.
    pub pools: Option<Table<Value>>,
    /// `InferenceService`s; `None` where the kind is not installed.
    pub inference_services: Option<Table<Owner>>,
    /// Deployments.
    pub deployments: Table<Owner>,
    /// `StatefulSet`s.
    pub stateful_sets: Table<Owner>,
    /// `DaemonSet`s.
    pub daemon_sets: Table<Owner>,
    /// `ReplicaSet`s.
    pub replica_sets: Table<Owner>,
    /// Nodes.
    pub nodes: Table<Node>,
    /// Whether the API server is one that knows native sidecars whole; `None` until it was asked.
    pub server_native: Option<bool>,
    /// Whether everything was listed once.
    pub synced: bool,
}

/// What every object has.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Meta {
    /// Namespace and name.
    pub key: Key,
    /// The UID.
    pub uid: String,
    /// The generation of its spec.
    pub generation: i64,
    /// When it was made, RFC 3339 in UTC, so that texts compare as times.
    pub created: String,
}

/// A reference to what made an object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct OwnerRef {
    /// `apps/v1` and the like.
    pub api_version: String,
    /// Its kind.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
}

/// A `BatchPolicy`.
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    /// What every object has.
    pub meta: Meta,
    /// Those of its annotations that are ours.
    pub annotations: BTreeMap<String, String>,
    /// What it says, or why that cannot be read.
    pub spec: Result<BatchPolicySpec, String>,
    /// What is wrong with it, found by the loader that a local file goes through.
    pub invalid: Option<String>,
    /// What was said of it last; nothing where that cannot be read.
    pub status: BatchPolicyStatus,
}

/// A `BatchProfile`.
#[derive(Debug, Clone, PartialEq)]
pub struct Profile {
    /// What every object has.
    pub meta: Meta,
    /// What it says, or why that cannot be read.
    pub spec: Result<BatchProfileSpec, String>,
    /// What was said of it last.
    pub status: BatchProfileStatus,
    /// The UID of the policy that it was generated for.
    pub owner: Option<String>,
    /// Whether somebody deletes it already.
    pub ending: bool,
}

/// A namespace.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Namespace {
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its annotations; a mesh may be asked for there.
    pub annotations: BTreeMap<String, String>,
}

/// Something that pods or their owners are made by.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Owner {
    /// Its UID.
    pub uid: String,
    /// What made it.
    pub owner: Option<OwnerRef>,
}

/// A pod.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pod {
    /// What every object has.
    pub meta: Meta,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Those of its annotations that are ours.
    pub annotations: BTreeMap<String, String>,
    /// What made it.
    pub owner: Option<OwnerRef>,
    /// The node that it runs on.
    pub node: Option<String>,
    /// Whether all of it is ready.
    pub ready: bool,
    /// Its application does not come up where a recipe has moved it.
    pub recipe_failure: Option<String>,
    /// Whether somebody deletes it already.
    pub ending: bool,
}

/// A node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Node {
    /// Its kubelet's minor version, of major version 1.
    pub kubelet: Option<u32>,
    /// The kind of machine: the accelerator where a label names one, else the instance type.
    pub machine: Option<String>,
}

/// The minor version whose kubelets run native sidecars with named ports that reach Services.
pub const NATIVE_SINCE: u32 = 33;

// === impl Key ===

impl Key {
    /// A key of a namespace and a name.
    #[must_use]
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.namespace.is_empty() { f.write_str(&self.name) } else { write!(f, "{}/{}", self.namespace, self.name) }
    }
}

// === impl World ===

impl World {
    /// Whether pods may get the native form: the API server and every kubelet know it. Where nothing is known of a node, it does not.
    #[must_use]
    pub fn native(&self) -> bool {
        self.server_native == Some(true)
            && self.nodes.values().all(|node| node.kubelet.is_some_and(|minor| minor >= NATIVE_SINCE))
    }

    /// The labels of a namespace.
    #[must_use]
    pub fn namespace_labels(&self, name: &str) -> Option<&BTreeMap<String, String>> {
        self.namespaces.get(&Key::new("", name)).map(|namespace| &namespace.labels)
    }

    /// The annotations of a namespace.
    #[must_use]
    pub fn namespace_annotations(&self, name: &str) -> Option<&BTreeMap<String, String>> {
        self.namespaces.get(&Key::new("", name)).map(|namespace| &namespace.annotations)
    }

    /// The workload that a pod with these labels belongs to: a `ReplicaSet` of a Deployment stands for the Deployment.
    ///
    /// The first pods of a rollout may be asked about before their `ReplicaSet` was seen. Its name then says whose it is: a Deployment names it after itself
    /// and the hash that it gives the pods as a label. Where that Deployment was not seen either, it has no UID.
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
        if let Some(set) = self.replica_sets.get(&Key::new(namespace, &owner.name)) {
            return Some(set.owner.clone().unwrap_or_else(|| owner.clone()));
        }
        let hash = labels.get("pod-template-hash").filter(|hash| !hash.is_empty());
        let name = hash.and_then(|hash| owner.name.strip_suffix(hash.as_str())?.strip_suffix('-'));
        let Some(name) = name.filter(|name| !name.is_empty()) else { return Some(owner.clone()) };
        let deployment = self.deployments.get(&Key::new(namespace, name));
        Some(OwnerRef {
            api_version: "apps/v1".to_owned(),
            kind: "Deployment".to_owned(),
            name: name.to_owned(),
            uid: deployment.map(|deployment| deployment.uid.clone()).unwrap_or_default(),
        })
    }

    /// A pod with a sidecar by what its token says: all three have to be its own.
    #[must_use]
    pub fn pod(&self, key: &Key, uid: &str) -> Option<&Arc<Pod>> {
        self.pods.get(key).filter(|pod| pod.meta.uid == uid)
    }

    /// The kind of machine that a pod runs on.
    #[must_use]
    pub fn machine(&self, pod: &Pod) -> Option<&str> {
        self.nodes.get(&Key::new("", pod.node.as_deref()?))?.machine.as_deref()
    }
}

/// What a table holds of one namespace.
pub fn within<'a, T>(table: &'a Table<T>, namespace: &'a str) -> impl Iterator<Item = (&'a Key, &'a Arc<T>)> {
    table.range(Key::new(namespace, "")..).take_while(move |(key, _)| key.namespace == namespace)
}

#[cfg(test)]
mod tests {
    use super::build::*;
    use super::*;

    #[test]
    fn the_native_form_needs_the_api_server_and_every_kubelet() {
        let mut world = World { server_native: Some(true), ..World::default() };
        assert!(world.native(), "no node, nothing against it");
        insert(&mut world.nodes, Key::new("", "a"), Node { kubelet: Some(33), machine: None });
        assert!(world.native());
        insert(&mut world.nodes, Key::new("", "b"), Node { kubelet: Some(32), machine: None });
        assert!(!world.native());
        insert(&mut world.nodes, Key::new("", "b"), Node { kubelet: None, machine: None });
        assert!(!world.native());
        world.nodes = Table::default();
        world.server_native = None;
        assert!(!world.native());
    }

    #[test]
    fn a_pod_of_a_replica_set_belongs_to_its_deployment() {
        let mut world = World::default();
        insert(&mut world.replica_sets, Key::new("a", "emb-1"), owner_of("u1", Some(deployment("emb"))));
        insert(&mut world.replica_sets, Key::new("a", "bare"), owner_of("u2", None));
        let set = |name: &str| OwnerRef { kind: "ReplicaSet".into(), name: name.into(), ..OwnerRef::default() };
        let none = labels(&[]);
        assert_eq!(world.workload("a", Some(&set("emb-1")), &none), Some(deployment("emb")));
        assert_eq!(world.workload("a", Some(&set("bare")), &none), Some(set("bare")));
        assert_eq!(world.workload("b", Some(&set("emb-1")), &none), Some(set("emb-1")), "another namespace's");
        assert_eq!(world.workload("a", None, &none), None);
    }

    #[test]
    fn a_pod_whose_replica_set_was_not_seen_yet_belongs_to_the_deployment_that_its_names_say() {
        let mut world = World::default();
        let set = |name: &str| OwnerRef { kind: "ReplicaSet".into(), name: name.into(), ..OwnerRef::default() };
        let hash = labels(&[("pod-template-hash", "7f9c")]);
        let unseen = OwnerRef { uid: String::new(), ..deployment("emb") };
        assert_eq!(world.workload("a", Some(&set("emb-7f9c")), &hash), Some(unseen));
        insert(&mut world.deployments, Key::new("a", "emb"), owner_of("uid-emb", None));
        assert_eq!(world.workload("a", Some(&set("emb-7f9c")), &hash), Some(deployment("emb")));
        for other in ["emb-1", "7f9c", "-7f9c", "emb7f9c"] {
            assert_eq!(world.workload("a", Some(&set(other)), &hash), Some(set(other)));
        }
        insert(&mut world.replica_sets, Key::new("a", "own-7f9c"), owner_of("u", None));
        assert_eq!(world.workload("a", Some(&set("own-7f9c")), &hash), Some(set("own-7f9c")), "it is known better");
    }

    #[test]
    fn a_namespace_is_a_range_of_its_table() {
        let mut table = Table::default();
        for (namespace, name) in [("a", "x"), ("a-b", "x"), ("aa", "x"), ("a", "y")] {
            insert(&mut table, Key::new(namespace, name), 1);
        }
        let names: Vec<_> = within(&table, "a").map(|(key, _)| key.name.as_str()).collect();
        assert_eq!(names, ["x", "y"]);
    }
}
