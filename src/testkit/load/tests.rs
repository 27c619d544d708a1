//! Tests of the counters of loads against the simulated model server.

use std::time::Duration;

use super::{
    CallForm, ClosedConfig, OpenConfig, PreparedCalls, Route, SLICE_INTERVAL, post_json, record_calls, run_closed_loop,
    start_open_loop,
};
use crate::http1::ServerAddr;
use crate::server::{Server, ServerConfig, ServerHandle};

/// Longer than scheduling pauses of the machine, so that some calls are served within it.
const MOMENT: Duration = Duration::from_millis(300);

async fn server(config: ServerConfig) -> ServerHandle {
    Server::start(config).await.unwrap()
}

fn free() -> ServerConfig {
    ServerConfig { base: Duration::ZERO, per_item: Duration::ZERO, queue_max: 1000, ..ServerConfig::default() }
}

fn closed_config(target: &ServerAddr, route: Route, items: usize) -> ClosedConfig {
    ClosedConfig {
        target: target.clone(),
        calls: PreparedCalls::new(route, items, 7),
        clients: 3,
        duration: MOMENT,
        warm_up: Duration::ZERO,
        fresh: false,
        think: None,
    }
}

#[tokio::test]
async fn a_closed_load_is_answered_correctly_on_every_route() {
    let running = server(free()).await;
    for route in [Route::Embeddings, Route::Predict, Route::Embed, Route::Ledger] {
        let report = run_closed_loop(closed_config(running.target(), route, 2)).await;
        assert!(report.served > 0, "{route:?}");
        assert_eq!((report.served, report.wrong, report.failed), (report.offered, 0, 0), "{route:?}");
        assert_eq!(report.latency.len(), report.served);
    }
    assert_eq!(running.stats().connections, 3 * 4, "connections are kept");
}

#[tokio::test]
async fn fresh_load_opens_a_connection_per_call() {
    let running = server(free()).await;
    let report =
        run_closed_loop(ClosedConfig { fresh: true, ..closed_config(running.target(), Route::Embed, 1) }).await;
    assert!(report.served > 0);
    assert_eq!(running.stats().connections, running.stats().calls);
}

#[tokio::test]
async fn wrong_answers_are_found() {
    let running = server(free()).await;
    let mut config = closed_config(running.target(), Route::Embed, 1);
    let other = PreparedCalls::new(Route::Embed, 1, 8);
    let mixed = config.calls.list.iter().zip(other.list.iter());
    let list = mixed
        .map(|(sent, expected)| super::PreparedCall { request: sent.request.clone(), expect: expected.expect.clone() });
    config.calls = PreparedCalls { list: list.collect(), items: 1 };
    let report = run_closed_loop(config).await;
    assert!(report.wrong > 0);
    assert_eq!(report.served, 0);
}

#[tokio::test]
async fn unreachable_server_fails_without_hanging() {
    let stopped = server(free()).await;
    let target = stopped.target().clone();
    stopped.shutdown().await;
    let report = run_closed_loop(closed_config(&target, Route::Embed, 1)).await;
    assert!(report.failed > 0);
    assert_eq!(report.served, 0);
    let load = start_open_loop(OpenConfig::new(target, PreparedCalls::new(Route::Embed, 1, 1), 100.0, MOMENT));
    assert!(load.finish().await.is_err());
}

#[tokio::test]
async fn an_open_load_offers_the_schedule_of_its_seed_to_a_fast_and_to_a_silent_server() {
    let running = server(free()).await;
    let calls = PreparedCalls::new(Route::Embed, 1, 1);
    let config = OpenConfig::new(running.target().clone(), calls, 2000.0, MOMENT * 2);
    let report = start_open_loop(config.clone()).finish().await.unwrap();
    // 1200 are expected. The range is ten standard deviations wide on each side.
    assert!((854..1546).contains(&report.offered), "{}", report.offered);
    assert_eq!((report.served, report.wrong, report.failed), (report.offered, 0, 0));
    let silent = server(ServerConfig { base: Duration::from_secs(60), ..free() }).await;
    // Calls beyond the first sixteen wait for a connection, so that file descriptors suffice.
    let (target, grace) = (silent.target().clone(), Duration::ZERO);
    let config = OpenConfig { target, grace, connections_max: 16, ..config };
    let unanswered = start_open_loop(config).finish().await.unwrap();
    assert_eq!(unanswered.offered, report.offered, "one seed, one schedule");
    assert_eq!((unanswered.served, unanswered.failed), (0, unanswered.offered));
}

