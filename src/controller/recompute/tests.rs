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
struct Scene {
    cluster: ClusterState,
    observed: ObservedState,
    gaps: BTreeMap<String, InjectionGap>,
    written: BTreeMap<ObjectKey, BatchPolicyStatus>,
}

impl Scene {
    fn with(spec: serde_json::Value) -> Self {
        let mut scene = Self::default();
        policy(&mut scene.cluster, "a", "emb", 1, spec);
        scene
    }

    /// Runs a round, and checks the reason of every condition.
    fn look(&self, second: i64) -> DesiredState {
        let attached = attach_all(&self.cluster, false, &BTreeSet::new());
        let input = RecomputeInput {
            cluster: &self.cluster,
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
        self.look(1000).policies[&emb()].clone()
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
        injected(&mut self.cluster, pod);
    }

    fn connect(&mut self, name: &str, observed: PodObserved) {
        self.observed.pods.insert(format!("uid-{name}"), observed);
    }

    /// Marks all statuses as written.
    fn write(&mut self) {
        self.written = self.look(1000).policies;
    }
}

fn emb() -> ObjectKey {
    ObjectKey::new("a", "emb")
}

fn app() -> serde_json::Value {
    json!({"selector": {"matchLabels": {"app": "x"}}})
}

fn current() -> PodObserved {
    PodObserved { current: true, programmed: true, ..PodObserved::default() }
}

fn words((status, reason, _): (String, String, String)) -> String {
    format!("{status}/{reason}")
}

#[test]
fn all_seven_conditions_have_the_generation_and_are_unknown_without_evidence() {
    let status = Scene::with(app()).status();
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
        let mut scene = Scene::with(spec);
        let engine = json!({"model": "/m", "volume": "v", "device": "Auto", "ports": [8080], "names": ["http"]});
        let status = json!({"version": "0.1.0", "form": "native", "metrics": 9190, "admin": 9191, "hash": "h", "engine": engine});
        let mut pod = pod("a", "p", &[("app", "x")]);
        pod.annotations = labels(&[(STATUS, &status.to_string())]);
        injected(&mut scene.cluster, pod);
        scene.connect("p", current());
        scene.condition(ConditionType::Programmed)
    };
    assert_eq!(words(programmed("/m")), "True/Programmed");
    let (_, reason, message) = programmed("/n");
    assert_eq!(reason, "NextStart");
    assert!(message.ends_with("pending for new pods (kubectl rollout restart): engine.model"), "{message}");
}

#[test]
fn a_policy_is_programmed_once_all_its_sidecars_run_it() {
    let mut scene = Scene::with(app());
    scene.injected("p", &[]);
    scene.injected("q", &[]);
    scene.connect("p", current());
    let (status, reason, message) = scene.condition(ConditionType::Programmed);
    assert_eq!((status.as_str(), reason.as_str()), ("False", "NotConnected"));
    assert!(message.contains("1 of 2") && message.contains('q'), "{message}");
    scene.connect("q", PodObserved::default());
    assert_eq!(words(scene.condition(ConditionType::Programmed)), "False/Pending");
    scene.connect("q", PodObserved { refused: Some("an older generation".into()), ..PodObserved::default() });
    assert_eq!(words(scene.condition(ConditionType::Programmed)), "False/Refused");
    scene.connect("q", PodObserved { pending: vec!["proxy.client".into()], ..current() });
    let (_, reason, message) = scene.condition(ConditionType::Programmed);
    assert_eq!(reason, "NextStart");
    assert!(message.ends_with("pending until the next start of the sidecar: proxy.client"), "{message}");
    scene.connect("q", PodObserved { pending: vec!["engine.model".into()], ..current() });
    let (_, reason, message) = scene.condition(ConditionType::Programmed);
    assert_eq!(reason, "NextStart");
    assert!(message.ends_with("pending for new pods (kubectl rollout restart): engine.model"), "{message}");
    scene.connect("q", current());
    assert_eq!(words(scene.condition(ConditionType::Programmed)), "True/Programmed");
    assert_eq!(words(scene.condition(ConditionType::Ready)), "True/Ready");
    let pods = scene.status().pods.unwrap();
    assert_eq!((pods.matched, pods.injected, pods.connected, pods.captured, pods.on_current), (2, 2, 2, 2, 2));
}

