//! Leader elections on a real Lease.

#![expect(clippy::disallowed_methods, reason = "it is measured from outside how long something takes")]

use groupage::clock::Clock;
use groupage::controller::lease::{ElectionSettings, Leadership, elect};
use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::api::{FakeApiServer, Fault, FaultKind};

const LEASE: (&str, &str, &str) = ("leases", "groupage-system", "groupage-controller");

struct Replica {
    leadership: Leadership,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

fn replica(api: &FakeApiServer, me: &str) -> Replica {
    let settings = ElectionSettings {
        namespace: LEASE.1.into(),
        name: LEASE.2.into(),
        me: me.into(),
        address: Some(format!("{me}:9444")),
    };
    let (stop, stopped) = watch::channel(false);
    let (leadership, work) = elect(api.client(), settings, Clock::start(), stopped);
    Replica { leadership, stop, task: tokio::spawn(work) }
}

impl Replica {
    /// Waits until it becomes leader or ceases to be leader.
    async fn until(&mut self, leads: bool) {
        let wait = async {
            while self.leadership.is_leader() != leads {
                self.leadership.changed().await;
            }
        };
        tokio::time::timeout(super::api::HANG, wait).await.unwrap_or_else(|_| panic!("{:?}", self.leadership));
    }
}

/// Starts a replica that leads, and then one that has its address.
async fn leader_and_follower(api: &FakeApiServer) -> (Replica, Replica) {
    let mut first = replica(api, "one");
    first.until(true).await;
    let mut second = replica(api, "two");
    while second.leadership.leader().is_none() {
        second.leadership.changed().await;
    }
    (first, second)
}

fn held_by(name: &'static str) -> impl FnMut(&serde_json::Value) -> bool {
    move |lease| lease["spec"]["holderIdentity"] == name
}

#[tokio::test]
async fn the_first_replica_leads_and_the_second_has_its_address() {
    let api = FakeApiServer::start().await;
    let (_first, second) = leader_and_follower(&api).await;
    let leader = second.leadership.leader().unwrap();
    assert_eq!((leader.name.as_str(), leader.address.as_deref()), ("one", Some("one:9444")));
    assert!(!second.leadership.is_leader());
    let lease = api.get(LEASE.0, LEASE.1, LEASE.2).unwrap();
    assert_eq!(lease["spec"]["leaseDurationSeconds"], 15);
    api.assert_nothing_forbidden();
}

#[tokio::test]
async fn stopped_leader_releases_lease() {
    let api = FakeApiServer::start().await;
    let (first, mut second) = leader_and_follower(&api).await;
    first.stop.send(true).unwrap();
    first.task.await.unwrap();
    assert!(!first.leadership.is_leader());
    assert_ne!(
        first.leadership.leader().map(|leader| leader.name).as_deref(),
        Some("one"),
        "no connection is sent to a replica that shuts down"
    );
    second.until(true).await;
    let lease = api.until_object(LEASE, held_by("two")).await;
    assert_eq!(lease["spec"]["leaseTransitions"], 1);
    assert_eq!(lease["metadata"]["annotations"]["groupage.dev/stream-address"], "two:9444");
}

#[tokio::test]
async fn lost_lease_renewal_ends_leadership() {
    let api = FakeApiServer::start().await;
    let mut first = replica(&api, "one");
    first.until(true).await;
    api.merge(
        LEASE.0,
        LEASE.1,
        LEASE.2,
        &json!({"spec": {"holderIdentity": "two", "renewTime": "2030-01-01T00:00:00.000000Z"}}),
    );
    first.until(false).await;
    assert_eq!(first.leadership.leader().map(|leader| leader.name), Some("two".to_owned()));
}

#[tokio::test]
async fn after_a_conflict_on_the_lease_exactly_one_replica_leads() {
    let api = FakeApiServer::start().await;
    api.fault(Fault::always(FaultKind::Conflict).for_verb_and_resource("create", "leases").times(1));
    let mut first = replica(&api, "one");
    let mut second = replica(&api, "two");
    let (mut one, mut two) = (false, false);
    while !one && !two {
        tokio::select! {
            () = first.leadership.changed() => {}
            () = second.leadership.changed() => {}
        }
        (one, two) = (first.leadership.is_leader(), second.leadership.is_leader());
    }
    assert!(one != two);
}

#[tokio::test]
async fn errors_of_every_kind_are_retried_without_a_request_storm() {
    for what in
        [FaultKind::Status(500), FaultKind::TooMany(1), FaultKind::Reset, FaultKind::Forbidden, FaultKind::Status(503)]
    {
        let api = FakeApiServer::start().await;
        api.fault(Fault::always(what).for_resource("leases").times(2));
        let mut only = replica(&api, "one");
        only.until(true).await;
        assert!(api.recorded_requests().len() <= 8, "{:#?}", api.recorded_requests());
    }
}

#[tokio::test]
async fn a_leader_without_a_response_stops_before_another_may_begin() {
    let api = FakeApiServer::start().await;
    let mut first = replica(&api, "one");
    first.until(true).await;
    let began = std::time::Instant::now();
    api.fault(Fault::always(FaultKind::Silence).for_resource("leases"));
    first.until(false).await;
    assert!(began.elapsed() < std::time::Duration::from_secs(15), "{:?}", began.elapsed());
    assert_eq!(first.leadership.leader(), None, "no ready replica is the leader");
    let reign = first.leadership.reign();
    api.clear_faults();
    first.until(true).await;
    assert!(reign.is_some() && first.leadership.reign() == reign, "no other replica led in between");
}
