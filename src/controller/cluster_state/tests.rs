use super::fixtures::*;
use super::*;

#[test]
fn the_native_form_needs_the_api_server_and_every_kubelet() {
    let mut cluster = ClusterState { server_native: Some(true), ..ClusterState::default() };
    assert!(cluster.supports_native_sidecars(), "no node, nothing against it");
    insert(&mut cluster.nodes, ObjectKey::new("", "a"), Node { kubelet: Some(33), machine: None });
    assert!(cluster.supports_native_sidecars());
    insert(&mut cluster.nodes, ObjectKey::new("", "b"), Node { kubelet: Some(32), machine: None });
    assert!(!cluster.supports_native_sidecars());
    insert(&mut cluster.nodes, ObjectKey::new("", "b"), Node { kubelet: None, machine: None });
    assert!(!cluster.supports_native_sidecars());
    cluster.nodes = ObjectTable::default();
    cluster.server_native = None;
    assert!(!cluster.supports_native_sidecars());
}

#[test]
fn a_pod_of_a_replica_set_belongs_to_its_deployment() {
    let mut cluster = ClusterState::default();
    insert(&mut cluster.replica_sets, ObjectKey::new("a", "emb-1"), owner_of("u1", Some(deployment("emb"))));
    insert(&mut cluster.replica_sets, ObjectKey::new("a", "bare"), owner_of("u2", None));
    let set = |name: &str| OwnerRef { kind: "ReplicaSet".into(), name: name.into(), ..OwnerRef::default() };
    let none = labels(&[]);
    assert_eq!(cluster.workload("a", Some(&set("emb-1")), &none), Some(deployment("emb")));
    assert_eq!(cluster.workload("a", Some(&set("bare")), &none), Some(set("bare")));
    assert_eq!(cluster.workload("b", Some(&set("emb-1")), &none), Some(set("emb-1")), "another namespace's");
    assert_eq!(cluster.workload("a", None, &none), None);
}

#[test]
fn a_pod_of_an_unobserved_replica_set_belongs_to_the_deployment_in_its_names() {
    let mut cluster = ClusterState::default();
    let set = |name: &str| OwnerRef { kind: "ReplicaSet".into(), name: name.into(), ..OwnerRef::default() };
    let hash = labels(&[("pod-template-hash", "7f9c")]);
    let unseen = OwnerRef { uid: String::new(), ..deployment("emb") };
    assert_eq!(cluster.workload("a", Some(&set("emb-7f9c")), &hash), Some(unseen));
    insert(&mut cluster.deployments, ObjectKey::new("a", "emb"), owner_of("uid-emb", None));
    assert_eq!(cluster.workload("a", Some(&set("emb-7f9c")), &hash), Some(deployment("emb")));
    for other in ["emb-1", "7f9c", "-7f9c", "emb7f9c"] {
        assert_eq!(cluster.workload("a", Some(&set(other)), &hash), Some(set(other)));
    }
    insert(&mut cluster.replica_sets, ObjectKey::new("a", "own-7f9c"), owner_of("u", None));
    assert_eq!(cluster.workload("a", Some(&set("own-7f9c")), &hash), Some(set("own-7f9c")), "it is known better");
}

#[test]
fn a_namespace_lookup_excludes_namespaces_with_the_same_prefix() {
    let mut table = ObjectTable::default();
    for (namespace, name) in [("a", "x"), ("a-b", "x"), ("aa", "x"), ("a", "y")] {
        insert(&mut table, ObjectKey::new(namespace, name), 1);
    }
    let names: Vec<_> = in_namespace(&table, "a").map(|(key, _)| key.name.as_str()).collect();
    assert_eq!(names, ["x", "y"]);
}
