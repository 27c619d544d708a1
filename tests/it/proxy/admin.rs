//! The ports beside the data port: the data that they expose, and the requests that they reject.

mod host;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use groupage::telemetry::names::{Metric, MetricKind};
use serde_json::{Value, json};

use super::scripted_server::{ReservedPort, echo, reply};
use super::scripted_setup::start_with_scripted_server;
use super::setup::{TestProxy, assert_answer, assert_served, count, predictions, within_timeout};
use super::support::client::{Answer, Client, Outgoing};
use super::support::wire::Headers;

const JSON: (&str, &str) = ("content-type", "application/json");

async fn fetch(port: SocketAddr, method: &str, path: &str, own: &[(&str, &str)], body: Option<&str>) -> Answer {
    let own: Headers = own.iter().map(|(name, value)| ((*name).to_owned(), value.as_bytes().to_vec())).collect();
    let request = Outgoing::new(method, path, port, &own, body.map(str::as_bytes));
    let mut client = within_timeout(Client::connect(port)).await.unwrap();
    within_timeout(client.fetch(&request)).await
}

async fn get(port: SocketAddr, path: &str) -> Answer {
    fetch(port, "GET", path, &[], None).await
}

async fn text(port: SocketAddr, path: &str) -> String {
    let answer = get(port, path).await;
    assert_eq!(answer.status, Some(200), "{path}");
    String::from_utf8(answer.body).unwrap()
}

fn ports(proxy: &TestProxy) -> (SocketAddr, SocketAddr) {
    (proxy.running.admin.metrics.unwrap(), proxy.running.admin.local.unwrap())
}

/// Waits until the readiness probe returns this status.
#[track_caller]
fn until_ready(port: SocketAddr, status: u16) -> impl Future<Output = ()> {
    within_timeout(async move {
        while get(port, "/readyz").await.status != Some(status) {
            tokio::task::yield_now().await;
        }
    })
}

/// Returns the response of a server that fails every call with item 666 and answers `GET`s.
fn model(request: &super::support::upstream::Request) -> Vec<u8> {
    match request.method.as_str() {
        "POST" if super::scripted_server::instances(request).contains(&666) => reply(500, "{}"),
        "POST" => echo(request),
        _ => reply(200, "{}"),
    }
}

/// Parses an exposition into the kinds of its families and its samples, as strictly as a scraper.
fn parse(text: &str) -> (BTreeMap<String, String>, Vec<(String, String)>) {
    let (mut kinds, mut samples) = (BTreeMap::new(), Vec::new());
    for line in text.lines().filter(|line| !line.is_empty()) {
        if let Some(described) = line.strip_prefix("# TYPE ") {
            let (name, kind) = described.split_once(' ').unwrap();
            assert!(kinds.insert(name.to_owned(), kind.to_owned()).is_none(), "{name} is described twice");
        } else if !line.starts_with("# HELP ") {
            let (series, value) = line.rsplit_once(' ').unwrap();
            value.parse::<f64>().unwrap();
            let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
            samples.push((name.to_owned(), labels.strip_suffix('}').unwrap().to_owned()));
        }
    }
    (kinds, samples)
}

fn family(name: &str, kinds: &BTreeMap<String, String>) -> String {
    let mut ends = ["_bucket", "_sum", "_count"].iter().filter_map(|end| name.strip_suffix(end));
    let histogram = ends.find(|base| kinds.get(*base).is_some_and(|kind| kind == "histogram"));
    histogram.unwrap_or(name).to_owned()
}

