//! Limits: every resource is bounded, and calls over a bound are rejected quickly with a clear
//! error.

use std::time::Duration;

use serde_json::json;

use super::scripted_setup::start_with_scripted_server;
use super::setup::{
    PREDICT, adaptive_spec, assert_answer, assert_failure, assert_predictions, assert_served, count, header, instances,
    predictions, within_timeout,
};
use super::support::client::Answer;
use super::support::wire::{End, nominates};

#[tokio::test]
async fn a_full_queue_refuses_at_once_and_takes_calls_again_when_it_has_room() {
    let (proxy, mut hand) =
        start_with_scripted_server(adaptive_spec(&json!({"limits": {"queueItemsMax": 4, "slotsMax": 1}}))).await;
    proxy.grow_batch_size(&mut hand, 4).await;
    let (first, turn) = proxy.occupy_slot(&mut hand).await;
    let callers = proxy.queue((1..=4).map(|item| proxy.predict(item))).await;
    let mut quickest = super::setup::HANG;
    for _ in 0..50 {
        let answer = proxy.fetch(&proxy.predict(5)).await;
        assert_failure(&answer, 503, "GRP3101", "queue_full");
        assert_eq!(answer.body, br#"{"error":"queue full"}"#);
        assert!(!nominates(&answer.headers, "close"), "the body was read: the connection is good");
        quickest = quickest.min(answer.done.unwrap().duration_since(answer.sent.unwrap()));
    }
    assert!(quickest < Duration::from_millis(5), "{quickest:?}");
    // A list is rejected by the same rule as a single item.
    let list = proxy.fetch(&proxy.post(PREDICT, &[], &instances(&[5, 6]))).await;
    assert_failure(&list, 503, "GRP3101", "queue_full");
    assert_eq!(count(&proxy.stats().queue_items), 4);
    turn.echo().await;
    first.answer().await;
    let shared = hand.next_request().await;
    assert_eq!(shared.instances(), [1, 2, 3, 4]);
    let again = proxy.queue([proxy.predict(5)]).await;
    shared.echo().await;
    hand.next_request().await.echo().await;
    assert_predictions(1.., callers.into_iter().chain(again)).await;
    let series = r#"groupage_calls_total{policy="local",protocol="kserve_v1",outcome="rejected"}"#;
    assert_eq!(proxy.metric(series), 51);
}

#[tokio::test]
async fn passed_calls_are_not_refused_by_a_full_queue() {
    let (proxy, mut hand) = start_with_scripted_server(json!({"limits": {"queueItemsMax": 1}})).await;
    let (first, turn) = proxy.occupy_slot(&mut hand).await;
    let callers = proxy.queue([proxy.predict(1)]).await;
    let passes = proxy.call(proxy.request("GET", "/health", &[], None));
    hand.next_request().await.answer(200, "{}").await;
    assert_answer(&passes.answer().await, 200, "{}");
    turn.echo().await;
    first.answer().await;
    hand.next_request().await.echo().await;
    assert_served(callers).await;
}

#[tokio::test]
async fn a_queue_is_full_at_its_byte_limit() {
    let (proxy, mut hand) = start_with_scripted_server(json!({"limits": {"queueBytesMax": 60}})).await;
    let (first, turn) = proxy.occupy_slot(&mut hand).await;
    // Each body has 18 bytes.
    let callers = proxy.queue((1..=3).map(|item| proxy.predict(item))).await;
    let answer = proxy.fetch(&proxy.predict(4)).await;
    assert_failure(&answer, 503, "GRP3102", "bytes_full");
    turn.echo().await;
    first.answer().await;
    hand.next_request().await.echo().await;
    assert_served(callers).await;
}

#[tokio::test]
async fn a_body_beyond_the_buffer_limit_is_refused_and_a_small_one_is_served() {
    let spec = json!({"proxy": {"process": {"bufferedBytesMax": "64Ki"}}, "limits": {"itemBytesMax": "60Ki"}});
    let (proxy, mut hand) = start_with_scripted_server(spec).await;
    let body = format!("{{\"instances\": [1{}]}}", " ".repeat(50 << 10));
    let held = proxy.call(proxy.post(PREDICT, &[], &body));
    let turn = hand.next_request().await;
    let answer = proxy.fetch(&proxy.post(PREDICT, &[], &body)).await;
    assert_failure(&answer, 503, "GRP3102", "bytes_full");
    assert!(nominates(&answer.headers, "close"));
    // A small body still fits.
    let small = proxy.queue([proxy.predict(2)]).await;
    turn.echo().await;
    assert_answer(&held.answer().await, 200, &predictions(&[1]));
    hand.next_request().await.echo().await;
    for caller in small {
        assert_answer(&caller.answer().await, 200, &predictions(&[2]));
    }
}

#[tokio::test]
async fn one_identity_cannot_fill_the_queue_while_another_waits() {
    let (proxy, mut hand) =
        start_with_scripted_server(json!({"limits": {"queueItemsMax": 8}, "tenants": {"header": "x-team"}})).await;
    let of = |team: &str, item| proxy.post(PREDICT, &[("x-team", team)], &instances(&[item]));
    let (first, turn) = proxy.occupy_slot(&mut hand).await;
    // While it is alone in the queue, a tenant may exceed its share.
    let mut callers = proxy.queue((1..=5).map(|item| of("a", item))).await;
    callers.extend(proxy.queue([of("b", 6)]).await);
    let answer = proxy.fetch(&of("a", 7)).await;
    assert_failure(&answer, 429, "GRP3103", "tenant_share");
    callers.extend(proxy.queue([of("b", 7)]).await);
    turn.echo().await;
    first.answer().await;
    for expected in [&[1, 2, 3, 4, 5][..], &[6, 7]] {
        let turn = hand.next_request().await;
        assert_eq!(turn.instances(), expected);
        turn.echo().await;
    }
    assert_predictions(1.., callers).await;
}

#[tokio::test]
async fn a_body_that_stalls_or_drips_is_answered_408_and_never_part_of_a_batch() {
    for (idle, whole) in [("40ms", "1m"), ("10s", "60ms")] {
        let spec = json!({"proxy": {"client": {"bodyIdleTimeout": idle, "bodyTimeout": whole}}});
        let (proxy, hand) = start_with_scripted_server(spec).await;
        let mut client = proxy.client().await;
        let head = format!(
            "POST {PREDICT} HTTP/1.1\r\nhost: h\r\ncontent-type: application/json\r\ncontent-length: 18\r\n\r\n{{"
        );
        client.write_raw(head.as_bytes()).await.unwrap();
        let mut answer = Answer::default();
        within_timeout(client.receive("POST", &mut answer)).await;
        assert_failure(&answer, 408, "GRP3106", "slow_body");
        assert!(nominates(&answer.headers, "close"));
        assert_eq!((hand.pending_requests(), count(&proxy.stats().items_accepted)), (0, 0));
    }
}

#[tokio::test]
async fn a_slow_body_holds_no_batch_open() {
    let (proxy, mut hand) = start_with_scripted_server(json!({})).await;
    let mut slow = proxy.client().await;
    let head =
        format!("POST {PREDICT} HTTP/1.1\r\nhost: h\r\ncontent-type: application/json\r\ncontent-length: 18\r\n\r\n{{");
    slow.write_raw(head.as_bytes()).await.unwrap();
    proxy.wait_until(|stats| count(&stats.seen) == 1).await;
    let quick = proxy.call(proxy.predict(1));
    hand.next_request().await.echo().await;
    assert_answer(&quick.answer().await, 200, &predictions(&[1]));
}

#[tokio::test]
async fn an_incomplete_body_is_never_sent() {
    let (proxy, hand) = start_with_scripted_server(json!({})).await;
    for sent in [
        "content-length: 100\r\n\r\n{\"instances\": [1]}",
        "transfer-encoding: chunked\r\n\r\n12\r\n{\"instances\": [1]}\r\n",
    ] {
        let mut client = proxy.client().await;
        let head = format!("POST {PREDICT} HTTP/1.1\r\nhost: h\r\ncontent-type: application/json\r\n{sent}");
        client.write_raw(head.as_bytes()).await.unwrap();
        let before = count(&proxy.stats().answered);
        drop(client);
        proxy.wait_until(|stats| count(&stats.answered) > before).await;
    }
    assert_eq!((hand.pending_requests(), count(&proxy.stats().items_accepted)), (0, 0));
}

#[tokio::test]
async fn errors_have_the_dialect_of_their_route() {
    // No server listens here, so the proxy itself answers every call.
    let folder = tempfile::tempdir().unwrap();
    let url = format!("unix:{}", folder.path().join("nobody").display());
    let generic = json!({"path": "/g", "protocol": "Generic", "generic": {"items": "/texts", "results": "/vectors"}});
    let others = [PREDICT, "/v1/embeddings", "/embed", "/v1/messages", "/v2/chat"].map(|path| json!({"path": path}));
    let named = [("/v2/embed", "Cohere"), ("/v2/rerank", "Cohere"), ("/v1/audio/transcriptions", "OpenAI")];
    let named = named.map(|(path, protocol)| json!({"path": path, "protocol": protocol}));
    let routes: Vec<_> = others.into_iter().chain([generic]).chain(named).collect();
    let proxy = super::setup::TestProxy::start_in_front_of(&url, json!({"routes": routes}));
    let open_ai = r#"{"error":{"message":"upstream not reachable","type":"upstream_refused","param":null,"code":503}}"#;
    let anthropic = r#"{"type":"error","error":{"type":"overloaded_error","message":"upstream not reachable"}}"#;
    let message = r#"{"message":"upstream not reachable"}"#;
    let problem = r#"{"type":"about:blank","title":"upstream not reachable","status":503,"detail":"upstream not reachable","code":"GRP3301","reason":"upstream_refused"}"#;
    let cases = [
        (PREDICT, instances(&[1]), r#"{"error":"upstream not reachable"}"#, "application/json"),
        ("/v1/embeddings", json!({"input": "a"}).to_string(), open_ai, "application/json"),
        (
            "/embed",
            json!({"inputs": "a"}).to_string(),
            r#"{"error":"upstream not reachable","error_type":"Overloaded"}"#,
            "application/json",
        ),
        ("/v1/messages", json!({"messages": []}).to_string(), anthropic, "application/json"),
        ("/v2/chat", json!({"messages": []}).to_string(), message, "application/json"),
        ("/v2/embed", json!({"texts": ["a"]}).to_string(), message, "application/json"),
        // Paths that the protocol of their route does not merge.
        ("/v2/rerank", json!({"documents": ["a"]}).to_string(), message, "application/json"),
        ("/v1/audio/transcriptions", String::new(), open_ai, "application/json"),
        ("/g", json!({"texts": ["a"]}).to_string(), problem, "application/problem+json"),
        ("/elsewhere", String::new(), problem, "application/problem+json"),
    ];
    for (path, sent, body, kind) in cases {
        let answer = proxy.fetch(&proxy.post(path, &[], &sent)).await;
        assert_failure(&answer, 503, "GRP3301", "upstream_refused");
        assert_answer(&answer, 503, body);
        assert_eq!(header(&answer.headers, "content-type"), kind);
        assert_eq!(answer.end, Some(End::Proper));
    }
}
