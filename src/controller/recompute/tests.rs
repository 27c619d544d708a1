//! Cluster states in, statuses, profiles and notices out.

use std::collections::BTreeSet;

use serde_json::json;

use super::*;
use crate::attachment::attach_all;
use crate::cluster_state::fixtures::*;
use crate::cluster_state::{OwnerRef, Pod};
use crate::injector::STATUS;
use crate::observed_state::PodObserved;
use crate::status::{ConditionState, ConditionStatus, is_single_word};

/// All inputs, modifiable by a test.
#[derive(Default)]
struct TestCluster {
    state: ClusterState,
    observed: ObservedState,
    gaps: BTreeMap<String, InjectionGap>,
    written: BTreeMap<ObjectKey, BatchPolicyStatus>,
}

impl TestCluster {
    fn with(spec: serde_json::Value) -> Self {
        let mut cluster = Self::default();
        policy(&mut cluster.state, "a", "emb", 1, spec);
        cluster
    }

    /// Runs a round, and checks the reason of every condition.
    fn evaluate(&self, second: i64) -> DesiredState {
        let attached = attach_all(&self.state, false, &BTreeSet::new());
        let input = RecomputeInput {
            cluster: &self.state,
            attached: &attached,
            observed: &self.observed,
            gaps: &self.gaps,
            written: &self.written,
        };
        let desired = recompute(input, Timestamp::from_second(second).unwrap());
        for condition in desired.policies.values().flat_map(|status| &status.conditions) {
            assert!(is_single_word(&condition.reason), "{condition:?}");
        }
        desired
    }

    fn status(&self) -> BatchPolicyStatus {
        self.evaluate(1000).policies[&emb()].clone()
    }

    fn condition(&self, kind: ConditionType) -> (String, String, String) {
        let status = self.status();
        let found = status.conditions.into_iter().find(|condition| condition.type_ == kind.as_str()).unwrap();
        (found.status, found.reason, found.message)
    }

    fn injected(&mut self, name: &str, bypass: &[&str]) {
        let status = json!({"version": "0.1.0", "form": "native", "metrics": 9190, "admin": 9191, "hash": "h", "capture": [{"container": "c", "port": 8080, "mode": "Named", "listen": 15080, "bypass": bypass}]});
        let mut pod = pod("a", name, &[("app", "x")]);
        pod.annotations = labels(&[(STATUS, &status.to_string())]);
        injected(&mut self.state, pod);
    }

    fn connect(&mut self, name: &str, observed: PodObserved) {
        self.observed.pods.insert(format!("uid-{name}"), observed);
    }

    /// Marks all statuses as written.
    fn write(&mut self) {
        self.written = self.evaluate(1000).policies;
    }
}

fn emb() -> ObjectKey {
    ObjectKey::new("a", "emb")
}

fn app() -> serde_json::Value {
    spec_for("x", &json!({}))
}

fn current() -> PodObserved {
    PodObserved { current: true, programmed: true, ..PodObserved::default() }
}

fn words((status, reason, _): (String, String, String)) -> String {
    format!("{status}/{reason}")
}

#[test]
fn all_seven_conditions_have_the_generation_and_are_unknown_without_evidence() {
    let status = TestCluster::with(app()).status();
    let types: Vec<&str> = status.conditions.iter().map(|condition| condition.type_.as_str()).collect();
    let all = ["Accepted", "Programmed", "TrafficCaptured", "SLOMet", "Merging", "RolloutHealthy", "Ready"];
    assert_eq!(types, all);
    assert!(status.conditions.iter().all(|condition| condition.observed_generation == Some(1)));
    let summaries: Vec<String> = status.conditions.iter().map(|one| format!("{}/{}", one.status, one.reason)).collect();
    assert_eq!(
        summaries,
        [
            "True/Accepted",
            "Unknown/NoPods",
            "Unknown/NoPods",
            "Unknown/NoSLO",
            "Unknown/NoPods",
            "True/NoRollout",
            "Unknown/NoPods"
        ]
    );
    assert_eq!((status.target.as_deref(), status.observed_generation), (Some("app=x"), Some(1)));
}

