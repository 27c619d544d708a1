//! The condition `TrafficCaptured`: all traffic to the pods of a policy passes through their
//! sidecars.

use std::collections::BTreeSet;

use super::{BypassMap, NAMED_MAX, RECIPE_FAILED, ReasonedStatus, format_count, remedy_of};
use crate::attachment::Attachment;
use crate::injection_gap::InjectionGap;
use crate::recompute::{MISSED_REMEDY, RecomputeInput};
use crate::status::{ConditionFinding, ConditionStatus, ConditionType, join_first};

pub(super) fn evaluate_captured(
    input: &RecomputeInput<'_>,
    bypasses: &BypassMap<'_>,
    attachment: &Attachment,
) -> ConditionFinding {
    // Problems are reported in the order of severity: missed by the webhook, not injectable, failed
    // recipe, bypassed, no record of the injection.
    let (holds, reason, message) = find_uninjected(input, attachment)
        .or_else(|| find_failed_recipe(bypasses, attachment))
        .or_else(|| find_bypassed(input, bypasses, attachment))
        .unwrap_or_else(|| describe_captured(attachment.pods.len()));
    ConditionFinding::new(ConditionType::TrafficCaptured, holds, reason, message)
}

/// Reports pods without a sidecar that request one, or that there is no pod with a sidecar.
fn find_uninjected(input: &RecomputeInput<'_>, attachment: &Attachment) -> Option<ReasonedStatus> {
    let (mut missed, mut not_injectable) = (Vec::new(), Vec::new());
    for key in &attachment.uninjected {
        let gap = input.cluster.uninjected_pods.get(key).and_then(|pod| input.gaps.get(&pod.meta.uid));
        match gap {
            Some(InjectionGap::WebhookUnavailable) => missed.push(key.name.clone()),
            Some(InjectionGap::NotInjectable(cause)) => not_injectable.push(format!("{}: {cause}", key.name)),
            None => {}
        }
    }
    if !missed.is_empty() {
        let message = format!("{}: {MISSED_REMEDY}", join_first(&missed, NAMED_MAX));
        return Some((ConditionStatus::False, "SidecarMissing", message));
    }
    if !not_injectable.is_empty() {
        return Some((ConditionStatus::False, "NotInjectable", join_first(&not_injectable, 1)));
    }
    if attachment.pods.is_empty() {
        let message = "the policy applies to no pod with a sidecar".to_owned();
        return Some((ConditionStatus::Unknown, "NoPods", message));
    }
    None
}

fn find_failed_recipe(bypasses: &BypassMap<'_>, attachment: &Attachment) -> Option<ReasonedStatus> {
    let failures = attachment.pods.iter().filter_map(|key| bypasses.get(key)?.pod.recipe_failure.clone());
    let failures: Vec<String> = failures.collect();
    (!failures.is_empty()).then(|| (ConditionStatus::False, RECIPE_FAILED, join_first(&failures, 1)))
}

/// Reports bypasses of sidecars, or pods whose bypasses are unknown without a record of the
/// injection.
fn find_bypassed(
    input: &RecomputeInput<'_>,
    bypasses: &BypassMap<'_>,
    attachment: &Attachment,
) -> Option<ReasonedStatus> {
    let (mut found, mut without_record, mut remedy) = (BTreeSet::new(), Vec::new(), None);
    for entry in attachment.pods.iter().filter_map(|key| bypasses.get(key)) {
        match &entry.bypasses {
            Some(own) if !own.is_empty() => {
                remedy.get_or_insert_with(|| remedy_of(input.cluster, entry));
                found.extend(own.clone());
            }
            Some(_) => {}
            None => without_record.push(entry.pod.meta.key.name.clone()),
        }
    }
    if let Some(remedy) = remedy {
        let found: Vec<String> = found.into_iter().collect();
        let message = format!("traffic bypasses the sidecar: {}; fix: {remedy}", join_first(&found, NAMED_MAX));
        return Some((ConditionStatus::False, "Bypassed", message));
    }
    if !without_record.is_empty() {
        let message = format!(
            "the injection record (annotation groupage.dev/status) is missing or invalid: {}",
            join_first(&without_record, NAMED_MAX)
        );
        return Some((ConditionStatus::Unknown, "RecordMissing", message));
    }
    None
}

fn describe_captured(pods: usize) -> ReasonedStatus {
    let sidecars = if pods == 1 { "its sidecar" } else { "their sidecars" };
    let message = format!("all known traffic to {} passes through {sidecars}", format_count(pods, "pod"));
    (ConditionStatus::True, "Captured", message)
}