#[test]
fn a_bypass_is_named_once_for_all_pods() {
    let mut scene = Scene::with(app());
    scene.injected("p", &["service/x:80 dials port 8080"]);
    scene.injected("q", &["service/x:80 dials port 8080"]);
    let (status, reason, message) = scene.condition(ConditionType::TrafficCaptured);
    assert_eq!((status.as_str(), reason.as_str()), ("False", "Bypassed"));
    assert_eq!(message.matches("service/x:80").count(), 1, "{message}");
    assert_eq!(scene.status().pods.unwrap().captured, 0);
    scene.injected("p", &[]);
    scene.injected("q", &[]);
    assert_eq!(words(scene.condition(ConditionType::TrafficCaptured)), "True/Captured");
    let service = json!({"kind": "Service", "metadata": {"name": "late"}, "spec": {"selector": {"app": "x"}, "ports": [{"port": 80, "targetPort": 8080}]}});
    insert(&mut scene.cluster.services, ObjectKey::new("a", "late"), service);
    let (_, reason, message) = scene.condition(ConditionType::TrafficCaptured);
    assert!(reason == "Bypassed" && message.contains("svc/late:80"), "{reason}: {message}");
    injected(&mut scene.cluster, pod("a", "p", &[("app", "x")]));
    injected(&mut scene.cluster, pod("a", "q", &[("app", "x")]));
    assert_eq!(words(scene.condition(ConditionType::TrafficCaptured)), "Unknown/RecordMissing");
}

#[test]
fn a_pod_that_the_webhook_missed_is_counted_and_reported_on_its_workload() {
    let mut scene = Scene::with(app());
    namespace(&mut scene.cluster, "a", &[("groupage.dev/inject", "enabled")]);
    insert(&mut scene.cluster.replica_sets, ObjectKey::new("a", "emb-1"), owner_of("u", Some(deployment("emb"))));
    for name in ["p", "q"] {
        let owner = OwnerRef { kind: "ReplicaSet".into(), name: "emb-1".into(), ..OwnerRef::default() };
        uninjected(&mut scene.cluster, Pod { owner: Some(owner), ..pod("a", name, &[("app", "x")]) });
    }
    let desired = scene.look(1);
    assert!(desired.missing.is_empty() && desired.notices.is_empty(), "not classified yet");
    assert_eq!(words(scene.condition(ConditionType::TrafficCaptured)), "Unknown/NoPods");
    for name in ["p", "q"] {
        scene.gaps.insert(format!("uid-{name}"), InjectionGap::WebhookUnavailable);
    }
    let desired = scene.look(1);
    assert_eq!(desired.missing, [ObjectKey::new("a", "p"), ObjectKey::new("a", "q")]);
    assert_eq!(desired.notices.len(), 1);
    assert_eq!(
        (desired.notices[0].about.kind.as_str(), desired.notices[0].about.name.as_str(), desired.notices[0].reason),
        ("Deployment", "emb", "SidecarMissing")
    );
    assert_eq!(words(scene.condition(ConditionType::TrafficCaptured)), "False/SidecarMissing");
    assert_eq!(scene.status().pods.unwrap().matched, 2);
    scene.gaps.insert("uid-p".into(), InjectionGap::NotInjectable("HostNetwork".into()));
    scene.gaps.insert("uid-q".into(), InjectionGap::NotInjectable("HostNetwork".into()));
    assert_eq!(words(scene.condition(ConditionType::TrafficCaptured)), "False/NotInjectable");
    assert!(scene.look(1).missing.is_empty());
}