#[tokio::test]
async fn an_open_load_uses_all_its_connections_alike() {
    let (first, second) = (server(free()).await, server(free()).await);
    // Like a Kubernetes Service: each connection is forwarded to one of two servers in turn.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let target = ServerAddr::Tcp(listener.local_addr().unwrap());
    let to = [first.target().clone(), second.target().clone()];
    let service = tokio::spawn(async move {
        for turn in 0.. {
            let (mut from, _) = listener.accept().await.unwrap();
            let ServerAddr::Tcp(to) = to[turn % 2].clone() else { unreachable!() };
            tokio::spawn(async move {
                let mut to = tokio::net::TcpStream::connect(to).await.unwrap();
                tokio::io::copy_bidirectional(&mut from, &mut to).await.ok();
            });
        }
    });
    let report =
        start_open_loop(OpenConfig::new(target, PreparedCalls::new(Route::Embed, 1, 1), 500.0, MOMENT)).finish().await;
    assert!(report.unwrap().served > 40);
    let calls = [first.stats().calls, second.stats().calls];
    assert!(calls.iter().all(|one| *one * 3 > calls.iter().sum::<u64>()), "{calls:?}");
    service.abort();
}

#[tokio::test]
async fn latency_counts_from_the_scheduled_time_also_where_calls_wait_for_a_connection() {
    let slow = ServerConfig { base: Duration::from_millis(20), ..free() };
    let running = server(slow).await;
    let mut config = OpenConfig::new(
        running.target().clone(),
        PreparedCalls::new(Route::Embed, 1, 1),
        100.0,
        Duration::from_millis(100),
    );
    (config.connections_min, config.connections_max) = (1, 1);
    let load = start_open_loop(config);
    let report = load.finish().await.unwrap();
    assert_eq!((report.served, running.stats().connections), (report.offered, 1));
    // Calls are served one at a time in 20 ms each. The last of n calls that are due within 100 ms
    // ends no earlier than 20·n ms after the first one was due.
    let last = Duration::from_millis(20).mul_f64(report.offered as f64).saturating_sub(Duration::from_millis(100));
    assert!(report.quantile(1.0) >= last, "{:?} of {} calls", report.quantile(1.0), report.offered);
}

#[tokio::test]
async fn refused_and_unanswered_calls_are_counted_separately() {
    let silent = ServerConfig { base: Duration::from_secs(60), queue_max: 0, ..free() };
    let running = server(silent).await;
    let mut config = OpenConfig::new(running.target().clone(), PreparedCalls::new(Route::Embed, 1, 1), 500.0, MOMENT);
    config.grace = Duration::ZERO;
    let load = start_open_loop(config);
    let report = load.finish().await.unwrap();
    assert_eq!(report.served, 0);
    assert_eq!(report.refused + report.failed, report.offered);
    assert!(report.failed >= 1, "the one that holds the slot");
    assert!(report.refused >= 1);
    assert_eq!(report.refused_by_server, report.refused, "no proxy is in between");
}

#[tokio::test]
async fn snapshots_have_cumulative_counts_and_quantiles_since_the_last_one() {
    let running = server(free()).await;
    let config = OpenConfig::new(running.target().clone(), PreparedCalls::new(Route::Embed, 1, 1), 2000.0, MOMENT);
    let load = start_open_loop(config);
    while load.snapshot().served == 0 {
        tokio::task::yield_now().await;
    }
    let mut last = load.snapshot();
    while !load.is_finished() {
        last = load.snapshot();
        tokio::task::yield_now().await;
    }
    assert!(last.served > 0 && last.offered >= last.served);
    let (before, after) = (load.snapshot(), load.snapshot());
    assert_eq!((after.served, after.p99), (before.served, Duration::ZERO), "nothing since");
    assert_eq!(load.finish().await.unwrap().served, after.served);
}

