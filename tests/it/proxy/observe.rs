//! Mode `Observe`: calls pass through unchanged and without delay, and the predicted effect of
//! batching is reported.

use std::time::Duration;

use groupage::testkit::Route;
use groupage::testkit::server::{Server, ServerConfig};
use serde_json::{Value, json};

use super::explain::scheduler;
use super::scripted_server::ScriptedServer;
use super::scripted_setup::start_with_scripted_server;
use super::setup::{
    PREDICT, PendingCall, TestProxy, adaptive_spec, assert_served, instances, predictions, within_timeout,
};
use super::support::wire::values;

/// Number of calls after which predictions start (`batching::Shadow`).
const LEARNED: u64 = 8;

fn observe_spec(more: &Value) -> Value {
    let mut spec = adaptive_spec(more);
    spec["mode"] = json!("Observe");
    spec
}

/// Sends one call after the other and answers each of them.
async fn one_by_one(proxy: &TestProxy, hand: &mut ScriptedServer, items: std::ops::Range<u64>) {
    for item in items {
        let caller = proxy.call(proxy.predict(item));
        let turn = hand.next_request().await;
        assert_eq!(turn.instances(), [item], "nothing is merged");
        turn.echo().await;
        let answer = caller.answer().await;
        assert_eq!((answer.status, answer.body), (Some(200), predictions(&[item]).into_bytes()));
        proxy.wait_idle().await;
    }
}

/// Returns the predictions, once the shadow has processed this many calls.
async fn predicted(proxy: &TestProxy, calls: u64) -> Value {
    within_timeout(wait_predictions(proxy, calls)).await
}

async fn wait_predictions(proxy: &TestProxy, calls: u64) -> Value {
    loop {
        let report = scheduler(proxy).await["predicted"].clone();
        let left_out: u64 =
            report["unpredicted"].as_object().into_iter().flatten().filter_map(|(_, n)| n.as_u64()).sum();
        if report["calls"].as_u64().unwrap_or(0) + left_out >= calls {
            return report;
        }
    }
}

