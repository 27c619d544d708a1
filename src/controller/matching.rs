//! Policy attachment: the policy of a pod, and the targets of a policy. It follows Gateway API's
//! GEP-713 (<https://gateway-api.sigs.k8s.io/geps/gep-713/>).
//!
//! A pod that names a policy follows it. Otherwise it follows the oldest policy that selects it or
//! references an object leading to it, otherwise the oldest policy of the whole namespace. Policies
//! apply in their own namespace only. Validity is not checked here: a policy that becomes invalid
//! by an edit keeps its pods, which would change their policy with every mistake otherwise.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use super::world::{ClusterState, ObjectKey, ObjectTable, OwnerRef, Pod, Policy, in_namespace};
use crate::api::v1alpha1::{BatchPolicySpec, LabelSelector, TargetRef};

/// Annotation with which a pod names its policy.
pub const POLICY_ANNOTATION: &str = "groupage.dev/policy";
/// Label with which KServe marks the pods of an `InferenceService`.
const INFERENCE_SERVICE: &str = "serving.kserve.io/inferenceservice";
/// Maximum number of references in a policy, as in its schema.
const TARGETS_MAX: usize = 16;

/// The properties of a pod that select its policy.
#[derive(Debug, Clone, Copy)]
pub struct PodSubject<'a> {
    /// Its namespace.
    pub namespace: &'a str,
    /// Its labels.
    pub labels: &'a BTreeMap<String, String>,
    /// Annotations with the prefix `groupage.dev/`.
    pub annotations: &'a BTreeMap<String, String>,
    /// Its top-level workload: the Deployment, not the `ReplicaSet`.
    pub workload: Option<&'a OwnerRef>,
}

/// The policy of a pod, and the rule that selected it.
#[derive(Debug, Clone, Copy)]
pub enum PolicyChoice<'a> {
    /// The pod names a policy, which may not exist.
    Named(&'a str, Option<&'a Arc<Policy>>),
    /// A policy selects the pod.
    Selected(&'a Arc<Policy>),
    /// The namespace has a default policy.
    Default(&'a Arc<Policy>),
    /// No policy applies.
    None,
}

/// The target of a policy.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum PolicyTarget<'a> {
    /// The pods that these references lead to.
    Targets(&'a [TargetRef]),
    /// Pods with matching labels.
    Labels(&'a LabelSelector),
    /// All pods of the namespace without another policy.
    Namespace,
}

/// Result of resolving a reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TargetLookup {
    /// The object exists.
    There,
    /// The object does not exist.
    Missing,
    /// Its kind is not installed in the cluster.
    NotInstalled,
    /// Policies do not support objects of this kind.
    Unknown,
}

// === impl PolicyChoice ===

impl<'a> PolicyChoice<'a> {
    /// Returns the policy, if one applies and exists.
    #[must_use]
    pub const fn policy(self) -> Option<&'a Arc<Policy>> {
        match self {
            Self::Named(_, policy) => policy,
            Self::Selected(policy) | Self::Default(policy) => Some(policy),
            Self::None => None,
        }
    }
}

/// Selects the policy of a pod.
#[must_use]
pub fn choose<'a>(world: &'a ClusterState, subject: PodSubject<'a>) -> PolicyChoice<'a> {
    if let Some(name) = subject.annotations.get(POLICY_ANNOTATION) {
        let policy = world.policies.get(&ObjectKey::new(subject.namespace, name.trim()));
        return PolicyChoice::Named(name, policy);
    }
    let (mut selected, mut default): (Option<&Arc<Policy>>, Option<&Arc<Policy>>) = (None, None);
    for (_, policy) in in_namespace(&world.policies, subject.namespace) {
        let best = match policy.spec.as_ref().ok().and_then(target_of) {
            Some(PolicyTarget::Namespace) => &mut default,
            Some(reach) if includes_pod(world, reach, subject) => &mut selected,
            _ => continue,
        };
        if best.is_none_or(|best| takes_precedence(policy, best)) {
            *best = Some(policy);
        }
    }
    match (selected, default) {
        (Some(policy), _) => PolicyChoice::Selected(policy),
        (None, Some(policy)) => PolicyChoice::Default(policy),
        (None, None) => PolicyChoice::None,
    }
}

/// Returns `true` if `policy` takes precedence over `than`: the older one does; if both were
/// created in the same second, the first by name.
#[must_use]
pub fn takes_precedence(policy: &Policy, than: &Policy) -> bool {
    let age = |policy: &Policy| (policy.meta.created.clone(), policy.meta.key.name.clone());
    age(policy) < age(than)
}

