//! Extracts the fields that decisions read from objects of the API server.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{self as core, Node as CoreNode};
use kube::api::{DynamicObject, ObjectMeta};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::recipe_failure::recipe_failure;
use super::{Namespace, Node, ObjectKey, ObjectMetadata, OwnerObject, OwnerRef, Pod, Policy, Profile};
use crate::api::v1alpha1::BatchPolicySpec;

/// Prefix of Groupage's labels and annotations.
const ANNOTATION_PREFIX: &str = "groupage.dev/";

/// Labels that describe a machine, the most specific first. The instance type is on every node of a
/// cloud.
const MACHINE_TYPE_LABELS: [&str; 5] = [
    "nvidia.com/gpu.product",
    "cloud.google.com/gke-accelerator",
    "amd.com/gpu.product-name",
    "node.kubernetes.io/instance-type",
    "beta.kubernetes.io/instance-type",
];

fn key(meta: &ObjectMeta) -> ObjectKey {
    ObjectKey::new(meta.namespace.clone().unwrap_or_default(), meta.name.clone().unwrap_or_default())
}

fn meta(meta: &ObjectMeta) -> ObjectMetadata {
    let created = meta.creation_timestamp.as_ref().and_then(|time| serde_json::to_value(time).ok());
    ObjectMetadata {
        key: key(meta),
        uid: meta.uid.clone().unwrap_or_default(),
        generation: meta.generation.unwrap_or_default(),
        created: created.and_then(|time| time.as_str().map(str::to_owned)).unwrap_or_default(),
    }
}

/// Returns the owner reference that is marked as controller.
fn owner(meta: &ObjectMeta) -> Option<OwnerRef> {
    let owners = meta.owner_references.as_deref()?;
    let owner = owners.iter().find(|owner| owner.controller == Some(true))?;
    Some(OwnerRef {
        api_version: owner.api_version.clone(),
        kind: owner.kind.clone(),
        name: owner.name.clone(),
        uid: owner.uid.clone(),
    })
}

fn own_annotations(all: Option<&BTreeMap<String, String>>) -> BTreeMap<String, String> {
    let ours = all.into_iter().flatten().filter(|(key, _)| key.starts_with(ANNOTATION_PREFIX));
    ours.map(|(key, value)| (key.clone(), value.clone())).collect()
}

fn parse_field<T: DeserializeOwned + Default>(object: &DynamicObject, name: &str) -> Result<T, String> {
    let part = object.data.get(name).filter(|part| !part.is_null());
    part.map_or_else(|| Ok(T::default()), |part| T::deserialize(part).map_err(|error| error.to_string()))
}

/// Converts a `BatchPolicy`. A policy that this version cannot parse is kept, with the error as its
/// spec.
#[must_use]
pub fn from_policy(object: &DynamicObject) -> (ObjectKey, Policy) {
    let meta = meta(&object.metadata);
    let status = parse_field(object, "status").unwrap_or_default();
    let spec = parse_field(object, "spec");
    let invalid = match &spec {
        Ok(spec) => validation_error(spec, &meta.key),
        Err(error) => Some(error.clone()),
    };
    (
        meta.key.clone(),
        Policy { meta, annotations: own_annotations(object.metadata.annotations.as_ref()), spec, invalid, status },
    )
}

/// Returns the loader's errors about a spec. Unknown keys were dropped by then: an older controller
/// must be able to read newer objects.
fn validation_error(spec: &BatchPolicySpec, key: &ObjectKey) -> Option<String> {
    let text = serde_json::to_string(spec).ok()?;
    let errors = crate::config::load(&text, &key.name).err()?;
    let mut findings = errors.findings.iter().map(|finding| {
        let allowed = finding.allowed.as_ref().map(|allowed| format!(" (allowed: {allowed})")).unwrap_or_default();
        let path = if finding.path.is_empty() { String::new() } else { format!("{}: ", finding.path) };
        format!("{} {path}{}{allowed}", finding.code.as_str(), finding.message)
    });
    let first = findings.next()?;
    let more = findings.count();
    Some(if more == 0 { first } else { format!("{first}; and {more} more") })
}

