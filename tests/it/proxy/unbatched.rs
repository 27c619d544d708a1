//! Recognised calls that are forwarded unbatched: every byte is preserved, they occupy a slot while
//! they last, and the reason is counted.

use std::time::Duration;

use serde_json::json;

use super::batches::predicts;
use super::pass::by_name;
use super::scripted_setup::start_with_scripted_server;
use super::setup::{
    PREDICT, adaptive_spec, assert_answer, assert_predictions, assert_served, count, instances, predictions,
    within_timeout,
};
use super::support::client::{Answer, Client};
use super::support::wire::values;

/// Compared with the same calls without a proxy, under the longest delay that a policy allows.
#[tokio::test]
async fn a_lone_call_on_an_idle_server_waits_for_nothing() {
    let (proxy, hand) = start_with_scripted_server(adaptive_spec(&json!({"limits": {"queueDelayMax": "1m"}}))).await;
    let direct = hand.address;
    let _auto = hand.into_auto_responder(super::scripted_server::echo);
    let (mut through, mut direct_client) =
        (proxy.client().await, within_timeout(Client::connect(direct)).await.unwrap());
    let request = proxy.predict(1);
    let (mut proxied, mut direct) = (Vec::new(), Vec::new());
    for _ in 0..100 {
        for (client, times) in [(&mut through, &mut proxied), (&mut direct_client, &mut direct)] {
            let answer = within_timeout(client.fetch(&request)).await;
            assert_answer(&answer, 200, &predictions(&[1]));
            times.push(answer.done.unwrap().duration_since(answer.sent.unwrap()));
        }
    }
    // Other tests use the same cores and delay many calls, but a wait delays all. It may begin
    // after some calls, so that only the second half is compared.
    let tenth_percentile = |mut times: Vec<Duration>| {
        times.drain(..50);
        times.sort_unstable();
        times[5]
    };
    let (proxied, direct) = (tenth_percentile(proxied), tenth_percentile(direct));
    assert!(proxied < direct + Duration::from_millis(2), "{proxied:?} through the proxy, {direct:?} without");
}

#[tokio::test]
async fn an_idle_server_receives_a_call_with_its_complete_head_and_body() {
    let (proxy, mut hand) = start_with_scripted_server(json!({})).await;
    let own = [("accept", "*/*"), ("x-request-id", "mine"), ("x-forwarded-for", "10.0.0.1"), ("cookie", "c=1")];
    let request = proxy.post(PREDICT, &own, "{\"instances\":[ 1 ]}\n");
    let sent = by_name(&request.headers);
    let caller = proxy.call(request);
    let turn = hand.next_request().await;
    assert_eq!(by_name(&turn.request.headers), sent);
    assert_eq!(turn.request.body, b"{\"instances\":[ 1 ]}\n");
    turn.answer(500, "{\"error\": \"x\"}").await;
    assert_answer(&caller.answer().await, 500, "{\"error\": \"x\"}");
}

