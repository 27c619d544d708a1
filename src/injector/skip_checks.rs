//! Checks that precede the planning of an injection.

use serde_json::Value;

use super::access::{at, list, text};
use super::names::{STATE_VOLUME, TOKEN_VOLUME};
use super::{COMPONENT, CONTAINER, InjectionContext, REDIRECT, STATUS, SkipReason, SkippedPod, shape};

/// Checks that precede planning. `pod` is the pod without the sidecar.
pub(super) fn before(pod: &Value, context: &InjectionContext) -> Option<SkippedPod> {
    let spec = at(pod, &["spec"]);
    let annotations = at(pod, &["metadata", "annotations"]);
    let labels = at(pod, &["metadata", "labels"]);
    let owners = list(pod, &["metadata", "ownerReferences"]);
    let namespace = context.namespace.name.as_str();
    let is_ours = !namespace.is_empty() && namespace == context.own_namespace;
    if namespace == "kube-system" || is_ours || labels.get(COMPONENT).is_some() {
        return Some(SkipReason::Excluded.with_detail("pods of the system and of Groupage itself are never injected"));
    }
    if let Some(skipped) = shape::check(pod) {
        return Some(skipped);
    }
    if at(spec, &["hostNetwork"]) == &Value::Bool(true) {
        return Some(
            SkipReason::HostNetwork.with_detail("hostNetwork: true: the sidecar's ports would be ports of the node"),
        );
    }
    if annotations.get("kubernetes.io/config.mirror").is_some()
        || owners.iter().any(|owner| text(owner, &["kind"]) == Some("Node"))
    {
        return Some(SkipReason::StaticPod.with_detail("the kubelet runs it from a file and accepts no changes"));
    }
    if text(spec, &["os", "name"]).is_some_and(|os| os.eq_ignore_ascii_case("windows"))
        || text(spec, &["nodeSelector", "kubernetes.io/os"]) == Some("windows")
    {
        return Some(SkipReason::Windows.with_detail("the sidecar runs only on Linux"));
    }
    if labels.get("serving.knative.dev/revision").is_some()
        || has_named_item(spec, &["containers", "initContainers"], "queue-proxy")
    {
        return Some(SkipReason::Knative.with_detail(
            "Knative's queue-proxy connects to the application over loopback, where no sidecar can intercept calls; use KServe's RawDeployment",
        ));
    }
    let taken = [CONTAINER, REDIRECT]
        .into_iter()
        .find(|name| has_named_item(spec, &CONTAINERS, name))
        .map(|name| ("container", name));
    let volume = [TOKEN_VOLUME, STATE_VOLUME].into_iter().find(|name| has_named_item(spec, &["volumes"], name));
    taken.or(volume.map(|name| ("volume", name))).map(|(what, name)| {
        SkipReason::NameTaken.with_detail(format!(
            "it has a {what} named {name} without the annotation {STATUS}: rename it, or run groupage uninject if Groupage added it"
        ))
    })
}

const CONTAINERS: [&str; 3] = ["containers", "initContainers", "ephemeralContainers"];

fn has_named_item(spec: &Value, lists: &[&str], name: &str) -> bool {
    lists.iter().any(|key| list(spec, &[key]).iter().any(|item| text(item, &["name"]) == Some(name)))
}
