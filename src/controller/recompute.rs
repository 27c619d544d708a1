//! Computes the desired state from the observed state. Pure.
//!
//! It runs after every change, over the whole cluster state. The result is compared with the
//! existing objects, and only differences are written (`apply`). Sidecar reports and rollouts
//! arrive as [`Live`]: without it no pod is connected, and every change is in force at once.

mod found;
mod profiles;

use std::borrow::Cow;
use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;

use super::attach::in_short;
use super::attachment::{Accepted, Attached, Attachment};
use super::events::{About, Notice};
use super::sidecars::{MERGE_REFUSED, NO_GAIN};
use super::status::{Holds, Type, conditions, ready, some_of};
use super::world::{Key, Policy, World};
use crate::api::v1alpha1::{
    BatchPolicyStatus, BatchProfileSpec, BatchProfileStatus, Learned, Mode, PodCounts, PodTuning, RolloutStatus,
    Summary, Verdict, Word,
};

pub use self::profiles::NewProfile;

/// Reports of the sidecars and progress of rollouts.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Live {
    /// Connected pods, by UID.
    pub pods: BTreeMap<String, PodLive>,
    /// Policies with a running state; any other has its requested profile in force.
    pub policies: BTreeMap<Key, PolicyLive>,
    /// Notices to publish once.
    pub told: Vec<Notice>,
}

/// State of a connected sidecar.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodLive {
    /// Set if it runs the profile in force, not a candidate or an older one.
    pub current: bool,
    /// Set if it runs the configuration that was pushed last.
    pub programmed: bool,
    /// The reason for which it rejected its configuration.
    pub refused: Option<String>,
    /// Settings that take effect at its next start.
    pub pending: Vec<String>,
}

/// State of a policy at run time.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PolicyLive {
    /// The profile in force.
    pub current: Option<String>,
    /// The profile under rollout.
    pub candidate: Option<String>,
    /// Other profiles that pods run or may be given again.
    pub used: Vec<String>,
    /// Progress of the rollout.
    pub rollout: Option<RolloutStatus>,
    /// Health of the rollout; `None` if there is none.
    pub healthy: Option<Said>,
    /// State of the SLO; `None` if it is unknown.
    pub slo: Option<Said>,
    /// State of merging; `None` if no sidecar has reported.
    pub merging: Option<Said>,
    /// Summary over all pods.
    pub summary: Option<Summary>,
    /// Predicted result of batching.
    pub predicted: Option<Summary>,
    /// Tuned settings.
    pub pod_tunings: Vec<PodTuning>,
    /// Learned values.
    pub learned: Vec<Learned>,
    /// Results of profiles, by name: number of calls, and the verdict.
    pub verdicts: BTreeMap<String, (u64, Option<Verdict>)>,
}

/// Value and explanation of a condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Said {
    /// Value of the condition: true, false or unknown.
    pub holds: Holds,
    /// Machine-readable reason, in one word.
    pub reason: String,
    /// Human-readable explanation.
    pub message: String,
}

/// Reason for which a pod that requests injection has no sidecar.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Bare {
    /// The pod is injectable: the webhook was unavailable at its creation.
    Missed,
    /// The pod is not injectable, for this reason.
    Cannot(String),
}

/// The desired state.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Desired {
    /// Status of every policy.
    pub policies: BTreeMap<Key, BatchPolicyStatus>,
    /// Status of every profile.
    pub profiles: BTreeMap<Key, BatchProfileStatus>,
    /// Profiles to create.
    pub make: Vec<NewProfile>,
    /// Profiles to delete, with their UIDs.
    pub remove: Vec<(Key, String)>,
    /// Injectable pods without a sidecar.
    pub missing: Vec<Key>,
    /// Notices to publish.
    pub told: Vec<Notice>,
}

/// Inputs of [`recompute`].
#[derive(Debug, Clone, Copy)]
pub struct Input<'a> {
    /// The cluster state.
    pub world: &'a World,
    /// The assignment of pods to policies.
    pub attached: &'a Attached,
    /// Reports of the sidecars and progress of rollouts.
    pub live: &'a Live,
    /// Results for pods without a sidecar, by UID; a missing pod was not classified yet.
    pub bare: &'a BTreeMap<String, Bare>,
    /// Statuses written last, where the watch has not delivered them yet.
    pub written: &'a BTreeMap<Key, BatchPolicyStatus>,
}

