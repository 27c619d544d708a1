//! Merged streams of completions: each caller receives its own chunks as they arrive, and neither
//! a caller that leaves nor one that reads slowly affects another.

use http::Request;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

use super::http2_endpoints::{H2Client, full};
use super::scripted_server::{PendingRequest, ScriptedServer, reply};
use super::scripted_setup::start_with_scripted_server;
use super::setup::{PREDICT, PendingCall, TestProxy, assert_answer, assert_failure, count, header, within_timeout};
use super::streams::{connect, until};
use super::support::client::{Answer, Outgoing};
use super::support::wire::End;

const PATH: &str = "/v1/completions";
const HEAD: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
const DONE: &str = "data: [DONE]\n\n";

async fn start(more: Value) -> (TestProxy, ScriptedServer) {
    let mut spec = json!({
        "routes": [{"path": PATH, "protocol": "VLLM"}, {"path": PREDICT, "protocol": "KServeV1"}],
    });
    super::setup::merge_json(&mut spec, &more);
    start_with_scripted_server(spec).await
}

fn body(prompt: &str) -> String {
    json!({"prompt": prompt, "stream": true}).to_string()
}

fn streams(proxy: &TestProxy, prompts: &[&str]) -> Vec<Outgoing> {
    prompts.iter().map(|prompt| proxy.post(PATH, &[], &body(prompt))).collect()
}

/// Returns an event with a chunk of the result at this index.
fn event(index: usize, text: &str, is_last: bool) -> String {
    let finish = if is_last { "\"stop\"" } else { "null" };
    format!("data: {{\"choices\":[{{\"index\":{index},\"text\":\"{text}\",\"finish_reason\":{finish}}}]}}\n\n")
}

/// Returns that event with the fingerprint of a server.
fn event_with(fingerprint: &str, index: usize, text: &str, is_last: bool) -> String {
    let member = format!("{{\"system_fingerprint\":\"{fingerprint}\",");
    event(index, text, is_last).replacen('{', &member, 1)
}

fn assert_truncated(answer: &Answer, body: &str) {
    let text = String::from_utf8_lossy(&answer.body);
    assert_eq!((answer.status, &*text), (Some(200), body));
    assert_ne!(answer.end, Some(End::Proper), "the end shows that the rest is missing");
}