#[test]
fn a_changed_model_of_the_policy_is_pending_for_new_pods() {
    let programmed = |model: &str| {
        let mut spec = app();
        spec["engine"] = json!({"model": model});
        let mut cluster = TestCluster::with(spec);
        let engine = json!({"model": "/m", "volume": "v", "device": "Auto", "ports": [8080], "names": ["http"]});
        let status = json!({"version": "0.1.0", "form": "native", "metrics": 9190, "admin": 9191, "hash": "h", "engine": engine});
        let mut pod = pod("a", "p", &[("app", "x")]);
        pod.annotations = labels(&[(STATUS, &status.to_string())]);
        injected(&mut cluster.state, pod);
        cluster.connect("p", current());
        cluster.condition(ConditionType::Programmed)
    };
    assert_eq!(words(programmed("/m")), "True/Programmed");
    let (_, reason, message) = programmed("/n");
    assert_eq!(reason, "NextStart");
    assert!(message.ends_with("pending for new pods (kubectl rollout restart): engine.model"), "{message}");
}

#[test]
fn a_policy_is_programmed_once_all_its_sidecars_run_it() {
    let mut cluster = TestCluster::with(app());
    cluster.injected("p", &[]);
    cluster.injected("q", &[]);
    cluster.connect("p", current());
    let (status, reason, message) = cluster.condition(ConditionType::Programmed);
    assert_eq!((status.as_str(), reason.as_str()), ("False", "NotConnected"));
    assert!(message.contains("1 of 2") && message.contains('q'), "{message}");
    cluster.connect("q", PodObserved::default());
    assert_eq!(words(cluster.condition(ConditionType::Programmed)), "False/Pending");
    cluster.connect("q", PodObserved { refused: Some("an older generation".into()), ..PodObserved::default() });
    assert_eq!(words(cluster.condition(ConditionType::Programmed)), "False/Refused");
    cluster.connect("q", PodObserved { pending: vec!["proxy.client".into()], ..current() });
    let (_, reason, message) = cluster.condition(ConditionType::Programmed);
    assert_eq!(reason, "NextStart");
    assert!(message.ends_with("pending until the next start of the sidecar: proxy.client"), "{message}");
    cluster.connect("q", PodObserved { pending: vec!["engine.model".into()], ..current() });
    let (_, reason, message) = cluster.condition(ConditionType::Programmed);
    assert_eq!(reason, "NextStart");
    assert!(message.ends_with("pending for new pods (kubectl rollout restart): engine.model"), "{message}");
    cluster.connect("q", current());
    assert_eq!(words(cluster.condition(ConditionType::Programmed)), "True/Programmed");
    assert_eq!(words(cluster.condition(ConditionType::Ready)), "True/Ready");
    let pods = cluster.status().pods.unwrap();
    assert_eq!((pods.matched, pods.injected, pods.connected, pods.captured, pods.on_current), (2, 2, 2, 2, 2));
}

#[test]
fn a_bypass_is_named_once_for_all_pods() {
    let mut cluster = TestCluster::with(app());
    cluster.injected("p", &["service/x:80 dials port 8080"]);
    cluster.injected("q", &["service/x:80 dials port 8080"]);
    let (status, reason, message) = cluster.condition(ConditionType::TrafficCaptured);
    assert_eq!((status.as_str(), reason.as_str()), ("False", "Bypassed"));
    assert_eq!(message.matches("service/x:80").count(), 1, "{message}");
    assert_eq!(cluster.status().pods.unwrap().captured, 0);
    cluster.injected("p", &[]);
    cluster.injected("q", &[]);
    assert_eq!(words(cluster.condition(ConditionType::TrafficCaptured)), "True/Captured");
    let service = json!({"kind": "Service", "metadata": {"name": "late"}, "spec": {"selector": {"app": "x"}, "ports": [{"port": 80, "targetPort": 8080}]}});
    insert(&mut cluster.state.services, ObjectKey::new("a", "late"), service);
    let (_, reason, message) = cluster.condition(ConditionType::TrafficCaptured);
    assert!(reason == "Bypassed" && message.contains("svc/late:80"), "{reason}: {message}");
    injected(&mut cluster.state, pod("a", "p", &[("app", "x")]));
    injected(&mut cluster.state, pod("a", "q", &[("app", "x")]));
    assert_eq!(words(cluster.condition(ConditionType::TrafficCaptured)), "Unknown/RecordMissing");
}