/// Computes the desired state.
#[must_use]
pub fn recompute(input: Input<'_>, now: Timestamp) -> Desired {
    let mut desired = Desired { told: input.live.told.clone(), ..Desired::default() };
    desired.missing = missing(&input);
    desired.told.extend(missed(&input, &desired.missing));
    let ways = found::ways(input.world);
    desired.told.extend(bypassed(input.world, &ways));
    for (key, policy) in input.world.policies.iter() {
        let Some(attachment) = input.attached.policies.get(key) else { continue };
        let before = input.written.get(key).unwrap_or(&policy.status);
        let status = status((&input, &ways), policy, attachment, before, now);
        desired.told.extend(changes(policy, before, &status));
        desired.policies.insert(key.clone(), status);
    }
    profiles::profiles(&input, &mut desired);
    desired
}

fn status(
    (input, ways): (&Input<'_>, &found::AllWays<'_>),
    policy: &Policy,
    attachment: &Attachment,
    before: &BatchPolicyStatus,
    now: Timestamp,
) -> BatchPolicyStatus {
    // If the policy has no running state, because it is not obeyed at present or this replica has
    // only begun to lead, the status keeps the fields that a leader resumes from.
    let resumed = || PolicyLive {
        candidate: before.candidate_profile.clone(),
        rollout: before.rollout.clone(),
        learned: before.learned.clone(),
        ..PolicyLive::default()
    };
    let live = input.live.policies.get(&policy.meta.key).map_or_else(|| Cow::Owned(resumed()), Cow::Borrowed);
    let live = &*live;
    let mut findings = found::findings((input, ways), policy, attachment, live);
    let ready = ready(&findings);
    findings.push(ready);
    let wanted = attachment.wanted.name().filter(|_| attachment.accepted.is_obeyed()).map(str::to_owned);
    // The requested profile of a policy that is not obeyed was never pushed to a pod, so it is not
    // in force. The previous one remains in force while an edit is invalid.
    let current = live.current.clone().or(wanted).or_else(|| before.current_profile.clone());
    BatchPolicyStatus {
        observed_generation: Some(policy.meta.generation),
        conditions: conditions(&before.conditions, &findings, policy.meta.generation, now),
        target: policy.spec.as_ref().ok().map(in_short),
        mode: policy.spec.as_ref().ok().map(|spec| spec.mode.clone().unwrap_or(Word::Known(Mode::Batch))),
        current_profile: current,
        candidate_profile: live.candidate.clone(),
        pods: Some(found::counts(input, ways, attachment)),
        summary: live.summary.clone(),
        predicted: live.predicted.clone(),
        rollout: live.rollout.clone(),
        pod_tunings: live.pod_tunings.clone(),
        learned: live.learned.clone(),
    }
}

