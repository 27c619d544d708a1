//! Computes the desired state from the observed state. Pure.
//!
//! It runs after every change, over the whole cluster state. The result is compared with the
//! existing objects, and only differences are written (`apply`). Sidecar reports and rollouts
//! arrive as [`Observed`]: without it no pod is connected, and every change is in force at once.

mod findings;
mod profiles;

use std::borrow::Cow;
use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;

use super::attachment::{Attachment, AttachmentMap};
use super::desired::DesiredState;
use super::events::{EventNotice, EventTarget};
use super::gap::InjectionGap;
use super::matching::describe_target;
use super::observed::{Observed, PolicyObserved};
use super::status::{ConditionType, MERGE_REFUSED, NO_GAIN, join_first, summarize_ready, to_conditions};
use super::world::{ClusterState, ObjectKey, Policy};
use crate::api::v1alpha1::{BatchPolicyStatus, Mode, OpenEnum};

/// Inputs of [`recompute`].
#[derive(Debug, Clone, Copy)]
pub struct RecomputeInput<'a> {
    /// The cluster state.
    pub world: &'a ClusterState,
    /// The assignment of pods to policies.
    pub attached: &'a AttachmentMap,
    /// Reports of the sidecars and progress of rollouts.
    pub live: &'a Observed,
    /// Results for pods without a sidecar, by UID; a missing pod was not classified yet.
    pub bare: &'a BTreeMap<String, InjectionGap>,
    /// Statuses written last, where the watch has not delivered them yet.
    pub written: &'a BTreeMap<ObjectKey, BatchPolicyStatus>,
}

/// Computes the desired state.
#[must_use]
pub fn recompute(input: RecomputeInput<'_>, now: Timestamp) -> DesiredState {
    let mut desired = DesiredState { notices: input.live.notices.clone(), ..DesiredState::default() };
    desired.missing = missed_pods(&input);
    desired.notices.extend(missed_notices(&input, &desired.missing));
    let ways = findings::find_bypasses(input.world);
    desired.notices.extend(bypass_notices(input.world, &ways));
    for (key, policy) in input.world.policies.iter() {
        let Some(attachment) = input.attached.policies.get(key) else { continue };
        let before = input.written.get(key).unwrap_or(&policy.status);
        let status = status((&input, &ways), policy, attachment, before, now);
        desired.notices.extend(change_notices(policy, before, &status));
        desired.policies.insert(key.clone(), status);
    }
    profiles::profiles(&input, &mut desired);
    desired
}

fn status(
    (input, ways): (&RecomputeInput<'_>, &findings::BypassMap<'_>),
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
    let live = input.live.policies.get(&policy.meta.key).map_or_else(|| Cow::Owned(resumed()), Cow::Borrowed);
    let live = &*live;
    let mut findings = findings::findings((input, ways), policy, attachment, live);
    let ready = summarize_ready(&findings);
    findings.push(ready);
    let requested = attachment.requested.name().filter(|_| attachment.accepted.is_applied()).map(str::to_owned);
    // The requested profile of a policy that is not obeyed was never pushed to a pod, so it is not
    // in force. The previous one remains in force while an edit is invalid.
    let current = live.current.clone().or(requested).or_else(|| before.current_profile.clone());
    BatchPolicyStatus {
        observed_generation: Some(policy.meta.generation),
        conditions: to_conditions(&before.conditions, &findings, policy.meta.generation, now),
        target: policy.spec.as_ref().ok().map(describe_target),
        mode: policy.spec.as_ref().ok().map(|spec| spec.mode.clone().unwrap_or(OpenEnum::Known(Mode::Batch))),
        current_profile: current,
        candidate_profile: live.candidate.clone(),
        pods: Some(findings::counts(input, ways, attachment)),
        summary: live.summary.clone(),
        predicted: live.predicted.clone(),
        rollout: live.rollout.clone(),
        pod_tunings: live.pod_tunings.clone(),
        learned: live.learned.clone(),
    }
}