/// Converts a `BatchProfile`.
#[must_use]
pub fn from_profile(object: &DynamicObject) -> (ObjectKey, Profile) {
    let owner = owner(&object.metadata).filter(|owner| owner.kind == "BatchPolicy").map(|owner| owner.uid);
    let ending = object.metadata.deletion_timestamp.is_some();
    let meta = meta(&object.metadata);
    let status = parse_field(object, "status").unwrap_or_default();
    (meta.key.clone(), Profile { meta, spec: parse_field(object, "spec"), status, owner, is_deleting: ending })
}

/// Converts the metadata of a namespace.
#[must_use]
pub fn from_namespace(metadata: ObjectMeta) -> (ObjectKey, Namespace) {
    (
        key(&metadata),
        Namespace {
            labels: metadata.labels.unwrap_or_default(),
            annotations: metadata.annotations.unwrap_or_default(),
        },
    )
}

/// Converts the metadata of a Deployment, `ReplicaSet` or other owner.
#[must_use]
pub fn from_owner(metadata: &ObjectMeta) -> (ObjectKey, OwnerObject) {
    (key(metadata), OwnerObject { uid: metadata.uid.clone().unwrap_or_default(), owner: owner(metadata) })
}

/// Converts a pod without a sidecar, of which only the metadata is watched.
#[must_use]
pub fn from_pod_metadata(metadata: &ObjectMeta) -> (ObjectKey, Pod) {
    let pod = Pod {
        meta: meta(metadata),
        labels: metadata.labels.clone().unwrap_or_default(),
        annotations: own_annotations(metadata.annotations.as_ref()),
        owner: owner(metadata),
        ending: metadata.deletion_timestamp.is_some(),
        ..Pod::default()
    };
    (pod.meta.key.clone(), pod)
}

/// Converts an injected pod.
#[must_use]
pub fn from_pod(object: &core::Pod) -> (ObjectKey, Pod) {
    let (key, pod) = from_pod_metadata(&object.metadata);
    let conditions = object.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let ready = conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True");
    let node = object.spec.as_ref().and_then(|spec| spec.node_name.clone());
    (key, Pod { node, ready, recipe_failure: recipe_failure(object), ..pod })
}

/// Converts a node.
#[must_use]
pub fn from_node(object: &CoreNode) -> (ObjectKey, Node) {
    let version = object.status.as_ref().and_then(|status| status.node_info.as_ref()).map(|info| &info.kubelet_version);
    let labels = object.metadata.labels.as_ref();
    let machine = labels.and_then(|labels| MACHINE_TYPE_LABELS.iter().find_map(|label| labels.get(*label).cloned()));
    (key(&object.metadata), Node { kubelet: version.and_then(|version| parse_minor_version(version)), machine })
}

/// Parses the minor version of a string such as `v1.33.4+k3s1`.
#[must_use]
pub fn parse_minor_version(version: &str) -> Option<u32> {
    let digits = version.strip_prefix("v1.")?.split(|letter: char| !letter.is_ascii_digit()).next()?;
    digits.parse().ok()
}

