//! Clients that disconnect, at every stage of a call.

use serde_json::json;

use super::http2_endpoints::{H2Client, H2ScriptedServer, full};
use super::scripted_setup::start_with_scripted_server;
use super::setup::{
    PREDICT, TestProxy, assert_answer, assert_predictions, count, instances, predictions, within_timeout,
};
use super::support::client::{Client, Outgoing};

fn predicts(proxy: &TestProxy, items: std::ops::RangeInclusive<u64>) -> Vec<Outgoing> {
    items.map(|item| proxy.predict(item)).collect()
}

fn cancelled(proxy: &TestProxy) -> u64 {
    proxy.metric(r#"groupage_calls_total{policy="local",protocol="kserve_v1",outcome="cancelled"}"#)
}

#[tokio::test]
async fn a_caller_that_leaves_the_queue_is_never_sent() {
    let (proxy, mut hand) = start_with_scripted_server(json!({})).await;
    let (first, turn) = proxy.occupy_slot(&mut hand).await;
    let mut callers = proxy.queue(predicts(&proxy, 1..=5)).await;
    for at in [4, 2, 0] {
        callers.remove(at).disconnect().await;
    }
    proxy.wait_queued(2).await;
    turn.echo().await;
    first.answer().await;
    let turn = hand.next_request().await;
    assert_eq!(turn.instances(), [2, 4]);
    turn.echo().await;
    assert_predictions([2, 4], callers).await;
    assert_eq!(cancelled(&proxy), 3);
    assert_eq!(proxy.metric(r#"groupage_items_total{outcome="cancelled"}"#), 3);
}

#[tokio::test]
async fn all_queued_calls_cancelled_sends_nothing() {
    let (proxy, mut hand) = start_with_scripted_server(json!({})).await;
    let (first, turn) = proxy.occupy_slot(&mut hand).await;
    for caller in proxy.queue(predicts(&proxy, 1..=3)).await {
        caller.disconnect().await;
    }
    proxy.wait_queued(0).await;
    turn.echo().await;
    first.answer().await;
    proxy.wait_idle().await;
    assert_eq!((hand.pending_requests(), count(&proxy.stats().batches)), (0, 1));
}

#[tokio::test]
async fn a_client_that_half_closes_its_connection_counts_as_disconnected() {
    let (proxy, mut hand) = start_with_scripted_server(json!({})).await;
    let (first, turn) = proxy.occupy_slot(&mut hand).await;
    let mut stream = tokio::net::TcpStream::connect(proxy.address).await.unwrap();
    let body = instances(&[1]);
    let head = format!(
        "POST {PREDICT} HTTP/1.1\r\nhost: h\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    tokio::io::AsyncWriteExt::write_all(&mut stream, format!("{head}{body}").as_bytes()).await.unwrap();
    proxy.wait_queued(1).await;
    tokio::io::AsyncWriteExt::shutdown(&mut stream).await.unwrap();
    proxy.wait_queued(0).await;
    turn.echo().await;
    first.answer().await;
    proxy.wait_idle().await;
    assert_eq!(hand.pending_requests(), 0);
}

#[tokio::test]
async fn a_stream_reset_in_the_queue_is_never_sent_and_the_connection_stays_usable() {
    let (proxy, mut hand) = start_with_scripted_server(json!({})).await;
    let (first, turn) = proxy.occupy_slot(&mut hand).await;
    let client = H2Client::connect(proxy.address).await;
    let post = |item| {
        http::Request::post(format!("http://{}{PREDICT}", proxy.address))
            .header("content-type", "application/json")
            .body(full(instances(&[item])))
            .unwrap()
    };
    let leaves = client.fetch(post(1));
    proxy.wait_queued(1).await;
    let stays = client.fetch(post(2));
    proxy.wait_queued(2).await;
    leaves.abort();
    proxy.wait_queued(1).await;
    turn.echo().await;
    first.answer().await;
    let turn = hand.next_request().await;
    assert_eq!(turn.instances(), [2]);
    turn.echo().await;
    assert_eq!(within_timeout(stays).await.unwrap().1.body, predictions(&[2]));
}

/// The first, the middle and the last member disconnect in turn.
#[tokio::test]
async fn a_member_that_leaves_in_flight_harms_no_other() {
    for leaves in 0..3_usize {
        let (proxy, mut hand) = start_with_scripted_server(json!({})).await;
        proxy.grow_batch_size(&mut hand, 3).await;
        let before = count(&proxy.stats().answered);
        let (mut callers, turn) = proxy.form_batch(&mut hand, predicts(&proxy, 1..=3)).await;
        callers.remove(leaves).disconnect().await;
        proxy.wait_until(|stats| count(&stats.answered) == before + 2).await;
        turn.echo().await;
        let rest = (1..=3).filter(|item| *item != leaves as u64 + 1);
        assert_predictions(rest, callers).await;
        proxy.wait_idle().await;
        assert_eq!((hand.pending_requests(), cancelled(&proxy)), (0, 1));
    }
}

#[tokio::test]
async fn a_batch_whose_members_all_left_is_aborted_and_its_slot_is_freed() {
    let (proxy, mut hand) = start_with_scripted_server(json!({})).await;
    proxy.grow_batch_size(&mut hand, 3).await;
    let (callers, mut turn) = proxy.form_batch(&mut hand, predicts(&proxy, 1..=3)).await;
    for caller in callers {
        caller.disconnect().await;
    }
    turn.wait_closed().await;
    proxy.wait_idle().await;
    let (next, turn) = proxy.occupy_slot(&mut hand).await;
    turn.echo().await;
    assert_answer(&next.answer().await, 200, &predictions(&[0]));
}

#[tokio::test]
async fn a_batch_whose_members_all_left_resets_only_its_own_http_2_stream() {
    let mut hand = H2ScriptedServer::start().await;
    let proxy = TestProxy::start_in_front_of(&hand.url(), json!({"proxy": {"connection": {"http2": "Always"}}}));
    let first = proxy.call(proxy.predict(0));
    let turn = hand.turn().await;
    let callers = proxy.queue(predicts(&proxy, 1..=2)).await;
    turn.ok(predictions(&[0]));
    first.answer().await;
    let mut turn = hand.turn().await;
    for caller in callers {
        caller.disconnect().await;
    }
    turn.wait_reset().await;
    proxy.wait_idle().await;
    // The next batch uses the connection of the stream that was reset; an unbatched call uses the
    // connection of its client.
    let first = proxy.call(proxy.predict(8));
    let unbatched = hand.turn().await;
    let callers = proxy.queue(predicts(&proxy, 9..=10)).await;
    unbatched.ok(predictions(&[8]));
    first.answer().await;
    let other = hand.turn().await;
    assert_eq!(other.connection, turn.connection);
    other.ok(predictions(&[9, 10]));
    assert_predictions(9.., callers).await;
    assert_eq!(hand.waiting(), 0);
}

#[tokio::test]
async fn an_unbatched_call_whose_caller_left_is_ended_upstream_and_its_slot_is_free() {
    let (proxy, mut hand) = start_with_scripted_server(json!({})).await;
    // Before the head of the response, and in the middle of its body.
    for answered in [false, true] {
        let (caller, mut turn) = proxy.occupy_slot(&mut hand).await;
        if answered {
            turn.send_part(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n\r\n{").await;
        }
        caller.disconnect().await;
        turn.wait_closed().await;
        proxy.wait_idle().await;
    }
    assert_eq!(cancelled(&proxy), 2);
}

#[tokio::test]
async fn a_passed_call_is_ended_upstream_when_its_client_disconnects() {
    let (proxy, mut hand) = start_with_scripted_server(json!({})).await;
    let caller = proxy.call(proxy.request("GET", "/slow", &[], None));
    let mut turn = hand.next_request().await;
    caller.disconnect().await;
    turn.wait_closed().await;
}

#[tokio::test]
async fn random_disconnects_leave_no_open_calls() {
    let (proxy, hand) = start_with_scripted_server(json!({"limits": {"batchItemsMax": 8}})).await;
    let _auto = hand.into_auto_responder(super::scripted_server::echo);
    let mut kept = Vec::new();
    for n in 0..300_u64 {
        let caller = proxy.call(proxy.predict(n));
        if n % 3 == 0 {
            // The call may be in any state by now: not connected, being read, queued, in flight,
            // answered.
            for _ in 0..n % 17 {
                tokio::task::yield_now().await;
            }
            caller.0.abort();
        } else {
            kept.push((n, caller));
        }
    }
    for (n, caller) in kept {
        assert_answer(&caller.answer().await, 200, &predictions(&[n]));
    }
    proxy.wait_idle().await;
    proxy.wait_until(|stats| count(&stats.seen) == count(&stats.answered)).await;
    let mut client: Client = proxy.client().await;
    assert_answer(&within_timeout(client.fetch(&proxy.predict(1))).await, 200, &predictions(&[1]));
}
