//! A simulated TEI, which advertises that it batches by itself: its calls are passed through one by
//! one, unless a route names its protocol.

use serde_json::json;

use super::scripted_server::ScriptedServer;
use super::scripted_setup::{start_with_scripted_server, take_look_up};
use super::setup::{PendingCall, TestProxy, adaptive_spec, assert_served, count};

const CALLS: usize = 20;
const INFO: &str = r#"{"model_id": "m", "max_client_batch_size": 32, "max_batch_tokens": 16384}"#;

fn embed(proxy: &TestProxy) -> PendingCall {
    proxy.call(proxy.post("/embed", &[], r#"{"inputs": "x"}"#))
}

/// Sends calls one by one until the proxy has read the limits that the server publishes, and has
/// passed the last of the calls because of them.
async fn learn_published_limits(proxy: &TestProxy, hand: &mut ScriptedServer) {
    let first = embed(proxy);
    let (info, turn) = take_look_up(hand).await;
    assert_eq!(info.request.target, "/info");
    info.answer(200, INFO).await;
    turn.answer(200, "[[1.0]]").await;
    assert_eq!(first.answer().await.status, Some(200));
    while passed(proxy) == 0 {
        let next = embed(proxy);
        hand.next_request().await.answer(200, "[[1.0]]").await;
        assert_eq!(next.answer().await.status, Some(200));
    }
    proxy.wait_idle().await;
}

/// Sends all calls at once and checks the number that is upstream before any is answered.
async fn call_simultaneously(proxy: &TestProxy, hand: &mut ScriptedServer, most: usize) {
    let callers: Vec<PendingCall> = (0..CALLS).map(|_| embed(proxy)).collect();
    let mut turns = Vec::new();
    while turns.len() < most {
        turns.push(hand.next_request().await);
    }
    assert_eq!(count(&proxy.stats().in_flight), most as u64);
    for turn in turns {
        assert_eq!(turn.request.body, br#"{"inputs": "x"}"#);
        turn.answer(200, "[[1.0]]").await;
    }
    let left: Vec<_> = (most..CALLS).collect();
    for _ in left {
        hand.next_request().await.answer(200, "[[1.0]]").await;
    }
    assert_served(callers).await;
    proxy.wait_idle().await;
}

fn passed(proxy: &TestProxy) -> u64 {
    proxy.metric(r#"groupage_calls_passed_total{reason="no_gain"}"#)
}

#[tokio::test]
async fn calls_to_a_server_with_published_batching_are_all_upstream_at_once() {
    let (proxy, mut hand) = start_with_scripted_server(adaptive_spec(&json!({}))).await;
    learn_published_limits(&proxy, &mut hand).await;
    call_simultaneously(&proxy, &mut hand, CALLS).await;
    assert_eq!(passed(&proxy), 1 + CALLS as u64);
    assert_eq!(proxy.metric("groupage_standing_aside"), 1);
    let limit =
        |source: &str| proxy.metric(&format!("groupage_limit{{limit=\"batch_weight_max\",source=\"{source}\"}}"));
    assert_eq!((limit("published"), limit("learned")), (16384, 0));
    assert_eq!(proxy.metric("groupage_slots_learned"), 0, "what is passed teaches nothing about slots");
    // A policy that does not learn forwards them unbatched, within its slots.
    let fixed = json!({"scheduling": {"policy": "WorkConserving", "slots": 2}});
    proxy.apply(&fixed).await;
    call_simultaneously(&proxy, &mut hand, 2).await;
    assert_eq!(passed(&proxy), 1 + 2 * CALLS as u64);
}

#[tokio::test]
async fn embeddings_in_the_format_of_openai_are_passed_too() {
    const VECTORS: &str = r#"{"object":"list","data":[{"object":"embedding","index":0,"embedding":[1.0]}]}"#;
    let (proxy, mut hand) = start_with_scripted_server(adaptive_spec(&json!({}))).await;
    let embeddings = || proxy.call(proxy.post("/v1/embeddings", &[], r#"{"input": "x"}"#));
    let first = embeddings();
    let mut turn = hand.next_request().await;
    let head = format!("HTTP/1.1 200 OK\r\nx-compute-type: cpu\r\ncontent-length: {}\r\n\r\n", VECTORS.len());
    turn.send_part(&[head.as_bytes(), VECTORS.as_bytes()].concat()).await;
    turn.finish_response();
    assert_eq!(first.answer().await.status, Some(200));
    let second = embeddings();
    let (info, turn) = take_look_up(&mut hand).await;
    assert_eq!(info.request.target, "/info", "a header of TEI was seen");
    info.answer(200, INFO).await;
    turn.answer(200, VECTORS).await;
    assert_eq!(second.answer().await.status, Some(200));
    while passed(&proxy) == 0 {
        let next = embeddings();
        hand.next_request().await.answer(200, VECTORS).await;
        assert_eq!(next.answer().await.status, Some(200));
    }
    assert_eq!(proxy.metric("groupage_standing_aside"), 1);
}

#[tokio::test]
async fn calls_to_a_batching_server_are_limited_by_stand_aside_max() {
    let (proxy, mut hand) = start_with_scripted_server(adaptive_spec(&json!({"limits": {"standAsideMax": 4}}))).await;
    learn_published_limits(&proxy, &mut hand).await;
    call_simultaneously(&proxy, &mut hand, 4).await;
    assert_eq!(passed(&proxy), 1 + CALLS as u64);
}

#[tokio::test]
async fn explicit_protocol_disables_pass_through() {
    let routes = json!([{"path": "/own/embed", "protocol": "TEI"}, {"path": "/embed"}]);
    let (proxy, mut hand) =
        start_with_scripted_server(adaptive_spec(&json!({"routes": routes, "limits": {"slotsMax": 1}}))).await;
    learn_published_limits(&proxy, &mut hand).await;
    assert_eq!((passed(&proxy), proxy.metric("groupage_standing_aside")), (1, 0));
    let own = |text: &str| proxy.post("/own/embed", &[], &format!(r#"{{"inputs": "{text}"}}"#));
    let first = proxy.call(own("a"));
    let turn = hand.next_request().await;
    let others = proxy.queue([own("b"), own("c")]).await;
    turn.answer(200, "[[1.0]]").await;
    let shared = hand.next_request().await;
    assert_eq!(shared.request.body, br#"{"inputs": ["b","c"]}"#);
    shared.answer(200, "[[2.0],[3.0]]").await;
    assert_served(others.into_iter().chain([first])).await;
}
