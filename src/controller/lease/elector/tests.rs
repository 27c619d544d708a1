use super::*;
use crate::batching::Tick;

#[test]
fn a_record_written_to_a_lease_is_read_back() {
    let settings = ElectionSettings { namespace: "a".into(), name: "b".into(), me: "c".into(), address: None };
    let expected = LeaseRecord {
        holder: Some("c".into()),
        address: Some("10.0.0.1:9444".into()),
        duration: LEASE_DURATION,
        acquired: 1,
        renewed: 1_700_000_000_123_456,
        transitions: 3,
        version: "7".into(),
    };
    assert_eq!(record(&lease(&settings, &expected)), expected);
}

#[test]
fn leadership_ends_by_the_clock_alone() {
    let clock = Clock::start();
    let always = Leadership::always(clock);
    assert!(always.is_leader());
    always.until.store(Tick(1).0, Ordering::Release);
    assert!(!always.is_leader(), "a process that was suspended is no longer the leader");
}

#[test]
fn a_replica_with_an_expired_lease_names_no_leader_and_keeps_its_term() {
    let leader = |name: &str| Some(LeaderReplica { name: name.to_owned(), address: Some(format!("{name}:9444")) });
    let reign = Some(LeadershipTerm { transitions: 3, acquired: 7 });
    let (publisher, state) = watch::channel(LeadershipState { leads: true, leader: leader("me"), reign });
    let until = Arc::new(AtomicU64::new(u64::MAX));
    let own = Leadership { clock: Clock::start(), until: until.clone(), state };
    assert_eq!(own.leader(), leader("me"));
    until.store(0, Ordering::Release);
    assert_eq!((own.leader(), own.reign()), (None, reign));
    publisher.send_replace(LeadershipState { leads: false, leader: leader("other"), reign: None });
    assert_eq!((own.leader(), own.reign()), (leader("other"), None));
}
