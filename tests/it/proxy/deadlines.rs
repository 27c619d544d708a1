//! Deadlines of calls, and the effects of passing them.

use std::time::Duration;

use serde_json::json;

use super::scripted_setup::start_with_scripted_server;
use super::setup::{
    PREDICT, assert_answer, assert_failure, assert_predictions, assert_served, count, header, instances, predictions,
    within_timeout,
};
use super::support::client::Outgoing;
use super::support::wire::values;

const LATE: &str = "x-request-timeout-ms";

fn call_with_deadline(proxy: &super::setup::TestProxy, name: &str, value: &str, item: u64) -> Outgoing {
    proxy.post(PREDICT, &[(name, value)], &instances(&[item]))
}

#[tokio::test]
async fn the_callers_own_deadline_ends_its_wait_in_the_queue_and_it_is_never_sent() {
    let (proxy, mut hand) = start_with_scripted_server(json!({})).await;
    for (name, value) in
        [(LATE, "30"), ("x-envoy-expected-rq-timeout-ms", "30"), ("grpc-timeout", "30m"), ("grpc-timeout", "30000u")]
    {
        let (first, turn) = proxy.occupy_slot(&mut hand).await;
        let caller = proxy.call(call_with_deadline(&proxy, name, value, 1));
        let answer = caller.answer().await;
        assert_failure(&answer, 504, "GRP3201", "deadline");
        assert_eq!(header(&answer.headers, "x-groupage-limit"), name);
        let waited = answer.done.unwrap().duration_since(answer.sent.unwrap());
        assert!(waited >= Duration::from_millis(25), "{waited:?}");
        turn.echo().await;
        first.answer().await;
        proxy.wait_idle().await;
        assert_eq!(hand.pending_requests(), 0);
    }
    let series = r#"groupage_calls_total{policy="local",protocol="kserve_v1",outcome="expired"}"#;
    assert_eq!(proxy.metric(series), 4);
}

#[tokio::test]
async fn the_callers_own_deadline_ends_its_wait_in_flight_and_gives_the_slot_back() {
    let (proxy, mut hand) = start_with_scripted_server(json!({})).await;
    // Longer than pauses of the machine, because the call must be upstream before the deadline.
    let caller = proxy.call(call_with_deadline(&proxy, LATE, "500", 1));
    let mut turn = hand.next_request().await;
    assert_failure(&caller.answer().await, 504, "GRP3201", "deadline");
    turn.wait_closed().await;
    proxy.wait_idle().await;
    // The deadline header reached the server unchanged: an unbatched call keeps its bytes.
    assert_eq!(header(&turn.request.headers, LATE), "500");
}

#[tokio::test]
async fn member_deadline_affects_no_other_member() {
    let (proxy, mut hand) = start_with_scripted_server(json!({})).await;
    let requests = vec![proxy.predict(1), call_with_deadline(&proxy, LATE, "500", 2), proxy.predict(3)];
    let (mut callers, turn) = proxy.form_batch(&mut hand, requests).await;
    assert_eq!(turn.instances(), [1, 2, 3]);
    assert_failure(&callers.remove(1).answer().await, 504, "GRP3201", "deadline");
    turn.echo().await;
    assert_predictions([1, 3], callers).await;
}

#[tokio::test]
async fn a_shared_call_carries_the_latest_deadline_where_every_member_has_one() {
    let (proxy, mut hand) = start_with_scripted_server(json!({})).await;
    let (callers, turn) = proxy
        .form_batch(
            &mut hand,
            vec![call_with_deadline(&proxy, LATE, "9000", 1), call_with_deadline(&proxy, LATE, "19000", 2)],
        )
        .await;
    let left: u64 = header(&turn.request.headers, LATE).parse().unwrap();
    assert!(left > 9000 && left <= 19_000, "{left}");
    turn.echo().await;
    assert_served(callers).await;
    let (callers, turn) =
        proxy.form_batch(&mut hand, vec![call_with_deadline(&proxy, LATE, "9000", 1), proxy.predict(2)]).await;
    assert!(values(&turn.request.headers, LATE).is_empty());
    turn.echo().await;
    assert_served(callers).await;
}

#[tokio::test]
async fn the_slo_ends_calls_in_the_queue_only() {
    let (proxy, mut hand) = start_with_scripted_server(json!({"slo": {"latencyP99": "300ms", "late": "Refuse"}})).await;
    let (first, turn) = proxy.occupy_slot(&mut hand).await;
    let late = proxy.call(proxy.predict(1));
    assert_failure(&late.answer().await, 504, "GRP3201", "deadline");
    // The call in flight has passed the SLO too by now, and is delivered.
    turn.echo().await;
    assert_answer(&first.answer().await, 200, &predictions(&[0]));
    assert_eq!(hand.pending_requests(), 0);
}

