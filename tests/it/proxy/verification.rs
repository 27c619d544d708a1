//! `verify`: members of batches are also sent alone, after their clients were answered.

use serde_json::{Value, json};

use super::scripted_server::{PendingRequest, ScriptedServer};
use super::scripted_setup::start_with_scripted_server;
use super::setup::{PREDICT, TestProxy, assert_answer, assert_served, wait_while};
use super::support::client::Outgoing;

fn always() -> Value {
    json!({"verify": "100%"})
}

fn predict(proxy: &TestProxy, item: f64) -> Outgoing {
    proxy.post(PREDICT, &[], &json!({"instances": [[item]]}).to_string())
}

/// Returns the number in each item of a request.
fn items(turn: &PendingRequest) -> Vec<f64> {
    let body: Value = serde_json::from_slice(&turn.request.body).unwrap();
    body["instances"].as_array().unwrap().iter().map(|item| item[0].as_f64().unwrap_or_default()).collect()
}

/// Answers the next request with these predictions, and returns the number of its items.
async fn answer(hand: &mut ScriptedServer, predictions: Value) -> usize {
    let turn = hand.next_request().await;
    let items = items(&turn).len();
    turn.answer(200, &json!({"predictions": predictions}).to_string()).await;
    items
}

/// Sends two calls as a batch that is answered with 0.5 and 0.25, and both calls alone, answered with
/// the given predictions.
async fn verify_batch(proxy: &TestProxy, hand: &mut ScriptedServer, unbatched: [f64; 2]) {
    let calls = vec![predict(proxy, 1.5), predict(proxy, 2.5)];
    let (callers, turn) = proxy.form_batch(hand, calls).await;
    assert_eq!(items(&turn).len(), 2);
    turn.answer(200, r#"{"predictions":[[0.5],[0.25]]}"#).await;
    let mut answers = Vec::new();
    for caller in callers {
        answers.push(caller.answer().await);
    }
    // The clients were answered although nothing was sent alone yet.
    assert_answer(&answers[0], 200, r#"{"predictions":[[0.5]]}"#);
    assert_answer(&answers[1], 200, r#"{"predictions":[[0.25]]}"#);
    for _ in 0..2 {
        let turn = hand.next_request().await;
        let [item] = items(&turn)[..] else { panic!("a call is sent alone") };
        let own = if item < 2.0 { unbatched[0] } else { unbatched[1] };
        turn.answer(200, &json!({"predictions": [[own]]}).to_string()).await;
    }
}

fn results(proxy: &TestProxy, result: &str) -> u64 {
    proxy.metric(&format!("groupage_verify_total{{result=\"{result}\"}}"))
}

async fn wait_results(proxy: &TestProxy, result: &str, count: u64) {
    wait_while(|| results(proxy, result) < count).await;
}

#[tokio::test]
async fn members_of_a_batch_are_compared_with_their_unbatched_responses() {
    let (proxy, mut hand) = start_with_scripted_server(always()).await;
    verify_batch(&proxy, &mut hand, [0.5, 0.25]).await;
    wait_results(&proxy, "equal", 2).await;
    verify_batch(&proxy, &mut hand, [0.5, 0.250_001]).await;
    wait_results(&proxy, "rounded", 1).await;
    assert_eq!(results(&proxy, "different"), 0);
    // Rounding does not end merging.
    verify_batch(&proxy, &mut hand, [0.5, 0.25]).await;
}

#[tokio::test]
async fn a_difference_puts_the_merge_key_in_quarantine() {
    let (proxy, mut hand) = start_with_scripted_server(always()).await;
    // The server has swapped two responses.
    verify_batch(&proxy, &mut hand, [0.25, 0.5]).await;
    wait_results(&proxy, "different", 2).await;
    proxy.wait_idle().await;
    let (first, turn) = proxy.occupy_slot(&mut hand).await;
    let callers = proxy.queue([predict(&proxy, 1.5), predict(&proxy, 2.5)]).await;
    turn.echo().await;
    assert_eq!(first.answer().await.status, Some(200));
    for _ in 0..2 {
        assert_eq!(answer(&mut hand, json!([[1.0]])).await, 1, "each call is sent alone");
    }
    for caller in callers {
        assert_answer(&caller.answer().await, 200, r#"{"predictions":[[1.0]]}"#);
    }
    assert_eq!(proxy.metric(r#"groupage_calls_passed_total{reason="verify_failed"}"#), 2);
}

#[tokio::test]
async fn nothing_is_verified_by_default_or_after_a_reload_that_ends_it() {
    let (proxy, mut hand) = start_with_scripted_server(always()).await;
    proxy.apply(&json!({})).await;
    let calls = vec![predict(&proxy, 1.5), predict(&proxy, 2.5)];
    let (callers, turn) = proxy.form_batch(&mut hand, calls).await;
    turn.answer(200, r#"{"predictions":[[0.5],[0.25]]}"#).await;
    assert_served(callers).await;
    proxy.wait_idle().await;
    let caller = proxy.call(predict(&proxy, 3.5));
    assert_eq!(answer(&mut hand, json!([[1.0]])).await, 1);
    assert_answer(&caller.answer().await, 200, r#"{"predictions":[[1.0]]}"#);
    for result in ["equal", "rounded", "different", "unanswered", "skipped"] {
        assert_eq!(results(&proxy, result), 0, "{result}");
    }
}

#[tokio::test]
async fn a_call_that_fails_unbatched_is_no_difference() {
    let (proxy, mut hand) = start_with_scripted_server(always()).await;
    let calls = vec![predict(&proxy, 1.5), predict(&proxy, 2.5)];
    let (callers, turn) = proxy.form_batch(&mut hand, calls).await;
    turn.answer(200, r#"{"predictions":[[0.5],[0.25]]}"#).await;
    assert_served(callers).await;
    for _ in 0..2 {
        hand.next_request().await.answer(500, "{}").await;
    }
    wait_results(&proxy, "unanswered", 2).await;
    assert_eq!(results(&proxy, "different"), 0);
}