#[test]
fn an_invalid_policy_keeps_its_profile_in_force_and_creates_none() {
    let mut scene = Scene::with(app());
    scene.write();
    let was = scene.written[&emb()].current_profile.clone();
    assert!(was.as_ref().is_some_and(|name| name.starts_with("emb-")));
    let mut broken = (*scene.cluster.policies[&emb()]).clone();
    broken.invalid = Some("GRP1103 wrong".into());
    insert(&mut scene.cluster.policies, emb(), broken);
    let desired = scene.look(2000);
    assert_eq!(desired.policies[&emb()].current_profile, was);
    assert!(desired.make.is_empty());
    assert_eq!(desired.notices.iter().map(|notice| notice.reason).collect::<Vec<_>>(), ["PolicyInvalid"]);
    assert_eq!(words(scene.condition(ConditionType::Programmed)), "False/Invalid");
    scene.write();
    assert!(scene.look(3000).notices.is_empty(), "once");
}

#[test]
fn a_profile_is_created_for_every_edit_and_the_change_is_reported_once() {
    let mut scene = Scene::with(app());
    let first = scene.look(1).make;
    assert_eq!(first.len(), 1);
    assert_eq!(first[0].owner, ("emb".to_owned(), "uid-emb".to_owned()));
    profile(&mut scene.cluster, "a", &first[0].key.name, json!({}));
    assert!(scene.look(1).make.is_empty());
    scene.write();
    policy(
        &mut scene.cluster,
        "a",
        "emb",
        1,
        json!({"selector": {"matchLabels": {"app": "x"}}, "limits": {"slotsMax": 3}}),
    );
    let second = scene.look(2);
    assert_ne!(second.make[0].key, first[0].key);
    assert_eq!(second.make[0].spec.limits.as_ref().unwrap().slots_max, Some(3));
    assert_eq!(second.notices.iter().map(|notice| notice.reason).collect::<Vec<_>>(), ["ProfileUpdated"]);
}

#[test]
fn a_recipe_that_fails_is_an_event_on_the_workload_and_on_the_policy() {
    let mut scene = Scene::with(app());
    scene.injected("p", &[]);
    let whole = (**scene.cluster.pods.values().next().unwrap()).clone();
    let recipe_failure = Some("container web does not start".to_owned());
    scene.write();
    injected(&mut scene.cluster, Pod { owner: Some(deployment("web")), recipe_failure, ..whole });
    let notices = scene.look(1).notices;
    let about: Vec<_> = notices.iter().map(|notice| (notice.about.kind.as_str(), notice.reason)).collect();
    assert_eq!(about, [("Deployment", "RecipeFailed"), ("BatchPolicy", "RecipeFailed")]);
    assert!(notices.iter().all(|notice| notice.warning && notice.note.contains("container web")), "{notices:?}");
}

#[test]
fn a_bypass_is_an_event_on_the_workload_and_on_the_policy_with_one_command() {
    let mut scene = Scene::with(app());
    scene.injected("p", &[]);
    let owned = Pod { owner: Some(deployment("web")), ..(**scene.cluster.pods.values().next().unwrap()).clone() };
    injected(&mut scene.cluster, owned);
    scene.write();
    let service = json!({"kind": "Service", "metadata": {"name": "late"}, "spec": {"selector": {"app": "x"}, "ports": [{"port": 80, "targetPort": 8080}]}});
    insert(&mut scene.cluster.services, ObjectKey::new("a", "late"), service);
    let notices = scene.look(1).notices;
    let about: Vec<_> = notices.iter().map(|notice| (notice.about.kind.as_str(), notice.reason)).collect();
    assert_eq!(about, [("Deployment", "TrafficBypassed"), ("BatchPolicy", "TrafficBypassed")]);
    let command = "groupage enable -n a deployment/web --fix-services";
    assert!(
        notices
            .iter()
            .all(|notice| notice.warning && notice.note.contains("svc/late:80") && notice.note.ends_with(command)),
        "{notices:?}"
    );
    assert!(scene.condition(ConditionType::TrafficCaptured).2.ends_with(command));
    scene.write();
    assert_eq!(
        scene.look(2).notices.len(),
        1,
        "one for the policy; the one for the workload is filtered by the sender"
    );
}

