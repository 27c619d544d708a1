//! Attachment of all pods to policies, computed over one cluster state. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use strum::{IntoStaticStr, VariantNames};

use super::cluster_state::{ClusterState, ObjectKey, OwnerRef, Pod, Policy, in_namespace};
use super::matching::{
    PodSubject, PolicyChoice, PolicyTarget, TargetLookup, choose, requests_injection, resolve_target, takes_precedence,
    target_name, target_of,
};
use crate::api::v1alpha1::BatchProfileSpec;
use crate::injector::COMPONENT;
use crate::rollout::profile;

/// Result of the attachment.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AttachmentMap {
    /// All policies.
    pub policies: BTreeMap<ObjectKey, Attachment>,
    /// Policy of every injected pod that has one.
    pub followed: BTreeMap<ObjectKey, ObjectKey>,
    /// Pods without a sidecar that request one, with their policy. It is not known yet if they are
    /// injectable.
    pub uninjected: BTreeMap<ObjectKey, Option<ObjectKey>>,
}

/// Result for one policy.
#[derive(Debug, Clone, PartialEq)]
pub struct Attachment {
    /// UID of the policy.
    pub uid: String,
    /// Acceptance of the policy.
    pub accepted: Acceptance,
    /// Injected pods that follow it.
    pub pods: Vec<ObjectKey>,
    /// Pods without a sidecar that request one and would follow it.
    pub uninjected: Vec<ObjectKey>,
    /// The profile that the policy requests.
    pub requested: RequestedProfile,
}

/// Acceptance of a policy: the reasons of its condition `Accepted`.
#[derive(Debug, Clone, PartialEq, Eq, IntoStaticStr, VariantNames)]
pub enum Acceptance {
    /// The policy is accepted, with an optional remark.
    Accepted(Option<String>),
    /// An older policy has the same target.
    Conflicted(String),
    /// The policy is invalid.
    Invalid(String),
    /// None of its targets exists.
    TargetNotFound(String),
}

/// The profile that a policy requests.
#[derive(Debug, Clone, PartialEq)]
pub enum RequestedProfile {
    /// A named profile; `true` if it exists and can be parsed.
    Named(String, bool),
    /// A profile made of the policy's own limits and scheduling. Its name contains a hash of them.
    Own(String, Box<BatchProfileSpec>),
    /// The policy cannot be parsed.
    Unknown,
}

// === impl Acceptance ===

impl Acceptance {
    /// Returns the reason, in one word.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        self.into()
    }

    /// Returns `true` if the policy is applied to its pods. A missing target does not prevent that,
    /// since it may be created later.
    #[must_use]
    pub const fn is_applied(&self) -> bool {
        matches!(self, Self::Accepted(_) | Self::TargetNotFound(_))
    }
}

// === impl RequestedProfile ===

impl RequestedProfile {
    /// Returns the name of the profile.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        match self {
            Self::Named(name, _) | Self::Own(name, _) => Some(name),
            Self::Unknown => None,
        }
    }
}

