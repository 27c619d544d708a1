//! Computes the response to an admission review from the cluster state. Pure.

use std::collections::BTreeMap;

use serde_json::Value;

use super::review::{self, AdmissionRequest};
use crate::api::v1alpha1::{BatchPolicySpec, LocalObjectReference, OpenEnum, RolloutPhase};
use crate::error::BoxError;
use crate::events::{EventNotice, EventTarget};
use crate::gap::InjectionGap;
use crate::injector::{
    InjectionContext, InjectionOutcome, NamedPolicy, NamedProfile, Namespace, Workload, inject, patch,
};
use crate::matching::{PodSubject, PolicyChoice, choose, selected_by};
use crate::telemetry::names::AdmissionResult;
use crate::world::{ClusterState, ObjectKey, OwnerRef, Policy, in_namespace};

/// Maximum number of characters of a reason in the API server's audit log.
const AUDIT_CHARS_MAX: usize = 200;

/// The cluster state and the installation's values.
#[derive(Debug, Clone, Copy)]
pub struct ReviewContext<'a> {
    /// The cluster state.
    pub world: &'a ClusterState,
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
    let workload = workload(question, known.world);
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
    let workload = workload(question, known.world);
    let verdict = decide(question, known, workload.as_ref());
    match verdict.admission {
        AdmissionResult::Injected => Some(InjectionGap::Missed),
        AdmissionResult::Skipped | AdmissionResult::Refused if verdict.news => {
            Some(InjectionGap::Cannot(verdict.reason))
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
    if !known.world.is_synced {
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

/// Returns the decision that leaves the pod as it is.
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
    let world = known.world;
    let namespace = question.namespace.as_str();
    let labels = string_map(&question.pod, "/metadata/labels");
    let annotations = string_map(&question.pod, "/metadata/annotations");
    let subject = PodSubject { namespace, labels: &labels, annotations: &annotations, workload };
    let mut warnings = Vec::new();
    let choice = choose(world, subject);
    let policy = choice.policy();
    let named: Vec<NamedPolicy> =
        policy.map(|policy| to_named_policy(policy, world, choice, &mut warnings)).into_iter().collect();
    let profile = named
        .first()
        .and_then(|policy| policy.spec.profile_ref.as_ref()?.name.as_deref())
        .and_then(|name| world.profiles.get(&ObjectKey::new(namespace, name)));
    let profiles = profile.and_then(|profile| {
        let spec = profile.spec.as_ref().ok()?.clone();
        Some(NamedProfile { name: profile.meta.key.name.clone(), spec })
    });
    let tables = [Some(&world.services), Some(&world.network_policies), world.pools.as_ref()];
    let referrers = tables.into_iter().flatten().flat_map(|table| in_namespace(table, namespace));
    // Only objects that apply to this pod are copied: a namespace may contain a thousand.
    let referrers = referrers.filter(|(_, object)| selected_by(object, &labels)).map(|(_, object)| (**object).clone());
    let context = InjectionContext {
        namespace: Namespace {
            name: namespace.to_owned(),
            labels: world.namespace_labels(namespace).cloned().unwrap_or_default(),
            annotations: world.namespace_annotations(namespace).cloned().unwrap_or_default(),
        },
        own_namespace: known.own_namespace.to_owned(),
        workload: workload.map(workload_of).unwrap_or_default(),
        policies: named.into(),
        profiles: profiles.into_iter().collect(),
        referrers: referrers.collect(),
        supports_native_sidecars: known.native.unwrap_or_else(|| world.supports_native_sidecars()),
        token: Some(known.token.to_owned()),
        ..known.base.clone()
    };
    (context, warnings)
}

/// Converts the policy for the injector. The policy of a pod is selected here, for the whole
/// cluster, so it is passed on without its target unless the pod names it.
fn to_named_policy(
    policy: &Policy,
    world: &ClusterState,
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
    if let Some(current) = profile_in_force(policy, world) {
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
fn profile_in_force(policy: &Policy, world: &ClusterState) -> Option<String> {
    let phase = policy.status.rollout.as_ref()?.phase.as_ref()?;
    let promoted = *phase == OpenEnum::Known(RolloutPhase::Promoted);
    let current = policy.status.current_profile.clone().filter(|_| !promoted)?;
    world.profiles.contains_key(&ObjectKey::new(&policy.meta.key.namespace, &current)).then_some(current)
}

fn workload_of(made: &OwnerRef) -> Workload {
    let group = made.api_version.split_once('/').map_or("", |(group, _)| group);
    Workload { group: group.to_owned(), kind: made.kind.clone(), name: made.name.clone() }
}

/// Returns the top-level workload of the pod.
fn workload(question: &AdmissionRequest, world: &ClusterState) -> Option<OwnerRef> {
    let owners = question.pod.pointer("/metadata/ownerReferences")?.as_array()?;
    let owner = owners.iter().find(|owner| owner["controller"] == Value::Bool(true))?;
    let text = |key: &str| owner.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let owner = OwnerRef { api_version: text("apiVersion"), kind: text("kind"), name: text("name"), uid: text("uid") };
    world.workload(&question.namespace, Some(&owner), &string_map(&question.pod, "/metadata/labels"))
}

/// Returns a map of strings. Other values are omitted; the injector reports them.
fn string_map(pod: &Value, path: &str) -> BTreeMap<String, String> {
    let map = pod.pointer(path).and_then(Value::as_object);
    map.into_iter().flatten().filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::world::ObjectTable;
    use crate::world::fixtures::*;

    fn world() -> ClusterState {
        let mut world = ClusterState { is_synced: true, server_native: Some(true), ..ClusterState::default() };
        namespace(&mut world, "a", &[]);
        insert(&mut world.replica_sets, ObjectKey::new("a", "emb-1"), owner_of("u", Some(deployment("emb"))));
        world
    }

    fn pod(annotations: &Value) -> Value {
        json!({
            "metadata": {"generateName": "emb-1-", "labels": {"app": "x"}, "annotations": annotations,
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "emb-1", "uid": "u", "controller": true}]},
            "spec": {"containers": [{"name": "server", "image": "i", "ports": [{"name": "http", "containerPort": 8080}]}]},
        })
    }

    fn request_for(pod: Value) -> AdmissionRequest {
        AdmissionRequest { uid: "u".into(), makes_pod: true, namespace: "a".into(), pod, dry_run: false }
    }

    fn review_of(world: &ClusterState, question: &AdmissionRequest) -> (ReviewResponse, Value) {
        let base = InjectionContext::default();
        let known =
            ReviewContext { world, base: &base, own_namespace: "groupage-system", token: "secret", native: None };
        let answer = answer(question, known).unwrap();
        let review: Value = serde_json::from_slice(&answer.body).unwrap();
        let response = review["response"].clone();
        assert_eq!((&response["uid"], &response["allowed"]), (&json!("u"), &json!(true)), "a pod is always allowed");
        (answer, response)
    }

    /// Applies the patch of the response to the pod.
    fn patched(question: &AdmissionRequest, response: &Value) -> Value {
        let mut pod = question.pod.clone();
        if let Some(bytes) = response.get("patch").filter(|patch| !patch.is_null()) {
            let bytes: Vec<u8> = serde_json::from_value(bytes.clone()).unwrap();
            let patch: json_patch::Patch = serde_json::from_slice(&bytes).unwrap();
            json_patch::patch(&mut pod, &patch).unwrap();
        }
        pod
    }

    #[test]
    fn an_enabled_pod_gets_the_sidecar_once() {
        let world = world();
        let question = request_for(pod(&json!({"groupage.dev/inject": "enabled"})));
        let (answer, response) = review_of(&world, &question);
        assert_eq!(answer.admission, AdmissionResult::Injected);
        let injected = patched(&question, &response);
        assert_eq!(injected["metadata"]["labels"]["groupage.dev/injected"], "true");
        assert!(injected["spec"]["initContainers"].as_array().unwrap().iter().any(|one| one["name"] == "groupage"));
        assert!(injected.to_string().contains("secret"), "the token of the drain hook");
        let again = request_for(injected.clone());
        let (answer, response) = review_of(&world, &again);
        assert_eq!(answer.admission, AdmissionResult::Injected);
        assert_eq!(patched(&again, &response), injected);
    }

    #[test]
    fn the_policy_of_a_deployment_applies_before_its_replica_set_is_observed() {
        let mut world = ClusterState { replica_sets: ObjectTable::default(), ..world() };
        let target = json!({"kind": "Deployment", "name": "emb"});
        policy(&mut world, "a", "emb", 1, json!({"targetRefs": [target], "mode": "Passthrough"}));
        let mut question = request_for(pod(&json!({"groupage.dev/inject": "enabled"})));
        question.pod["metadata"]["labels"]["pod-template-hash"] = json!("1");
        let (_, response) = review_of(&world, &question);
        let injected = patched(&question, &response);
        assert!(injected.to_string().contains("Passthrough"), "{injected}");
    }

    #[test]
    fn a_new_pod_is_not_admitted_with_a_profile_that_was_taken_back() {
        let mut world = world();
        let target = json!({"kind": "Deployment", "name": "emb"});
        policy(&mut world, "a", "emb", 1, json!({"targetRefs": [target], "limits": {"batchItemsMax": 77}}));
        profile(&mut world, "a", "good", json!({"limits": {"batchItemsMax": 33}}));
        let key = ObjectKey::new("a", "emb");
        for (phase, expected, other) in
            [("RolledBack", "33", "77"), ("Progressing", "33", "77"), ("Promoted", "77", "33")]
        {
            let mut one = (**world.policies.get(&key).unwrap()).clone();
            one.status =
                serde_json::from_value(json!({"currentProfile": "good", "rollout": {"phase": phase}})).unwrap();
            insert(&mut world.policies, key.clone(), one);
            let question = request_for(pod(&json!({"groupage.dev/inject": "enabled"})));
            let (_, response) = review_of(&world, &question);
            let injected = patched(&question, &response).to_string();
            let has = |items: &str| injected.contains(&format!("batchItemsMax\\\":{items}"));
            assert!(has(expected) && !has(other), "{phase}: {injected}");
        }
    }

    #[test]
    fn without_native_sidecars_the_form_is_classic() {
        let mut world = world();
        insert(&mut world.nodes, ObjectKey::new("", "old"), crate::world::Node { kubelet: Some(31), machine: None });
        let question = request_for(pod(&json!({"groupage.dev/inject": "enabled"})));
        let (_, response) = review_of(&world, &question);
        let containers = patched(&question, &response)["spec"]["containers"].clone();
        assert!(containers.as_array().unwrap().iter().any(|one| one["name"] == "groupage"));
    }

    #[test]
    fn no_pod_is_injected_before_the_cluster_is_known() {
        let world = ClusterState { is_synced: false, ..world() };
        let (answer, response) = review_of(&world, &request_for(pod(&json!({"groupage.dev/inject": "enabled"}))));
        assert_eq!(answer.admission, AdmissionResult::Unsynced);
        assert!(response.get("patch").is_none_or(Value::is_null) && !response["warnings"].is_null());
    }

    #[test]
    fn a_skipped_pod_gets_a_warning_and_its_workload_an_event_except_in_a_dry_run() {
        let mut question = request_for(pod(&json!({"groupage.dev/inject": "enabled"})));
        question.pod["spec"]["hostNetwork"] = json!(true);
        let (answer, response) = review_of(&world(), &question);
        assert_eq!((answer.admission, answer.skipped), (AdmissionResult::Skipped, Some("HostNetwork")));
        let news = answer.event.unwrap();
        assert_eq!((news.about.kind.as_str(), news.about.name.as_str()), ("Deployment", "emb"));
        assert!(news.note.starts_with("HostNetwork: "), "{}", news.note);
        assert!(response["warnings"][0].as_str().unwrap().contains("HostNetwork"));
        assert_eq!(response["auditAnnotations"]["outcome"], "skipped");
        question.dry_run = true;
        assert_eq!(review_of(&world(), &question).0.event, None);
    }

    #[test]
    fn a_pod_that_is_not_enabled_gets_no_warning() {
        let (answer, response) = review_of(&world(), &request_for(pod(&json!({}))));
        assert_eq!((answer.skipped, answer.event), (Some("NotEnabled"), None));
        assert!(response["warnings"].is_null());
    }

    #[test]
    fn an_invalid_annotation_leaves_the_pod_unchanged_with_a_warning() {
        let question = request_for(pod(&json!({"groupage.dev/inject": "enabled", "groupage.dev/mode": "Fast"})));
        let (answer, response) = review_of(&world(), &question);
        assert_eq!(answer.admission, AdmissionResult::Refused);
        assert!(response["warnings"][0].as_str().unwrap().contains("GRP2101"));
        assert_eq!(patched(&question, &response), question.pod);
        assert!(answer.event.is_some());
    }

    #[test]
    fn the_sidecar_gets_the_policy_that_the_cluster_selects() {
        let mut world = world();
        policy(&mut world, "a", "young", 9, json!({"selector": {"matchLabels": {"app": "x"}}, "mode": "Passthrough"}));
        policy(
            &mut world,
            "a",
            "old",
            1,
            json!({"targetRefs": [{"kind": "Deployment", "name": "emb"}], "mode": "Observe"}),
        );
        policy(&mut world, "a", "all", 0, json!({"mode": "Passthrough"}));
        let question = request_for(pod(&json!({"groupage.dev/inject": "enabled"})));
        let (_, response) = review_of(&world, &question);
        let injected = patched(&question, &response);
        let status: Value =
            serde_json::from_str(injected["metadata"]["annotations"]["groupage.dev/status"].as_str().unwrap()).unwrap();
        assert_eq!(status["policy"], "old");
        assert!(injected.to_string().contains("Observe"));
    }

    #[test]
    fn an_invalid_policy_is_not_passed_to_the_sidecar() {
        let mut world = world();
        policy(&mut world, "a", "all", 0, json!({"mode": "Observe"}));
        let key = ObjectKey::new("a", "all");
        let mut broken = (*world.policies[&key]).clone();
        broken.invalid = Some("limits.batchItemsMax is 0".to_owned());
        insert(&mut world.policies, key, broken);
        let question = request_for(pod(&json!({"groupage.dev/inject": "enabled"})));
        let (answer, response) = review_of(&world, &question);
        assert_eq!(answer.admission, AdmissionResult::Injected);
        assert!(response["warnings"].to_string().contains("is invalid"), "{response}");
        assert!(!patched(&question, &response).to_string().contains("Observe"));
    }

    #[test]
    fn only_services_that_select_the_pod_are_examined() {
        let mut world = world();
        let service = |app: &str| {
            json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": app, "namespace": "a"},
            "spec": {"selector": {"app": app}, "ports": [{"port": 80, "targetPort": 8080}]}})
        };
        for app in ["x", "y"] {
            insert(&mut world.services, ObjectKey::new("a", app), service(app));
        }
        world.pools = Some(ObjectTable::default());
        let question = request_for(pod(&json!({"groupage.dev/inject": "enabled"})));
        let base = InjectionContext::default();
        let known = ReviewContext { world: &world, base: &base, own_namespace: "", token: "t", native: None };
        let made = workload(&question, &world);
        let (context, _) = build_context(&question, known, made.as_ref());
        assert_eq!(context.referrers[..], [service("x")]);
        assert_eq!((context.workload.group.as_str(), context.workload.kind.as_str()), ("apps", "Deployment"));
        let (_, response) = review_of(&world, &question);
        assert!(
            response["warnings"].to_string().contains("x"),
            "a numeric target port bypasses the sidecar: {response}"
        );
    }

    #[test]
    fn our_own_namespace_and_other_objects_are_left_alone() {
        let mut question = request_for(pod(&json!({"groupage.dev/inject": "enabled"})));
        question.namespace = "groupage-system".to_owned();
        assert_eq!(review_of(&world(), &question).0.skipped, Some("Excluded"));
        question.makes_pod = false;
        assert_eq!(review_of(&world(), &question).0.admission, AdmissionResult::Ignored);
    }
}
