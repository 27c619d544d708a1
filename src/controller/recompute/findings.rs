//! Findings and pod counts of one policy.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::Value;

use super::RecomputeInput;
use crate::api::v1alpha1::{BatchPolicySpec, PodCounts};
use crate::attachment::{Acceptance, Attachment, RequestedProfile};
use crate::gap::InjectionGap;
use crate::injector::{STATUS, ServiceFix, current_bypasses, remedy, service_fixes};
use crate::matching::selected_by;
use crate::observed::{PodObserved, PolicyObserved};
use crate::status::{ConditionFinding, ConditionState, ConditionStatus, ConditionType, NO_SLO, join_first};
use crate::world::{ClusterState, ObjectKey, Pod, Policy, in_namespace};

/// Reason if an application does not start at the listen address to which a recipe has moved it.
pub(super) const RECIPE_FAILED: &str = "RecipeFailed";
/// Maximum number of pods or bypasses named in a message.
const NAMED_MAX: usize = 3;

/// The bypasses of a pod's sidecar.
#[derive(Debug)]
pub(super) struct PodBypasses<'a> {
    pub(super) pod: &'a Arc<Pod>,
    /// `None` if the pod has no record of its injection.
    pub(super) ways: Option<Vec<String>>,
    /// The Services that must target a named port.
    pub(super) fixes: Vec<ServiceFix>,
}

/// The bypasses of all sidecars, by pod.
pub(super) type BypassMap<'a> = BTreeMap<&'a ObjectKey, PodBypasses<'a>>;

/// Finds the bypasses of all sidecars.
pub(super) fn find_bypasses(world: &ClusterState) -> BypassMap<'_> {
    // Pods of one template are adjacent and have the same labels, so the last lookup is reused.
    let mut last: Option<(&Arc<Pod>, Vec<&Value>)> = None;
    let mut all = BypassMap::new();
    for pod in world.pods.values() {
        let same = last
            .take()
            .filter(|(last, _)| last.labels == pod.labels && last.meta.key.namespace == pod.meta.key.namespace);
        let (_, objects) = last.insert(same.unwrap_or_else(|| {
            let tables = [Some(&world.services), Some(&world.network_policies), world.pools.as_ref()];
            let there = tables.into_iter().flatten().flat_map(|table| in_namespace(table, &pod.meta.key.namespace));
            let about = there.map(|(_, object)| &**object).filter(|object| selected_by(object, &pod.labels));
            (pod, about.collect())
        }));
        let status = pod.annotations.get(STATUS);
        let ways = status.and_then(|status| current_bypasses(status, &pod.labels, objects));
        let goes_around = ways.as_ref().is_some_and(|ways| !ways.is_empty());
        let fixes = status.filter(|_| goes_around).map(|status| service_fixes(status, objects));
        all.insert(&pod.meta.key, PodBypasses { pod, ways, fixes: fixes.unwrap_or_default() });
    }
    all
}

/// Returns the remedy for calls that bypass a sidecar: the same command that `enable`, `status` and
/// `check` print.
pub(super) fn remedy_of(world: &ClusterState, found: &PodBypasses<'_>) -> String {
    let pod = found.pod;
    let workload = world.workload(&pod.meta.key.namespace, pod.owner.as_ref(), &pod.labels);
    let workload = workload.as_ref().map(|workload| (workload.kind.as_str(), workload.name.as_str()));
    remedy(&found.fixes, &pod.meta.key.namespace, workload)
}

fn to_u32(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// Returns a number with its noun, in the singular for 1.
fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

fn injected<'a>(input: &RecomputeInput<'a>, attachment: &'a Attachment) -> impl Iterator<Item = &'a Arc<Pod>> {
    let world = input.world;
    attachment.pods.iter().filter_map(|key| world.pods.get(key))
}

fn connected<'a>(
    input: &RecomputeInput<'a>,
    attachment: &'a Attachment,
) -> impl Iterator<Item = (&'a Arc<Pod>, &'a PodObserved)> {
    let live = input.live;
    injected(input, attachment).filter_map(|pod| Some((pod, live.pods.get(&pod.meta.uid)?)))
}

/// Counts the pods of a policy.
pub(super) fn counts(input: &RecomputeInput<'_>, ways: &BypassMap<'_>, attachment: &Attachment) -> PodCounts {
    let ways = attachment.pods.iter().filter_map(|key| ways.get(key));
    let captured = ways.filter(|found| found.ways.as_ref().is_some_and(Vec::is_empty));
    PodCounts {
        matched: to_u32(attachment.pods.len() + attachment.bare.len()),
        injected: to_u32(attachment.pods.len()),
        connected: to_u32(connected(input, attachment).count()),
        captured: to_u32(captured.count()),
        on_current: to_u32(connected(input, attachment).filter(|(_, live)| live.current).count()),
    }
}

