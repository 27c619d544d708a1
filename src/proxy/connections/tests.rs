use std::net::Ipv4Addr;

use futures_util::FutureExt as _;

use super::*;

fn connections(max: usize) -> Arc<Connections> {
    Connections::new(max, 1 << 20, Clock::start(), Arc::new(Metrics::new("local")))
}

fn take(connections: &Arc<Connections>, peer: u8) -> Option<ClientConnectionPermit> {
    connections.acquire(IpAddr::from(Ipv4Addr::new(10, 0, 0, peer)), ConnectionActivity::new(connections.clock))
}

#[tokio::test]
async fn busy_connections_are_limited_and_the_last_close_is_signalled() {
    let connections = connections(2);
    connections.wait_until_closed().await;
    let (one, two) = (take(&connections, 1).unwrap(), take(&connections, 1).unwrap());
    let calls = [one.activity().on_call_start(false), two.activity().on_call_start(false)];
    assert!(take(&connections, 1).is_none());
    assert_eq!(connections.open_count(), 2);
    drop((one, calls));
    let ((), ()) = tokio::join!(connections.wait_until_closed(), async { drop(two) });
    assert_eq!(connections.open_count(), 0);
}

#[tokio::test]
async fn a_silent_connection_of_the_address_that_holds_most_makes_room() {
    let connections = connections(3);
    let permits = [take(&connections, 1), take(&connections, 2), take(&connections, 2)].map(Option::unwrap);
    let busy = permits[1].activity().on_call_start(false);
    let tasks = permits.map(|permit| {
        let evictee = permit.evictee();
        let task = tokio::spawn(async move {
            let _permit = permit;
            std::future::pending::<()>().await;
        });
        evictee.set_task(&task.abort_handle());
        task
    });
    let newcomer = take(&connections, 3).unwrap();
    let [other, answering, silent] = tasks;
    assert!(silent.await.unwrap_err().is_cancelled());
    assert!(!other.is_finished() && !answering.is_finished());
    assert_eq!((connections.open_count(), connections.closing.load(Ordering::Relaxed)), (3, 0));
    drop((newcomer, busy));
    other.abort();
    answering.abort();
}

#[tokio::test]
async fn under_pressure_silent_connections_go_and_none_is_accepted() {
    let connections = connections(10);
    let permit = take(&connections, 1).unwrap();
    connections.set_pressure(PressureLevel::Stop);
    assert!(!permit.evictee().0.evicted.load(Ordering::Relaxed), "it was not silent for long");
    assert!(connections.wait_for_capacity().now_or_never().is_none());
    connections.set_pressure(PressureLevel::None);
    connections.wait_for_capacity().await;
}

#[tokio::test]
async fn an_address_that_holds_more_than_others_rarely_evicts_and_only_its_own() {
    let connections = connections(4);
    let few = take(&connections, 2).unwrap();
    let held: Vec<ClientConnectionPermit> = (0..3).map(|_| take(&connections, 1).unwrap()).collect();
    let busy: Vec<_> = held.iter().map(|permit| permit.activity().on_call_start(false)).collect();
    assert!(take(&connections, 1).is_none(), "its own are busy, and the other address keeps its connection");
    assert!(!few.evictee().0.evicted.load(Ordering::Relaxed));
    drop(busy);
    let newcomer = take(&connections, 1);
    assert!(newcomer.is_some(), "a failed attempt counts for nothing");
    assert!(take(&connections, 1).is_none(), "the next ones are refused for a while");
    let other = take(&connections, 2);
    assert!(other.is_some(), "those of others are not");
    connections.peers().values_mut().for_each(|state| state.evicted_at = None);
    assert!(take(&connections, 1).is_some());
}

#[tokio::test]
async fn an_address_that_is_alone_evicts_its_own_connections() {
    let connections = connections(2);
    let held: Vec<_> = (0..8).map(|_| take(&connections, 1)).collect();
    assert!(held.iter().all(Option::is_some));
}

#[tokio::test]
async fn a_connection_has_few_streams_while_half_of_the_budget_is_held() {
    let connections = connections(2);
    let permit = take(&connections, 1).unwrap();
    assert!(permit.streams_max(false) > STREAMS_MIN);
    assert_eq!(permit.streams_max(true), STREAMS_MIN);
    let _other = take(&connections, 2).unwrap();
    assert!(permit.streams_max(false) >= STREAMS_MIN);
}