/// Returns notices about changes of a policy since its last written status.
fn change_notices(policy: &Policy, before: &BatchPolicyStatus, after: &BatchPolicyStatus) -> Vec<EventNotice> {
    let about = EventTarget::policy(&policy.meta);
    let mut notices = Vec::new();
    let noticed =
        [ConditionType::Accepted, ConditionType::Merging, ConditionType::TrafficCaptured, ConditionType::SloMet];
    for kind in noticed {
        let Some((reason, message)) = reason_of(after, kind) else { continue };
        let was = reason_of(before, kind).map(|(was, _)| was);
        // A changed reason is an Event, a changed message is not.
        if was != Some(reason) {
            notices.extend(reason_notice(about.clone(), kind, was, (reason, message)));
        }
    }
    if let (Some(was), Some(is)) = (&before.current_profile, &after.current_profile)
        && was != is
    {
        notices.push(EventNotice::normal(
            about,
            "ProfileUpdated",
            format!("profile {is} is in force, replacing {was}"),
        ));
    }
    notices
}

/// Returns the reason and the message of a condition.
fn reason_of(status: &BatchPolicyStatus, kind: ConditionType) -> Option<(&str, &str)> {
    let found = status.conditions.iter().find(|condition| condition.type_ == kind.as_str());
    found.map(|condition| (condition.reason.as_str(), condition.message.as_str()))
}

/// Returns the notice about a changed reason of a condition, if it is worth one.
fn reason_notice(
    about: EventTarget,
    kind: ConditionType,
    was: Option<&str>,
    (reason, message): (&str, &str),
) -> Option<EventNotice> {
    let word = match (kind, reason) {
        (ConditionType::Accepted, "Conflicted") => "PolicyConflict",
        (ConditionType::Accepted, "Invalid") => "PolicyInvalid",
        (ConditionType::Accepted, "TargetNotFound") => "TargetNotFound",
        (ConditionType::Merging, MERGE_REFUSED) => MERGE_REFUSED,
        (ConditionType::Merging, NO_GAIN) => return Some(EventNotice::normal(about, NO_GAIN, message)),
        (ConditionType::TrafficCaptured, "Bypassed") => "TrafficBypassed",
        (ConditionType::TrafficCaptured, findings::RECIPE_FAILED) => findings::RECIPE_FAILED,
        (ConditionType::SloMet, "Missed") => "SLOMissed",
        (ConditionType::SloMet, "Met") if was == Some("Missed") => {
            return Some(EventNotice::normal(about, "SLOMet", message));
        }
        _ => return None,
    };
    Some(EventNotice::warning(about, word, message))
}

/// Returns the classified pods that should have a sidecar.
fn missed_pods(input: &RecomputeInput<'_>) -> Vec<ObjectKey> {
    let is_missed = |key: &&ObjectKey| {
        let pod = input.world.uninjected_pods.get(*key);
        pod.is_some_and(|pod| input.bare.get(&pod.meta.uid) == Some(&InjectionGap::Missed))
    };
    input.attached.bare.keys().filter(is_missed).cloned().collect()
}

/// Returns one notice for each workload with missed pods.
fn missed_notices(input: &RecomputeInput<'_>, missing: &[ObjectKey]) -> Vec<EventNotice> {
    let mut workloads: BTreeMap<(String, super::world::OwnerRef), Vec<String>> = BTreeMap::new();
    let mut notices = Vec::new();
    for key in missing {
        let Some(pod) = input.world.uninjected_pods.get(key) else { continue };
        match input.world.workload(&key.namespace, pod.owner.as_ref(), &pod.labels) {
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
fn bypass_notices(world: &ClusterState, ways: &findings::BypassMap<'_>) -> Vec<EventNotice> {
    let mut notices: BTreeMap<EventTarget, EventNotice> = BTreeMap::new();
    for found in ways.values() {
        let pod = found.pod;
        let around = found.ways.iter().flatten().next();
        let (word, note) = match (&pod.recipe_failure, around) {
            (Some(failure), _) => (findings::RECIPE_FAILED, failure.clone()),
            (None, Some(way)) => {
                let remedy = findings::remedy_of(world, found);
                ("TrafficBypassed", format!("traffic bypasses the sidecar: {way}; fix: {remedy}"))
            }
            (None, None) => continue,
        };
        let workload = world.workload(&pod.meta.key.namespace, pod.owner.as_ref(), &pod.labels);
        let about = workload.map_or_else(
            || EventTarget::pod(&pod.meta),
            |workload| EventTarget::workload(&pod.meta.key.namespace, &workload),
        );
        notices.entry(about.clone()).or_insert_with(|| EventNotice::warning(about, word, note));
    }
    notices.into_values().collect()
}

/// Remedy for a missed pod.
const MISSED_REMEDY: &str = "the requested sidecar was not injected, because the webhook was unavailable when the pod was created; recreate the pod (kubectl rollout restart)";

#[cfg(test)]
mod tests;
