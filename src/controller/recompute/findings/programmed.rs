//! The condition `Programmed`: all sidecars of a policy run it.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{NAMED_MAX, ReasonedStatus, connected_pods, format_count, injected_pods};
use crate::api::v1alpha1::EngineSpec;
use crate::attachment::{Attachment, RequestedProfile};
use crate::cluster_state::{ObjectKey, Pod, Policy};
use crate::injector::{STATUS, outdated_engine_settings};
use crate::observed_state::PodObserved;
use crate::recompute::RecomputeInput;
use crate::status::{ConditionFinding, ConditionStatus, ConditionType, join_first};

/// A connected pod, and the state of its sidecar.
type ConnectedPod<'a> = (&'a Arc<Pod>, &'a PodObserved);

pub(super) fn evaluate_programmed(
    input: &RecomputeInput<'_>,
    policy: &Policy,
    attachment: &Attachment,
) -> ConditionFinding {
    let engine = policy.spec.as_ref().ok().and_then(|spec| spec.engine.as_ref());
    let pods: Vec<ConnectedPod<'_>> = connected_pods(input, attachment).collect();
    let total = attachment.pods.len();
    // Problems are reported in the order of severity: rejected, not connected, outdated, waiting
    // for a restart.
    let (holds, reason, message) = find_policy_problem(attachment)
        .or_else(|| find_refused(&pods))
        .or_else(|| find_unconnected(input, attachment, &pods))
        .or_else(|| find_outdated(total, &pods))
        .unwrap_or_else(|| describe_running(total, &pods, engine));
    ConditionFinding::new(ConditionType::Programmed, holds, reason, message)
}

/// Returns the reason for which the policy is not pushed at all.
fn find_policy_problem(attachment: &Attachment) -> Option<ReasonedStatus> {
    if !attachment.accepted.is_applied() {
        let message = "sidecars keep their previous configuration".to_owned();
        return Some((ConditionStatus::False, attachment.accepted.reason(), message));
    }
    if let RequestedProfile::Named(name, false) = &attachment.requested {
        let message = format!("BatchProfile {name} is missing or invalid; sidecars keep their previous configuration");
        return Some((ConditionStatus::False, "ProfileNotFound", message));
    }
    if attachment.pods.is_empty() {
        let message = "the policy applies to no pod with a sidecar".to_owned();
        return Some((ConditionStatus::Unknown, "NoPods", message));
    }
    None
}

fn find_refused(pods: &[ConnectedPod<'_>]) -> Option<ReasonedStatus> {
    let refused: Vec<String> = pods
        .iter()
        .filter_map(|(pod, observed)| Some(format!("{}: {}", pod.meta.key.name, observed.refused.as_ref()?)))
        .collect();
    (!refused.is_empty()).then(|| (ConditionStatus::False, "Refused", join_first(&refused, 1)))
}

fn find_unconnected(
    input: &RecomputeInput<'_>,
    attachment: &Attachment,
    pods: &[ConnectedPod<'_>],
) -> Option<ReasonedStatus> {
    let total = attachment.pods.len();
    if pods.len() >= total {
        return None;
    }
    let connected: BTreeSet<&ObjectKey> = pods.iter().map(|(pod, _)| &pod.meta.key).collect();
    let missing: Vec<&Arc<Pod>> =
        injected_pods(input, attachment).filter(|pod| !connected.contains(&pod.meta.key)).collect();
    let verb = if missing.len() == 1 { "is" } else { "are" };
    let message = format!(
        "{} of {} {verb} not connected: {}",
        missing.len(),
        format_count(total, "sidecar"),
        join_names(&missing)
    );
    // A starting sidecar is not connected yet either; it runs the configuration of its admission.
    Some((ConditionStatus::False, "NotConnected", message))
}

fn find_outdated(total: usize, pods: &[ConnectedPod<'_>]) -> Option<ReasonedStatus> {
    let outdated: Vec<&Arc<Pod>> =
        pods.iter().filter(|(_, observed)| !observed.programmed).map(|(pod, _)| *pod).collect();
    if outdated.is_empty() {
        return None;
    }
    let verb = if outdated.len() == 1 { "has" } else { "have" };
    let message = format!(
        "{} of {} {verb} not applied the policy yet: {}",
        outdated.len(),
        format_count(total, "sidecar"),
        join_names(&outdated)
    );
    Some((ConditionStatus::False, "Pending", message))
}

/// Returns the status if all sidecars run the policy, some perhaps only in part until their next
/// start, or until new pods have replaced theirs.
fn describe_running(total: usize, pods: &[ConnectedPod<'_>], engine: Option<&EngineSpec>) -> ReasonedStatus {
    let summary = format!("{} {} the policy", format_count(total, "sidecar"), if total == 1 { "runs" } else { "run" });
    let (mut next_start, mut new_pods) = (BTreeSet::new(), BTreeSet::new());
    for (pod, observed) in pods {
        let status = pod.annotations.get(STATUS);
        let outdated = status.and_then(|status| outdated_engine_settings(status, &pod.annotations, engine));
        for key in &observed.pending {
            // A sidecar that captures ports never executes a model.
            let keys = if key.starts_with("engine.") && outdated.is_none() { &mut new_pods } else { &mut next_start };
            keys.insert(key.clone());
        }
        new_pods.extend(outdated.into_iter().flatten().map(str::to_owned));
    }
    if next_start.is_empty() && new_pods.is_empty() {
        return (ConditionStatus::True, "Programmed", summary);
    }
    let pending =
        [("until the next start of the sidecar", next_start), ("for new pods (kubectl rollout restart)", new_pods)];
    let pending = pending.into_iter().filter(|(_, keys)| !keys.is_empty()).map(|(when, keys)| {
        let keys: Vec<String> = keys.into_iter().collect();
        format!("pending {when}: {}", join_first(&keys, NAMED_MAX))
    });
    let message = std::iter::once(summary).chain(pending).collect::<Vec<_>>().join("; ");
    (ConditionStatus::True, "NextStart", message)
}

fn join_names(pods: &[&Arc<Pod>]) -> String {
    let names: Vec<String> = pods.iter().map(|pod| pod.meta.key.name.clone()).collect();
    join_first(&names, NAMED_MAX)
}
