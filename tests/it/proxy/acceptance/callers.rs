//! Selection of the calls that share a batch, and of those that are forwarded alone.

use serde_json::json;

use super::super::scripted_setup::start_with_scripted_server;
use super::super::setup::{PREDICT, TestProxy, adaptive_spec, assert_answer, assert_predictions, predictions};
use super::super::support::client::Outgoing;

/// Returns a call that declares its shape. The server can compute only calls of one shape together.
fn row(proxy: &TestProxy, shape: &str, item: u64) -> Outgoing {
    proxy.post(PREDICT, &[], &format!("{{\"instances\": [{item}], \"shape\": {shape}}}"))
}

/// 2 + 2 is a round size, but only calls of one shape are merged: the third call, of the shape of
/// the first, joins it.
#[tokio::test]
async fn different_shapes_are_not_merged_and_a_later_call_of_equal_shape_joins() {
    let (proxy, mut hand) = start_with_scripted_server(adaptive_spec(&json!({"limits": {"slotsMax": 1}}))).await;
    let (first, turn) = proxy.occupy_slot(&mut hand).await;
    let requests = [row(&proxy, "[1, 2]", 1), row(&proxy, "[2, 2]", 2), row(&proxy, "[1, 2]", 3)];
    let callers = proxy.queue(requests).await;
    turn.echo().await;
    assert_answer(&first.answer().await, 200, &predictions(&[0]));
    let mut batches = Vec::new();
    for _ in 0..2 {
        let turn = hand.next_request().await;
        batches.push(turn.instances());
        turn.echo().await;
    }
    batches.sort();
    assert_eq!(batches, [vec![1, 3], vec![2]]);
    assert_predictions(1.., callers).await;
}

/// If no delay is allowed, nothing is ever held, and everything still works.
#[tokio::test]
async fn with_no_delay_allowed_nothing_is_held_and_calls_waiting_for_the_slot_share() {
    let (proxy, mut hand) =
        start_with_scripted_server(adaptive_spec(&json!({"limits": {"queueDelayMax": "0ms", "slotsMax": 1}}))).await;
    let mut shared = 0;
    for _ in 0..12 {
        let (first, turn) = proxy.occupy_slot(&mut hand).await;
        let callers = proxy.queue([proxy.predict(1), proxy.predict(2)]).await;
        turn.echo().await;
        first.answer().await;
        let mut items = Vec::new();
        while items.len() < 2 {
            let turn = hand.next_request().await;
            shared += usize::from(turn.instances().len() == 2);
            items.extend(turn.instances());
            turn.echo().await;
        }
        assert_eq!(items, [1, 2]);
        assert_predictions(1.., callers).await;
    }
    // The cost of a batch is learned here from a test on a busy machine, so at times an unbatched
    // call looks cheaper.
    assert!(shared > 0);
    assert_eq!(proxy.metric(r#"groupage_dispatches_total{cause="delay"}"#), 0);
}