#[test]
fn a_pod_that_the_webhook_missed_is_counted_and_reported_on_its_workload() {
    let mut cluster = TestCluster::with(app());
    namespace(&mut cluster.state, "a", &[("groupage.dev/inject", "enabled")]);
    insert(&mut cluster.state.replica_sets, ObjectKey::new("a", "emb-1"), owner_of("u", Some(deployment("emb"))));
    for name in ["p", "q"] {
        let owner = OwnerRef { kind: "ReplicaSet".into(), name: "emb-1".into(), ..OwnerRef::default() };
        uninjected(&mut cluster.state, Pod { owner: Some(owner), ..pod("a", name, &[("app", "x")]) });
    }
    let desired = cluster.evaluate(1);
    assert!(desired.missing.is_empty() && desired.notices.is_empty(), "not classified yet");
    assert_eq!(words(cluster.condition(ConditionType::TrafficCaptured)), "Unknown/NoPods");
    for name in ["p", "q"] {
        cluster.gaps.insert(format!("uid-{name}"), InjectionGap::WebhookUnavailable);
    }
    let desired = cluster.evaluate(1);
    assert_eq!(desired.missing, [ObjectKey::new("a", "p"), ObjectKey::new("a", "q")]);
    assert_eq!(desired.notices.len(), 1);
    assert_eq!(
        (desired.notices[0].about.kind.as_str(), desired.notices[0].about.name.as_str(), desired.notices[0].reason),
        ("Deployment", "emb", "SidecarMissing")
    );
    assert_eq!(words(cluster.condition(ConditionType::TrafficCaptured)), "False/SidecarMissing");
    assert_eq!(cluster.status().pods.unwrap().matched, 2);
    cluster.gaps.insert("uid-p".into(), InjectionGap::NotInjectable("HostNetwork".into()));
    cluster.gaps.insert("uid-q".into(), InjectionGap::NotInjectable("HostNetwork".into()));
    assert_eq!(words(cluster.condition(ConditionType::TrafficCaptured)), "False/NotInjectable");
    assert!(cluster.evaluate(1).missing.is_empty());
}

#[test]
fn an_invalid_policy_keeps_its_profile_in_force_and_creates_none() {
    let mut cluster = TestCluster::with(app());
    cluster.write();
    let was = cluster.written[&emb()].current_profile.clone();
    assert!(was.as_ref().is_some_and(|name| name.starts_with("emb-")));
    let mut broken = (*cluster.state.policies[&emb()]).clone();
    broken.invalid = Some("GRP1103 wrong".into());
    insert(&mut cluster.state.policies, emb(), broken);
    let desired = cluster.evaluate(2000);
    assert_eq!(desired.policies[&emb()].current_profile, was);
    assert!(desired.make.is_empty());
    assert_eq!(desired.notices.iter().map(|notice| notice.reason).collect::<Vec<_>>(), ["PolicyInvalid"]);
    assert_eq!(words(cluster.condition(ConditionType::Programmed)), "False/Invalid");
    cluster.write();
    assert!(cluster.evaluate(3000).notices.is_empty(), "once");
}

#[test]
fn a_profile_is_created_for_every_edit_and_the_change_is_reported_once() {
    let mut cluster = TestCluster::with(app());
    let first = cluster.evaluate(1).make;
    assert_eq!(first.len(), 1);
    assert_eq!(first[0].owner, ("emb".to_owned(), "uid-emb".to_owned()));
    profile(&mut cluster.state, "a", &first[0].key.name, json!({}));
    assert!(cluster.evaluate(1).make.is_empty());
    cluster.write();
    policy(&mut cluster.state, "a", "emb", 1, spec_for("x", &json!({"limits": {"slotsMax": 3}})));
    let second = cluster.evaluate(2);
    assert_ne!(second.make[0].key, first[0].key);
    assert_eq!(second.make[0].spec.limits.as_ref().unwrap().slots_max, Some(3));
    assert_eq!(second.notices.iter().map(|notice| notice.reason).collect::<Vec<_>>(), ["ProfileUpdated"]);
}

#[test]
fn a_recipe_that_fails_is_an_event_on_the_workload_and_on_the_policy() {
    let mut cluster = TestCluster::with(app());
    cluster.injected("p", &[]);
    let whole = (**cluster.state.pods.values().next().unwrap()).clone();
    let recipe_failure = Some("container web does not start".to_owned());
    cluster.write();
    injected(&mut cluster.state, Pod { owner: Some(deployment("web")), recipe_failure, ..whole });
    let notices = cluster.evaluate(1).notices;
    let about: Vec<_> = notices.iter().map(|notice| (notice.about.kind.as_str(), notice.reason)).collect();
    assert_eq!(about, [("Deployment", "RecipeFailed"), ("BatchPolicy", "RecipeFailed")]);
    assert!(notices.iter().all(|notice| notice.warning && notice.note.contains("container web")), "{notices:?}");
}