/// Attaches all pods to policies. `inject_by_default` applies to pods and namespaces without a
/// setting of their own. Namespaces in `excluded` are ignored.
#[must_use]
pub fn attach_all(cluster: &ClusterState, inject_by_default: bool, excluded: &BTreeSet<String>) -> AttachmentMap {
    let mut all = AttachmentMap::default();
    for (key, policy) in cluster.policies.iter() {
        let requested = requested_profile(cluster, policy);
        let accepted = Acceptance::Accepted(None);
        let attachment =
            Attachment { uid: policy.meta.uid.clone(), accepted, pods: Vec::new(), uninjected: Vec::new(), requested };
        all.policies.insert(key.clone(), attachment);
    }
    let mut claims = PodClaims::default();
    for (key, pod) in cluster.pods.iter().filter(|(_, pod)| !pod.ending) {
        if let Some(policy) = policy_of(cluster, pod, &mut claims) {
            all.followed.insert(key.clone(), policy.clone());
            if let Some(attachment) = all.policies.get_mut(&policy) {
                attachment.pods.push(key.clone());
            }
        }
    }
    // Pods without a sidecar are attached only if they request one and are not excluded.
    for (key, pod) in cluster.uninjected_pods.iter().filter(|(_, pod)| !pod.ending) {
        let namespace = key.namespace.as_str();
        let is_excluded =
            namespace == "kube-system" || excluded.contains(namespace) || pod.labels.contains_key(COMPONENT);
        if is_excluded || !requests_injection(pod, cluster.namespace_labels(namespace), inject_by_default) {
            continue;
        }
        let policy = policy_of(cluster, pod, &mut claims);
        if let Some(attachment) = policy.as_ref().and_then(|policy| all.policies.get_mut(policy)) {
            attachment.uninjected.push(key.clone());
        }
        all.uninjected.insert(key.clone(), policy);
    }
    // Acceptance depends on the claims of all pods, so it is determined last.
    for (key, policy) in cluster.policies.iter() {
        let followed =
            all.policies.get(key).is_some_and(|found| !found.pods.is_empty() || !found.uninjected.is_empty());
        let accepted = evaluate_acceptance(cluster, policy, followed, &claims);
        if let Some(attachment) = all.policies.get_mut(key) {
            attachment.accepted = accepted;
        }
    }
    all
}

/// Effects of pods on the acceptance of policies.
#[derive(Default)]
struct PodClaims {
    /// Policies named by pods, which follow them even if an older policy has the same target.
    named: BTreeSet<ObjectKey>,
    /// Policies that would be the choice of a pod if an older policy did not take precedence, with
    /// these older ones.
    lost: BTreeMap<ObjectKey, BTreeSet<ObjectKey>>,
}

/// Returns the policy of a pod, and records the effect of the choice on the acceptance of policies.
fn policy_of(cluster: &ClusterState, pod: &Pod, claims: &mut PodClaims) -> Option<ObjectKey> {
    let namespace = pod.meta.key.namespace.as_str();
    let workload: Option<OwnerRef> = cluster.workload(namespace, pod.owner.as_ref(), &pod.labels);
    let subject =
        PodSubject { namespace, labels: &pod.labels, annotations: &pod.annotations, workload: workload.as_ref() };
    let choice = choose(cluster, subject);
    let chosen = choice.policy()?;
    if let PolicyChoice::Named(..) = choice {
        claims.named.insert(chosen.meta.key.clone());
    }
    if let PolicyChoice::Selected(_) = choice {
        let others = in_namespace(&cluster.policies, namespace).map(|(_, policy)| policy);
        for other in others.filter(|other| other.meta.key != chosen.meta.key && takes_precedence(chosen, other)) {
            if super::matching::is_for(cluster, other, subject) {
                claims.lost.entry(other.meta.key.clone()).or_default().insert(chosen.meta.key.clone());
            }
        }
    }
    Some(chosen.meta.key.clone())
}

fn requested_profile(cluster: &ClusterState, policy: &Policy) -> RequestedProfile {
    let Ok(spec) = &policy.spec else { return RequestedProfile::Unknown };
    if let Some(name) = spec.profile_ref.as_ref().and_then(|reference| reference.name.clone()) {
        let found = cluster.profiles.get(&ObjectKey::new(&policy.meta.key.namespace, &name));
        let is_valid = found.is_some_and(|profile| profile.spec.is_ok());
        return RequestedProfile::Named(name, is_valid);
    }
    let name = profile::profile_name(&policy.meta.key.name, spec.limits.as_ref(), spec.scheduling.as_ref());
    let own = BatchProfileSpec { limits: spec.limits.clone(), scheduling: spec.scheduling.clone() };
    RequestedProfile::Own(name, Box::new(own))
}