/// Sends a streamed call that shares the next batch, and returns its connection.
async fn queue_stream(proxy: &TestProxy, prompt: &str) -> TcpStream {
    let (body, before) = (body(prompt), count(&proxy.stats().items_accepted));
    let request = format!(
        "POST {PATH} HTTP/1.1\r\nhost: h\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let stream = connect(proxy, &request).await;
    proxy.wait_until(|stats| count(&stats.items_accepted) > before).await;
    stream
}

/// Makes streamed calls share a batch, and returns their connections and the shared request.
async fn share_raw(proxy: &TestProxy, hand: &mut ScriptedServer, prompts: &[&str]) -> (Vec<TcpStream>, PendingRequest) {
    let (first, turn) = proxy.occupy_slot(hand).await;
    let mut callers = Vec::new();
    for prompt in prompts {
        callers.push(queue_stream(proxy, prompt).await);
    }
    turn.echo().await;
    assert_eq!(first.answer().await.status, Some(200));
    let turn = hand.next_request().await;
    let sent: Value = serde_json::from_slice(&turn.request.body).unwrap();
    assert_eq!(sent["prompt"], json!(prompts));
    (callers, turn)
}

#[tokio::test]
async fn chunks_arrive_as_they_come_and_the_slot_is_occupied_until_the_last_byte() {
    let (proxy, mut hand) = start(json!({})).await;
    let (mut callers, mut turn) = share_raw(&proxy, &mut hand, &["ab", "cde"]).await;
    turn.send_part(HEAD).await;
    for index in [1, 0] {
        turn.chunk(event(index, "x", false).as_bytes()).await;
        until(&mut callers[index], event(0, "x", false).as_bytes()).await;
    }
    turn.chunk(event(1, "y", true).as_bytes()).await;
    let rest = event(0, "y", true) + DONE;
    let received = until(&mut callers[1], b"0\r\n\r\n").await;
    assert!(String::from_utf8(received).unwrap().contains(&rest));
    // Another call waits while the stream of the first caller goes on.
    let waiting = proxy.queue(streams(&proxy, &["f"])).await;
    turn.chunk(event(0, "y", true).as_bytes()).await;
    until(&mut callers[0], b"0\r\n\r\n").await;
    assert_eq!(hand.pending_requests(), 0);
    assert_eq!(count(&proxy.stats().in_flight), 1);
    turn.chunk(DONE.as_bytes()).await;
    turn.send_part(b"0\r\n\r\n").await;
    turn.finish_response();
    hand.next_request().await.answer(200, "{}").await;
    for caller in waiting {
        assert_answer(&caller.answer().await, 200, "{}");
    }
    proxy.wait_idle().await;
}

#[tokio::test]
async fn a_caller_that_leaves_affects_no_other_and_the_last_one_cancels_the_call() {
    let (proxy, mut hand) = start(json!({})).await;
    let (mut callers, mut turn) = share_raw(&proxy, &mut hand, &["ab", "cde", "f"]).await;
    drop(callers.remove(0));
    turn.send_part(HEAD).await;
    for _ in 0..3 {
        for index in 0..3 {
            turn.chunk(event(index, "x", false).as_bytes()).await;
        }
    }
    let mut first = callers.remove(0);
    let mut events = 0;
    while events < 3 {
        let received = until(&mut first, b"\n\n").await;
        events += String::from_utf8(received).unwrap().matches("data: ").count();
    }
    drop(first);
    turn.chunk(event(2, "y", false).as_bytes()).await;
    until(&mut callers[0], event(0, "y", false).as_bytes()).await;
    drop(callers);
    turn.wait_closed().await;
    proxy.wait_idle().await;
}

#[tokio::test]
async fn a_cut_is_a_reset_for_http_2_callers_that_are_unfinished() {
    let (proxy, mut hand) = start(json!({})).await;
    let client = H2Client::connect(proxy.address).await;
    let (first, turn) = proxy.occupy_slot(&mut hand).await;
    let mut callers = Vec::new();
    for prompt in ["ab", "cde"] {
        let before = count(&proxy.stats().items_accepted);
        let request = Request::post(format!("http://model.example{PATH}")).header("content-type", "application/json");
        let mut send = client.0.clone();
        let request = request.body(full(body(prompt))).unwrap();
        callers.push(tokio::spawn(async move { send.send_request(request).await.unwrap().collect().await }));
        proxy.wait_until(|stats| count(&stats.items_accepted) > before).await;
    }
    turn.echo().await;
    assert_eq!(first.answer().await.status, Some(200));
    let mut turn = hand.next_request().await;
    turn.send_part(HEAD).await;
    turn.chunk((event(0, "a", true) + &event(1, "b", false)).as_bytes()).await;
    drop(turn);
    let mut ends = Vec::new();
    for caller in callers {
        ends.push(within_timeout(caller).await.unwrap().map(http_body_util::Collected::to_bytes));
    }
    assert_eq!(ends[0].as_ref().unwrap(), &(event(0, "a", true) + DONE));
    assert!(ends[1].is_err());
}

#[tokio::test]
async fn a_slow_reader_loses_its_own_stream_and_delays_no_other() {
    let (proxy, mut hand) = start(json!({})).await;
    let (mut callers, mut turn) = share_raw(&proxy, &mut hand, &["ab", "cde"]).await;
    turn.send_part(HEAD).await;
    // More than the sockets and the buffer hold for a caller that reads nothing.
    let text = "x".repeat(64 << 10);
    for _ in 0..512 {
        turn.chunk(event(0, &text, false).as_bytes()).await;
    }
    turn.chunk(event(1, "y", true).as_bytes()).await;
    until(&mut callers[1], (event(0, "y", true) + DONE).as_bytes()).await;
    // Nothing is left to be received, so the call is cancelled.
    turn.wait_closed().await;
    proxy.wait_idle().await;
    let mut received = Vec::new();
    within_timeout(async {
        // A reset is an error too.
        while callers[0].read_buf(&mut received).await.is_ok_and(|read| read > 0) {}
    })
    .await;
    assert!(received.len() < 512 * text.len(), "{}", received.len());
    assert!(!received.ends_with(b"0\r\n\r\n"), "the end shows that the rest is missing");
}

/// Makes two streamed calls share a batch.
async fn share(proxy: &TestProxy, hand: &mut ScriptedServer) -> (Vec<PendingCall>, PendingRequest) {
    proxy.form_batch(hand, streams(proxy, &["ab", "cde"])).await
}

/// Serves both calls alone, side by side, with these events.
async fn serve_unbatched(
    hand: &mut ScriptedServer,
    callers: Vec<PendingCall>,
    event: impl Fn(usize, &str, bool) -> String,
) {
    let mut turns = Vec::new();
    for prompt in ["ab", "cde"] {
        let mut turn = hand.next_request().await;
        assert_eq!(turn.request.body, body(prompt).into_bytes());
        turn.send_part(HEAD).await;
        turn.chunk(event(0, prompt, false).as_bytes()).await;
        turns.push((turn, prompt));
    }
    // The first caller is still being served while the second one is.
    turns.reverse();
    let mut callers: Vec<_> = callers.into_iter().rev().collect();
    for (mut turn, prompt) in turns {
        turn.chunk((event(0, prompt, true) + DONE).as_bytes()).await;
        turn.send_part(b"0\r\n\r\n").await;
        turn.finish_response();
        let expected = event(0, prompt, false) + &event(0, prompt, true) + DONE;
        assert_answer(&callers.remove(0).answer().await, 200, &expected);
    }
}

#[tokio::test]
async fn a_batch_that_fails_before_its_first_byte_is_isolated() {
    for failure in ["status", "json", "error", "index", "undeclared"] {
        let (proxy, mut hand) = start(json!({})).await;
        let (callers, mut turn) = share(&proxy, &mut hand).await;
        match failure {
            "status" => turn.send_raw(&reply(500, "{}")).await,
            "json" => turn.send_raw(&reply(200, "{}")).await,
            _ => {
                turn.send_part(HEAD).await;
                let data = match failure {
                    "error" => "data: {\"error\":\"in ab\"}\n\n".to_owned(),
                    "index" => event(2, "x", false),
                    _ => "data: {\"choices\":[{\"index\":0}],\"unknown\":1}\n\n".to_owned(),
                };
                turn.chunk(data.as_bytes()).await;
                turn.wait_closed().await;
            }
        }
        serve_unbatched(&mut hand, callers, event).await;
        proxy.wait_idle().await;
    }
}

/// Lets two streamed calls share a batch that is isolated for its first chunk, and serves them alone.
async fn isolate(proxy: &TestProxy, hand: &mut ScriptedServer, fingerprint: impl Fn(&str) -> String) {
    let (callers, mut turn) = share(proxy, hand).await;
    turn.send_part(HEAD).await;
    turn.chunk(event_with(&fingerprint("batch"), 0, "x", false).as_bytes()).await;
    turn.wait_closed().await;
    serve_unbatched(hand, callers, |index, text, is_last| event_with(&fingerprint(text), index, text, is_last)).await;
    proxy.wait_idle().await;
}

#[tokio::test]
async fn a_constant_fingerprint_of_chunks_is_merged_once_unbatched_streams_had_it() {
    let (proxy, mut hand) = start(json!({})).await;
    let fingerprint = "fp_0123456789";
    isolate(&proxy, &mut hand, |_| fingerprint.to_owned()).await;
    for _ in 0..2 {
        let (callers, mut turn) = share(&proxy, &mut hand).await;
        turn.send_part(HEAD).await;
        let events = event_with(fingerprint, 0, "a", true) + &event_with(fingerprint, 1, "b", true) + DONE;
        turn.chunk(events.as_bytes()).await;
        turn.send_part(b"0\r\n\r\n").await;
        turn.finish_response();
        for (caller, text) in callers.into_iter().zip(["a", "b"]) {
            assert_answer(&caller.answer().await, 200, &(event_with(fingerprint, 0, text, true) + DONE));
        }
        proxy.wait_idle().await;
    }
    assert_eq!(proxy.metric("groupage_mismatches_total{kind=\"undeclared\"}"), 1);
}

#[tokio::test]
async fn a_fingerprint_of_chunks_that_differs_ends_merging_of_its_key() {
    let (proxy, mut hand) = start(json!({})).await;
    for round in 0..2 {
        isolate(&proxy, &mut hand, |text| format!("fp_0123456789_{round}_{text}")).await;
    }
    let (first, turn) = proxy.occupy_slot(&mut hand).await;
    let callers = proxy.queue(streams(&proxy, &["ab", "cde"])).await;
    turn.echo().await;
    assert_eq!(first.answer().await.status, Some(200));
    for (caller, prompt) in callers.into_iter().zip(["ab", "cde"]) {
        let turn = hand.next_request().await;
        assert_eq!(turn.request.body, body(prompt).into_bytes());
        turn.answer(200, "{}").await;
        assert_answer(&caller.answer().await, 200, "{}");
    }
    assert_eq!(proxy.metric(r#"groupage_calls_passed_total{reason="answer_varies"}"#), 2);
    proxy.wait_idle().await;
}

#[tokio::test]
async fn a_stream_that_pauses_for_too_long_is_truncated_for_those_that_are_unfinished() {
    let (proxy, mut hand) = start(json!({"proxy": {"connection": {"bodyIdleTimeout": "50ms"}}})).await;
    let (callers, mut turn) = share(&proxy, &mut hand).await;
    turn.send_part(HEAD).await;
    turn.chunk((event(0, "a", true) + &event(1, "b", false)).as_bytes()).await;
    turn.wait_closed().await;
    let mut callers = callers.into_iter();
    assert_answer(&callers.next().unwrap().answer().await, 200, &(event(0, "a", true) + DONE));
    assert_truncated(&callers.next().unwrap().answer().await, &event(0, "b", false));
    proxy.wait_idle().await;
}

#[tokio::test]
async fn a_stream_that_never_begins_times_out_for_all() {
    let spec = json!({"routes": [
        {"path": PATH, "protocol": "VLLM", "timeout": "500ms"}, {"path": PREDICT, "protocol": "KServeV1"},
    ]});
    let (proxy, mut hand) = start(spec).await;
    let (callers, mut turn) = share(&proxy, &mut hand).await;
    turn.wait_closed().await;
    for caller in callers {
        assert_failure(&caller.answer().await, 504, "GRP3303", "upstream_timeout");
    }
    assert_eq!(hand.pending_requests(), 0, "nothing is sent again");
}

#[tokio::test]
async fn a_stream_that_cannot_be_split_further_ends_with_an_error() {
    let (proxy, mut hand) = start(json!({})).await;
    let (callers, mut turn) = share(&proxy, &mut hand).await;
    turn.send_part(HEAD).await;
    turn.chunk((event(0, "a", true) + &event(0, "again", false)).as_bytes()).await;
    turn.wait_closed().await;
    let mut callers = callers.into_iter();
    let finished = callers.next().unwrap().answer().await;
    assert_answer(&finished, 200, &(event(0, "a", true) + DONE));
    assert_eq!(header(&finished.headers, "content-type"), "text/event-stream");
    let error =
        r#"{"error":{"message":"upstream response cannot be split","type":"mismatch","param":null,"code":502}}"#;
    assert_answer(&callers.next().unwrap().answer().await, 200, &format!("data: {error}\n\n{DONE}"));
    assert_eq!(proxy.metric("groupage_mismatches_total{kind=\"index\"}"), 1);
}