/// Returns notices about changes of a policy since its last written status.
fn changes(policy: &Policy, before: &BatchPolicyStatus, after: &BatchPolicyStatus) -> Vec<Notice> {
    let about = About::policy(&policy.meta);
    let mut told = Vec::new();
    let of = |status: &BatchPolicyStatus, kind: Type| {
        let found = status.conditions.iter().find(|condition| condition.type_ == kind.as_str());
        found.map(|condition| (condition.reason.clone(), condition.message.clone()))
    };
    // A changed reason is an Event, a changed message is not.
    if let Some((reason, message)) = of(after, Type::Accepted)
        && of(before, Type::Accepted).is_none_or(|(was, _)| was != reason)
    {
        let word = match reason.as_str() {
            "Conflicted" => Some("PolicyConflict"),
            "Invalid" => Some("PolicyInvalid"),
            "TargetNotFound" => Some("TargetNotFound"),
            _ => None,
        };
        told.extend(word.map(|word| Notice::warning(about.clone(), word, message)));
    }
    if let Some((reason, message)) = of(after, Type::Merging)
        && of(before, Type::Merging).is_none_or(|(was, _)| was != reason)
    {
        let told_of =
            |make: fn(About, &'static str, String) -> Notice, word| make(about.clone(), word, message.clone());
        match reason.as_str() {
            MERGE_REFUSED => told.push(told_of(Notice::warning, MERGE_REFUSED)),
            NO_GAIN => told.push(told_of(Notice::normal, NO_GAIN)),
            _ => {}
        }
    }
    if let Some((reason, message)) = of(after, Type::TrafficCaptured)
        && of(before, Type::TrafficCaptured).is_none_or(|(was, _)| was != reason)
    {
        let word = match reason.as_str() {
            "Bypassed" => Some("TrafficBypassed"),
            found::RECIPE_FAILED => Some(found::RECIPE_FAILED),
            _ => None,
        };
        told.extend(word.map(|word| Notice::warning(about.clone(), word, message)));
    }
    if let Some((reason, message)) = of(after, Type::SloMet) {
        let was = of(before, Type::SloMet).map(|(was, _)| was);
        match (was.as_deref(), reason.as_str()) {
            (Some("Missed"), "Met") => told.push(Notice::normal(about.clone(), "SLOMet", message)),
            (was, "Missed") if was != Some("Missed") => {
                told.push(Notice::warning(about.clone(), "SLOMissed", message));
            }
            _ => {}
        }
    }
    if let (Some(was), Some(is)) = (&before.current_profile, &after.current_profile)
        && was != is
    {
        told.push(Notice::normal(about, "ProfileUpdated", format!("profile {is} is in force, replacing {was}")));
    }
    told
}

/// Returns the classified pods that should have a sidecar.
fn missing(input: &Input<'_>) -> Vec<Key> {
    let is_missed = |key: &&Key| {
        let pod = input.world.bare.get(*key);
        pod.is_some_and(|pod| input.bare.get(&pod.meta.uid) == Some(&Bare::Missed))
    };
    input.attached.bare.keys().filter(is_missed).cloned().collect()
}

/// Returns one notice for each workload with missed pods.
fn missed(input: &Input<'_>, missing: &[Key]) -> Vec<Notice> {
    let mut workloads: BTreeMap<(String, super::world::OwnerRef), Vec<String>> = BTreeMap::new();
    let mut told = Vec::new();
    for key in missing {
        let Some(pod) = input.world.bare.get(key) else { continue };
        match input.world.workload(&key.namespace, pod.owner.as_ref(), &pod.labels) {
            Some(workload) => workloads.entry((key.namespace.clone(), workload)).or_default().push(key.name.clone()),
            None => told.push(Notice::warning(About::pod(&pod.meta), "SidecarMissing", AGAIN)),
        }
    }
    told.extend(workloads.into_iter().map(|((namespace, workload), pods)| {
        let note = format!("{}: {AGAIN}", some_of(&pods, 3));
        Notice::warning(About::workload(&namespace, &workload), "SidecarMissing", note)
    }));
    told
}

/// Returns one notice for each workload with pods that are reachable around their sidecars, or that
/// do not start after a recipe has moved their application.
fn bypassed(world: &World, ways: &found::AllWays<'_>) -> Vec<Notice> {
    let mut told: BTreeMap<About, Notice> = BTreeMap::new();
    for found in ways.values() {
        let pod = found.pod;
        let around = found.ways.iter().flatten().next();
        let (word, note) = match (&pod.recipe_failure, around) {
            (Some(failure), _) => (found::RECIPE_FAILED, failure.clone()),
            (None, Some(way)) => {
                let remedy = found::remedy_of(world, found);
                ("TrafficBypassed", format!("traffic bypasses the sidecar: {way}; fix: {remedy}"))
            }
            (None, None) => continue,
        };
        let workload = world.workload(&pod.meta.key.namespace, pod.owner.as_ref(), &pod.labels);
        let about = workload
            .map_or_else(|| About::pod(&pod.meta), |workload| About::workload(&pod.meta.key.namespace, &workload));
        told.entry(about.clone()).or_insert_with(|| Notice::warning(about, word, note));
    }
    told.into_values().collect()
}

/// Remedy for a missed pod.
const AGAIN: &str = "the requested sidecar was not injected, because the webhook was unavailable when the pod was created; recreate the pod (kubectl rollout restart)";

#[cfg(test)]
mod tests;
