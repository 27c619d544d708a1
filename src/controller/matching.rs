//! Policy attachment: the policy of a pod, and the targets of a policy. It follows Gateway API's
//! GEP-713 (<https://gateway-api.sigs.k8s.io/geps/gep-713/>).
//!
//! A pod that names a policy follows it. Otherwise it follows the oldest policy that selects it or
//! references an object leading to it, otherwise the oldest policy of the whole namespace. Policies
//! apply in their own namespace only. Validity is not checked here: a policy that becomes invalid
//! by an edit keeps its pods, which would change their policy with every mistake otherwise.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use super::cluster_state::{ClusterState, ObjectKey, ObjectTable, OwnerRef, Pod, Policy, in_namespace};
use crate::api::v1alpha1::{BatchPolicySpec, LabelSelector, TargetRef};

/// Annotation with which a pod names its policy.
pub const POLICY_ANNOTATION: &str = "groupage.dev/policy";
/// Label with which KServe marks the pods of an `InferenceService`.
const INFERENCE_SERVICE: &str = "serving.kserve.io/inferenceservice";
/// Maximum number of references in a policy, as in its schema.
const TARGETS_MAX: usize = 16;

/// The properties of a pod that select its policy.
#[derive(Debug, Clone, Copy)]
pub struct PodSubject<'a> {
    /// Namespace of the pod, whose policies may select it.
    pub namespace: &'a str,
    /// Labels of the pod, which selectors match.
    pub labels: &'a BTreeMap<String, String>,
    /// Annotations with the prefix `groupage.dev/`.
    pub annotations: &'a BTreeMap<String, String>,
    /// Its top-level workload: the Deployment, not the `ReplicaSet`.
    pub workload: Option<&'a OwnerRef>,
}

/// The policy of a pod, and the rule that selected it.
#[derive(Debug, Clone, Copy)]
pub enum PolicyChoice<'a> {
    /// The pod names a policy, which may not exist.
    Named(&'a str, Option<&'a Arc<Policy>>),
    /// A policy selects the pod.
    Selected(&'a Arc<Policy>),
    /// The namespace has a default policy.
    Default(&'a Arc<Policy>),
    /// No policy applies.
    None,
}

/// The target of a policy.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum PolicyTarget<'a> {
    /// The pods that these references lead to.
    Targets(&'a [TargetRef]),
    /// Pods with matching labels.
    Labels(&'a LabelSelector),
    /// All pods of the namespace without another policy.
    Namespace,
}

/// Result of resolving a reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TargetLookup {
    /// The object exists.
    There,
    /// The object does not exist.
    Missing,
    /// Its kind is not installed in the cluster.
    NotInstalled,
    /// Policies do not support objects of this kind.
    Unknown,
}

// === impl PolicyChoice ===

impl<'a> PolicyChoice<'a> {
    /// Returns the policy, if one applies and exists.
    #[must_use]
    pub const fn policy(self) -> Option<&'a Arc<Policy>> {
        match self {
            Self::Named(_, policy) => policy,
            Self::Selected(policy) | Self::Default(policy) => Some(policy),
            Self::None => None,
        }
    }
}

/// Selects the policy of a pod.
#[must_use]
pub fn choose<'a>(cluster: &'a ClusterState, subject: PodSubject<'a>) -> PolicyChoice<'a> {
    if let Some(name) = subject.annotations.get(POLICY_ANNOTATION) {
        let policy = cluster.policies.get(&ObjectKey::new(subject.namespace, name.trim()));
        return PolicyChoice::Named(name, policy);
    }
    let (mut selected, mut default): (Option<&Arc<Policy>>, Option<&Arc<Policy>>) = (None, None);
    for (_, policy) in in_namespace(&cluster.policies, subject.namespace) {
        let best = match policy.spec.as_ref().ok().and_then(target_of) {
            Some(PolicyTarget::Namespace) => &mut default,
            Some(target) if includes_pod(cluster, target, subject) => &mut selected,
            _ => continue,
        };
        if best.is_none_or(|best| takes_precedence(policy, best)) {
            *best = Some(policy);
        }
    }
    match (selected, default) {
        (Some(policy), _) => PolicyChoice::Selected(policy),
        (None, Some(policy)) => PolicyChoice::Default(policy),
        (None, None) => PolicyChoice::None,
    }
}

/// Returns `true` if `policy` takes precedence over `than`: the older one does; if both were
/// created in the same second, the first by name.
#[must_use]
pub fn takes_precedence(policy: &Policy, than: &Policy) -> bool {
    let age = |policy: &Policy| (policy.meta.created.clone(), policy.meta.key.name.clone());
    age(policy) < age(than)
}

