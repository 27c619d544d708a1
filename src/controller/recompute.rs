//! Computes the desired state from the observed state. Pure.
//!
//! It runs after every change, over the whole cluster state. The result is compared with the
//! existing objects, and only differences are written (`apply`). Sidecar reports and rollouts
//! arrive as [`ObservedState`]: without it no pod is connected, and every change is in force at
//! once.

mod findings;
mod profiles;

use std::borrow::Cow;
use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;

use super::attachment::{Attachment, AttachmentMap};
use super::cluster_state::{ClusterState, ObjectKey, Policy};
use super::desired::DesiredState;
use super::events::{EventNotice, EventTarget};
use super::injection_gap::InjectionGap;
use super::matching::describe_target;
use super::observed_state::{ObservedState, PolicyObserved};
use super::status::{ConditionType, MERGE_REFUSED, NO_GAIN, join_first, summarize_ready, to_conditions};
use crate::api::v1alpha1::{BatchPolicyStatus, Mode, OpenEnum};

/// Inputs of [`recompute`].
#[derive(Debug, Clone, Copy)]
pub struct RecomputeInput<'a> {
    /// The cluster state.
    pub cluster: &'a ClusterState,
    /// The assignment of pods to policies.
    pub attached: &'a AttachmentMap,
    /// Reports of the sidecars and progress of rollouts.
    pub observed: &'a ObservedState,
    /// Results for pods without a sidecar, by UID; a missing pod was not classified yet.
    pub gaps: &'a BTreeMap<String, InjectionGap>,
    /// Statuses written last, where the watch has not delivered them yet.
    pub written: &'a BTreeMap<ObjectKey, BatchPolicyStatus>,
}

/// Computes the desired state.
#[must_use]
pub fn recompute(input: RecomputeInput<'_>, now: Timestamp) -> DesiredState {
    let mut desired = DesiredState { notices: input.observed.notices.clone(), ..DesiredState::default() };
    desired.missing = missed_pods(&input);
    desired.notices.extend(missed_notices(&input, &desired.missing));
    let bypasses = findings::find_bypasses(input.cluster);
    desired.notices.extend(bypass_notices(input.cluster, &bypasses));
    for (key, policy) in input.cluster.policies.iter() {
        let Some(attachment) = input.attached.policies.get(key) else { continue };
        let before = input.written.get(key).unwrap_or(&policy.status);
        let status = policy_status((&input, &bypasses), policy, attachment, before, now);
        desired.notices.extend(change_notices(policy, before, &status));
        desired.policies.insert(key.clone(), status);
    }
    profiles::add_profiles(&input, &mut desired);
    desired
}

/// Computes the status of a policy. `before` is the last written one.
fn policy_status(
    (input, bypasses): (&RecomputeInput<'_>, &findings::BypassMap<'_>),
    policy: &Policy,
    attachment: &Attachment,
    before: &BatchPolicyStatus,
    now: Timestamp,
) -> BatchPolicyStatus {
    // If the policy has no running state, because it is not obeyed at present or this replica has
    // only begun to lead, the status keeps the fields that a leader resumes from.
    let resumed = || PolicyObserved {
        candidate: before.candidate_profile.clone(),
        rollout: before.rollout.clone(),
        learned: before.learned.clone(),
        ..PolicyObserved::default()
    };
    let observed = input.observed.policies.get(&policy.meta.key).map_or_else(|| Cow::Owned(resumed()), Cow::Borrowed);
    let observed = &*observed;
    let mut findings = findings::policy_findings((input, bypasses), policy, attachment, observed);
    let ready = summarize_ready(&findings);
    findings.push(ready);
    let requested = attachment.requested.name().filter(|_| attachment.accepted.is_applied()).map(str::to_owned);
    // The requested profile of a policy that is not obeyed was never pushed to a pod, so it is not
    // in force. The previous one remains in force while an edit is invalid.
    let current = observed.current.clone().or(requested).or_else(|| before.current_profile.clone());
    BatchPolicyStatus {
        observed_generation: Some(policy.meta.generation),
        conditions: to_conditions(&before.conditions, &findings, policy.meta.generation, now),
        target: policy.spec.as_ref().ok().map(describe_target),
        mode: policy.spec.as_ref().ok().map(|spec| spec.mode.clone().unwrap_or(OpenEnum::Known(Mode::Batch))),
        current_profile: current,
        candidate_profile: observed.candidate.clone(),
        pods: Some(findings::count_pods(input, bypasses, attachment)),
        summary: observed.summary.clone(),
        predicted: observed.predicted.clone(),
        rollout: observed.rollout.clone(),
        pod_tunings: observed.pod_tunings.clone(),
        learned: observed.learned.clone(),
    }
}

/// Returns notices about changes of a policy since its last written status.
fn change_notices(policy: &Policy, before: &BatchPolicyStatus, after: &BatchPolicyStatus) -> Vec<EventNotice> {
    let about = EventTarget::policy(&policy.meta);
    let mut notices = Vec::new();
    let kinds =
        [ConditionType::Accepted, ConditionType::Merging, ConditionType::TrafficCaptured, ConditionType::SloMet];
    for kind in kinds {
        let Some((reason, message)) = reason_of(after, kind) else { continue };
        let previous = reason_of(before, kind).map(|(reason, _)| reason);
        // A changed reason is an Event, a changed message is not.
        if previous != Some(reason) {
            notices.extend(reason_notice(about.clone(), kind, previous, (reason, message)));
        }
    }
    if let (Some(old), Some(new)) = (&before.current_profile, &after.current_profile)
        && old != new
    {
        notices.push(EventNotice::normal(
            about,
            "ProfileUpdated",
            format!("profile {new} is in force, replacing {old}"),
        ));
    }
    notices
}