#[tokio::test]
async fn an_slo_that_no_execution_can_meet_sheds_nothing() {
    let (proxy, mut hand) = start_with_scripted_server(json!({"slo": {"latencyP99": "20ms", "late": "Refuse"}})).await;
    // The proxy learns that one execution alone takes longer than the SLO: it completes after a
    // queued call has expired.
    let (first, turn) = proxy.occupy_slot(&mut hand).await;
    assert_failure(&proxy.call(proxy.predict(1)).answer().await, 504, "GRP3201", "deadline");
    turn.echo().await;
    first.answer().await;
    proxy.wait_idle().await;
    let (first, turn) = proxy.occupy_slot(&mut hand).await;
    let started = super::support::upstream::now();
    let callers = proxy.queue([proxy.predict(1), proxy.predict(2)]).await;
    // The deadline of another call shows that the SLO has passed for those two.
    let clock = proxy.call(proxy.post(PREDICT, &[(LATE, "40"), ("x-other", "1")], &instances(&[3])));
    assert_failure(&clock.answer().await, 504, "GRP3201", "deadline");
    assert!(started.elapsed() >= Duration::from_millis(35));
    turn.echo().await;
    first.answer().await;
    let turn = hand.next_request().await;
    assert_eq!(turn.instances(), [1, 2]);
    turn.echo().await;
    assert_predictions(1.., callers).await;
}

#[tokio::test]
async fn a_routes_timeout_ends_a_silent_call_without_sending_it_again() {
    let (proxy, mut hand) =
        start_with_scripted_server(json!({"routes": [{"path": PREDICT, "timeout": "400ms"}]})).await;
    let unbatched = proxy.call(proxy.predict(1));
    let mut turn = hand.next_request().await;
    assert_failure(&unbatched.answer().await, 504, "GRP3303", "upstream_timeout");
    turn.wait_closed().await;
    let (callers, mut turn) = proxy.form_batch(&mut hand, vec![proxy.predict(1), proxy.predict(2)]).await;
    turn.wait_closed().await;
    for caller in callers {
        assert_failure(&caller.answer().await, 504, "GRP3303", "upstream_timeout");
    }
    proxy.wait_idle().await;
    assert_eq!(hand.pending_requests(), 0, "a call that timed out is never sent again");
}

#[tokio::test]
async fn the_timeout_of_a_route_bounds_the_wait_in_the_queue_despite_a_longer_deadline() {
    let short = "/v1/models/short:predict";
    let spec = json!({"routes": [{"path": PREDICT}, {"path": short, "timeout": "60ms"}]});
    let (proxy, mut hand) = start_with_scripted_server(spec).await;
    let (first, turn) = proxy.occupy_slot(&mut hand).await;
    for own in [&[][..], &[(LATE, "90000")]] {
        let answer = proxy.fetch(&proxy.post(short, own, &instances(&[1]))).await;
        assert_failure(&answer, 504, "GRP3201", "deadline");
        let waited = answer.done.unwrap().duration_since(answer.sent.unwrap());
        assert!(waited >= Duration::from_millis(55), "{waited:?}");
    }
    turn.echo().await;
    assert_answer(&first.answer().await, 200, &predictions(&[0]));
}

#[tokio::test]
async fn many_deadlines_in_the_past_leave_the_normal_calls_alone() {
    let (proxy, mut hand) = start_with_scripted_server(json!({})).await;
    let (first, turn) = proxy.occupy_slot(&mut hand).await;
    let normal = proxy.queue([proxy.predict(1), proxy.predict(2)]).await;
    let hasty: Vec<_> = (0..100).map(|_| proxy.call(call_with_deadline(&proxy, LATE, "0", 3))).collect();
    for caller in hasty {
        assert_failure(&caller.answer().await, 504, "GRP3201", "deadline");
    }
    assert_eq!(count(&proxy.stats().queue_items), 2);
    turn.echo().await;
    first.answer().await;
    let turn = hand.next_request().await;
    assert_eq!(turn.instances(), [1, 2]);
    turn.echo().await;
    assert_predictions(1.., normal).await;
}

#[tokio::test]
async fn passed_calls_have_one_idle_time_for_both_directions_and_no_timeout() {
    let idle = |idle: &str| json!({"proxy": {"client": {"passThroughIdleTimeout": idle}}});
    let (proxy, mut hand) = start_with_scripted_server(idle("100ms")).await;
    let silent = proxy.call(proxy.request("GET", "/silent", &[], None));
    let thinks = hand.next_request().await;
    // A part of the request body arrives, and then nothing.
    let upload = proxy.request("POST", "/upload", &[("content-length", "9")], Some(b"abc"));
    assert_failure(&proxy.fetch(&upload).await, 504, "GRP3303", "upstream_timeout");
    // A request that was read completely waits for its response without a limit.
    thinks.answer(200, "later").await;
    assert_answer(&silent.answer().await, 200, "later");
    // Chunks arrive well within the idle time, for longer than it in total.
    let (patient, mut slow) = start_with_scripted_server(idle("1s")).await;
    let caller = patient.call(patient.request("GET", "/slow", &[], None));
    let mut turn = slow.next_request().await;
    turn.send_part(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").await;
    let mut ticks = tokio::time::interval(Duration::from_millis(150));
    for _ in 0..10 {
        ticks.tick().await;
        turn.chunk(b"x").await;
    }
    turn.send_part(b"0\r\n\r\n").await;
    turn.finish_response();
    assert_answer(&caller.answer().await, 200, "xxxxxxxxxx");
    // Then nothing arrives: the body is cut, and cannot be mistaken for a complete one.
    let caller = proxy.call(proxy.request("GET", "/stalls", &[], None));
    let mut turn = hand.next_request().await;
    turn.send_part(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").await;
    turn.chunk(b"x").await;
    let answer = within_timeout(caller.0).await.unwrap();
    assert_eq!(answer.body, b"x");
    assert_ne!(answer.end, Some(super::support::wire::End::Proper));
}