/// Returns the target of a policy; `None` if it has both references and a selector.
#[must_use]
pub fn target_of(spec: &BatchPolicySpec) -> Option<PolicyTarget<'_>> {
    let targets = spec.target_refs.as_deref().filter(|targets| !targets.is_empty());
    let is_empty = |selector: &LabelSelector| {
        selector.match_labels.as_ref().is_none_or(BTreeMap::is_empty)
            && selector.match_expressions.as_ref().is_none_or(Vec::is_empty)
    };
    match (targets, spec.selector.as_ref().filter(|selector| !is_empty(selector))) {
        (Some(_), Some(_)) => None,
        (Some(targets), None) => Some(PolicyTarget::Targets(targets.get(..TARGETS_MAX).unwrap_or(targets))),
        (None, Some(selector)) => Some(PolicyTarget::Labels(selector)),
        (None, None) => Some(PolicyTarget::Namespace),
    }
}

/// Returns `true` if a policy targets a pod explicitly, irrespective of other policies. A policy of
/// the whole namespace does not.
#[must_use]
pub fn is_for(world: &ClusterState, policy: &Policy, subject: PodSubject<'_>) -> bool {
    let reach = policy.spec.as_ref().ok().and_then(target_of);
    reach.is_some_and(|reach| reach != PolicyTarget::Namespace && includes_pod(world, reach, subject))
}

/// Returns `true` if a target includes a pod.
fn includes_pod(world: &ClusterState, reach: PolicyTarget<'_>, subject: PodSubject<'_>) -> bool {
    match reach {
        PolicyTarget::Namespace => true,
        PolicyTarget::Labels(selector) => selects(selector, subject.labels),
        PolicyTarget::Targets(targets) => targets.iter().any(|target| leads_to_pod(world, target, subject)),
    }
}

