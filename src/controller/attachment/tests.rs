use serde_json::json;

use super::*;
use crate::cluster_state::OwnerObject;
use crate::cluster_state::fixtures::*;

fn look(cluster: &ClusterState) -> AttachmentMap {
    attach_all(cluster, false, &BTreeSet::from(["groupage-system".to_owned()]))
}

fn reason(all: &AttachmentMap, name: &str) -> &'static str {
    all.policies[&ObjectKey::new("a", name)].accepted.reason()
}

fn app(value: &str) -> serde_json::Value {
    spec_for(value, &json!({}))
}

#[test]
fn the_younger_of_two_policies_with_one_selector_is_conflicted_without_pods() {
    let mut cluster = ClusterState::default();
    policy(&mut cluster, "a", "young", 5, app("x"));
    policy(&mut cluster, "a", "old", 1, app("x"));
    policy(&mut cluster, "a", "second", 3, json!({}));
    policy(&mut cluster, "a", "first", 2, json!({}));
    let all = look(&cluster);
    assert_eq!(
        ["young", "old", "second", "first"].map(|name| reason(&all, name)),
        ["Conflicted", "Accepted", "Conflicted", "Accepted"]
    );
    assert!(
        matches!(&all.policies[&ObjectKey::new("a", "young")].accepted, Acceptance::Conflicted(message) if message.contains("old"))
    );
}

#[test]
fn a_policy_that_pods_name_takes_precedence_for_these_pods() {
    let named = |name: &str, policy: &str| Pod {
        annotations: labels(&[(super::super::matching::POLICY_ANNOTATION, policy)]),
        ..pod("a", name, &[("app", "x")])
    };
    let target = json!({"targetRefs": [{"kind": "Deployment", "name": "emb"}]});
    for spec in [json!({}), app("x"), target] {
        let mut cluster = ClusterState::default();
        insert(&mut cluster.deployments, ObjectKey::new("a", "emb"), OwnerObject::default());
        policy(&mut cluster, "a", "old", 1, spec.clone());
        policy(&mut cluster, "a", "young", 2, spec.clone());
        injected(&mut cluster, pod("a", "p", &[("app", "x")]));
        assert_eq!(reason(&look(&cluster), "young"), "Conflicted", "{spec}");
        injected(&mut cluster, named("q", "young"));
        let all = look(&cluster);
        let young = &all.policies[&ObjectKey::new("a", "young")];
        assert!(
            matches!(&young.accepted, Acceptance::Accepted(Some(note)) if note == "the older BatchPolicy old selects the same pods: this policy applies only to pods that name it"),
            "{spec}: {:?}",
            young.accepted
        );
        assert_eq!(
            (young.accepted.is_applied(), young.pods.as_slice()),
            (true, &[ObjectKey::new("a", "q")][..]),
            "{spec}"
        );
        injected(&mut cluster, named("q", "old"));
        assert_eq!(reason(&look(&cluster), "young"), "Conflicted", "{spec}");
    }
}

#[test]
fn a_policy_without_remaining_pods_is_conflicted_and_one_with_some_has_a_note() {
    let mut cluster = ClusterState::default();
    policy(&mut cluster, "a", "old", 1, app("x"));
    let any_app = json!({"selector": {"matchExpressions": [{"key": "app", "operator": "Exists"}]}});
    policy(&mut cluster, "a", "young", 2, any_app);
    injected(&mut cluster, pod("a", "p", &[("app", "x")]));
    assert_eq!(reason(&look(&cluster), "young"), "Conflicted");
    injected(&mut cluster, pod("a", "q", &[("app", "y")]));
    let all = look(&cluster);
    assert!(
        matches!(&all.policies[&ObjectKey::new("a", "young")].accepted, Acceptance::Accepted(Some(note)) if note.contains("old"))
    );
    assert_eq!(all.policies[&ObjectKey::new("a", "young")].pods, [ObjectKey::new("a", "q")]);
    assert_eq!(all.followed[&ObjectKey::new("a", "p")], ObjectKey::new("a", "old"));
}

#[test]
fn a_policy_of_the_whole_namespace_is_accepted_beside_one_with_a_selector() {
    let mut cluster = ClusterState::default();
    policy(&mut cluster, "a", "old", 1, app("x"));
    policy(&mut cluster, "a", "all", 2, json!({}));
    injected(&mut cluster, pod("a", "p", &[("app", "x")]));
    assert_eq!(reason(&look(&cluster), "all"), "Accepted");
}