#[tokio::test]
async fn every_metric_is_there_with_its_kind_and_its_labels() {
    let (proxy, mut hand) = start_with_scripted_server(json!({})).await;
    // One call of every kind creates every series: shared, mismatched and isolated, passed through.
    let (callers, turn) = proxy.form_batch(&mut hand, vec![proxy.predict(1), proxy.predict(2)]).await;
    turn.answer(200, "{\"predictions\":[1]}").await;
    let _auto = hand.into_auto_responder(model);
    assert_served(callers).await;
    assert_eq!(proxy.fetch(&proxy.request("GET", "/x", &[], None)).await.status, Some(200));
    let (metrics, local) = ports(&proxy);
    let answer = get(metrics, "/metrics").await;
    assert_eq!(super::setup::header(&answer.headers, "content-type"), "text/plain; version=0.0.4; charset=utf-8");
    let exposition = String::from_utf8(answer.body).unwrap();
    let (kinds, samples) = parse(&exposition);
    for metric in Metric::ALL.into_iter().filter(|metric| !metric.is_optional()) {
        assert_eq!(kinds.get(metric.name()).map(String::as_str), Some(metric.kind().as_str()), "{}", metric.name());
        let own = samples.iter().filter(|(name, _)| family(name, &kinds) == metric.name());
        let mut labels: BTreeSet<&str> = BTreeSet::new();
        for (_, given) in own {
            labels.extend(given.split(',').filter_map(|label| label.split_once('=')).map(|(name, _)| name));
        }
        labels.remove("le");
        let expected: BTreeSet<&str> = metric.labels().split(", ").filter(|label| !label.is_empty()).collect();
        assert_eq!(labels, expected, "{}", metric.name());
        assert!(exposition.contains(&format!("# HELP {} ", metric.name())), "{}", metric.name());
        assert_eq!(metric.name().ends_with("_total"), metric.kind() == MetricKind::Counter, "{}", metric.name());
    }
    for (name, _) in &samples {
        let known = Metric::ALL.iter().any(|metric| metric.name() == family(name, &kinds));
        assert!(known, "{name} is in no list");
    }
    let counted = |series: &str| proxy.metric(series);
    assert_eq!(counted(r#"groupage_calls_total{policy="local",protocol="none",outcome="passed"}"#), 1);
    assert_eq!(counted(r#"groupage_calls_total{policy="local",protocol="kserve_v1",outcome="served"}"#), 3);
    assert_eq!(counted(r#"groupage_items_total{outcome="served"}"#), 3);
    assert_eq!(counted("groupage_items_isolated_total"), 2);
    assert_eq!(counted("groupage_isolation_executions_total"), 2);
    assert_eq!(counted("groupage_batch_items_count"), 2);
    assert_eq!(counted("groupage_batch_items_sum"), 3);
    assert_eq!(counted(r#"groupage_execution_duration_seconds_count{outcome="ok"}"#), 1);
    assert_eq!(counted("groupage_queue_items"), 0);
    assert_eq!(counted("groupage_slots_in_use"), 0);
    assert_eq!(
        text(local, "/metrics").await.lines().count(),
        exposition.lines().count(),
        "the local port shows the same"
    );
}

#[tokio::test]
async fn the_number_of_series_is_bounded_for_arbitrary_client_input() {
    let (proxy, hand) = start_with_scripted_server(json!({})).await;
    let _auto = hand.into_auto_responder(|_| reply(200, "{}"));
    let mut client = proxy.client().await;
    let mut lines = Vec::new();
    for round in 0..2 {
        for n in 0..150 {
            let (host, tenant) = (format!("h{round}-{n}"), format!("t{round}-{n}"));
            let own = [("host", host.as_str()), ("x-tenant-id", tenant.as_str()), ("content-type", "application/json")];
            let path = if n % 2 == 0 { format!("/p{round}-{n}") } else { format!("/v1/models/m{round}-{n}:predict") };
            let (method, body) = if n % 2 == 0 {
                (format!("M{round}{n}"), None)
            } else {
                ("POST".into(), Some(&b"{\"instances\":[1]}"[..]))
            };
            assert_eq!(
                within_timeout(client.fetch(&proxy.request(&method, &path, &own, body))).await.status,
                Some(200)
            );
        }
        lines.push(text(ports(&proxy).0, "/metrics").await.lines().filter(|line| !line.starts_with('#')).count());
    }
    assert_eq!(lines.first(), lines.last());
    assert!(lines.iter().all(|lines| *lines <= 600), "{lines:?}");
}

#[tokio::test]
async fn liveness_is_constant_and_readiness_follows_the_server() {
    let port = ReservedPort::reserve();
    let hand = port.listen();
    let proxy = TestProxy::start_in_front_of(&port.url(), json!({}));
    let (metrics, local) = ports(&proxy);
    for port in [metrics, local] {
        assert_answer(&get(port, "/livez").await, 200, "ok\n");
    }
    until_ready(metrics, 200).await;
    until_ready(local, 200).await;
    let mut client = proxy.client().await;
    drop(hand);
    // A single failed call is not an outage, but three seconds of failed connects are. The status
    // is 502 if the call was sent on a connection that the server had not accepted yet.
    let status = within_timeout(client.fetch(&proxy.predict(1))).await.status;
    assert!(matches!(status, Some(502 | 503)), "{status:?}");
    assert_eq!(get(metrics, "/readyz").await.status, Some(200));
    until_ready(metrics, 503).await;
    assert_answer(&get(metrics, "/livez").await, 200, "ok\n");
    let hand = port.listen();
    until_ready(metrics, 200).await;
    let _auto = hand.into_auto_responder(echo);
    assert_answer(&within_timeout(client.fetch(&proxy.predict(1))).await, 200, &predictions(&[1]));
}

#[tokio::test]
async fn a_full_queue_does_not_make_the_process_unready() {
    let (proxy, mut hand) = start_with_scripted_server(json!({"limits": {"queueItemsMax": 1}})).await;
    let (first, turn) = proxy.occupy_slot(&mut hand).await;
    let queued = proxy.queue([proxy.predict(1)]).await;
    assert_eq!(proxy.fetch(&proxy.predict(2)).await.status, Some(503));
    assert_eq!(get(ports(&proxy).0, "/readyz").await.status, Some(200));
    turn.echo().await;
    hand.next_request().await.echo().await;
    assert_served(queued.into_iter().chain([first])).await;
}

#[tokio::test]
async fn the_stats_show_the_calls_in_progress() {
    let (proxy, mut hand) = start_with_scripted_server(json!({})).await;
    let local = ports(&proxy).1;
    let (first, turn) = proxy.occupy_slot(&mut hand).await;
    let queued = proxy.queue([proxy.predict(1), proxy.predict(2)]).await;
    let stats: Value = serde_json::from_str(&text(local, "/api/stats").await).unwrap();
    assert_eq!(stats["calls"], json!({"seen": 3, "offered": 3, "answered": 0}));
    assert_eq!(stats["items"], json!({"accepted": 3, "queued": 2}));
    let none_failed = json!({"count": 1, "items": 1, "shared": 0, "in_flight": 1, "failed": 0, "mismatched": 0});
    assert_eq!((&stats["batches"], &stats["isolation"]), (&none_failed, &json!({"executions": 0, "items": 0})));
    assert_eq!((&stats["ready"], &stats["version"]), (&json!(true), &json!(env!("CARGO_PKG_VERSION"))));
    assert!(stats["buffered_bytes"].as_u64().unwrap() >= 3 * 17);
    turn.echo().await;
    first.answer().await;
    hand.next_request().await.echo().await;
    for caller in queued {
        caller.answer().await;
    }
    proxy.wait_idle().await;
    proxy.wait_until(|stats| count(&stats.answered) == 3).await;
    let stats: Value = serde_json::from_str(&text(local, "/api/stats").await).unwrap();
    let none_failed = json!({"count": 2, "items": 3, "shared": 1, "in_flight": 0, "failed": 0, "mismatched": 0});
    assert_eq!(stats["batches"], none_failed);
    assert_eq!(stats["items"]["queued"], 0);
}

#[tokio::test]
async fn every_setting_is_shown_with_its_source() {
    let (proxy, _hand) = start_with_scripted_server(json!({"limits": {"queueItemsMax": 77}})).await;
    let config: Value = serde_json::from_str(&text(ports(&proxy).1, "/api/config").await).unwrap();
    assert_eq!(config["limits.queueItemsMax"], json!({"value": "77", "source": "file:1"}));
    assert_eq!(config["limits.batchItemsMax"], json!({"value": "128", "source": "default"}));
    assert_eq!(config["proxy.upstream"]["source"], "flag --upstream");
}

#[tokio::test]
async fn a_change_is_a_json_post_with_a_local_host_on_the_local_port() {
    let (proxy, _hand) = start_with_scripted_server(json!({})).await;
    let (metrics, local) = ports(&proxy);
    let debug = Some("{\"level\":\"debug\"}");
    let changes =
        async |port, own: &[(&str, &str)], body| fetch(port, "POST", "/api/log-level", own, body).await.status;
    assert_eq!(changes(local, &[JSON], debug).await, Some(200));
    assert_eq!(changes(local, &[("content-type", "application/json; charset=utf-8")], debug).await, Some(200));
    assert_eq!(changes(local, &[JSON, ("host", "localhost:1")], debug).await, Some(200));
    // Requests that a browser form or a forged request can send.
    assert_eq!(changes(local, &[("content-type", "text/plain")], debug).await, Some(415));
    assert_eq!(changes(local, &[], debug).await, Some(415));
    for host in ["evil.example", "169.254.169.254", "localhost.evil.example", "127.0.0.1.evil.example"] {
        assert_eq!(changes(local, &[JSON, ("host", host)], debug).await, Some(403));
        assert_eq!(fetch(local, "GET", "/api/stats", &[("host", host)], None).await.status, Some(403));
    }
    for wrong in ["", "{}", "debug", "{\"level\":7}", "{\"level\":\"loud=very=\"}"] {
        assert_eq!(changes(local, &[JSON], Some(wrong)).await, Some(400), "{wrong}");
    }
    let large = format!("{{\"level\":\"{}\"}}", "a".repeat(5000));
    assert_eq!(changes(local, &[JSON], Some(&large)).await, Some(413));
    assert_eq!(get(local, "/api/log-level").await.status, Some(405));
    // The port that the whole cluster can reach accepts no changes and exposes no details.
    assert_eq!(changes(metrics, &[JSON], debug).await, Some(404));
    for path in ["/api/stats", "/api/config", "/", "/drain"] {
        assert_eq!(get(metrics, path).await.status, Some(404), "{path}");
    }
    for path in ["/metrics", "/livez", "/readyz"] {
        assert_eq!(fetch(metrics, "POST", path, &[JSON], Some("{}")).await.status, Some(405), "{path}");
    }
}

#[tokio::test]
async fn paths_of_the_admin_ports_are_like_any_other_on_the_data_port() {
    let (proxy, mut hand) = start_with_scripted_server(json!({})).await;
    for path in ["/metrics", "/readyz", "/api/log-level", "/drain", "/quit"] {
        let caller = proxy.call(proxy.post(path, &[], "{}"));
        let turn = hand.next_request().await;
        assert_eq!(turn.request.target, path);
        turn.answer(418, "{}").await;
        assert_answer(&caller.answer().await, 418, "{}");
    }
}

#[tokio::test]
async fn an_admin_port_that_is_off_is_not_opened() {
    let (proxy, hand) =
        start_with_scripted_server(json!({"proxy": {"admin": {"metrics": "off", "local": "off"}}})).await;
    assert_eq!((proxy.running.admin.metrics, proxy.running.admin.local), (None, None));
    let _auto = hand.into_auto_responder(echo);
    assert_answer(&proxy.fetch(&proxy.predict(1)).await, 200, &predictions(&[1]));
}

#[tokio::test]
async fn a_proxy_without_an_upstream_or_with_a_port_that_is_taken_does_not_start() {
    let taken = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let start =
        |spec: Value| TestProxy::start("http://127.0.0.1:1", &spec).map(drop).map_err(|error| error.to_string());
    for spec in
        [json!({"listen": [address]}), json!({"admin": {"metrics": address}}), json!({"admin": {"local": address}})]
    {
        let error = start(json!({"proxy": spec})).unwrap_err();
        assert!(error.contains(&address), "{error}");
    }
}
