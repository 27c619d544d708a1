//! Findings and pod counts of one policy.

mod captured;
mod programmed;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use self::captured::evaluate_captured;
use self::programmed::evaluate_programmed;
use super::RecomputeInput;
use crate::api::v1alpha1::{BatchPolicySpec, PodCounts};
use crate::attachment::{Acceptance, Attachment};
use crate::injector::{STATUS, ServiceFix, current_bypasses, remedy, service_fixes};
use crate::matching::selected_by;
use crate::observed::{PodObserved, PolicyObserved};
use crate::status::{ConditionFinding, ConditionState, ConditionStatus, ConditionType, NO_SLO};
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
/// The status of a condition, with its reason and message.
type ReasonedStatus = (ConditionStatus, &'static str, String);

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
        evaluate_programmed(input, attachment),
        evaluate_captured(input, ways, attachment),
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