/// Returns the reason and the message of a condition.
fn reason_of(status: &BatchPolicyStatus, kind: ConditionType) -> Option<(&str, &str)> {
    let condition = status.conditions.iter().find(|condition| condition.type_ == kind.as_str());
    condition.map(|condition| (condition.reason.as_str(), condition.message.as_str()))
}

/// Returns the notice about a changed reason of a condition, if it is worth one.
fn reason_notice(
    about: EventTarget,
    kind: ConditionType,
    previous: Option<&str>,
    (reason, message): (&str, &str),
) -> Option<EventNotice> {
    let event_reason = match (kind, reason) {
        (ConditionType::Accepted, "Conflicted") => "PolicyConflict",
        (ConditionType::Accepted, "Invalid") => "PolicyInvalid",
        (ConditionType::Accepted, "TargetNotFound") => "TargetNotFound",
        (ConditionType::Merging, MERGE_REFUSED) => MERGE_REFUSED,
        (ConditionType::Merging, NO_GAIN) => return Some(EventNotice::normal(about, NO_GAIN, message)),
        (ConditionType::TrafficCaptured, "Bypassed") => "TrafficBypassed",
        (ConditionType::TrafficCaptured, findings::RECIPE_FAILED) => findings::RECIPE_FAILED,
        (ConditionType::SloMet, "Missed") => "SLOMissed",
        (ConditionType::SloMet, "Met") if previous == Some("Missed") => {
            return Some(EventNotice::normal(about, "SLOMet", message));
        }
        _ => return None,
    };
    Some(EventNotice::warning(about, event_reason, message))
}

/// Returns the classified pods that should have a sidecar.
fn missed_pods(input: &RecomputeInput<'_>) -> Vec<ObjectKey> {
    let is_missed = |key: &&ObjectKey| {
        let pod = input.cluster.uninjected_pods.get(*key);
        pod.is_some_and(|pod| input.gaps.get(&pod.meta.uid) == Some(&InjectionGap::WebhookUnavailable))
    };
    input.attached.uninjected.keys().filter(is_missed).cloned().collect()
}

/// Returns one notice for each workload with missed pods.
fn missed_notices(input: &RecomputeInput<'_>, missing: &[ObjectKey]) -> Vec<EventNotice> {
    let mut workloads: BTreeMap<(String, super::cluster_state::OwnerRef), Vec<String>> = BTreeMap::new();
    let mut notices = Vec::new();
    for key in missing {
        let Some(pod) = input.cluster.uninjected_pods.get(key) else { continue };
        match input.cluster.workload(&key.namespace, pod.owner.as_ref(), &pod.labels) {
            Some(workload) => workloads.entry((key.namespace.clone(), workload)).or_default().push(key.name.clone()),
            None => notices.push(EventNotice::warning(EventTarget::pod(&pod.meta), "SidecarMissing", MISSED_REMEDY)),
        }
    }
    notices.extend(workloads.into_iter().map(|((namespace, workload), pods)| {
        let note = format!("{}: {MISSED_REMEDY}", join_first(&pods, 3));
        EventNotice::warning(EventTarget::workload(&namespace, &workload), "SidecarMissing", note)
    }));
    notices
}

/// Returns one notice for each workload with pods that are reachable around their sidecars, or that
/// do not start after a recipe has moved their application.
fn bypass_notices(cluster: &ClusterState, bypasses: &findings::BypassMap<'_>) -> Vec<EventNotice> {
    let mut notices: BTreeMap<EventTarget, EventNotice> = BTreeMap::new();
    for entry in bypasses.values() {
        let pod = entry.pod;
        let bypass = entry.bypasses.iter().flatten().next();
        let (reason, note) = match (&pod.recipe_failure, bypass) {
            (Some(failure), _) => (findings::RECIPE_FAILED, failure.clone()),
            (None, Some(bypass)) => {
                let remedy = findings::remedy_of(cluster, entry);
                ("TrafficBypassed", format!("traffic bypasses the sidecar: {bypass}; fix: {remedy}"))
            }
            (None, None) => continue,
        };
        let workload = cluster.workload(&pod.meta.key.namespace, pod.owner.as_ref(), &pod.labels);
        let about = workload.map_or_else(
            || EventTarget::pod(&pod.meta),
            |workload| EventTarget::workload(&pod.meta.key.namespace, &workload),
        );
        notices.entry(about.clone()).or_insert_with(|| EventNotice::warning(about, reason, note));
    }
    notices.into_values().collect()
}

/// Remedy for a missed pod.
const MISSED_REMEDY: &str = "the requested sidecar was not injected, because the webhook was unavailable when the pod was created; recreate the pod (kubectl rollout restart)";

#[cfg(test)]
mod tests;