/// Returns a finding for each condition but `Ready`.
pub(super) fn findings(
    (input, ways): (&RecomputeInput<'_>, &BypassMap<'_>),
    policy: &Policy,
    attachment: &Attachment,
    live: &PolicyObserved,
) -> Vec<ConditionFinding> {
    vec![
        accepted(&attachment.accepted),
        programmed(input, attachment),
        captured(input, ways, attachment),
        slo(policy, attachment, live),
        merging(attachment, live),
        rollout(live),
    ]
}

fn accepted(accepted: &Acceptance) -> ConditionFinding {
    let (holds, message) = match accepted {
        Acceptance::Accepted(note) => (ConditionStatus::True, note.as_deref().unwrap_or("the policy is accepted")),
        Acceptance::Conflicted(reason) | Acceptance::Invalid(reason) | Acceptance::TargetNotFound(reason) => {
            (ConditionStatus::False, reason.as_str())
        }
    };
    ConditionFinding::new(ConditionType::Accepted, holds, accepted.reason(), message)
}

fn programmed(input: &RecomputeInput<'_>, attachment: &Attachment) -> ConditionFinding {
    let say =
        |holds, reason: &str, message: String| ConditionFinding::new(ConditionType::Programmed, holds, reason, message);
    if !attachment.accepted.is_applied() {
        let message = "sidecars keep their previous configuration".to_owned();
        return say(ConditionStatus::False, attachment.accepted.reason(), message);
    }
    if let RequestedProfile::Named(name, false) = &attachment.requested {
        let message = format!("BatchProfile {name} is missing or invalid; sidecars keep their previous configuration");
        return say(ConditionStatus::False, "ProfileNotFound", message);
    }
    if attachment.pods.is_empty() {
        return say(ConditionStatus::Unknown, "NoPods", "the policy applies to no pod with a sidecar".to_owned());
    }
    let all: Vec<(&Arc<Pod>, &PodObserved)> = connected(input, attachment).collect();
    let names = |pods: &[&Arc<Pod>]| {
        let names: Vec<String> = pods.iter().map(|pod| pod.meta.key.name.clone()).collect();
        join_first(&names, NAMED_MAX)
    };
    // Problems are reported in the order of severity: rejected, not connected, outdated, waiting
    // for a restart.
    let refused: Vec<String> = all
        .iter()
        .filter_map(|(pod, live)| Some(format!("{}: {}", pod.meta.key.name, live.refused.as_ref()?)))
        .collect();
    if !refused.is_empty() {
        return say(ConditionStatus::False, "Refused", join_first(&refused, 1));
    }
    let (of, there) = (attachment.pods.len(), all.len());
    if there < of {
        let there: BTreeSet<&ObjectKey> = all.iter().map(|(pod, _)| &pod.meta.key).collect();
        let away: Vec<&Arc<Pod>> = injected(input, attachment).filter(|pod| !there.contains(&pod.meta.key)).collect();
        let verb = if away.len() == 1 { "is" } else { "are" };
        let message = format!("{} of {} {verb} not connected: {}", away.len(), counted(of, "sidecar"), names(&away));
        // A starting sidecar is not connected yet either; it runs the configuration of its
        // admission.
        return say(ConditionStatus::False, "NotConnected", message);
    }
    let behind: Vec<&Arc<Pod>> = all.iter().filter(|(_, live)| !live.programmed).map(|(pod, _)| *pod).collect();
    if !behind.is_empty() {
        let verb = if behind.len() == 1 { "has" } else { "have" };
        let message = format!(
            "{} of {} {verb} not applied the policy yet: {}",
            behind.len(),
            counted(of, "sidecar"),
            names(&behind)
        );
        return say(ConditionStatus::False, "Pending", message);
    }
    let run = format!("{} {} the policy", counted(of, "sidecar"), if of == 1 { "runs" } else { "run" });
    let pending: BTreeSet<&String> = all.iter().flat_map(|(_, live)| &live.pending).collect();
    if !pending.is_empty() {
        let keys: Vec<String> = pending.into_iter().cloned().collect();
        let message = format!("{run}; pending until the next start of the sidecar: {}", join_first(&keys, NAMED_MAX));
        return say(ConditionStatus::True, "NextStart", message);
    }
    say(ConditionStatus::True, "Programmed", run)
}