#[tokio::test]
async fn an_open_load_keeps_to_the_times_it_is_given() {
    let running = server(free()).await;
    let times: Vec<Duration> = [0, 5, 5, 20, 900].map(Duration::from_millis).to_vec();
    let calls = PreparedCalls::new(Route::Embed, 1, 7);
    let config =
        OpenConfig { times: Some(times.into()), ..OpenConfig::new(running.target().clone(), calls, 1e9, MOMENT) };
    let report = start_open_loop(config).finish().await.unwrap();
    assert_eq!((report.offered, report.served), (4, 4), "what is due after the end does not come");
    assert!((report.share_within(Duration::from_secs(60)) - 1.0).abs() < 1e-9);
    assert!(report.mean() <= report.quantile(1.0) * 2);
}

#[tokio::test]
async fn a_client_waits_for_its_think_time_between_calls() {
    let running = server(free()).await;
    let think = Some((MOMENT * 10, MOMENT * 10));
    let report = run_closed_loop(ClosedConfig { think, ..closed_config(running.target(), Route::Embed, 1) }).await;
    assert_eq!(report.served, 3, "one call of each client");
}

#[test]
fn form_sets_model_key_and_stream() {
    let form = CallForm { model: "m", prefix: "crate", key: Some(3), stream: true, ..CallForm::new(Route::Embeddings) };
    let calls = PreparedCalls::from_form(&form);
    let text = String::from_utf8(calls.get(0).request.to_vec()).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    assert!(
        head.contains("authorization: Bearer key-3\r\n") && head.ends_with(&format!("content-length: {}", body.len()))
    );
    assert!(body.starts_with(r#"{"model":"m","stream":true,"input":["crate "#), "{body}");
}

#[tokio::test]
async fn slices_and_calls_made_are_counted_and_two_loads_are_added_up() {
    let running = server(free()).await;
    let one = run_closed_loop(closed_config(running.target(), Route::Embed, 1)).await;
    assert_eq!(one.slices.iter().sum::<u64>(), one.served);
    assert!(one.slices.len() as u128 <= MOMENT.as_nanos().div_ceil(SLICE_INTERVAL.as_nanos()));
    assert_eq!(one.made, running.stats().calls, "those that ended after the time, too");
    let both = one.clone().merge(&one);
    assert_eq!((both.served, both.made, both.latency.len()), (2 * one.served, 2 * one.made, 2 * one.served));
    assert_eq!(both.slices.iter().sum::<u64>(), both.served);
}

#[tokio::test]
async fn recorded_calls_are_correct_if_they_are_answered_as_before() {
    let running = server(free()).await;
    let requests = ["a", "b", "c"].map(|text| post_json("/embed", &format!("{{\"inputs\":[\"{text}\"]}}"))).to_vec();
    let calls = record_calls(running.target().clone(), requests.clone()).await.unwrap();
    assert_eq!((calls.responses().count(), running.stats().calls), (3, 3));
    let config = ClosedConfig { calls: calls.clone(), ..closed_config(running.target(), Route::Embed, 1) };
    let report = run_closed_loop(config).await;
    assert_eq!((report.served, report.wrong), (report.offered, 0));
    // Each request with the response to another one.
    let mixed = calls
        .list
        .iter()
        .zip(calls.list.iter().cycle().skip(1))
        .map(|(own, next)| super::PreparedCall { request: own.request.clone(), expect: next.expect.clone() });
    let calls = PreparedCalls { list: mixed.collect(), items: 1 };
    let report = run_closed_loop(ClosedConfig { calls, ..closed_config(running.target(), Route::Embed, 1) }).await;
    assert_eq!((report.served, report.wrong), (0, report.offered));
    let refused = vec![post_json("/none", "{}")];
    assert!(record_calls(running.target().clone(), refused).await.unwrap_err().to_string().contains("answered with 4"));
    assert!(record_calls(running.target().clone(), Vec::new()).await.is_err());
}