#[test]
fn missing_targets_are_named_and_one_existing_target_suffices() {
    let mut cluster = ClusterState::default();
    let two = json!({"targetRefs": [{"kind": "Deployment", "name": "emb"}, {"kind": "InferencePool", "name": "pool"}]});
    policy(&mut cluster, "a", "p", 1, two);
    let all = look(&cluster);
    assert!(matches!(&all.policies[&ObjectKey::new("a", "p")].accepted,
        Acceptance::TargetNotFound(reason) if reason.contains("Deployment/emb not found") && reason.contains("not installed")));
    insert(&mut cluster.deployments, ObjectKey::new("a", "emb"), OwnerObject::default());
    assert!(matches!(&look(&cluster).policies[&ObjectKey::new("a", "p")].accepted, Acceptance::Accepted(Some(_))));
}

#[test]
fn a_policy_broken_by_an_edit_keeps_its_pods_and_is_not_applied() {
    let mut cluster = ClusterState::default();
    policy(&mut cluster, "a", "p", 1, app("x"));
    policy(&mut cluster, "a", "all", 0, json!({}));
    injected(&mut cluster, pod("a", "q", &[("app", "x")]));
    let key = ObjectKey::new("a", "p");
    let mut broken = (*cluster.policies[&key]).clone();
    broken.invalid = Some("GRP1103 no".to_owned());
    insert(&mut cluster.policies, key.clone(), broken);
    let all = look(&cluster);
    assert_eq!(all.followed[&ObjectKey::new("a", "q")], key);
    assert!(!all.policies[&key].accepted.is_applied());
    let both = spec_for("x", &json!({"targetRefs": [{"kind": "Service", "name": "s"}]}));
    policy(&mut cluster, "a", "p", 1, both);
    assert_eq!(reason(&look(&cluster), "p"), "Invalid");
    policy(&mut cluster, "a", "p", 1, json!({"limits": 5}));
    assert_eq!(look(&cluster).policies[&key].requested, RequestedProfile::Unknown);
}

#[test]
fn profiles_are_named_found_or_created_from_the_policy() {
    let mut cluster = ClusterState::default();
    policy(&mut cluster, "a", "named", 1, spec_for("1", &json!({"profileRef": {"name": "fast"}})));
    policy(&mut cluster, "a", "own", 1, spec_for("2", &json!({"limits": {"slotsMax": 2}})));
    let all = look(&cluster);
    assert_eq!(all.policies[&ObjectKey::new("a", "named")].requested, RequestedProfile::Named("fast".into(), false));
    let RequestedProfile::Own(name, spec) = &all.policies[&ObjectKey::new("a", "own")].requested else {
        panic!("it has its own")
    };
    assert!(name.starts_with("own-") && spec.limits.as_ref().unwrap().slots_max == Some(2));
    profile(&mut cluster, "a", "fast", json!({}));
    assert_eq!(
        look(&cluster).policies[&ObjectKey::new("a", "named")].requested,
        RequestedProfile::Named("fast".into(), true)
    );
}

#[test]
fn enabled_pods_without_a_sidecar_are_found_and_no_others() {
    let mut cluster = ClusterState::default();
    namespace(&mut cluster, "a", &[("groupage.dev/inject", "enabled")]);
    namespace(&mut cluster, "b", &[]);
    policy(&mut cluster, "a", "all", 0, json!({}));
    uninjected(&mut cluster, pod("a", "opted-in", &[]));
    uninjected(&mut cluster, pod("a", "opted-out", &[("groupage.dev/inject", "disabled")]));
    uninjected(&mut cluster, pod("a", "ours", &[(COMPONENT, "controller")]));
    uninjected(&mut cluster, Pod { ending: true, ..pod("a", "ends", &[]) });
    uninjected(&mut cluster, pod("b", "silent", &[]));
    for (namespace, name) in [("b", "opted-in-itself"), ("kube-system", "dns"), ("groupage-system", "own")] {
        let annotations = labels(&[("groupage.dev/inject", "true")]);
        uninjected(&mut cluster, Pod { annotations, ..pod(namespace, name, &[]) });
    }
    let all = look(&cluster);
    let found: Vec<String> = all.uninjected.keys().map(ToString::to_string).collect();
    assert_eq!(found, ["a/opted-in", "b/opted-in-itself"]);
    assert_eq!(all.uninjected[&ObjectKey::new("a", "opted-in")], Some(ObjectKey::new("a", "all")));
    assert_eq!(all.policies[&ObjectKey::new("a", "all")].uninjected, [ObjectKey::new("a", "opted-in")]);
    assert_eq!(attach_all(&cluster, true, &BTreeSet::new()).uninjected.len(), 4, "unless they are disabled");
}
