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
use crate::cluster_state::{ClusterState, ObjectKey, Pod, Policy, in_namespace};
use crate::injector::{STATUS, ServiceFix, current_bypasses, remedy, service_fixes};
use crate::matching::selected_by;
use crate::observed_state::{PodObserved, PolicyObserved};
use crate::status::{ConditionFinding, ConditionState, ConditionStatus, ConditionType, NO_SLO};

/// Reason if an application does not start at the listen address to which a recipe has moved it.
pub(super) const RECIPE_FAILED: &str = "RecipeFailed";
/// Maximum number of pods or bypasses named in a message.
const NAMED_MAX: usize = 3;

/// The bypasses of a pod's sidecar.
#[derive(Debug)]
pub(super) struct PodBypasses<'a> {
    pub(super) pod: &'a Arc<Pod>,
    /// `None` if the pod has no record of its injection.
    pub(super) bypasses: Option<Vec<String>>,
    /// The Services that must target a named port.
    pub(super) fixes: Vec<ServiceFix>,
}

pub(super) type BypassMap<'a> = BTreeMap<&'a ObjectKey, PodBypasses<'a>>;
type ReasonedStatus = (ConditionStatus, &'static str, String);

pub(super) fn find_bypasses(cluster: &ClusterState) -> BypassMap<'_> {
    // Pods of one template are adjacent and have the same labels, so the last lookup is reused.
    let mut last: Option<(&Arc<Pod>, Vec<&Value>)> = None;
    let mut all = BypassMap::new();
    for pod in cluster.pods.values() {
        let same = last
            .take()
            .filter(|(last, _)| last.labels == pod.labels && last.meta.key.namespace == pod.meta.key.namespace);
        let (_, objects) = last.insert(same.unwrap_or_else(|| {
            let tables = [Some(&cluster.services), Some(&cluster.network_policies), cluster.pools.as_ref()];
            let all_objects =
                tables.into_iter().flatten().flat_map(|table| in_namespace(table, &pod.meta.key.namespace));
            let selecting = all_objects.map(|(_, object)| &**object).filter(|object| selected_by(object, &pod.labels));
            (pod, selecting.collect())
        }));
        let status = pod.annotations.get(STATUS);
        let bypasses = status.and_then(|status| current_bypasses(status, &pod.labels, objects));
        let is_bypassed = bypasses.as_ref().is_some_and(|bypasses| !bypasses.is_empty());
        let fixes = status.filter(|_| is_bypassed).map(|status| service_fixes(status, objects));
        all.insert(&pod.meta.key, PodBypasses { pod, bypasses, fixes: fixes.unwrap_or_default() });
    }
    all
}

/// Returns the remedy for calls that bypass a sidecar: the same command that `enable`, `status` and
/// `check` print.
pub(super) fn remedy_of(cluster: &ClusterState, entry: &PodBypasses<'_>) -> String {
    let pod = entry.pod;
    let workload = cluster.workload(&pod.meta.key.namespace, pod.owner.as_ref(), &pod.labels);
    let workload = workload.as_ref().map(|workload| (workload.kind.as_str(), workload.name.as_str()));
    let status = pod.annotations.get(STATUS).map_or("", String::as_str);
    remedy(status, &entry.fixes, &pod.meta.key.namespace, workload)
}

fn to_u32(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// Returns a number with its noun, in the singular for 1.
fn format_count(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

fn injected_pods<'a>(input: &RecomputeInput<'a>, attachment: &'a Attachment) -> impl Iterator<Item = &'a Arc<Pod>> {
    let cluster = input.cluster;
    attachment.pods.iter().filter_map(|key| cluster.pods.get(key))
}

fn connected_pods<'a>(
    input: &RecomputeInput<'a>,
    attachment: &'a Attachment,
) -> impl Iterator<Item = (&'a Arc<Pod>, &'a PodObserved)> {
    let observed = input.observed;
    injected_pods(input, attachment).filter_map(|pod| Some((pod, observed.pods.get(&pod.meta.uid)?)))
}

pub(super) fn count_pods(input: &RecomputeInput<'_>, bypasses: &BypassMap<'_>, attachment: &Attachment) -> PodCounts {
    let bypasses = attachment.pods.iter().filter_map(|key| bypasses.get(key));
    let captured = bypasses.filter(|entry| entry.bypasses.as_ref().is_some_and(Vec::is_empty));
    PodCounts {
        matched: to_u32(attachment.pods.len() + attachment.uninjected.len()),
        injected: to_u32(attachment.pods.len()),
        connected: to_u32(connected_pods(input, attachment).count()),
        captured: to_u32(captured.count()),
        on_current: to_u32(connected_pods(input, attachment).filter(|(_, observed)| observed.current).count()),
    }
}

/// Returns a finding for each condition but `Ready`.
pub(super) fn policy_findings(
    (input, bypasses): (&RecomputeInput<'_>, &BypassMap<'_>),
    policy: &Policy,
    attachment: &Attachment,
    observed: &PolicyObserved,
) -> Vec<ConditionFinding> {
    vec![
        evaluate_accepted(&attachment.accepted),
        evaluate_programmed(input, policy, attachment),
        evaluate_captured(input, bypasses, attachment),
        evaluate_slo(policy, attachment, observed),
        reported_finding(ConditionType::Merging, attachment, observed.merging.as_ref()),
        evaluate_rollout(observed),
    ]
}

fn evaluate_accepted(accepted: &Acceptance) -> ConditionFinding {
    let (holds, message) = match accepted {
        Acceptance::Accepted(note) => (ConditionStatus::True, note.as_deref().unwrap_or("the policy is accepted")),
        Acceptance::Conflicted(reason) | Acceptance::Invalid(reason) | Acceptance::TargetNotFound(reason) => {
            (ConditionStatus::False, reason.as_str())
        }
    };
    ConditionFinding::new(ConditionType::Accepted, holds, accepted.reason(), message)
}

fn evaluate_slo(policy: &Policy, attachment: &Attachment, observed: &PolicyObserved) -> ConditionFinding {
    if !policy.spec.as_ref().is_ok_and(BatchPolicySpec::has_latency_target) {
        return ConditionFinding::new(
            ConditionType::SloMet,
            ConditionStatus::Unknown,
            NO_SLO,
            "the policy has no latency SLO",
        );
    }
    reported_finding(ConditionType::SloMet, attachment, observed.slo.as_ref())
}

/// Returns the state of a condition that the sidecars report.
fn reported_finding(kind: ConditionType, attachment: &Attachment, state: Option<&ConditionState>) -> ConditionFinding {
    let (reason, message) = match state {
        Some(state) => return to_finding(kind, state),
        None if attachment.pods.is_empty() => ("NoPods", "the policy applies to no pod with a sidecar"),
        None => ("NoReports", "no sidecar has reported yet"),
    };
    ConditionFinding::new(kind, ConditionStatus::Unknown, reason, message)
}

fn evaluate_rollout(observed: &PolicyObserved) -> ConditionFinding {
    match &observed.healthy {
        Some(state) => to_finding(ConditionType::RolloutHealthy, state),
        None => ConditionFinding::new(
            ConditionType::RolloutHealthy,
            ConditionStatus::True,
            "NoRollout",
            "no rollout is in progress",
        ),
    }
}

fn to_finding(kind: ConditionType, state: &ConditionState) -> ConditionFinding {
    ConditionFinding::new(kind, state.holds, &state.reason, state.message.clone())
}
