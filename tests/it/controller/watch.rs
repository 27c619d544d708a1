//! Following a cluster that fails in every way: no watch gets stuck or retries without delay, and a
//! fault of one kind affects no other.

#![expect(clippy::disallowed_methods, reason = "it is measured from outside how long something takes")]

use std::time::Duration;

use groupage::clock::Clock;
use groupage::controller::cluster_state::{ClusterState, ObjectKey};
use groupage::controller::watch::{SharedState, WatchTiming, WatchedKind, watch_all};
use groupage::telemetry::ControllerMetrics;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::api::{FakeApiServer, Fault, FaultKind, HANG};

struct FollowTask {
    shared: SharedState,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

/// Returns the shortest timeouts that a test may use.
fn short_timing() -> WatchTiming {
    WatchTiming {
        watch: Duration::from_secs(200),
        answer: Duration::from_secs(1),
        backoff: (Duration::from_millis(20), Duration::from_millis(200)),
        pace: Duration::from_millis(50),
        probe: Duration::from_millis(20),
        absent: Duration::from_millis(50),
        retry_after_max: Duration::from_millis(100),
    }
}

fn start_following(api: &FakeApiServer, timing: WatchTiming) -> FollowTask {
    let shared = SharedState::new(Clock::start());
    let (stop, stopped) = watch::channel(false);
    let task = tokio::spawn(watch_all(api.client(), shared.clone(), timing, ControllerMetrics::new(), stopped));
    FollowTask { shared, stop, task }
}

impl FollowTask {
    /// Waits until the cluster state satisfies a condition.
    #[track_caller]
    fn until(&self, done: impl Fn(&ClusterState) -> bool) -> impl Future<Output = ()> {
        let place = std::panic::Location::caller();
        let shared = self.shared.clone();
        async move {
            let mut changes = shared.changes();
            let wait = async {
                loop {
                    changes.borrow_and_update();
                    if done(&shared.cluster()) {
                        return;
                    }
                    changes.changed().await.unwrap();
                }
            };
            let ended = tokio::time::timeout(HANG, wait).await;
            assert!(ended.is_ok(), "nothing happened for {HANG:?} at {place}: {shared:?}");
        }
    }

    async fn end(self) {
        self.stop.send(true).unwrap();
        tokio::time::timeout(HANG, self.task).await.unwrap().unwrap();
    }
}

fn service(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "a"}, "spec": {"selector": {"app": name}}})
}

fn policy(name: &str, app: &str) -> Value {
    json!({"apiVersion": "groupage.dev/v1alpha1", "kind": "BatchPolicy", "metadata": {"name": name, "namespace": "a"},
        "spec": {"selector": {"matchLabels": {"app": app}}}})
}

fn pod(name: &str, injected: bool, phase: &str) -> Value {
    let labels = if injected { json!({"groupage.dev/injected": "true"}) } else { json!({"app": "x"}) };
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "a", "labels": labels},
        "spec": {"containers": [{"name": "c"}]}, "status": {"phase": phase}})
}

fn key(name: &str) -> ObjectKey {
    ObjectKey::new("a", name)
}

#[tokio::test]
async fn existing_objects_are_listed_and_changes_are_followed() {
    let api = FakeApiServer::start().await;
    api.put(policy("p", "x"));
    api.put(pod("with", true, "Running"));
    api.put(pod("without", false, "Running"));
    api.put(pod("over", false, "Succeeded"));
    let all = start_following(&api, short_timing());
    all.until(|cluster| cluster.is_synced && cluster.server_native == Some(true)).await;
    let cluster = all.shared.cluster();
    assert!(cluster.policies[&key("p")].spec.is_ok());
    assert_eq!((cluster.pods.len(), cluster.uninjected_pods.len()), (1, 1), "what has ended is not followed");
    api.merge("batchpolicies", "a", "p", &json!({"spec": {"mode": "Observe"}}));
    all.until(|cluster| cluster.policies[&key("p")].meta.generation == 2).await;
    // The injector's label moves a pod from one watch to the other.
    api.merge("pods", "a", "without", &json!({"metadata": {"labels": {"groupage.dev/injected": "true"}}}));
    all.until(|cluster| cluster.pods.len() == 2 && cluster.uninjected_pods.is_empty()).await;
    api.remove("pods", "a", "with");
    all.until(|cluster| cluster.pods.len() == 1).await;
    api.assert_nothing_forbidden();
    all.end().await;
}

#[tokio::test]
async fn a_long_list_is_paginated() {
    let api = FakeApiServer::start().await;
    for number in 0..1200 {
        api.put(service(&format!("s{number}")));
    }
    let all = start_following(&api, short_timing());
    all.until(|cluster| cluster.is_synced).await;
    assert_eq!(all.shared.cluster().services.len(), 1200);
    assert!(api.count("list", "services") >= 3, "{}", api.count("list", "services"));
    all.end().await;
}