#[test]
fn an_slo_that_is_missed_and_met_again_causes_one_event_each() {
    let mut scene = Scene::with(json!({"selector": {"matchLabels": {"app": "x"}}, "slo": {"latencyP99": "150ms"}}));
    scene.injected("p", &[]);
    let mut events = |holds, reason: &str| {
        let state = ConditionState { holds, reason: reason.to_owned(), message: "p99 170ms".to_owned() };
        scene.observed.policies.insert(emb(), PolicyObserved { slo: Some(state), ..PolicyObserved::default() });
        let notices: Vec<_> = scene.look(1).notices.iter().map(|notice| notice.reason).collect();
        scene.write();
        notices
    };
    assert_eq!(events(ConditionStatus::Unknown, "FewCalls"), [] as [&str; 0]);
    assert_eq!(events(ConditionStatus::False, "Missed"), ["SLOMissed"]);
    assert_eq!(events(ConditionStatus::False, "Missed"), [] as [&str; 0]);
    assert_eq!(events(ConditionStatus::True, "Met"), ["SLOMet"]);
}

#[test]
fn while_a_profile_is_tried_the_one_before_it_stays_in_force() {
    let mut scene = Scene::with(app());
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
    scene.observed.policies.insert(emb(), observed);
    let status = scene.status();
    assert_eq!(
        (status.current_profile.as_deref(), status.candidate_profile.as_deref()),
        (Some("emb-old"), Some("emb-new"))
    );
    assert_eq!(words(scene.condition(ConditionType::RolloutHealthy)), "False/Regressed");
    assert_eq!(words(scene.condition(ConditionType::Ready)), "False/Regressed");
}

#[test]
fn a_missing_profile_is_reported_and_none_is_created() {
    let mut scene = Scene::with(json!({"selector": {"matchLabels": {"app": "x"}}, "profileRef": {"name": "fast"}}));
    scene.injected("p", &[]);
    assert_eq!(words(scene.condition(ConditionType::Programmed)), "False/ProfileNotFound");
    assert!(scene.look(1).make.is_empty());
    profile(&mut scene.cluster, "a", "fast", json!({"limits": {"slotsMax": 2}}));
    assert_eq!(words(scene.condition(ConditionType::Programmed)), "False/NotConnected");
    assert_eq!(scene.look(1).profiles[&ObjectKey::new("a", "fast")].used_by, ["emb"]);
}

#[test]
fn only_the_oldest_unused_profiles_of_a_policy_are_deleted() {
    let mut scene = Scene::with(json!({"selector": {"matchLabels": {"app": "x"}}, "rollout": {"historyLimit": 1}}));
    let own = |scene: &mut Scene, name: &str, minute: u32, owner: Option<&str>| {
        profile(&mut scene.cluster, "a", name, json!({}));
        let key = ObjectKey::new("a", name);
        let mut changed = (*scene.cluster.profiles[&key]).clone();
        changed.owner = owner.map(str::to_owned);
        changed.meta.created = format!("2026-11-22T10:{minute:02}:00Z");
        insert(&mut scene.cluster.profiles, key, changed);
    };
    own(&mut scene, "emb-1", 1, Some("uid-emb"));
    own(&mut scene, "emb-2", 2, Some("uid-emb"));
    own(&mut scene, "emb-3", 3, Some("uid-emb"));
    own(&mut scene, "users", 0, None);
    own(&mut scene, "others", 0, Some("uid-other"));
    assert_eq!(
        scene.look(1).remove,
        [
            (ObjectKey::new("a", "emb-2"), "uid-emb-2".to_owned()),
            (ObjectKey::new("a", "emb-1"), "uid-emb-1".to_owned())
        ]
    );
    scene.observed.policies.insert(emb(), PolicyObserved { used: vec!["emb-1".into()], ..PolicyObserved::default() });
    assert_eq!(scene.look(1).remove, [(ObjectKey::new("a", "emb-2"), "uid-emb-2".to_owned())]);
    policy(
        &mut scene.cluster,
        "a",
        "borrower",
        5,
        json!({"selector": {"matchLabels": {"app": "y"}}, "profileRef": {"name": "emb-2"}}),
    );
    assert!(scene.look(1).remove.is_empty(), "another policy refers to it");
}