#[test]
fn a_bypass_is_an_event_on_the_workload_and_on_the_policy_with_one_command() {
    let mut cluster = TestCluster::with(app());
    cluster.injected("p", &[]);
    let owned = Pod { owner: Some(deployment("web")), ..(**cluster.state.pods.values().next().unwrap()).clone() };
    injected(&mut cluster.state, owned);
    cluster.write();
    let service = json!({"kind": "Service", "metadata": {"name": "late"}, "spec": {"selector": {"app": "x"}, "ports": [{"port": 80, "targetPort": 8080}]}});
    insert(&mut cluster.state.services, ObjectKey::new("a", "late"), service);
    let notices = cluster.evaluate(1).notices;
    let about: Vec<_> = notices.iter().map(|notice| (notice.about.kind.as_str(), notice.reason)).collect();
    assert_eq!(about, [("Deployment", "TrafficBypassed"), ("BatchPolicy", "TrafficBypassed")]);
    let command = "groupage enable -n a deployment/web --fix-services";
    assert!(
        notices
            .iter()
            .all(|notice| notice.warning && notice.note.contains("svc/late:80") && notice.note.ends_with(command)),
        "{notices:?}"
    );
    assert!(cluster.condition(ConditionType::TrafficCaptured).2.ends_with(command));
    cluster.write();
    assert_eq!(
        cluster.evaluate(2).notices.len(),
        1,
        "one for the policy; the one for the workload is filtered by the sender"
    );
}

#[test]
fn an_slo_that_is_missed_and_met_again_causes_one_event_each() {
    let mut cluster = TestCluster::with(spec_for("x", &json!({"slo": {"latencyP99": "150ms"}})));
    cluster.injected("p", &[]);
    let mut events = |holds, reason: &str| {
        let state = ConditionState { holds, reason: reason.to_owned(), message: "p99 170ms".to_owned() };
        cluster.observed.policies.insert(emb(), PolicyObserved { slo: Some(state), ..PolicyObserved::default() });
        let notices: Vec<_> = cluster.evaluate(1).notices.iter().map(|notice| notice.reason).collect();
        cluster.write();
        notices
    };
    assert_eq!(events(ConditionStatus::Unknown, "FewCalls"), [] as [&str; 0]);
    assert_eq!(events(ConditionStatus::False, "Missed"), ["SLOMissed"]);
    assert_eq!(events(ConditionStatus::False, "Missed"), [] as [&str; 0]);
    assert_eq!(events(ConditionStatus::True, "Met"), ["SLOMet"]);
}

#[test]
fn while_a_profile_is_tried_the_one_before_it_stays_in_force() {
    let mut cluster = TestCluster::with(app());
    let observed = PolicyObserved {
        current: Some("emb-old".into()),
        candidate: Some("emb-new".into()),
        healthy: Some(ConditionState {
            holds: ConditionStatus::False,
            reason: "Regressed".into(),
            message: "p99 rose by 40%".into(),
        }),
        ..PolicyObserved::default()
    };
    cluster.observed.policies.insert(emb(), observed);
    let status = cluster.status();
    assert_eq!(
        (status.current_profile.as_deref(), status.candidate_profile.as_deref()),
        (Some("emb-old"), Some("emb-new"))
    );
    assert_eq!(words(cluster.condition(ConditionType::RolloutHealthy)), "False/Regressed");
    assert_eq!(words(cluster.condition(ConditionType::Ready)), "False/Regressed");
}

#[test]
fn a_missing_profile_is_reported_and_none_is_created() {
    let mut cluster = TestCluster::with(spec_for("x", &json!({"profileRef": {"name": "fast"}})));
    cluster.injected("p", &[]);
    assert_eq!(words(cluster.condition(ConditionType::Programmed)), "False/ProfileNotFound");
    assert!(cluster.evaluate(1).make.is_empty());
    profile(&mut cluster.state, "a", "fast", json!({"limits": {"slotsMax": 2}}));
    assert_eq!(words(cluster.condition(ConditionType::Programmed)), "False/NotConnected");
    assert_eq!(cluster.evaluate(1).profiles[&ObjectKey::new("a", "fast")].used_by, ["emb"]);
}