/// Returns the target of a policy; `None` if it has both references and a selector.
#[must_use]
pub fn target_of(spec: &BatchPolicySpec) -> Option<PolicyTarget<'_>> {
    let targets = spec.target_refs.as_deref().filter(|targets| !targets.is_empty());
    let is_empty = |selector: &LabelSelector| {
        selector.match_labels.as_ref().is_none_or(BTreeMap::is_empty)
            && selector.match_expressions.as_ref().is_none_or(Vec::is_empty)
    };
    match (targets, spec.selector.as_ref().filter(|selector| !is_empty(selector))) {
        (Some(_), Some(_)) => None,
        (Some(targets), None) => Some(PolicyTarget::Targets(targets.get(..TARGETS_MAX).unwrap_or(targets))),
        (None, Some(selector)) => Some(PolicyTarget::Labels(selector)),
        (None, None) => Some(PolicyTarget::Namespace),
    }
}

/// Returns `true` if a policy targets a pod explicitly, irrespective of other policies. A policy of
/// the whole namespace does not.
#[must_use]
pub fn is_for(cluster: &ClusterState, policy: &Policy, subject: PodSubject<'_>) -> bool {
    let target = policy.spec.as_ref().ok().and_then(target_of);
    target.is_some_and(|target| target != PolicyTarget::Namespace && includes_pod(cluster, target, subject))
}

fn includes_pod(cluster: &ClusterState, target: PolicyTarget<'_>, subject: PodSubject<'_>) -> bool {
    match target {
        PolicyTarget::Namespace => true,
        PolicyTarget::Labels(selector) => selects(selector, subject.labels),
        PolicyTarget::Targets(targets) => targets.iter().any(|target| leads_to_pod(cluster, target, subject)),
    }
}

