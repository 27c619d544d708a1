//! Calls for generated text: forwarded one by one with their bytes unchanged, in order, within the
//! limits, and measured.

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::scripted_server::PendingRequest;
use super::scripted_setup::start_with_scripted_server;
use super::setup::{PendingCall, TestProxy, assert_answer, within_timeout};
use super::support::client::Outgoing;
use super::support::wire::values;

const CHAT: &str = "/v1/chat/completions";

fn chat(proxy: &TestProxy, class: &str, text: &str) -> Outgoing {
    let body = json!({"model": "m", "messages": [{"role": "user", "content": text}], "stream": true});
    proxy.post(CHAT, &[("x-priority", class)], &body.to_string())
}

fn text(turn: &PendingRequest) -> String {
    let body: Value = serde_json::from_slice(&turn.request.body).unwrap();
    body["messages"][0]["content"].as_str().unwrap().to_owned()
}

/// Sends a stream of two tokens with its usage.
async fn stream(mut turn: PendingRequest) {
    turn.send_part(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n").await;
    for event in [
        r#"{"choices":[{"delta":{"content":"a"}}]}"#,
        r#"{"choices":[{"delta":{"content":"b"}}]}"#,
        r#"{"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":2}}"#,
        "[DONE]",
    ] {
        turn.chunk(format!("data: {event}\n\n").as_bytes()).await;
    }
    turn.send_part(b"0\r\n\r\n").await;
    turn.finish_response();
}

/// Reads from a client's connection until these bytes have arrived.
async fn read_until(client: &mut TcpStream, needle: &str) {
    use tokio::io::AsyncReadExt;
    let mut read = Vec::new();
    while !String::from_utf8_lossy(&read).contains(needle) {
        assert_ne!(within_timeout(client.read_buf(&mut read)).await.unwrap(), 0, "ended before {needle}");
    }
}

#[tokio::test]
async fn calls_of_one_prompt_form_are_never_merged_and_keep_their_bytes() {
    let (proxy, mut hand) = start_with_scripted_server(json!({"scheduling": {"policy": "Adaptive"}})).await;
    let bodies: Vec<String> = (0..8).map(|n| format!(r#"{{"prompt" : "{n}", "max_tokens":3}}"#)).collect();
    let calls: Vec<PendingCall> =
        bodies.iter().map(|body| proxy.call(proxy.post("/openai/v1/completions", &[("x-own", "1")], body))).collect();
    for _ in &bodies {
        let turn = hand.next_request().await;
        let sent = String::from_utf8(turn.request.body.clone()).unwrap();
        assert!(bodies.contains(&sent), "{sent}");
        assert_eq!(values(&turn.request.headers, "x-own"), [b"1"]);
        turn.answer(200, &json!({"usage": {"prompt_tokens": 1, "completion_tokens": 3}, "of": sent}).to_string()).await;
    }
    for (call, body) in calls.into_iter().zip(&bodies) {
        let expected = json!({"usage": {"prompt_tokens": 1, "completion_tokens": 3}, "of": body}).to_string();
        assert_answer(&call.answer().await, 200, &expected);
    }
    proxy.wait_idle().await;
    let tokens = |direction: &str| {
        let labels = format!(r#"route="generation",direction="{direction}",source="usage""#);
        proxy.metric(&format!("groupage_tokens_total{{{labels}}}"))
    };
    assert_eq!((tokens("input"), tokens("output")), (8, 24));
    assert_eq!(proxy.metric(r#"groupage_calls_passed_total{reason="generation"}"#), 8);
}

#[tokio::test]
async fn the_parts_of_a_stream_arrive_one_by_one_and_are_measured() {
    let (proxy, mut hand) = start_with_scripted_server(json!({"scheduling": {"policy": "Adaptive"}})).await;
    // Ollama streams lines of JSON, and does so unless the call declines it.
    let duration = r#"groupage_call_duration_seconds_count{route="generation",outcome="served"}"#;
    let formats = [(CHAT, "text/event-stream", "data: "), ("/api/chat", "application/x-ndjson", "")];
    for (at, (path, kind, mark)) in (0..).zip(formats) {
        let body = r#"{"messages":[],"stream":true}"#;
        let mut client = within_timeout(TcpStream::connect(proxy.address)).await.unwrap();
        let head = format!("POST {path} HTTP/1.1\r\nhost: h\r\ncontent-length: {}\r\n\r\n", body.len());
        let head = head.replace("host", "content-type: application/json\r\nhost");
        within_timeout(client.write_all(format!("{head}{body}").as_bytes())).await.unwrap();
        let mut turn = hand.next_request().await;
        let head = format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ntransfer-encoding: chunked\r\n\r\n");
        turn.send_part(head.as_bytes()).await;
        for word in ["one", "two", "three"] {
            let event = format!("{mark}{{\"text\":\"{word}\"}}\n\n");
            turn.chunk(event.as_bytes()).await;
            // The next event is sent only after this one has arrived.
            read_until(&mut client, word).await;
        }
        // The end of a call is that of its stream.
        assert_eq!(proxy.metric(duration), at);
        turn.send_part(b"0\r\n\r\n").await;
        turn.finish_response();
        read_until(&mut client, "0\r\n\r\n").await;
        proxy.wait_idle().await;
        assert_eq!(proxy.metric(duration), at + 1);
    }
    let counted = r#"groupage_tokens_total{route="generation",direction="output",source="events"}"#;
    assert_eq!(proxy.metric(counted), 6);
    assert_eq!(proxy.metric(r#"groupage_time_to_first_token_seconds_count{route="generation"}"#), 2);
    assert_eq!(proxy.metric(r#"groupage_time_per_output_token_seconds_count{route="generation"}"#), 2);
}

#[tokio::test]
async fn calls_pass_through_under_a_policy_with_fixed_slots() {
    let (proxy, mut hand) = start_with_scripted_server(json!({})).await;
    let calls: Vec<PendingCall> = (0..4).map(|_| proxy.call(chat(&proxy, "", "x"))).collect();
    let mut turns = Vec::new();
    for _ in 0..4 {
        turns.push(hand.next_request().await);
    }
    for turn in turns {
        stream(turn).await;
    }
    for call in calls {
        assert_eq!(call.answer().await.status, Some(200));
    }
    assert_eq!(proxy.metric(r#"groupage_calls_passed_total{reason="generation"}"#), 4);
}

#[tokio::test]
async fn an_urgent_call_passes_bulk_calls_that_wait() {
    let classes = json!([{"name": "bulk"}, {"name": "urgent", "strict": true}]);
    let spec = json!({"scheduling": {"policy": "Adaptive"}, "limits": {"slotsMax": 2}, "priority": {"header": "x-priority", "classes": classes}});
    let (proxy, mut hand) = start_with_scripted_server(spec).await;
    let running = [proxy.call(chat(&proxy, "bulk", "0")), proxy.call(chat(&proxy, "bulk", "0"))];
    let turns = [hand.next_request().await, hand.next_request().await];
    let mut waiting = proxy.queue((1..=3).map(|n| chat(&proxy, "bulk", &n.to_string()))).await;
    waiting.extend(proxy.queue([chat(&proxy, "urgent", "urgent")]).await);
    // The first call is over only once its stream has ended.
    let [first, second] = turns;
    stream(first).await;
    let next = hand.next_request().await;
    assert_eq!(text(&next), "urgent");
    stream(next).await;
    stream(second).await;
    for _ in 1..=3 {
        stream(hand.next_request().await).await;
    }
    for call in running.into_iter().chain(waiting) {
        let answer = call.answer().await;
        assert!(answer.body.ends_with(b"data: [DONE]\n\n") && answer.status == Some(200), "{answer:?}");
    }
}

#[tokio::test]
async fn a_refused_stream_lowers_the_number_of_calls_at_once() {
    let (proxy, mut hand) = start_with_scripted_server(json!({"scheduling": {"policy": "Adaptive"}})).await;
    let wave: Vec<PendingCall> = (0..40).map(|_| proxy.call(chat(&proxy, "", "x"))).collect();
    let mut turns = Vec::new();
    for _ in 0..40 {
        turns.push(hand.next_request().await);
    }
    for turn in turns {
        turn.answer(503, r#"{"error":"busy"}"#).await;
    }
    for call in wave {
        assert_answer(&call.answer().await, 503, r#"{"error":"busy"}"#);
    }
    proxy.wait_idle().await;
    // Seven tenths of the calls that were too many.
    let calls: Vec<PendingCall> = (0..40).map(|_| proxy.call(chat(&proxy, "", "y"))).collect();
    proxy.wait_queued(12).await;
    for _ in 0..40 {
        stream(hand.next_request().await).await;
    }
    for call in calls {
        assert_eq!(call.answer().await.status, Some(200));
    }
}