#[tokio::test]
async fn observe_forwards_requests_and_responses_byte_for_byte() {
    let (proxy, mut hand) = start_with_scripted_server(observe_spec(&json!({}))).await;
    let odd = "{ \"instances\" :\t[ [1.0, 2.50e0 ] ],\n\"parameters\":{}}  ";
    let caller = proxy.call(proxy.post(PREDICT, &[("x-odd", "A  b"), ("x-groupage-debug", "1")], odd));
    let turn = hand.next_request().await;
    assert_eq!((&turn.request.body[..], turn.request.target.as_str()), (odd.as_bytes(), PREDICT));
    assert_eq!(values(&turn.request.headers, "x-odd"), [b"A  b"]);
    turn.answer(200, "{\"predictions\" : [ 1.50 ]}").await;
    let answer = caller.answer().await;
    assert_eq!((answer.status, &answer.body[..]), (Some(200), &b"{\"predictions\" : [ 1.50 ]}"[..]));
    let report = String::from_utf8(values(&answer.headers, "server-timing")[0].to_vec()).unwrap();
    assert!(report.contains("policy_observe"), "{report}");
    assert_eq!(proxy.metric(r#"groupage_calls_passed_total{reason="policy_observe"}"#), 1);
}

#[tokio::test]
async fn calls_are_all_upstream_at_once_and_each_is_counted_once() {
    let (proxy, mut hand) = start_with_scripted_server(observe_spec(&json!({"limits": {"slotsMax": 1}}))).await;
    one_by_one(&proxy, &mut hand, 0..LEARNED).await;
    let callers: Vec<PendingCall> = (100..140).map(|item| proxy.call(proxy.predict(item))).collect();
    let mut turns = Vec::new();
    while turns.len() < callers.len() {
        turns.push(hand.next_request().await);
    }
    for turn in turns {
        turn.echo().await;
    }
    for (item, caller) in (100..).zip(callers) {
        assert_eq!(caller.answer().await.body, predictions(&[item]).into_bytes());
    }
    let report = predicted(&proxy, LEARNED + 40).await;
    // There are more if a pause of the machine made one of the first calls an outlier, which is not
    // learned from.
    let unlearned = report["unpredicted"]["unlearned"].as_u64().unwrap();
    assert!(unlearned >= LEARNED, "{report}");
    assert_eq!(proxy.metric(r#"groupage_unpredicted_calls_total{reason="unlearned"}"#), unlearned);
    assert_eq!(report["calls"], LEARNED + 40 - unlearned);
    // The real metrics are unchanged: no batch, no slot.
    assert_eq!(proxy.metric("groupage_batch_items_count"), 0);
    assert_eq!(scheduler(&proxy).await["slots"], 0);
}

#[tokio::test]
async fn predicted_batches_are_reported() {
    // Long enough that a busy machine hardly affects the time of a call, and that forty
    // simultaneous calls fall within one execution.
    let takes = ServerConfig { base: Duration::from_millis(50), slots: 40, ..ServerConfig::default() };
    let server = Server::start(takes).await.unwrap();
    let proxy = TestProxy::start_in_front_of(&server.url(), observe_spec(&json!({"limits": {"slotsMax": 1}})));
    let path = Route::Predict.path();
    let mut lone = 0;
    while scheduler(&proxy).await["predicted"]["calls"].as_u64().unwrap_or(0) == 0 {
        assert_eq!(proxy.fetch(&proxy.post(path, &[], &instances(&[lone]))).await.status, Some(200));
        lone += 1;
    }
    let callers: Vec<PendingCall> =
        (0..40).map(|item| proxy.call(proxy.post(path, &[], &instances(&[item])))).collect();
    assert_served(callers).await;
    assert_eq!(server.stats().calls, lone + 40, "each is sent alone");
    let mut report = predicted(&proxy, lone + 40).await;
    while report["answered"] != report["calls"] {
        report = scheduler(&proxy).await["predicted"].clone();
    }
    let sent = report["upstream_calls"].as_u64().unwrap();
    assert!(sent <= 20, "forty at once would have shared: {report}");
    assert_eq!(report["measured_items"], 1);
    assert!(report["cost_classes"][0]["path"].as_str().unwrap().ends_with(path), "{report}");
    assert_eq!(proxy.metric("groupage_predicted_dispatches_total"), sent);
    assert_eq!(proxy.metric("groupage_predicted_batch_items_count"), sent);
}

#[tokio::test]
async fn the_mode_changes_while_it_runs_and_holds_route_by_route() {
    let routes = json!([{"path": "/v1/models/a:predict", "mode": "Batch"}, {"path": "/*"}]);
    let (proxy, mut hand) = start_with_scripted_server(observe_spec(&json!({"routes": routes}))).await;
    one_by_one(&proxy, &mut hand, 0..3).await;
    let caller = proxy.call(proxy.post("/v1/models/a:predict", &[], &instances(&[1])));
    hand.next_request().await.echo().await;
    caller.answer().await;
    assert_eq!(proxy.metric("groupage_batch_items_count"), 1, "this route is batched");
    predicted(&proxy, 3).await;
    proxy.apply(&adaptive_spec(&json!({"limits": {"slotsMax": 1}}))).await;
    let (callers, turn) = proxy.form_batch(&mut hand, vec![proxy.predict(7), proxy.predict(8)]).await;
    assert_eq!(turn.instances(), [7, 8]);
    turn.echo().await;
    assert_served(callers).await;
    assert_eq!(predicted(&proxy, 3).await["unpredicted"]["unlearned"], 3, "what is batched is not predicted");
}

#[tokio::test]
async fn calls_that_cannot_be_examined_pass_and_are_counted() {
    let limits = json!({"limits": {"itemBytesMax": "1Ki"}, "proxy": {"process": {"bufferedBytesMax": "4Ki"}}});
    let (proxy, mut hand) = start_with_scripted_server(observe_spec(&limits)).await;
    let long = format!(r#"{{"instances": ["{}"]}}"#, "x".repeat(20_000));
    for body in [long.as_str(), "no JSON"] {
        let caller = proxy.call(proxy.post(PREDICT, &[], body));
        let turn = hand.next_request().await;
        assert_eq!(turn.request.body, body.as_bytes());
        turn.answer(200, "{}").await;
        assert_eq!(caller.answer().await.status, Some(200));
    }
    let report = predicted(&proxy, 2).await;
    assert_eq!(report["unpredicted"], json!({"too_large": 1, "unlearned": 1}), "{report}");
    proxy.wait_idle().await;
    assert_eq!(proxy.metric("groupage_buffered_bytes"), 0);
}

#[tokio::test]
async fn disconnected_callers_and_failing_servers_are_not_learned_from() {
    let (proxy, mut hand) = start_with_scripted_server(observe_spec(&json!({}))).await;
    for item in 0..2 * LEARNED {
        let caller = proxy.call(proxy.predict(item));
        let turn = hand.next_request().await;
        if item % 2 == 0 {
            turn.answer(500, "{}").await;
            assert_eq!(caller.answer().await.status, Some(500));
        } else {
            caller.disconnect().await;
            drop(turn);
        }
        proxy.wait_idle().await;
    }
    let report = predicted(&proxy, 2 * LEARNED).await;
    assert_eq!((&report["calls"], &report["unpredicted"]), (&json!(0), &json!({"unlearned": 2 * LEARNED})), "{report}");
}
