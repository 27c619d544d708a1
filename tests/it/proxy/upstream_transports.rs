//! Upstream transports of batches: a unix socket, HTTP/2 configured or detected, and HTTP/1 on
//! connections of their own.

use std::sync::{Arc, Mutex};

use groupage::testkit::server::{Server, ServerConfig};
use groupage::testkit::{Route, ServerAddr};
use http::{Request, Response, Version};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::batches::predicts;
use super::http2_endpoints::{H2Client, H2ScriptedServer, full};
use super::scripted_server::PendingRequest;
use super::scripted_setup::start_with_scripted_server;
use super::setup::{
    PREDICT, TestProxy, assert_answer, assert_predictions, assert_served, instances, predictions, within_timeout,
};

fn echo_h2(body: &[u8]) -> String {
    let body: Value = serde_json::from_slice(body).unwrap();
    json!({"predictions": body["instances"]}).to_string()
}

#[tokio::test]
async fn a_server_on_a_unix_socket_is_served_like_any_other() {
    let folder = tempfile::tempdir().unwrap();
    let target = ServerAddr::Unix(folder.path().join("model.sock"));
    let server = Server::start(ServerConfig { listen: target, ..ServerConfig::default() }).await.unwrap();
    let proxy = TestProxy::start_in_front_of(&server.url(), json!({}));
    let path = Route::Predict.path();
    let callers: Vec<_> = (0..20).map(|item| proxy.call(proxy.post(path, &[], &instances(&[item])))).collect();
    let mut bodies = Vec::new();
    for caller in callers {
        let answer = caller.answer().await;
        assert_eq!(answer.status, Some(200), "{answer:?}");
        bodies.push(answer.body);
    }
    let (together, batched) = (bodies.clone(), server.stats());
    assert_eq!(batched.items, 20);
    assert!(batched.calls < 20, "{batched:?}");
    for (item, body) in (0..).zip(together) {
        let unbatched = proxy.fetch(&proxy.post(path, &[], &instances(&[item]))).await;
        assert_eq!(unbatched.body, body);
    }
    let passed = proxy.fetch(&proxy.request("GET", "/health", &[], None)).await;
    assert_answer(&passed, 200, r#"{"status":"ok"}"#);
}

#[tokio::test]
async fn batches_to_a_known_http_2_server_are_streams_of_one_connection() {
    let mut hand = H2ScriptedServer::start().await;
    let proxy = TestProxy::start_in_front_of(&hand.url(), json!({"proxy": {"connection": {"http2": "Always"}}}));
    let mut connections = Vec::new();
    for _ in 0..2 {
        let first = proxy.call(proxy.predict(0));
        let turn = hand.turn().await;
        assert_eq!(turn.head.version, Version::HTTP_2);
        let callers = proxy.queue(predicts(&proxy, 1..=3)).await;
        let body = echo_h2(&turn.whole.body);
        turn.ok(body);
        assert_answer(&first.answer().await, 200, &predictions(&[0]));
        let turn = hand.turn().await;
        connections.push(turn.connection);
        assert_eq!(turn.head.uri, format!("http://{}{PREDICT}", proxy.address).as_str());
        assert_eq!(turn.head.version, Version::HTTP_2);
        let body = echo_h2(&turn.whole.body);
        assert_eq!(body, predictions(&[1, 2, 3]));
        turn.ok(body);
        assert_predictions(1.., callers).await;
    }
    assert_eq!(connections.first(), connections.last());
}

/// Answers every call over HTTP/1, and records the first bytes of every connection.
async fn recording_server() -> (String, Arc<Mutex<Vec<Vec<u8>>>>) {
    let port = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", port.local_addr().unwrap());
    let begun = Arc::new(Mutex::new(Vec::new()));
    let recorded = begun.clone();
    tokio::spawn(async move {
        loop {
            let (stream, _) = port.accept().await.unwrap();
            let recorded = recorded.clone();
            tokio::spawn(async move {
                let mut first = [0; 4];
                let length = stream.peek(&mut first).await.unwrap_or_default();
                recorded.lock().unwrap().push(first[..length].to_vec());
                let answer = service_fn(|request: Request<Incoming>| async {
                    let body = request.into_body().collect().await?.to_bytes();
                    let body = if body.is_empty() { "{}".to_owned() } else { echo_h2(&body) };
                    Ok::<_, hyper::Error>(Response::new(full(body)))
                });
                // It answers an HTTP/2 preface with 400.
                http1::Builder::new().serve_connection(TokioIo::new(stream), answer).await.ok();
            });
        }
    });
    (url, begun)
}

#[tokio::test]
async fn a_server_sees_no_preface_until_a_client_speaks_http_2_and_then_one() {
    let (url, begun) = recording_server().await;
    let proxy = TestProxy::start_in_front_of(&url, json!({"proxy": {"connection": {"http2": "Auto"}}}));
    let prefaces = || begun.lock().unwrap().iter().filter(|first| first.starts_with(b"PRI")).count();
    for item in 0..20 {
        assert_answer(&proxy.fetch(&proxy.predict(item)).await, 200, &predictions(&[item]));
        assert_answer(&proxy.fetch(&proxy.request("GET", "/x", &[], None)).await, 200, "{}");
    }
    assert_eq!(prefaces(), 0);
    for _ in 0..3 {
        let client = H2Client::connect(proxy.address).await;
        let pending = client.fetch(Request::get("http://model.example/x").body(full("")).unwrap()).await;
        assert_eq!(pending.unwrap().0.status, 200);
    }
    assert_eq!(prefaces(), 1);
}

#[tokio::test]
async fn one_probe_finds_out_that_a_server_speaks_http_2() {
    let mut hand = H2ScriptedServer::start().await;
    let proxy = TestProxy::start_in_front_of(&hand.url(), json!({"proxy": {"connection": {"http2": "Auto"}}}));
    let client = H2Client::connect(proxy.address).await;
    // The first call that passes through waits for the probe.
    let pending = client.fetch(Request::get("http://model.example/x").body(full("")).unwrap());
    let turn = hand.turn().await;
    assert_eq!(turn.head.version, Version::HTTP_2);
    turn.answer(Response::new(full("{}")));
    assert_eq!(within_timeout(pending).await.unwrap().0.status, 200);
    // From now on batches use HTTP/2, and calls that pass through keep the version of their client.
    let (first, turn) = {
        let caller = proxy.call(proxy.predict(0));
        (caller, hand.turn().await)
    };
    let callers = proxy.queue(predicts(&proxy, 1..=2)).await;
    turn.ok(predictions(&[0]));
    first.answer().await;
    let turn = hand.turn().await;
    assert_eq!(turn.head.version, Version::HTTP_2);
    turn.ok(predictions(&[1, 2]));
    assert_predictions(1.., callers).await;
    let caller = proxy.call(proxy.request("GET", "/x", &[], None));
    let turn = hand.turn().await;
    assert_eq!(turn.head.version, Version::HTTP_11);
    turn.answer(Response::new(full("{}")));
    assert_answer(&caller.answer().await, 200, "{}");
}

#[tokio::test]
async fn a_batch_has_a_connection_of_its_own_unless_the_operator_lets_it_be_kept() {
    // The two unbatched calls use the connections of their clients.
    for (reuse, expected) in [("Never", 4), ("Always", 3)] {
        let (proxy, mut hand) = start_with_scripted_server(json!({"proxy": {"connection": {"reuse": reuse}}})).await;
        let mut used = std::collections::BTreeSet::new();
        for _ in 0..2 {
            let (first, turn) = proxy.occupy_slot(&mut hand).await;
            used.insert(turn.connection);
            let callers = proxy.queue(predicts(&proxy, 1..=2)).await;
            turn.echo().await;
            first.answer().await;
            let turn = hand.next_request().await;
            used.insert(turn.connection);
            turn.echo().await;
            assert_served(callers).await;
            proxy.wait_idle().await;
        }
        assert_eq!(used.len(), expected, "reuse: {reuse}");
    }
}

#[tokio::test]
async fn unsolicited_second_response_is_discarded() {
    let (proxy, mut hand) = start_with_scripted_server(json!({})).await;
    let twice = |turn: &PendingRequest| {
        let mut text = super::scripted_server::echo(&turn.request);
        let stray: Vec<u64> = turn.instances().iter().map(|_| 666).collect();
        text.extend(super::scripted_server::reply(200, &predictions(&stray)));
        text
    };
    for round in 0..20 {
        let (first, turn) = proxy.occupy_slot(&mut hand).await;
        let callers = proxy.queue(predicts(&proxy, round..=round + 1)).await;
        let text = twice(&turn);
        turn.send_raw(&text).await;
        assert_answer(&first.answer().await, 200, &predictions(&[0]));
        let turn = hand.next_request().await;
        let text = twice(&turn);
        turn.send_raw(&text).await;
        assert_predictions(round.., callers).await;
    }
}