#[tokio::test]
async fn a_failing_watch_recovers_without_spinning_or_delaying_other_kinds() {
    let ways = [
        FaultKind::Status(500),
        FaultKind::TooMany(1),
        FaultKind::Forbidden,
        FaultKind::Reset,
        FaultKind::Gone,
        FaultKind::GoneInStream,
        FaultKind::EofInFrame,
        FaultKind::EndsAtOnce,
        FaultKind::Garbage,
        FaultKind::Silence,
    ];
    let one = |what: FaultKind| async move {
        let api = FakeApiServer::start().await;
        let all = start_following(&api, short_timing());
        all.until(|cluster| cluster.is_synced).await;
        api.fault(Fault::always(what.clone()).for_verb_and_resource("watch", "services"));
        api.end_watches("services");
        let before = api.count("watch", "services");
        api.until_requested("watch", "services", before + 3).await;
        let began = std::time::Instant::now();
        let (lists, watches) = (api.count("list", "services"), api.count("watch", "services"));
        // Another kind is followed meanwhile.
        for number in 0..5 {
            api.put(policy(&format!("p{number}"), "x"));
            all.until(|cluster| cluster.policies.contains_key(&key(&format!("p{number}")))).await;
        }
        let requests = api.count("list", "services") + api.count("watch", "services") - lists - watches;
        // At most one request every twenty milliseconds, plus a few that were in flight.
        let most = began.elapsed().as_millis() / 20 + 4;
        assert!((requests as u128) <= most, "{what:?}: {requests} requests in {:?}", began.elapsed());
        api.put(service("late"));
        api.clear_faults();
        all.until(|cluster| cluster.services.contains_key(&key("late"))).await;
        assert!(all.shared.cluster().is_synced);
        all.end().await;
    };
    futures_util::future::join_all(ways.map(one)).await;
}

#[tokio::test]
async fn a_watch_that_hangs_is_given_up_and_begun_anew() {
    let api = FakeApiServer::start().await;
    api.fault(Fault::always(FaultKind::HungWatch).for_verb_and_resource("watch", "services").times(1));
    // The reflector waits five seconds longer than the requested watch timeout.
    let all = start_following(&api, WatchTiming { watch: Duration::from_secs(1), ..short_timing() });
    all.until(|cluster| cluster.is_synced).await;
    api.put(service("unseen"));
    all.until(|cluster| cluster.services.contains_key(&key("unseen"))).await;
    all.end().await;
}

#[tokio::test]
async fn a_kind_that_cannot_be_listed_is_reported_and_the_others_are_listed() {
    for what in [FaultKind::Status(503), FaultKind::Forbidden, FaultKind::Silence] {
        let api = FakeApiServer::start().await;
        api.put(policy("p", "x"));
        api.fault(Fault::always(what).for_verb_and_resource("list", "services"));
        let all = start_following(&api, short_timing());
        all.until(|cluster| cluster.policies.contains_key(&key("p"))).await;
        api.until_requested("list", "services", 3).await;
        assert!(
            all.shared.unlisted_kinds().any(|kind| kind == WatchedKind::Services) && !all.shared.cluster().is_synced
        );
        api.clear_faults();
        all.until(|cluster| cluster.is_synced).await;
        assert_eq!(all.shared.unlisted_kinds().next(), None);
        all.end().await;
    }
}

#[tokio::test]
async fn a_slow_server_is_waited_for() {
    let api = FakeApiServer::start().await;
    api.fault(
        Fault::always(FaultKind::Slow(Duration::from_millis(300))).for_verb_and_resource("list", "services").times(1),
    );
    let all = start_following(&api, short_timing());
    all.until(|cluster| cluster.is_synced).await;
    assert_eq!(api.count("list", "services"), 1, "it received one request");
    all.end().await;
}

#[tokio::test]
async fn objects_deleted_during_outage_disappear_after_relist() {
    let api = FakeApiServer::start().await;
    api.put(service("stays"));
    api.put(service("goes"));
    let all = start_following(&api, short_timing());
    all.until(|cluster| cluster.services.len() == 2).await;
    api.fault(Fault::always(FaultKind::Status(500)).for_verb_and_resource("watch", "services"));
    api.end_watches("services");
    api.until_requested("watch", "services", 2).await;
    api.remove("services", "a", "goes");
    api.compact();
    assert_eq!(all.shared.cluster().services.len(), 2, "the cached state is kept until a complete list replaces it");
    api.clear_faults();
    all.until(|cluster| cluster.services.len() == 1).await;
    assert!(all.shared.cluster().services.contains_key(&key("stays")));
    all.end().await;
}

#[tokio::test]
async fn optional_kinds_may_be_installed_and_removed_without_a_loss_of_sync() {
    let api = FakeApiServer::start().await;
    let all = start_following(&api, short_timing());
    all.until(|cluster| cluster.is_synced).await;
    assert!(all.shared.cluster().pools.is_none() && all.shared.cluster().inference_services.is_none());
    api.serves("inferencepools", true);
    api.put(json!({"apiVersion": "inference.networking.k8s.io/v1", "kind": "InferencePool", "metadata": {"name": "pool", "namespace": "a"},
        "spec": {"selector": {"matchLabels": {"app": "x"}}}}));
    all.until(|cluster| cluster.pools.as_ref().is_some_and(|pools| pools.contains_key(&key("pool")))).await;
    api.serves("inferencepools", false);
    all.until(|cluster| cluster.pools.is_none()).await;
    assert!(all.shared.cluster().is_synced);
    api.assert_nothing_forbidden();
    all.end().await;
}

#[tokio::test]
async fn an_unreadable_object_does_not_affect_others_of_its_kind() {
    let api = FakeApiServer::start().await;
    let mut odd = policy("odd", "x");
    odd["spec"]["limits"] = json!("many");
    api.put(odd);
    api.put(policy("even", "y"));
    let all = start_following(&api, short_timing());
    all.until(|cluster| cluster.is_synced).await;
    let cluster = all.shared.cluster();
    assert!(cluster.policies[&key("odd")].spec.is_err() && cluster.policies[&key("odd")].invalid.is_some());
    assert!(cluster.policies[&key("even")].spec.is_ok());
    all.end().await;
}