#[test]
fn only_the_oldest_unused_profiles_of_a_policy_are_deleted() {
    let mut cluster = TestCluster::with(spec_for("x", &json!({"rollout": {"historyLimit": 1}})));
    let own = |cluster: &mut TestCluster, name: &str, minute: u32, owner: Option<&str>| {
        profile(&mut cluster.state, "a", name, json!({}));
        let key = ObjectKey::new("a", name);
        let mut changed = (*cluster.state.profiles[&key]).clone();
        changed.owner = owner.map(str::to_owned);
        changed.meta.created = format!("2026-11-22T10:{minute:02}:00Z");
        insert(&mut cluster.state.profiles, key, changed);
    };
    own(&mut cluster, "emb-1", 1, Some("uid-emb"));
    own(&mut cluster, "emb-2", 2, Some("uid-emb"));
    own(&mut cluster, "emb-3", 3, Some("uid-emb"));
    own(&mut cluster, "users", 0, None);
    own(&mut cluster, "others", 0, Some("uid-other"));
    let removal = |name: &str| (ObjectKey::new("a", name), format!("uid-{name}"));
    assert_eq!(cluster.evaluate(1).remove, ["emb-2", "emb-1"].map(removal));
    cluster.observed.policies.insert(emb(), PolicyObserved { used: vec!["emb-1".into()], ..PolicyObserved::default() });
    assert_eq!(cluster.evaluate(1).remove, [removal("emb-2")]);
    policy(&mut cluster.state, "a", "borrower", 5, spec_for("y", &json!({"profileRef": {"name": "emb-2"}})));
    assert!(cluster.evaluate(1).remove.is_empty(), "another policy refers to it");
}

#[test]
fn the_slo_condition_is_met_missed_or_unknown() {
    let mut cluster = TestCluster::with(spec_for("x", &json!({"slo": {"latencyP99": "100ms"}})));
    assert_eq!(words(cluster.condition(ConditionType::SloMet)), "Unknown/NoPods");
    cluster.injected("p", &[]);
    assert_eq!(words(cluster.condition(ConditionType::SloMet)), "Unknown/NoReports");
    let mut with = |holds, reason: &str| {
        let slo = Some(ConditionState { holds, reason: reason.to_owned(), message: "p99 is 80ms".to_owned() });
        cluster.observed.policies.insert(emb(), PolicyObserved { slo, ..PolicyObserved::default() });
        words(cluster.condition(ConditionType::SloMet))
    };
    assert_eq!(with(ConditionStatus::Unknown, "FewCalls"), "Unknown/FewCalls");
    assert_eq!(with(ConditionStatus::False, "Missed"), "False/Missed");
    assert_eq!(with(ConditionStatus::True, "Met"), "True/Met");
    assert_eq!(cluster.condition(ConditionType::SloMet).2, "p99 is 80ms");
    cluster.state = TestCluster::with(app()).state;
    cluster.injected("p", &[]);
    assert_eq!(words(cluster.condition(ConditionType::SloMet)), "Unknown/NoSLO");
}

#[test]
fn the_result_depends_on_the_cluster_state_and_not_on_the_time() {
    let mut cluster = TestCluster::with(app());
    cluster.injected("p", &["service/x:80"]);
    cluster.write();
    assert_eq!(cluster.evaluate(1000), cluster.evaluate(9_000_000), "what does not change keeps its time");
}

#[test]
fn merging_that_ended_is_a_condition_and_one_event_and_leaves_the_policy_ready() {
    let mut cluster = TestCluster::with(app());
    assert_eq!(words(cluster.condition(ConditionType::Merging)), "Unknown/NoPods");
    cluster.injected("p", &[]);
    cluster.connect("p", current());
    assert_eq!(words(cluster.condition(ConditionType::Merging)), "Unknown/NoReports");
    let state = |holds, reason: &str| Some(ConditionState { holds, reason: reason.into(), message: "m".into() });
    let events = |cluster: &mut TestCluster, holds, reason| {
        let observed = PolicyObserved { merging: state(holds, reason), ..PolicyObserved::default() };
        cluster.observed.policies.insert(emb(), observed);
        let notices: Vec<_> =
            cluster.evaluate(1000).notices.iter().map(|notice| (notice.reason, notice.warning)).collect();
        cluster.write();
        notices
    };
    assert_eq!(events(&mut cluster, ConditionStatus::True, "Merging"), []);
    assert_eq!(events(&mut cluster, ConditionStatus::False, "MergeRefused"), [("MergeRefused", true)]);
    assert_eq!(words(cluster.condition(ConditionType::Merging)), "False/MergeRefused");
    assert_eq!(words(cluster.condition(ConditionType::Ready)), "True/Ready");
    assert_eq!(events(&mut cluster, ConditionStatus::False, "MergeRefused"), [], "once");
    assert_eq!(events(&mut cluster, ConditionStatus::False, "NoGain"), [("NoGain", false)]);
    assert_eq!(events(&mut cluster, ConditionStatus::True, "Merging"), []);
}
