//! Computes the response to an admission review from the cluster state. Pure.

use std::collections::BTreeMap;

use serde_json::Value;

use super::review::{self, AdmissionRequest};
use crate::api::v1alpha1::{BatchPolicySpec, LocalObjectReference, OpenEnum, RolloutPhase};
use crate::cluster_state::{ClusterState, ObjectKey, OwnerRef, Policy, in_namespace};
use crate::error::BoxError;
use crate::events::{EventNotice, EventTarget};
use crate::injection_gap::InjectionGap;
use crate::injector::{
    InjectionContext, InjectionOutcome, NamedPolicy, NamedProfile, Namespace, Workload, inject, patch,
};
use crate::matching::{PodSubject, PolicyChoice, choose, selected_by};
use crate::telemetry::names::AdmissionResult;

/// Maximum number of characters of a reason in the API server's audit log.
const AUDIT_CHARS_MAX: usize = 200;

/// The cluster state and the installation's values.
#[derive(Debug, Clone, Copy)]
pub struct ReviewContext<'a> {
    /// The cluster state.
    pub cluster: &'a ClusterState,
    /// The installation's values for sidecar, controller and permissions; the other fields are
    /// filled in here.
    pub base: &'a InjectionContext,
    /// The controller's own namespace, which is always excluded.
    pub own_namespace: &'a str,
    /// Random token of the drain hook, for a pod that is injected for the first time.
    pub token: &'a str,
    /// Overrides the sidecar form: `Some` forces the native or the classic form.
    pub native: Option<bool>,
}

/// A response.
#[derive(Debug, Clone, PartialEq)]
pub struct ReviewResponse {
    /// The encoded response.
    pub body: Vec<u8>,
    /// Result, for metrics.
    pub admission: AdmissionResult,
    /// The injector's reason for which a pod is unchanged.
    pub skipped: Option<&'static str>,
    /// Event on the workload; `None` in a dry run. A pod without an owner has no name yet, so no
    /// Event can refer to it.
    pub event: Option<EventNotice>,
}

/// The decision about a review, before it is encoded.
struct ReviewDecision {
    admission: AdmissionResult,
    patch: Option<json_patch::Patch>,
    warnings: Vec<String>,
    skipped: Option<&'static str>,
    /// Explanation for the audit log and for the Event.
    reason: String,
    news: bool,
}

/// Answers a review.
///
/// # Errors
/// Returns an error if the response cannot be encoded, which is a defect.
pub fn answer(question: &AdmissionRequest, known: ReviewContext<'_>) -> Result<ReviewResponse, BoxError> {
    let workload = workload(question, known.cluster);
    let verdict = decide(question, known, workload.as_ref());
    let mut audit: BTreeMap<&'static str, String> = BTreeMap::new();
    if verdict.admission != AdmissionResult::Ignored {
        audit.insert("outcome", verdict.admission.as_str().to_owned());
        if !verdict.reason.is_empty() {
            audit.insert("reason", verdict.reason.chars().take(AUDIT_CHARS_MAX).collect());
        }
    }
    let news = verdict.news && !question.dry_run;
    let news = workload.filter(|_| news).map(|workload| {
        EventNotice::warning(
            EventTarget::workload(&question.namespace, &workload),
            "InjectionSkipped",
            verdict.reason.clone(),
        )
    });
    let body = review::encode(&question.uid, verdict.patch, &verdict.warnings, audit)?;
    Ok(ReviewResponse { body, admission: verdict.admission, skipped: verdict.skipped, event: news })
}

/// Returns the reason for which a pod has no sidecar: it would have been injected, or could not be.
/// Returns `None` if it does not request injection, or if the decision is unknown.
#[must_use]
pub fn explain_gap(question: &AdmissionRequest, known: ReviewContext<'_>) -> Option<InjectionGap> {
    let workload = workload(question, known.cluster);
    let verdict = decide(question, known, workload.as_ref());
    match verdict.admission {
        AdmissionResult::Injected => Some(InjectionGap::WebhookUnavailable),
        AdmissionResult::Skipped | AdmissionResult::Refused if verdict.news => {
            Some(InjectionGap::NotInjectable(verdict.reason))
        }
        _ => None,
    }
}