fn evaluate_acceptance(cluster: &ClusterState, policy: &Arc<Policy>, followed: bool, claims: &PodClaims) -> Acceptance {
    if let Some(reason) = &policy.invalid {
        return Acceptance::Invalid(reason.clone());
    }
    let Some(target) = policy.spec.as_ref().ok().and_then(target_of) else {
        return Acceptance::Invalid("targetRefs and selector are mutually exclusive: remove one of them".to_owned());
    };
    let namespace = policy.meta.key.namespace.as_str();
    let conflicting = find_conflicting(cluster, policy, target);
    let mut notes = Vec::new();
    if let Some(older) = &conflicting {
        let reason = format!("the older BatchPolicy {older} selects the same pods");
        // Pods that name this policy follow it nevertheless, so it must be applied.
        if !claims.named.contains(&policy.meta.key) {
            return Acceptance::Conflicted(reason);
        }
        notes.push(format!("{reason}: this policy applies only to pods that name it"));
    }
    // The older policies that pods follow instead of this one.
    let winners: Vec<String> =
        claims.lost.get(&policy.meta.key).into_iter().flatten().map(|key| key.name.clone()).collect();
    if !followed && !winners.is_empty() {
        let winners = super::status::join_first(&winners, 3);
        return Acceptance::Conflicted(format!(
            "an older BatchPolicy takes precedence for every selected pod: {winners}"
        ));
    }
    // The policy is accepted if at least one target exists; the missing ones are remarks.
    if let PolicyTarget::Targets(targets) = target {
        let missing: Vec<String> =
            targets.iter().filter_map(|target| describe_missing(cluster, namespace, target)).collect();
        if missing.len() == targets.len() {
            return Acceptance::TargetNotFound(missing.join("; "));
        }
        notes.extend(missing);
    }
    if conflicting.is_none() && !winners.is_empty() {
        notes.push(format!(
            "an older BatchPolicy takes precedence for some pods: {}",
            super::status::join_first(&winners, 3)
        ));
    }
    Acceptance::Accepted((!notes.is_empty()).then(|| notes.join("; ")))
}

/// Returns the name of a conflicting: an older policy of the namespace with the same target.
fn find_conflicting(cluster: &ClusterState, policy: &Policy, target: PolicyTarget<'_>) -> Option<String> {
    let others = in_namespace(&cluster.policies, &policy.meta.key.namespace).map(|(_, other)| other);
    let mut others = others.filter(|other| other.meta.key != policy.meta.key && takes_precedence(other, policy));
    let conflicting = others.find(|other| {
        let theirs = other.spec.as_ref().ok().and_then(target_of);
        theirs.is_some_and(|theirs| is_covered(target, theirs))
    });
    conflicting.map(|conflicting| conflicting.meta.key.name.clone())
}

/// Returns `true` if the other target is the same, or contains all references of this one.
fn is_covered(target: PolicyTarget<'_>, other: PolicyTarget<'_>) -> bool {
    match (target, other) {
        (PolicyTarget::Targets(ours), PolicyTarget::Targets(theirs)) => {
            ours.iter().all(|target| theirs.iter().any(|other| target_name(other) == target_name(target)))
        }
        _ => target == other,
    }
}

fn describe_missing(
    cluster: &ClusterState,
    namespace: &str,
    target: &crate::api::v1alpha1::TargetRef,
) -> Option<String> {
    let name = target_name(target);
    match resolve_target(cluster, namespace, target) {
        TargetLookup::There => None,
        TargetLookup::Missing => Some(format!("{name} not found in namespace {namespace}")),
        TargetLookup::NotInstalled => Some(format!("{name}: this kind is not installed in the cluster")),
        TargetLookup::Unknown => Some(format!(
            "{name}: unsupported kind: a target must be a Deployment, StatefulSet, DaemonSet, Service, InferenceService or InferencePool"
        )),
    }
}

#[cfg(test)]
mod tests;