#[tokio::test]
async fn an_unbatched_call_keeps_every_byte_and_its_trailers() {
    let (proxy, mut hand) = start_with_scripted_server(json!({})).await;
    let mut client = proxy.client().await;
    let body = "\t{ \"instances\" : [ 1.10, -0, 1E5 ] , \"x\":\"\\ud800\"}\n";
    let head = format!(
        "POST {PREDICT} HTTP/1.1\r\nhost: h\r\ncontent-type: application/json\r\nx-many: 1\r\nx-many: 2\r\nte: trailers\r\n\
         trailer: x-sum\r\ntransfer-encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n0\r\nx-sum: 9\r\n\r\n",
        body.len()
    );
    client.write_raw(head.as_bytes()).await.unwrap();
    let mut turn = hand.next_request().await;
    assert_eq!(turn.request.body, body.as_bytes());
    assert_eq!(values(&turn.request.headers, "x-many"), [b"1", b"2"]);
    assert_eq!(turn.request.trailers, [("x-sum".to_owned(), b"9".to_vec())]);
    turn.send_part(
        b"HTTP/1.1 200 OK\r\nset-cookie: a\r\nset-cookie: b\r\ntrailer: x-end\r\ntransfer-encoding: chunked\r\n\r\n",
    )
    .await;
    turn.chunk(b"{\"predictions\": [1.10,").await;
    turn.chunk(b" 0 , 9]}\n").await;
    turn.send_part(b"0\r\nx-end: bye\r\n\r\n").await;
    turn.finish_response();
    let mut answer = Answer::default();
    within_timeout(client.receive("POST", &mut answer)).await;
    assert_answer(&answer, 200, "{\"predictions\": [1.10, 0 , 9]}\n");
    assert_eq!(values(&answer.headers, "set-cookie"), [b"a", b"b"]);
    assert_eq!(answer.trailers, [("x-end".to_owned(), b"bye".to_vec())]);
    proxy.wait_idle().await;
    assert_eq!(proxy.metric(r#"groupage_calls_passed_total{reason="header"}"#), 1);
}

#[tokio::test]
async fn a_call_that_is_too_large_to_be_read_streams_and_holds_no_slot() {
    let (proxy, mut hand) = start_with_scripted_server(json!({"limits": {"itemBytesMax": 100}})).await;
    let body = format!("{{\"instances\": [1{}]}}", " ".repeat(4000));
    let known = proxy.call(proxy.post(PREDICT, &[], &body));
    let one = hand.next_request().await;
    let chunked = proxy.call(proxy.post(PREDICT, &[("transfer-encoding", "chunked")], &body));
    let other = hand.next_request().await;
    assert_eq!((&one.request.body, &other.request.body), (&body.clone().into_bytes(), &body.into_bytes()));
    assert_eq!(count(&proxy.stats().in_flight), 0);
    let small = proxy.call(proxy.predict(2));
    hand.next_request().await.echo().await;
    assert_answer(&small.answer().await, 200, &predictions(&[2]));
    one.answer(200, "1").await;
    other.answer(200, "2").await;
    assert_answer(&known.answer().await, 200, "1");
    assert_answer(&chunked.answer().await, 200, "2");
    assert_eq!(proxy.metric(r#"groupage_calls_passed_total{reason="too_large"}"#), 2);
}

#[tokio::test]
async fn a_call_with_more_items_than_a_batch_may_have_is_unbatched_with_a_reason() {
    let (proxy, mut hand) = start_with_scripted_server(json!({})).await;
    let (first, turn) = proxy.occupy_slot(&mut hand).await;
    // The default maximum is 128. Only a maximum that the policy states divides a call.
    let body = json!({"instances": (1..=129).collect::<Vec<_>>()}).to_string();
    let large = proxy.queue([proxy.post(PREDICT, &[], &body)]).await.remove(0);
    let small = proxy.queue(predicts(&proxy, 9..=10)).await;
    turn.echo().await;
    first.answer().await;
    let turn = hand.next_request().await;
    assert_eq!(turn.request.body, body.as_bytes());
    turn.answer(422, "{\"detail\": \"the upstream's own\"}").await;
    assert_answer(&large.answer().await, 422, "{\"detail\": \"the upstream's own\"}");
    let turn = hand.next_request().await;
    assert_eq!(turn.instances(), [9, 10]);
    turn.echo().await;
    assert_predictions(9.., small).await;
    assert_eq!(proxy.metric(r#"groupage_calls_passed_total{reason="client_batch_full"}"#), 1);
}

#[tokio::test]
async fn under_a_batch_limit_of_one_calls_are_forwarded_one_by_one() {
    let (proxy, mut hand) =
        start_with_scripted_server(adaptive_spec(&json!({"limits": {"batchItemsMax": 1, "queueDelayMax": "0ms"}})))
            .await;
    let (first, turn) = proxy.occupy_slot(&mut hand).await;
    let callers = proxy.queue(predicts(&proxy, 1..=2)).await;
    turn.echo().await;
    first.answer().await;
    for (item, caller) in (1..).zip(callers) {
        let turn = hand.next_request().await;
        assert_eq!(turn.request.body, instances(&[item]).as_bytes());
        turn.echo().await;
        assert_answer(&caller.answer().await, 200, &predictions(&[item]));
    }
}

#[tokio::test]
async fn the_kill_switch_passes_everything_and_holds_no_slot() {
    for spec in [json!({"mode": "Passthrough"}), json!({"routes": [{"path": PREDICT, "mode": "Passthrough"}]})] {
        let (proxy, mut hand) = start_with_scripted_server(spec).await;
        let callers: Vec<_> = (0..3).map(|item| proxy.call(proxy.predict(item))).collect();
        for _ in 0..3 {
            // All three are upstream at once.
            let turn = hand.next_request().await;
            assert_eq!(turn.instances().len(), 1);
            tokio::spawn(turn.echo());
        }
        assert_served(callers).await;
        assert_eq!(count(&proxy.stats().batches), 0);
        let passed = |reason: &str| proxy.metric(&format!("groupage_calls_passed_total{{reason=\"{reason}\"}}"));
        assert_eq!(passed("policy_off") + passed("not_recognised"), 3);
    }
}