fn decide(question: &AdmissionRequest, known: ReviewContext<'_>, workload: Option<&OwnerRef>) -> ReviewDecision {
    if !question.makes_pod {
        return leave_unchanged(AdmissionResult::Ignored, "");
    }
    if question.namespace == known.own_namespace {
        return ReviewDecision {
            skipped: Some("Excluded"),
            ..leave_unchanged(AdmissionResult::Skipped, "the controller's own namespace")
        };
    }
    if !known.cluster.is_synced {
        let reason = "the controller has just started and has not read the cluster state yet; a pod without its sidecar is reported afterwards";
        return ReviewDecision {
            warnings: vec![reason.to_owned()],
            ..leave_unchanged(AdmissionResult::Unsynced, reason)
        };
    }
    let (context, warnings) = build_context(question, known, workload);
    decide_by_outcome(inject(&question.pod, &context), &question.pod, warnings)
}

/// Converts the injector's outcome. `warnings` are those about the policy.
fn decide_by_outcome(outcome: InjectionOutcome, pod: &Value, mut warnings: Vec<String>) -> ReviewDecision {
    match outcome {
        InjectionOutcome::Injected(injected) => {
            warnings.extend(injected.report.warnings);
            let patch = patch(pod, &injected.pod);
            // Repeated injection of an up-to-date pod needs no patch.
            let patch = (!patch.0.is_empty()).then_some(patch);
            ReviewDecision { patch, warnings, ..leave_unchanged(AdmissionResult::Injected, "") }
        }
        InjectionOutcome::Skipped(skipped) => {
            let news = skipped.reason.is_unexpected();
            let reason = format!("{}: {}", skipped.reason.as_str(), skipped.detail);
            // A pod that did not request injection gets no warning.
            let warnings = if news { vec![format!("not injected: {reason}")] } else { Vec::new() };
            ReviewDecision {
                warnings,
                news,
                skipped: Some(skipped.reason.as_str()),
                ..leave_unchanged(AdmissionResult::Skipped, &reason)
            }
        }
        InjectionOutcome::Refused(problems) => {
            let texts: Vec<String> =
                problems.iter().map(|problem| format!("{} {}", problem.code, problem.message)).collect();
            let reason = texts.join("; ");
            let warnings = texts.into_iter().map(|text| format!("not injected: {text}")).collect();
            ReviewDecision { warnings, news: true, ..leave_unchanged(AdmissionResult::Refused, &reason) }
        }
    }
}

fn leave_unchanged(admission: AdmissionResult, reason: &str) -> ReviewDecision {
    ReviewDecision {
        admission,
        patch: None,
        warnings: Vec::new(),
        skipped: None,
        reason: reason.to_owned(),
        news: false,
    }
}

/// Builds the injector's context, and warnings about the policy for the user.
fn build_context(
    question: &AdmissionRequest,
    known: ReviewContext<'_>,
    workload: Option<&OwnerRef>,
) -> (InjectionContext, Vec<String>) {
    let cluster = known.cluster;
    let namespace = question.namespace.as_str();
    let labels = string_map(&question.pod, "/metadata/labels");
    let annotations = string_map(&question.pod, "/metadata/annotations");
    let subject = PodSubject { namespace, labels: &labels, annotations: &annotations, workload };
    let mut warnings = Vec::new();
    let choice = choose(cluster, subject);
    let policy = choice.policy();
    let named: Vec<NamedPolicy> =
        policy.map(|policy| to_named_policy(policy, cluster, choice, &mut warnings)).into_iter().collect();
    let profile = named
        .first()
        .and_then(|policy| policy.spec.profile_ref.as_ref()?.name.as_deref())
        .and_then(|name| cluster.profiles.get(&ObjectKey::new(namespace, name)));
    let profiles = profile.and_then(|profile| {
        let spec = profile.spec.as_ref().ok()?.clone();
        Some(NamedProfile { name: profile.meta.key.name.clone(), spec })
    });
    let tables = [Some(&cluster.services), Some(&cluster.network_policies), cluster.pools.as_ref()];
    let referrers = tables.into_iter().flatten().flat_map(|table| in_namespace(table, namespace));
    // Only objects that apply to this pod are copied: a namespace may contain a thousand.
    let referrers = referrers.filter(|(_, object)| selected_by(object, &labels)).map(|(_, object)| (**object).clone());
    let context = InjectionContext {
        namespace: Namespace {
            name: namespace.to_owned(),
            labels: cluster.namespace_labels(namespace).cloned().unwrap_or_default(),
            annotations: cluster.namespace_annotations(namespace).cloned().unwrap_or_default(),
        },
        own_namespace: known.own_namespace.to_owned(),
        workload: workload.map(workload_of).unwrap_or_default(),
        policies: named.into(),
        profiles: profiles.into_iter().collect(),
        referrers: referrers.collect(),
        supports_native_sidecars: known.native.unwrap_or_else(|| cluster.supports_native_sidecars()),
        token: Some(known.token.to_owned()),
        ..known.base.clone()
    };
    (context, warnings)
}

