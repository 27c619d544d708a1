//! Calls that must not wait, and events that end a wait.

use serde_json::json;

use super::super::scripted_setup::start_with_scripted_server;
use super::super::setup::{
    HANG, PREDICT, TestProxy, adaptive_spec, assert_answer, assert_failure, assert_predictions, assert_served,
    instances, predictions, start_with_stand_in,
};
use super::super::support::client::Outgoing;
use super::super::support::upstream::now;
use super::ms;
use groupage::testkit::server::ServerConfig;

const LATE: &str = "x-request-timeout-ms";

fn call_with_deadline(proxy: &TestProxy, millis: u64, item: u64) -> Outgoing {
    proxy.post(PREDICT, &[(LATE, &millis.to_string())], &instances(&[item]))
}

/// The server is busy for 600 ms. Calls that arrive meanwhile are dispatched as soon as it is free.
/// A window that started then would last a minute here.
#[tokio::test]
async fn calls_that_arrive_while_the_server_is_busy_leave_without_a_new_window() {
    let (proxy, mut hand) =
        start_with_scripted_server(adaptive_spec(&json!({"limits": {"queueDelayMax": "1m", "slotsMax": 1}}))).await;
    let (first, turn) = proxy.occupy_slot(&mut hand).await;
    let callers = proxy.queue([proxy.predict(1)]).await;
    // The deadline of another call serves as the clock.
    let busy = proxy.post(PREDICT, &[(LATE, "600"), ("x-other", "1")], &instances(&[2]));
    assert_failure(&proxy.call(busy).answer().await, 504, "GRP3201", "deadline");
    let free = now();
    turn.echo().await;
    let turn = hand.next_request().await;
    assert_eq!(turn.instances(), [1]);
    let waited = free.elapsed();
    assert!(waited < ms(2000), "beside a free slot: {waited:?}");
    turn.echo().await;
    assert_answer(&first.answer().await, 200, &predictions(&[0]));
    for caller in callers {
        assert_answer(&caller.answer().await, 200, &predictions(&[1]));
    }
}

/// Calls that cannot be served in time are rejected and cost neither the other calls nor the server
/// anything.
#[tokio::test]
async fn a_burst_of_deadlines_that_are_too_short_leaves_the_normal_calls_alone() {
    let config = ServerConfig { base: ms(40), ..ServerConfig::default() };
    let (proxy, server) = start_with_stand_in(config, &json!({})).await;
    // The proxy learns the cost of a call.
    for item in 0..4 {
        assert_eq!(proxy.fetch(&proxy.predict(item)).await.status, Some(200));
    }
    let hasty: Vec<_> = (0..200).map(|item| proxy.call(call_with_deadline(&proxy, 15, item))).collect();
    let normal: Vec<_> = (0..50).map(|item| proxy.call(proxy.predict(item))).collect();
    for caller in hasty {
        let answer = caller.answer().await;
        match answer.status {
            Some(503) => assert_failure(&answer, 503, "GRP3104", "late_predicted"),
            _ => assert_failure(&answer, 504, "GRP3201", "deadline"),
        }
    }
    assert_served(normal).await;
    assert_eq!(server.stats().items, 54, "nothing was computed for the cancelled calls");
}

/// No slot becomes free, and the call is still answered at its deadline.
#[tokio::test]
async fn a_deadline_is_answered_in_time_although_no_slot_ever_frees() {
    let (proxy, mut hand) = start_with_scripted_server(adaptive_spec(&json!({"limits": {"slotsMax": 1}}))).await;
    // First without learned state, then with a known cost.
    for _ in 0..2 {
        let (first, turn) = proxy.occupy_slot(&mut hand).await;
        let answer = proxy.call(call_with_deadline(&proxy, 100, 1)).answer().await;
        assert!(matches!(answer.status, Some(503 | 504)), "{:?}", answer.status);
        let waited = answer.done.unwrap().duration_since(answer.sent.unwrap());
        assert!(waited < ms(1000), "{waited:?}");
        turn.echo().await;
        first.answer().await;
        proxy.wait_idle().await;
        assert_eq!(hand.pending_requests(), 0);
    }
}

/// Under a preset that holds calls, a deadline before the end of the hold dispatches the call
/// early.
#[tokio::test]
async fn a_deadline_before_the_end_of_a_wait_sends_the_call_early() {
    let spec = json!({
        "scheduling": {"preset": "throughput"}, "slo": {"latencyP99": "40s"}, "limits": {"queueDelayMax": "1m", "slotsMax": 1},
    });
    let (proxy, server) = start_with_stand_in(ServerConfig::default(), &adaptive_spec(&spec)).await;
    let answer = proxy.fetch(&call_with_deadline(&proxy, 500, 1)).await;
    assert_eq!((answer.status, server.stats().items), (Some(200), 1), "of 40 s a wait may take 16");
    assert!(answer.done.unwrap().duration_since(answer.sent.unwrap()) < HANG / 4);
}

/// A call that expires affects no other: the others are dispatched together at once.
#[tokio::test]
async fn an_expired_call_does_not_delay_the_next_two_which_leave_together() {
    let (proxy, mut hand) =
        start_with_scripted_server(adaptive_spec(&json!({"limits": {"queueDelayMax": "1m", "slotsMax": 1}}))).await;
    let (first, turn) = proxy.occupy_slot(&mut hand).await;
    let mut callers = proxy.queue([call_with_deadline(&proxy, 50, 1), proxy.predict(2), proxy.predict(3)]).await;
    assert_failure(&callers.remove(0).answer().await, 504, "GRP3201", "deadline");
    turn.echo().await;
    first.answer().await;
    let turn = hand.next_request().await;
    assert_eq!(turn.instances(), [2, 3]);
    turn.echo().await;
    assert_predictions(2.., callers).await;
    let series = r#"groupage_calls_total{policy="local",protocol="kserve_v1",outcome="expired"}"#;
    assert_eq!((proxy.metric(series), proxy.metric(r#"groupage_items_total{outcome="expired"}"#)), (1, 1));
}
