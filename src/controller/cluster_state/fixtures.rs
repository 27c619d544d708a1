//! Builders of cluster states for tests.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{
    ClusterState, Namespace, ObjectKey, ObjectMetadata, ObjectTable, OwnerObject, OwnerRef, Pod, Policy, Profile,
};
use crate::api::v1alpha1::{BatchPolicyStatus, BatchProfileStatus};

pub(crate) fn insert<T: Clone>(table: &mut ObjectTable<T>, key: ObjectKey, value: T) {
    Arc::make_mut(table).insert(key, Arc::new(value));
}

pub(crate) fn meta(namespace: &str, name: &str) -> ObjectMetadata {
    ObjectMetadata {
        key: ObjectKey::new(namespace, name),
        uid: format!("uid-{name}"),
        generation: 1,
        created: String::new(),
    }
}

pub(crate) fn owner_of(uid: &str, owner: Option<OwnerRef>) -> OwnerObject {
    OwnerObject { uid: uid.to_owned(), owner }
}

pub(crate) fn deployment(name: &str) -> OwnerRef {
    let uid = format!("uid-{name}");
    OwnerRef { api_version: "apps/v1".into(), kind: "Deployment".into(), name: name.into(), uid }
}

pub(crate) fn labels(pairs: &[(&str, &str)]) -> std::collections::BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

/// Returns the spec of a policy that selects the pods with a label `app`, with further keys.
pub(crate) fn spec_for(app: &str, keys: &Value) -> Value {
    let mut spec = json!({"selector": {"matchLabels": {"app": app}}});
    spec.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
    spec
}

/// Adds a policy with a creation second and a spec in its YAML form.
pub(crate) fn policy(cluster: &mut ClusterState, namespace: &str, name: &str, second: u32, spec: Value) {
    let created = format!("2026-11-22T00:00:{second:02}Z");
    let spec = serde_json::from_value(spec).map_err(|error| error.to_string());
    let meta = ObjectMetadata { created, ..meta(namespace, name) };
    insert(
        &mut cluster.policies,
        meta.key.clone(),
        Policy { meta, annotations: labels(&[]), spec, invalid: None, status: BatchPolicyStatus::default() },
    );
}

pub(crate) fn profile(cluster: &mut ClusterState, namespace: &str, name: &str, spec: Value) {
    let meta = meta(namespace, name);
    let spec = serde_json::from_value(spec).map_err(|error| error.to_string());
    let status = BatchProfileStatus::default();
    insert(&mut cluster.profiles, meta.key.clone(), Profile { meta, spec, status, owner: None, is_deleting: false });
}

/// Creates a ready pod.
pub(crate) fn pod(namespace: &str, name: &str, pairs: &[(&str, &str)]) -> Pod {
    Pod { meta: meta(namespace, name), labels: labels(pairs), ready: true, ..Pod::default() }
}

pub(crate) fn injected(cluster: &mut ClusterState, pod: Pod) {
    insert(&mut cluster.pods, pod.meta.key.clone(), pod);
}

pub(crate) fn uninjected(cluster: &mut ClusterState, pod: Pod) {
    insert(&mut cluster.uninjected_pods, pod.meta.key.clone(), pod);
}

pub(crate) fn namespace(cluster: &mut ClusterState, name: &str, pairs: &[(&str, &str)]) {
    insert(
        &mut cluster.namespaces,
        ObjectKey::new("", name),
        Namespace { labels: labels(pairs), ..Namespace::default() },
    );
}