/// Converts the policy for the injector. The policy of a pod is selected here, for the whole
/// cluster, so it is passed on without its target unless the pod names it.
fn to_named_policy(
    policy: &Policy,
    cluster: &ClusterState,
    choice: PolicyChoice<'_>,
    warnings: &mut Vec<String>,
) -> NamedPolicy {
    let name = policy.meta.key.name.clone();
    let mut spec = match (&policy.spec, &policy.invalid) {
        (Ok(spec), None) => spec.clone(),
        (spec, invalid) => {
            let reason = invalid.as_ref().or(spec.as_ref().err()).map(String::as_str).unwrap_or_default();
            warnings.push(format!("BatchPolicy {name} is invalid, so the defaults apply: {reason}"));
            // A sidecar with a configuration that it cannot parse does not start. The injection
            // settings are kept: they are parsed field by field.
            let injection = spec.as_ref().ok().and_then(|spec| spec.injection.clone());
            BatchPolicySpec { injection, ..BatchPolicySpec::default() }
        }
    };
    if let Some(OpenEnum::Other(word)) = &spec.mode {
        warnings.push(format!(
            "BatchPolicy {name} has mode {word}, which this version does not support; the default applies"
        ));
        spec.mode = None;
    }
    if let Some(current) = profile_in_force(policy, cluster) {
        (spec.profile_ref, spec.limits, spec.scheduling) =
            (Some(LocalObjectReference { name: Some(current) }), None, None);
    }
    if !matches!(choice, PolicyChoice::Named(..)) {
        (spec.selector, spec.target_refs) = (None, None);
    }
    NamedPolicy { name, created: policy.meta.created.clone(), spec }
}

/// Returns the profile in force if the policy's own is under rollout or was rolled back: until its
/// stream is open, a new pod runs the configuration of its admission.
fn profile_in_force(policy: &Policy, cluster: &ClusterState) -> Option<String> {
    let phase = policy.status.rollout.as_ref()?.phase.as_ref()?;
    let promoted = *phase == OpenEnum::Known(RolloutPhase::Promoted);
    let current = policy.status.current_profile.clone().filter(|_| !promoted)?;
    cluster.profiles.contains_key(&ObjectKey::new(&policy.meta.key.namespace, &current)).then_some(current)
}

fn workload_of(made: &OwnerRef) -> Workload {
    let group = made.api_version.split_once('/').map_or("", |(group, _)| group);
    Workload { group: group.to_owned(), kind: made.kind.clone(), name: made.name.clone() }
}

/// Returns the top-level workload of the pod.
fn workload(question: &AdmissionRequest, cluster: &ClusterState) -> Option<OwnerRef> {
    let owners = question.pod.pointer("/metadata/ownerReferences")?.as_array()?;
    let owner = owners.iter().find(|owner| owner["controller"] == Value::Bool(true))?;
    let text = |key: &str| owner.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let owner = OwnerRef { api_version: text("apiVersion"), kind: text("kind"), name: text("name"), uid: text("uid") };
    cluster.workload(&question.namespace, Some(&owner), &string_map(&question.pod, "/metadata/labels"))
}

/// Returns a map of strings. Other values are omitted; the injector reports them.
fn string_map(pod: &Value, path: &str) -> BTreeMap<String, String> {
    let map = pod.pointer(path).and_then(Value::as_object);
    map.into_iter().flatten().filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect()
}

#[cfg(test)]
mod tests;
