//! The condition `TrafficCaptured`: all traffic to the pods of a policy passes through their
//! sidecars.

use std::collections::BTreeSet;

use super::{BypassMap, NAMED_MAX, RECIPE_FAILED, ReasonedStatus, counted, remedy_of};
use crate::attachment::Attachment;
use crate::gap::InjectionGap;
use crate::recompute::{MISSED_REMEDY, RecomputeInput};
use crate::status::{ConditionFinding, ConditionStatus, ConditionType, join_first};

pub(super) fn evaluate_captured(
    input: &RecomputeInput<'_>,
    all: &BypassMap<'_>,
    attachment: &Attachment,
) -> ConditionFinding {
    // Problems are reported in the order of severity: missed by the webhook, not injectable, failed
    // recipe, bypassed, no record of the injection.
    let (holds, reason, message) = find_uninjected(input, attachment)
        .or_else(|| find_failed_recipe(all, attachment))
        .or_else(|| find_bypassed(input, all, attachment))
        .unwrap_or_else(|| describe_captured(attachment.pods.len()));
    ConditionFinding::new(ConditionType::TrafficCaptured, holds, reason, message)
}

/// Reports pods without a sidecar that request one, or that there is no pod with a sidecar.
fn find_uninjected(input: &RecomputeInput<'_>, attachment: &Attachment) -> Option<ReasonedStatus> {
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
        let message = format!("{}: {MISSED_REMEDY}", join_first(&missed, NAMED_MAX));
        return Some((ConditionStatus::False, "SidecarMissing", message));
    }
    if !cannot.is_empty() {
        return Some((ConditionStatus::False, "NotInjectable", join_first(&cannot, 1)));
    }
    if attachment.pods.is_empty() {
        let message = "the policy applies to no pod with a sidecar".to_owned();
        return Some((ConditionStatus::Unknown, "NoPods", message));
    }
    None
}

fn find_failed_recipe(all: &BypassMap<'_>, attachment: &Attachment) -> Option<ReasonedStatus> {
    let failures = attachment.pods.iter().filter_map(|key| all.get(key)?.pod.recipe_failure.clone());
    let failures: Vec<String> = failures.collect();
    (!failures.is_empty()).then(|| (ConditionStatus::False, RECIPE_FAILED, join_first(&failures, 1)))
}

/// Reports bypasses of sidecars, or pods whose bypasses are unknown without a record of the
/// injection.
fn find_bypassed(input: &RecomputeInput<'_>, all: &BypassMap<'_>, attachment: &Attachment) -> Option<ReasonedStatus> {
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
        return Some((ConditionStatus::False, "Bypassed", message));
    }
    if !silent.is_empty() {
        let message = format!(
            "the injection record (annotation groupage.dev/status) is missing or invalid: {}",
            join_first(&silent, NAMED_MAX)
        );
        return Some((ConditionStatus::Unknown, "RecordMissing", message));
    }
    None
}

fn describe_captured(pods: usize) -> ReasonedStatus {
    let sidecars = if pods == 1 { "its sidecar" } else { "their sidecars" };
    let message = format!("all known traffic to {} passes through {sidecars}", counted(pods, "pod"));
    (ConditionStatus::True, "Captured", message)
}