/// Converts a Service, `InferencePool` or `NetworkPolicy` to the form that the injector reads:
/// kind, names and spec. The kind is passed in because items of a list do not contain it.
#[must_use]
pub fn from_referrer(api_version: &str, kind: &str, object: DynamicObject) -> (ObjectKey, Value) {
    let key = key(&object.metadata);
    let mut data = object.data;
    let spec = data.get_mut("spec").map(Value::take).unwrap_or_default();
    let metadata: Value = [("name", key.name.as_str()), ("namespace", key.namespace.as_str())].into_iter().collect();
    let referrer: [(&str, Value); 4] =
        [("apiVersion", api_version.into()), ("kind", kind.into()), ("metadata", metadata), ("spec", spec)];
    (key, referrer.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(value: Value) -> DynamicObject {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn an_invalid_policy_has_an_error_and_an_invalid_status_is_empty() {
        let (key, policy) = from_policy(&object(json!({
            "metadata": {"name": "p", "namespace": "n", "uid": "u", "generation": 3, "creationTimestamp": "2026-11-22T10:00:00Z"},
            "spec": {"limits": {"batchItemsMax": "many"}}, "status": {"conditions": 5},
        })));
        assert_eq!((key.to_string().as_str(), policy.meta.generation), ("n/p", 3));
        assert_eq!(policy.meta.created, "2026-11-22T10:00:00Z");
        assert!(policy.spec.unwrap_err().contains("invalid type"), "the error names the cause");
        assert_eq!(policy.status, Default::default());
        let (_, newer) =
            from_policy(&object(json!({"metadata": {"name": "p"}, "spec": {"mode": "Clever", "later": 1}})));
        assert!(newer.spec.is_ok(), "values and keys of a newer version are not an error");
        assert!(newer.invalid.unwrap().contains("mode"), "but an unknown value cannot be applied");
        let (_, keys) = from_policy(&object(json!({"metadata": {"name": "p"}, "spec": {"later": 1}})));
        assert_eq!(keys.invalid, None);
        let (_, wrong) =
            from_policy(&object(json!({"metadata": {"name": "p"}, "spec": {"limits": {"batchItemsMax": 0}}})));
        assert!(wrong.invalid.unwrap().starts_with("GRP1"));
        let whole = json!({"selector": {"matchLabels": {"app": "x"}}, "slo": {"latencyP99": "150ms"}, "tuning": {"mode": "Auto"},
            "rollout": {"strategy": "Immediate"}, "injection": {"capture": "Auto"}});
        let (_, right) = from_policy(&object(json!({"metadata": {"name": "p"}, "spec": whole})));
        assert_eq!(right.invalid, None);
    }

    #[test]
    fn a_converted_pod_keeps_own_annotations_controller_and_readiness() {
        let pod: core::Pod = serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "n", "labels": {"app": "x"},
                "annotations": {"groupage.dev/inject": "enabled", "other": "x"},
                "ownerReferences": [
                    {"apiVersion": "v1", "kind": "Other", "name": "o", "uid": "1"},
                    {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "2", "controller": true}]},
            "spec": {"nodeName": "a", "containers": []},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]},
        }))
        .unwrap();
        let (_, pod) = from_pod(&pod);
        assert_eq!(pod.annotations.keys().collect::<Vec<_>>(), ["groupage.dev/inject"]);
        assert_eq!(pod.owner.map(|owner| owner.name), Some("r".to_owned()));
        assert_eq!((pod.node.as_deref(), pod.ready, pod.ending), (Some("a"), true, false));
    }

    #[test]
    fn kubelet_versions_are_parsed_with_the_suffix_of_any_vendor() {
        assert_eq!(parse_minor_version("v1.33.4+k3s1"), Some(33));
        assert_eq!(parse_minor_version("v1.29.0-gke.1381000"), Some(29));
        assert_eq!(parse_minor_version("1.33"), None);
        assert_eq!(parse_minor_version("v2.1.0"), None);
    }

    #[test]
    fn the_accelerator_takes_precedence_over_the_instance_type() {
        let node: CoreNode = serde_json::from_value(json!({
            "metadata": {"name": "a", "labels": {"node.kubernetes.io/instance-type": "g5.xlarge", "nvidia.com/gpu.product": "NVIDIA-A10G"}},
            "status": {"nodeInfo": {"kubeletVersion": "v1.34.1", "architecture": "", "bootID": "", "containerRuntimeVersion": "",
                "kernelVersion": "", "kubeProxyVersion": "", "machineID": "", "operatingSystem": "", "osImage": "", "systemUUID": ""}},
        }))
        .unwrap();
        assert_eq!(from_node(&node).1, Node { kubelet: Some(34), machine: Some("NVIDIA-A10G".to_owned()) });
    }

    #[test]
    fn a_converted_service_keeps_kind_names_and_spec() {
        let (key, service) = from_referrer(
            "v1",
            "Service",
            object(json!({
                "metadata": {"name": "s", "namespace": "n", "annotations": {"a": "b"}, "managedFields": []},
                "spec": {"selector": {"app": "x"}}, "status": {"loadBalancer": {}},
            })),
        );
        assert_eq!(key, ObjectKey::new("n", "s"));
        assert_eq!(
            service,
            json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s", "namespace": "n"},
            "spec": {"selector": {"app": "x"}}})
        );
    }
}