#[test]
fn the_slo_condition_is_met_missed_or_unknown() {
    let mut scene = Scene::with(json!({"selector": {"matchLabels": {"app": "x"}}, "slo": {"latencyP99": "100ms"}}));
    assert_eq!(words(scene.condition(ConditionType::SloMet)), "Unknown/NoPods");
    scene.injected("p", &[]);
    assert_eq!(words(scene.condition(ConditionType::SloMet)), "Unknown/NoReports");
    let mut with = |holds, reason: &str| {
        let slo = Some(ConditionState { holds, reason: reason.to_owned(), message: "p99 is 80ms".to_owned() });
        scene.observed.policies.insert(emb(), PolicyObserved { slo, ..PolicyObserved::default() });
        words(scene.condition(ConditionType::SloMet))
    };
    assert_eq!(with(ConditionStatus::Unknown, "FewCalls"), "Unknown/FewCalls");
    assert_eq!(with(ConditionStatus::False, "Missed"), "False/Missed");
    assert_eq!(with(ConditionStatus::True, "Met"), "True/Met");
    assert_eq!(scene.condition(ConditionType::SloMet).2, "p99 is 80ms");
    scene.cluster = Scene::with(app()).cluster;
    scene.injected("p", &[]);
    assert_eq!(words(scene.condition(ConditionType::SloMet)), "Unknown/NoSLO");
}

#[test]
fn the_result_depends_on_the_cluster_state_and_not_on_the_time() {
    let mut scene = Scene::with(app());
    scene.injected("p", &["service/x:80"]);
    scene.write();
    assert_eq!(scene.look(1000), scene.look(9_000_000), "what does not change keeps its time");
}

#[test]
fn merging_that_ended_is_a_condition_and_one_event_and_leaves_the_policy_ready() {
    let mut scene = Scene::with(app());
    assert_eq!(words(scene.condition(ConditionType::Merging)), "Unknown/NoPods");
    scene.injected("p", &[]);
    scene.connect("p", current());
    assert_eq!(words(scene.condition(ConditionType::Merging)), "Unknown/NoReports");
    let state = |holds, reason: &str| Some(ConditionState { holds, reason: reason.into(), message: "m".into() });
    let events = |scene: &mut Scene, holds, reason| {
        let observed = PolicyObserved { merging: state(holds, reason), ..PolicyObserved::default() };
        scene.observed.policies.insert(emb(), observed);
        let notices: Vec<_> = scene.look(1000).notices.iter().map(|notice| (notice.reason, notice.warning)).collect();
        scene.write();
        notices
    };
    assert_eq!(events(&mut scene, ConditionStatus::True, "Merging"), []);
    assert_eq!(events(&mut scene, ConditionStatus::False, "MergeRefused"), [("MergeRefused", true)]);
    assert_eq!(words(scene.condition(ConditionType::Merging)), "False/MergeRefused");
    assert_eq!(words(scene.condition(ConditionType::Ready)), "True/Ready");
    assert_eq!(events(&mut scene, ConditionStatus::False, "MergeRefused"), [], "once");
    assert_eq!(events(&mut scene, ConditionStatus::False, "NoGain"), [("NoGain", false)]);
    assert_eq!(events(&mut scene, ConditionStatus::True, "Merging"), []);
}