fn captured(input: &RecomputeInput<'_>, all: &BypassMap<'_>, attachment: &Attachment) -> ConditionFinding {
    let say = |holds, reason: &str, message: String| {
        ConditionFinding::new(ConditionType::TrafficCaptured, holds, reason, message)
    };
    // Problems are reported in the order of severity: missed by the webhook, not injectable, failed
    // recipe, bypassed, no record of the injection.
    let (mut missed, mut cannot) = (Vec::new(), Vec::new());
    for key in &attachment.bare {
        let found = input.world.uninjected_pods.get(key).and_then(|pod| input.bare.get(&pod.meta.uid));
        match found {
            Some(InjectionGap::Missed) => missed.push(key.name.clone()),
            Some(InjectionGap::Cannot(cause)) => cannot.push(format!("{}: {cause}", key.name)),
            None => {}
        }
    }
    if !missed.is_empty() {
        return say(
            ConditionStatus::False,
            "SidecarMissing",
            format!("{}: {}", join_first(&missed, NAMED_MAX), super::MISSED_REMEDY),
        );
    }
    if !cannot.is_empty() {
        return say(ConditionStatus::False, "NotInjectable", join_first(&cannot, 1));
    }
    if attachment.pods.is_empty() {
        return say(ConditionStatus::Unknown, "NoPods", "the policy applies to no pod with a sidecar".to_owned());
    }
    let failures = attachment.pods.iter().filter_map(|key| all.get(key)?.pod.recipe_failure.clone());
    let failures: Vec<String> = failures.collect();
    if !failures.is_empty() {
        return say(ConditionStatus::False, RECIPE_FAILED, join_first(&failures, 1));
    }
    let (mut ways, mut silent, mut help) = (BTreeSet::new(), Vec::new(), None);
    for found in attachment.pods.iter().filter_map(|key| all.get(key)) {
        match &found.ways {
            Some(around) if !around.is_empty() => {
                help.get_or_insert_with(|| remedy_of(input.world, found));
                ways.extend(around.clone());
            }
            Some(_) => {}
            None => silent.push(found.pod.meta.key.name.clone()),
        }
    }
    if let Some(help) = help {
        let ways: Vec<String> = ways.into_iter().collect();
        let message = format!("traffic bypasses the sidecar: {}; fix: {help}", join_first(&ways, NAMED_MAX));
        return say(ConditionStatus::False, "Bypassed", message);
    }
    if !silent.is_empty() {
        let message = format!(
            "the injection record (annotation groupage.dev/status) is missing or invalid: {}",
            join_first(&silent, NAMED_MAX)
        );
        return say(ConditionStatus::Unknown, "RecordMissing", message);
    }
    let pods = attachment.pods.len();
    let sidecars = if pods == 1 { "its sidecar" } else { "their sidecars" };
    say(
        ConditionStatus::True,
        "Captured",
        format!("all known traffic to {} passes through {sidecars}", counted(pods, "pod")),
    )
}

fn slo(policy: &Policy, attachment: &Attachment, live: &PolicyObserved) -> ConditionFinding {
    if !policy.spec.as_ref().is_ok_and(BatchPolicySpec::has_latency_target) {
        return ConditionFinding::new(
            ConditionType::SloMet,
            ConditionStatus::Unknown,
            NO_SLO,
            "the policy has no latency SLO",
        );
    }
    match &live.slo {
        Some(state) => finding(ConditionType::SloMet, state),
        None if attachment.pods.is_empty() => ConditionFinding::new(
            ConditionType::SloMet,
            ConditionStatus::Unknown,
            "NoPods",
            "the policy applies to no pod with a sidecar",
        ),
        None => ConditionFinding::new(
            ConditionType::SloMet,
            ConditionStatus::Unknown,
            "NoReports",
            "no sidecar has reported yet",
        ),
    }
}

fn merging(attachment: &Attachment, live: &PolicyObserved) -> ConditionFinding {
    match &live.merging {
        Some(state) => finding(ConditionType::Merging, state),
        None if attachment.pods.is_empty() => ConditionFinding::new(
            ConditionType::Merging,
            ConditionStatus::Unknown,
            "NoPods",
            "the policy applies to no pod with a sidecar",
        ),
        None => ConditionFinding::new(
            ConditionType::Merging,
            ConditionStatus::Unknown,
            "NoReports",
            "no sidecar has reported yet",
        ),
    }
}

fn rollout(live: &PolicyObserved) -> ConditionFinding {
    match &live.healthy {
        Some(state) => finding(ConditionType::RolloutHealthy, state),
        None => ConditionFinding::new(
            ConditionType::RolloutHealthy,
            ConditionStatus::True,
            "NoRollout",
            "no rollout is in progress",
        ),
    }
}

fn finding(kind: ConditionType, state: &ConditionState) -> ConditionFinding {
    ConditionFinding::new(kind, state.holds, &state.reason, state.message.clone())
}