/// Returns `true` if a reference leads to a pod.
fn leads_to_pod(world: &ClusterState, target: &TargetRef, subject: PodSubject<'_>) -> bool {
    let (kind, name) = (target.kind.as_deref().unwrap_or_default(), target.name.as_deref().unwrap_or_default());
    let object = |table: &ObjectTable<Value>| {
        table.get(&ObjectKey::new(subject.namespace, name)).is_some_and(|object| selected_by(object, subject.labels))
    };
    match target_kind(target) {
        Some(TargetKind::Workload) => subject.workload.is_some_and(|made| made.kind == kind && made.name == name),
        Some(TargetKind::Service) => object(&world.services),
        Some(TargetKind::Pool) => world.pools.as_ref().is_some_and(object),
        Some(TargetKind::InferenceService) => {
            subject.labels.get(INFERENCE_SERVICE).is_some_and(|service| service == name)
        }
        None => false,
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TargetKind {
    Workload,
    Service,
    Pool,
    InferenceService,
}

/// Returns the kind of a reference. The group is optional, since the names of these kinds are
/// unique.
fn target_kind(target: &TargetRef) -> Option<TargetKind> {
    let (kind, group) = match target.kind.as_deref()? {
        "Deployment" | "StatefulSet" | "DaemonSet" => (TargetKind::Workload, "apps"),
        "Service" => (TargetKind::Service, ""),
        "InferencePool" => (TargetKind::Pool, "inference.networking.k8s.io"),
        "InferenceService" => (TargetKind::InferenceService, "serving.kserve.io"),
        _ => return None,
    };
    target.group.as_deref().is_none_or(|named| named == group || named.is_empty()).then_some(kind)
}

/// Resolves a reference of a policy in a namespace.
#[must_use]
pub fn resolve_target(world: &ClusterState, namespace: &str, target: &TargetRef) -> TargetLookup {
    let Some(kind) = target_kind(target) else { return TargetLookup::Unknown };
    let key = ObjectKey::new(namespace, target.name.as_deref().unwrap_or_default());
    let there = match (kind, target.kind.as_deref().unwrap_or_default()) {
        (TargetKind::Workload, "Deployment") => Some(world.deployments.contains_key(&key)),
        (TargetKind::Workload, "StatefulSet") => Some(world.stateful_sets.contains_key(&key)),
        (TargetKind::Workload, _) => Some(world.daemon_sets.contains_key(&key)),
        (TargetKind::Service, _) => Some(world.services.contains_key(&key)),
        (TargetKind::Pool, _) => world.pools.as_ref().map(|pools| pools.contains_key(&key)),
        (TargetKind::InferenceService, _) => {
            world.inference_services.as_ref().map(|services| services.contains_key(&key))
        }
    };
    match there {
        None => TargetLookup::NotInstalled,
        Some(true) => TargetLookup::There,
        Some(false) => TargetLookup::Missing,
    }
}

/// Returns `true` if labels match a selector.
#[must_use]
pub fn selects(selector: &LabelSelector, labels: &BTreeMap<String, String>) -> bool {
    let all = selector.match_labels.iter().flatten().all(|(key, value)| labels.get(key) == Some(value));
    all && selector.match_expressions.iter().flatten().all(|term| {
        let found = term.key.as_deref().and_then(|key| labels.get(key));
        let among = || found.is_some_and(|found| term.values.iter().flatten().any(|value| value == found));
        match term.operator.as_deref() {
            Some("In") => among(),
            Some("NotIn") => !among(),
            Some("Exists") => found.is_some(),
            Some("DoesNotExist") => found.is_none(),
            // An unknown operator of a newer version selects no pod rather than all.
            _ => false,
        }
    })
}

/// Returns `true` if a Service, `InferencePool` or `NetworkPolicy` applies to pods with these
/// labels.
#[must_use]
pub fn selected_by(object: &Value, labels: &BTreeMap<String, String>) -> bool {
    let at = |path: &str| object.pointer(path);
    let wants = |required: Option<&Value>| {
        required.and_then(Value::as_object).is_some_and(|required| {
            !required.is_empty()
                && required.iter().all(|(key, value)| labels.get(key).map(String::as_str) == value.as_str())
        })
    };
    match at("/kind").and_then(Value::as_str) {
        Some("Service") => {
            at("/spec/type").and_then(Value::as_str) != Some("ExternalName") && wants(at("/spec/selector"))
        }
        Some("InferencePool") => wants(at("/spec/selector/matchLabels").or_else(|| at("/spec/selector"))),
        Some("NetworkPolicy") => {
            let selector = at("/spec/podSelector").cloned().unwrap_or_default();
            serde_json::from_value::<LabelSelector>(selector).is_ok_and(|selector| selects(&selector, labels))
        }
        _ => false,
    }
}

/// Returns `true` if a pod requests injection. The annotation takes precedence over the label, the
/// label over the namespace's label, and that over the default. Any value other than `enabled` or
/// `true` counts as no. The namespace's label is compared case-sensitively, as by the webhook's
/// selector: the API server does not call the webhook for another spelling.
#[must_use]
pub fn requests_injection(pod: &Pod, namespace: Option<&BTreeMap<String, String>>, inject_by_default: bool) -> bool {
    let key = crate::injector::INJECT;
    let yes = |value: &str| matches!(value, "enabled" | "true");
    if let Some(own) = pod.annotations.get(key).or_else(|| pod.labels.get(key)) {
        return yes(own.trim().to_ascii_lowercase().as_str());
    }
    namespace.and_then(|labels| labels.get(key)).map_or(inject_by_default, |value| yes(value))
}

/// Describes the target of a policy briefly: `Deployment/embedder`, `Deployment/a +2`,
/// `app=embedder`, `*`.
#[must_use]
pub fn describe_target(spec: &BatchPolicySpec) -> String {
    match target_of(spec) {
        Some(PolicyTarget::Targets([first, more @ ..])) => {
            let more = if more.is_empty() { String::new() } else { format!(" +{}", more.len()) };
            format!("{}{more}", target_name(first))
        }
        Some(PolicyTarget::Labels(selector)) => labels_in_short(selector),
        Some(PolicyTarget::Namespace) => "*".to_owned(),
        _ => String::new(),
    }
}

fn labels_in_short(selector: &LabelSelector) -> String {
    let labels = selector.match_labels.iter().flatten().map(|(key, value)| format!("{key}={value}"));
    let terms = selector.match_expressions.iter().flatten().map(|term| {
        let key = term.key.as_deref().unwrap_or_default();
        let values = || term.values.iter().flatten().map(String::as_str).collect::<Vec<_>>().join(",");
        match term.operator.as_deref() {
            Some("In") => format!("{key} in ({})", values()),
            Some("NotIn") => format!("{key} notin ({})", values()),
            Some("DoesNotExist") => format!("!{key}"),
            _ => key.to_owned(),
        }
    });
    labels.chain(terms).collect::<Vec<_>>().join(",")
}

/// Formats a reference as `Deployment/embedder`.
#[must_use]
pub fn target_name(target: &TargetRef) -> String {
    format!("{}/{}", target.kind.as_deref().unwrap_or("?"), target.name.as_deref().unwrap_or("?"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::world::fixtures::*;
    use crate::world::{ObjectTable, OwnerObject};

    fn chosen(world: &ClusterState, pod: &Pod) -> Option<String> {
        let namespace = pod.meta.key.namespace.as_str();
        let workload = world.workload(namespace, pod.owner.as_ref(), &pod.labels);
        let subject =
            PodSubject { namespace, labels: &pod.labels, annotations: &pod.annotations, workload: workload.as_ref() };
        choose(world, subject).policy().map(|policy| policy.meta.key.name.clone())
    }

    fn with(policies: &[(&str, u32, Value)]) -> ClusterState {
        let mut world = ClusterState::default();
        for (name, second, spec) in policies {
            policy(&mut world, "a", name, *second, spec.clone());
        }
        world
    }

    #[test]
    fn the_oldest_policy_that_selects_a_pod_takes_precedence() {
        let app = json!({"selector": {"matchLabels": {"app": "x"}}});
        let mut world = with(&[("everyone", 0, json!({})), ("young", 9, app.clone()), ("old", 3, app)]);
        let x = pod("a", "p", &[("app", "x")]);
        assert_eq!(chosen(&world, &x).as_deref(), Some("old"));
        assert_eq!(chosen(&world, &pod("a", "p", &[("app", "y")])).as_deref(), Some("everyone"));
        assert_eq!(chosen(&world, &pod("b", "p", &[("app", "x")])), None, "another namespace");
        world.policies = ObjectTable::default();
        assert_eq!(chosen(&world, &x), None);
    }

    #[test]
    fn of_two_policies_of_equal_age_the_first_by_name_takes_precedence() {
        let app = json!({"selector": {"matchLabels": {"app": "x"}}});
        let world = with(&[("b", 1, app.clone()), ("a", 1, app)]);
        assert_eq!(chosen(&world, &pod("a", "p", &[("app", "x")])).as_deref(), Some("a"));
    }

    #[test]
    fn a_pod_that_names_a_policy_follows_no_other() {
        let world = with(&[
            ("old", 0, json!({"selector": {"matchLabels": {"app": "x"}}})),
            ("named", 5, json!({"selector": {"matchLabels": {"app": "z"}}})),
        ]);
        let mut x = pod("a", "p", &[("app", "x")]);
        x.annotations = labels(&[(POLICY_ANNOTATION, "named")]);
        assert_eq!(chosen(&world, &x).as_deref(), Some("named"));
        x.annotations = labels(&[(POLICY_ANNOTATION, "gone")]);
        assert_eq!(chosen(&world, &x), None);
    }

    #[test]
    fn references_lead_through_replica_sets_services_pools_and_inference_services() {
        let to = |kind: &str, name: &str| json!({"targetRefs": [{"kind": kind, "name": name}]});
        let cases = [
            ("Deployment", "emb"),
            ("Service", "svc"),
            ("InferencePool", "pool"),
            ("InferenceService", "isvc"),
            ("StatefulSet", "set"),
        ];
        for (kind, name) in cases {
            let mut world = with(&[("p", 0, to(kind, name))]);
            insert(&mut world.replica_sets, ObjectKey::new("a", "emb-1"), owner_of("u", Some(deployment("emb"))));
            insert(
                &mut world.services,
                ObjectKey::new("a", "svc"),
                json!({"kind": "Service", "spec": {"selector": {"app": "x"}}}),
            );
            let pools = world.pools.get_or_insert_default();
            insert(
                pools,
                ObjectKey::new("a", "pool"),
                json!({"kind": "InferencePool", "spec": {"selector": {"matchLabels": {"app": "x"}}}}),
            );
            let mut led = pod("a", "p", &[("app", "x"), (INFERENCE_SERVICE, "isvc")]);
            let owner = if kind == "StatefulSet" { ("StatefulSet", "set") } else { ("ReplicaSet", "emb-1") };
            led.owner = Some(OwnerRef { kind: owner.0.into(), name: owner.1.into(), ..OwnerRef::default() });
            assert_eq!(chosen(&world, &led).as_deref(), Some("p"), "{kind}");
            let other = pod("a", "q", &[("app", "y")]);
            assert_eq!(chosen(&world, &other), None, "{kind}");
        }
    }

    #[test]
    fn a_service_without_a_selector_and_an_external_one_select_no_pod() {
        let labels = labels(&[("app", "x")]);
        assert!(!selected_by(&json!({"kind": "Service", "spec": {}}), &labels));
        assert!(!selected_by(&json!({"kind": "Service", "spec": {"selector": {}}}), &labels));
        assert!(!selected_by(
            &json!({"kind": "Service", "spec": {"type": "ExternalName", "selector": {"app": "x"}}}),
            &labels
        ));
        assert!(
            selected_by(&json!({"kind": "NetworkPolicy", "spec": {"podSelector": {}}}), &labels),
            "an empty selector selects all pods"
        );
    }

    #[test]
    fn expressions_have_the_meaning_of_kubernetes() {
        let labels = labels(&[("app", "x"), ("tier", "gpu")]);
        let check = |key: &str, operator: &str, values: &[&str]| {
            let selector = json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]});
            selects(&serde_json::from_value(selector).unwrap(), &labels)
        };
        assert!(check("app", "In", &["x", "y"]) && !check("app", "In", &["y"]) && !check("no", "In", &["x"]));
        assert!(check("app", "NotIn", &["y"]) && !check("app", "NotIn", &["x"]) && check("no", "NotIn", &["x"]));
        assert!(check("app", "Exists", &[]) && !check("no", "Exists", &[]));
        assert!(check("no", "DoesNotExist", &[]) && !check("app", "DoesNotExist", &[]));
        assert!(!check("app", "Similar", &["x"]), "an unknown operator selects nothing");
    }

    #[test]
    fn a_target_reference_is_found_missing_unknown_or_not_installed() {
        let mut world = ClusterState::default();
        insert(&mut world.deployments, ObjectKey::new("a", "emb"), OwnerObject::default());
        let find = |world: &ClusterState, group: Option<&str>, kind: &str, name: &str| {
            let target =
                TargetRef { group: group.map(str::to_owned), kind: Some(kind.into()), name: Some(name.into()) };
            resolve_target(world, "a", &target)
        };
        assert_eq!(find(&world, Some("apps"), "Deployment", "emb"), TargetLookup::There);
        assert_eq!(find(&world, None, "Deployment", "emb"), TargetLookup::There);
        assert_eq!(find(&world, None, "Deployment", "other"), TargetLookup::Missing);
        assert_eq!(find(&world, Some("batch"), "Deployment", "emb"), TargetLookup::Unknown);
        assert_eq!(find(&world, None, "Job", "emb"), TargetLookup::Unknown);
        assert_eq!(find(&world, None, "InferencePool", "p"), TargetLookup::NotInstalled);
        world.pools = Some(ObjectTable::default());
        assert_eq!(find(&world, None, "InferencePool", "p"), TargetLookup::Missing);
    }

    #[test]
    fn a_policy_with_a_selector_and_target_refs_applies_to_no_pod() {
        let world = with(&[(
            "both",
            0,
            json!({"selector": {"matchLabels": {"app": "x"}}, "targetRefs": [{"kind": "Service", "name": "s"}]}),
        )]);
        assert_eq!(chosen(&world, &pod("a", "p", &[("app", "x")])), None);
        let empty = with(&[("empty", 0, json!({"selector": {}, "targetRefs": []}))]);
        assert_eq!(
            chosen(&empty, &pod("a", "p", &[])).as_deref(),
            Some("empty"),
            "both empty is the namespace's default"
        );
    }

    #[test]
    fn the_targets_of_a_policy_are_abbreviated() {
        let short = |spec: Value| describe_target(&serde_json::from_value(spec).unwrap());
        assert_eq!(short(json!({})), "*");
        assert_eq!(short(json!({"targetRefs": [{"kind": "Deployment", "name": "a"}]})), "Deployment/a");
        assert_eq!(
            short(json!({"targetRefs": [{"kind": "Deployment", "name": "a"}, {"kind": "Service", "name": "b"}, {}]})),
            "Deployment/a +2"
        );
        let selector = json!({"matchLabels": {"app": "x"}, "matchExpressions": [{"key": "b", "operator": "In", "values": ["1", "2"]}]});
        assert_eq!(short(json!({"selector": selector})), "app=x,b in (1,2)");
    }

    #[test]
    fn the_most_specific_injection_setting_counts_and_an_unknown_value_disables() {
        let yes = labels(&[("groupage.dev/inject", "enabled")]);
        let mut pod = pod("a", "p", &[]);
        assert!(
            requests_injection(&pod, Some(&yes), false)
                && !requests_injection(&pod, None, false)
                && requests_injection(&pod, None, true)
        );
        let spelled = labels(&[("groupage.dev/inject", "Enabled")]);
        assert!(!requests_injection(&pod, Some(&spelled), false), "the selector of the webhook is case-sensitive");
        pod.labels = labels(&[("groupage.dev/inject", "disabled")]);
        assert!(!requests_injection(&pod, Some(&yes), true));
        pod.annotations = labels(&[("groupage.dev/inject", "True")]);
        assert!(requests_injection(&pod, None, false));
        pod.annotations = labels(&[("groupage.dev/inject", "perhaps")]);
        assert!(!requests_injection(&pod, Some(&yes), true));
    }
}
