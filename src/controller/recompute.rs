//! From everything that is known to everything that is to be said and done: pure.
//!
//! It is run whenever something changed, over the whole world; what it gives is compared with what there is, and only differences are written (`apply`).
//! What pods do and what is tried on them comes in as [`Live`]: without it no pod is connected, and every change is in force at once.

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

/// What sidecars say and what is tried on them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Live {
    /// By the pod's UID; a pod that is not here is not connected.
    pub pods: BTreeMap<String, PodLive>,
    /// By policy; one that is not here has what it wants in force.
    pub policies: BTreeMap<Key, PolicyLive>,
    /// To tell once.
    pub told: Vec<Notice>,
}

/// What a connected sidecar says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodLive {
    /// Whether it runs the profile that is in force; another one is tried on it, or it is behind.
    pub current: bool,
    /// Whether it runs what it was told last.
    pub programmed: bool,
    /// Why it refused what it was told.
    pub refused: Option<String>,
    /// Settings that wait for its next start.
    pub pending: Vec<String>,
}

/// How a policy goes.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PolicyLive {
    /// The profile in force.
    pub current: Option<String>,
    /// The one that is tried.
    pub candidate: Option<String>,
    /// Profiles that pods run or may be given again, besides these two.
    pub used: Vec<String>,
    /// Where the rollout stands.
    pub rollout: Option<RolloutStatus>,
    /// Whether what is tried does no harm; `None`: nothing is tried.
    pub healthy: Option<Said>,
    /// Whether the SLO is met; `None`: nobody knows.
    pub slo: Option<Said>,
    /// Whether calls are merged; `None`: no sidecar has reported.
    pub merging: Option<Said>,
    /// How it goes, over all pods.
    pub summary: Option<Summary>,
    /// What batching would have done.
    pub predicted: Option<Summary>,
    /// What was tuned.
    pub pod_tunings: Vec<PodTuning>,
    /// What was learned.
    pub learned: Vec<Learned>,
    /// How profiles did, by name: calls, and the verdict.
    pub verdicts: BTreeMap<String, (u64, Option<Verdict>)>,
}

/// Whether something is so, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Said {
    /// Whether.
    pub holds: Holds,
    /// In one word.
    pub reason: String,
    /// For people.
    pub message: String,
}

/// What was found of a pod that asks for a sidecar and has none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Bare {
    /// It would have got one: the webhook was not there.
    Missed,
    /// It cannot have one, for this reason.
    Cannot(String),
}

/// What is to be.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Desired {
    /// Of every policy, its status.
    pub policies: BTreeMap<Key, BatchPolicyStatus>,
    /// Of every profile, its status.
    pub profiles: BTreeMap<Key, BatchProfileStatus>,
    /// Profiles to make.
    pub make: Vec<NewProfile>,
    /// Profiles to remove, with their UIDs.
    pub remove: Vec<(Key, String)>,
    /// Pods that should have a sidecar and have none.
    pub missing: Vec<Key>,
    /// To tell.
    pub told: Vec<Notice>,
}

/// What was found, all together.
#[derive(Debug, Clone, Copy)]
pub struct Input<'a> {
    /// The cluster.
    pub world: &'a World,
    /// Who follows whom.
    pub attached: &'a Attached,
    /// What sidecars say.
    pub live: &'a Live,
    /// Of pods without a sidecar, by UID; one that is not here was not looked at yet.
    pub bare: &'a BTreeMap<String, Bare>,
    /// What was written last, where that is newer than what is known.
    pub written: &'a BTreeMap<Key, BatchPolicyStatus>,
}

/// What is to be.
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
    // Where nobody looks, because the policy is not obeyed at present or this replica has only begun to lead, what it resumes from stays.
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
    // What no pod was ever told of is not in force; what was stays so while an edit is wrong.
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

/// What became of a policy since it was written of last, worth an event on it.
fn changes(policy: &Policy, before: &BatchPolicyStatus, after: &BatchPolicyStatus) -> Vec<Notice> {
    let about = About::policy(&policy.meta);
    let mut told = Vec::new();
    let of = |status: &BatchPolicyStatus, kind: Type| {
        let found = status.conditions.iter().find(|condition| condition.type_ == kind.as_str());
        found.map(|condition| (condition.reason.clone(), condition.message.clone()))
    };
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
        told.push(Notice::normal(about, "ProfileUpdated", format!("profile {is} is in force instead of {was}")));
    }
    told
}

/// Pods that were looked at and should have a sidecar.
fn missing(input: &Input<'_>) -> Vec<Key> {
    let is_missed = |key: &&Key| {
        let pod = input.world.bare.get(*key);
        pod.is_some_and(|pod| input.bare.get(&pod.meta.uid) == Some(&Bare::Missed))
    };
    input.attached.bare.keys().filter(is_missed).cloned().collect()
}

/// One notice for each workload that has such pods.
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

/// One notice for each workload with pods around whose sidecars calls go, or that do not come up
/// where a recipe has moved them.
fn bypassed(world: &World, ways: &found::AllWays<'_>) -> Vec<Notice> {
    let mut told: BTreeMap<About, Notice> = BTreeMap::new();
    for found in ways.values() {
        let pod = found.pod;
        let around = found.ways.iter().flatten().next();
        let (word, note) = match (&pod.recipe_failure, around) {
            (Some(failure), _) => (found::RECIPE_FAILED, failure.clone()),
            (None, Some(way)) => {
                let remedy = found::remedy_of(world, found);
                ("TrafficBypassed", format!("not through the sidecar: {way}; {remedy}"))
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

/// What to do about a pod that was missed.
const AGAIN: &str = "without the sidecar that was asked for: made while the webhook was not there; make it anew (kubectl rollout restart)";

#[cfg(test)]
mod tests;