fn leads_to_pod(cluster: &ClusterState, target: &TargetRef, subject: PodSubject<'_>) -> bool {
    let (kind, name) = (target.kind.as_deref().unwrap_or_default(), target.name.as_deref().unwrap_or_default());
    let object = |table: &ObjectTable<Value>| {
        table.get(&ObjectKey::new(subject.namespace, name)).is_some_and(|object| selected_by(object, subject.labels))
    };
    match target_kind(target) {
        Some(TargetKind::Workload) => {
            subject.workload.is_some_and(|workload| workload.kind == kind && workload.name == name)
        }
        Some(TargetKind::Service) => object(&cluster.services),
        Some(TargetKind::Pool) => cluster.pools.as_ref().is_some_and(object),
        Some(TargetKind::InferenceService) => {
            subject.labels.get(INFERENCE_SERVICE).is_some_and(|service| service == name)
        }
        None => false,
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TargetKind {
    Workload,
    Service,
    Pool,
    InferenceService,
}

/// Returns the kind of a reference. The group is optional, since the names of these kinds are
/// unique.
fn target_kind(target: &TargetRef) -> Option<TargetKind> {
    let (kind, group) = match target.kind.as_deref()? {
        "Deployment" | "StatefulSet" | "DaemonSet" => (TargetKind::Workload, "apps"),
        "Service" => (TargetKind::Service, ""),
        "InferencePool" => (TargetKind::Pool, "inference.networking.k8s.io"),
        "InferenceService" => (TargetKind::InferenceService, "serving.kserve.io"),
        _ => return None,
    };
    target.group.as_deref().is_none_or(|named| named == group || named.is_empty()).then_some(kind)
}

/// Resolves a reference of a policy in a namespace.
#[must_use]
pub fn resolve_target(cluster: &ClusterState, namespace: &str, target: &TargetRef) -> TargetLookup {
    let Some(kind) = target_kind(target) else { return TargetLookup::Unknown };
    let key = ObjectKey::new(namespace, target.name.as_deref().unwrap_or_default());
    let exists = match (kind, target.kind.as_deref().unwrap_or_default()) {
        (TargetKind::Workload, "Deployment") => Some(cluster.deployments.contains_key(&key)),
        (TargetKind::Workload, "StatefulSet") => Some(cluster.stateful_sets.contains_key(&key)),
        (TargetKind::Workload, _) => Some(cluster.daemon_sets.contains_key(&key)),
        (TargetKind::Service, _) => Some(cluster.services.contains_key(&key)),
        (TargetKind::Pool, _) => cluster.pools.as_ref().map(|pools| pools.contains_key(&key)),
        (TargetKind::InferenceService, _) => {
            cluster.inference_services.as_ref().map(|services| services.contains_key(&key))
        }
    };
    match exists {
        None => TargetLookup::NotInstalled,
        Some(true) => TargetLookup::There,
        Some(false) => TargetLookup::Missing,
    }
}

/// Returns `true` if labels match a selector.
#[must_use]
pub fn selects(selector: &LabelSelector, labels: &BTreeMap<String, String>) -> bool {
    let all = selector.match_labels.iter().flatten().all(|(key, value)| labels.get(key) == Some(value));
    all && selector.match_expressions.iter().flatten().all(|term| {
        let found = term.key.as_deref().and_then(|key| labels.get(key));
        let among = || found.is_some_and(|found| term.values.iter().flatten().any(|value| value == found));
        match term.operator.as_deref() {
            Some("In") => among(),
            Some("NotIn") => !among(),
            Some("Exists") => found.is_some(),
            Some("DoesNotExist") => found.is_none(),
            // An unknown operator of a newer version selects no pod rather than all.
            _ => false,
        }
    })
}

/// Returns `true` if a Service, `InferencePool` or `NetworkPolicy` applies to pods with these
/// labels.
#[must_use]
pub fn selected_by(object: &Value, labels: &BTreeMap<String, String>) -> bool {
    let at = |path: &str| object.pointer(path);
    let selects_pod = |required: Option<&Value>| {
        required.and_then(Value::as_object).is_some_and(|required| {
            !required.is_empty()
                && required.iter().all(|(key, value)| labels.get(key).map(String::as_str) == value.as_str())
        })
    };
    match at("/kind").and_then(Value::as_str) {
        Some("Service") => {
            at("/spec/type").and_then(Value::as_str) != Some("ExternalName") && selects_pod(at("/spec/selector"))
        }
        Some("InferencePool") => selects_pod(at("/spec/selector/matchLabels").or_else(|| at("/spec/selector"))),
        Some("NetworkPolicy") => {
            let selector = at("/spec/podSelector").cloned().unwrap_or_default();
            serde_json::from_value::<LabelSelector>(selector).is_ok_and(|selector| selects(&selector, labels))
        }
        _ => false,
    }
}

/// Returns `true` if a pod requests injection. The annotation takes precedence over the label, the
/// label over the namespace's label, and that over the default. Any value other than `enabled` or
/// `true` counts as no. The namespace's label is compared case-sensitively, as by the webhook's
/// selector: the API server does not call the webhook for another spelling.
#[must_use]
pub fn requests_injection(pod: &Pod, namespace: Option<&BTreeMap<String, String>>, inject_by_default: bool) -> bool {
    let key = crate::injector::INJECT;
    let enables = |value: &str| matches!(value, "enabled" | "true");
    if let Some(own) = pod.annotations.get(key).or_else(|| pod.labels.get(key)) {
        return enables(own.trim().to_ascii_lowercase().as_str());
    }
    namespace.and_then(|labels| labels.get(key)).map_or(inject_by_default, |value| enables(value))
}

/// Describes the target of a policy briefly: `Deployment/embedder`, `Deployment/a +2`,
/// `app=embedder`, `*`.
#[must_use]
pub fn describe_target(spec: &BatchPolicySpec) -> String {
    match target_of(spec) {
        Some(PolicyTarget::Targets([first, more @ ..])) => {
            let more = if more.is_empty() { String::new() } else { format!(" +{}", more.len()) };
            format!("{}{more}", target_name(first))
        }
        Some(PolicyTarget::Labels(selector)) => labels_in_short(selector),
        Some(PolicyTarget::Namespace) => "*".to_owned(),
        _ => String::new(),
    }
}

/// Formats a selector as on the command line of kubectl.
fn labels_in_short(selector: &LabelSelector) -> String {
    let labels = selector.match_labels.iter().flatten().map(|(key, value)| format!("{key}={value}"));
    let terms = selector.match_expressions.iter().flatten().map(|term| {
        let key = term.key.as_deref().unwrap_or_default();
        let values = || term.values.iter().flatten().map(String::as_str).collect::<Vec<_>>().join(",");
        match term.operator.as_deref() {
            Some("In") => format!("{key} in ({})", values()),
            Some("NotIn") => format!("{key} notin ({})", values()),
            Some("DoesNotExist") => format!("!{key}"),
            _ => key.to_owned(),
        }
    });
    labels.chain(terms).collect::<Vec<_>>().join(",")
}

/// Formats a reference as `Deployment/embedder`.
#[must_use]
pub fn target_name(target: &TargetRef) -> String {
    format!("{}/{}", target.kind.as_deref().unwrap_or("?"), target.name.as_deref().unwrap_or("?"))
}

#[cfg(test)]
mod tests;
