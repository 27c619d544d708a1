//! Integrity of merged streams: many streamed completions with nonces, through faults of the server,
//! callers that leave and callers that read slowly. None is misdelivered, reordered, or truncated
//! without an error.
//!
//! Some streams exceed all buffers, and their callers read nothing until the calls that share their
//! responses have ended: such a caller may lose its own stream, and no other one.
//!
//! `GROUPAGE_STREAM_LEDGER_CALLS` sets the number of calls: 1 000 by default, 10 000 in CI and in
//! `just ledger`.

mod seeded_faults;
mod ledger;
mod server;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use self::ledger::StreamLedger;
use self::seeded_faults::{Fault, LONG_BUFFER_BYTES, chunks_of, is_long, mix, piece, response_seed};
use super::setup::{TestProxy, within_timeout};
use super::support::client::{Answer, Client};
use super::support::wire::{End, RawConnection};

const PATH: &str = "/v1/completions";
/// Concurrent callers: several batches of the maximum size.
const CALLERS: u64 = 48;
/// Default number of calls. With as many, some long streams are shared by chance.
const CALLS: u64 = 1_000;

fn calls() -> u64 {
    #[expect(clippy::disallowed_methods, reason = "how much to test is no setting of the proxy")]
    let calls = std::env::var("GROUPAGE_STREAM_LEDGER_CALLS").ok();
    calls.and_then(|calls| calls.parse().ok()).unwrap_or(CALLS)
}

/// Makes calls until all are made.
async fn run_caller(proxy: Arc<TestProxy>, ledger: Arc<StreamLedger>) {
    let mut client = None;
    loop {
        let nonce = ledger.counts.next.fetch_add(1, Ordering::Relaxed);
        if nonce >= calls() {
            return;
        }
        client = call(nonce, &proxy, &ledger, client.take()).await;
        ledger.end_call(nonce);
    }
}

/// Makes a call, and returns its connection if it may be used again. Some callers leave, and others
/// read slowly.
async fn call(nonce: u64, proxy: &TestProxy, ledger: &StreamLedger, client: Option<Client>) -> Option<Client> {
    let wants_usage = mix(nonce ^ 3).is_multiple_of(2);
    let mut body = json!({"model": "m", "prompt": format!("nonce {nonce}"), "stream": true});
    if wants_usage {
        body["stream_options"] = json!({"include_usage": true});
    }
    let request = proxy.post(PATH, &[], &body.to_string());
    // The buffers of a connection grow with its use.
    let mut own = match client.filter(|_| !is_long(nonce)) {
        Some(own) => own,
        None if is_long(nonce) => Client::connect_with_buffer(proxy.address, LONG_BUFFER_BYTES).await.unwrap(),
        None => Client::connect(proxy.address).await.unwrap(),
    };
    let mut answer = Answer::default();
    own.send(&request, &mut answer).await;
    // A caller leaves, or begins to read late, after a number of turns of the other tasks.
    let turns = async |most: u64| {
        for _ in 0..mix(nonce ^ 4) % most {
            tokio::task::yield_now().await;
        }
    };
    match mix(nonce ^ 5) % 10 {
        _ if is_long(nonce) => {
            within_timeout(own.receive_head(&mut answer)).await;
            // Another status is that of a response without a stream.
            if answer.status == Some(200) {
                within_timeout(ledger.wait_neighbours(nonce)).await;
            }
        }
        0 => {
            tokio::select! {
                () = own.receive("POST", &mut answer) => {}
                () = turns(400) => {}
            }
            ledger.counts.left.fetch_add(1, Ordering::Relaxed);
            check_prefix(nonce, &answer);
            return None;
        }
        1 => turns(2000).await,
        _ => {}
    }
    within_timeout(own.receive("POST", &mut answer)).await;
    check(nonce, wants_usage, &answer, ledger);
    (answer.end == Some(End::Proper)).then_some(own)
}

/// Returns the data of the complete events in a body, checking that no other bytes are in it.
fn data(body: &[u8]) -> Vec<String> {
    let text = String::from_utf8(body.to_vec()).unwrap();
    let mut events: Vec<&str> = text.split_inclusive('\n').collect();
    events.retain(|line| !line.trim().is_empty() && !line.starts_with(':'));
    let complete = events.into_iter().filter(|line| line.ends_with('\n'));
    complete.map(|line| line.strip_prefix("data: ").expect("an event with data").trim().to_owned()).collect()
}

/// Checks that the chunks are those of the nonce, in order. Returns their number, and the data
/// after them.
fn check_prefix(nonce: u64, answer: &Answer) -> (u64, Vec<String>) {
    if answer.status != Some(200) {
        return (0, Vec::new());
    }
    let mut place = 0;
    let mut rest = Vec::new();
    for line in data(&answer.body) {
        let value: Value = serde_json::from_str(&line).unwrap_or_default();
        if value["choices"][0].is_object() {
            assert_eq!(value["choices"][0]["text"], json!(piece(nonce, place)), "nonce {nonce}");
            assert_eq!(value["choices"][0]["index"], json!(0));
            assert_eq!(rest, [""; 0], "nonce {nonce}: a chunk after the end");
            place += 1;
        } else {
            rest.push(line);
        }
    }
    (place, rest)
}

/// Checks that a response is that of its nonce, and that it is complete or shows an error.
fn check(nonce: u64, wants_usage: bool, answer: &Answer, ledger: &StreamLedger) {
    let counts = &ledger.counts;
    let (chunks, mut rest) = check_prefix(nonce, answer);
    if answer.status != Some(200) || answer.body == br#"{"choices":[]}"# {
        // The server's own response to a call that was sent alone.
        counts.failed.fetch_add(1, Ordering::Relaxed);
        return;
    }
    // A call that was sent alone receives the end of the server, proper or not.
    let is_unbatched = ledger.response(nonce).is_none_or(|response| !response.is_shared());
    let is_early = is_unbatched && rest.is_empty() && Fault::draw(response_seed(&[nonce])) == Fault::Early;
    let is_sound = ledger.response(nonce).is_some_and(|response| response.is_sound_with_long());
    let assert_slow = || assert!(is_long(nonce) || !is_sound, "nonce {nonce} lost its stream beside a slow reader");
    if answer.end != Some(End::Proper) || is_early {
        assert_slow();
        counts.dropped.fetch_add(u64::from(is_sound), Ordering::Relaxed);
        counts.truncated.fetch_add(1, Ordering::Relaxed);
        return;
    }
    if rest.last().is_some_and(|line| line == "[DONE]") {
        rest.pop();
    } else {
        let is_error = rest.last().is_some_and(|line| line.contains("error"));
        assert!(is_error, "nonce {nonce}: a proper end without one of the stream: {rest:?}");
    }
    if rest.iter().any(|line| line.contains("\"error\"")) {
        assert_slow();
        counts.failed.fetch_add(1, Ordering::Relaxed);
        return;
    }
    assert_eq!(chunks, chunks_of(nonce), "nonce {nonce}");
    let usage: Vec<Value> = rest.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    if wants_usage && usage.iter().all(|usage| usage["id"].is_string()) {
        assert_eq!(usage.len(), 1, "nonce {nonce}");
        assert_eq!(usage[0]["usage"]["prompt_tokens"], json!(nonce % 100));
        assert_eq!(usage[0]["usage"]["completion_tokens"], json!(chunks));
    }
    counts.complete.fetch_add(1, Ordering::Relaxed);
}

#[tokio::test]
async fn no_stream_is_misdelivered_reordered_or_truncated_without_an_error() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address: SocketAddr = listener.local_addr().unwrap();
    let ledger = Arc::new(StreamLedger::default());
    let counted = ledger.clone();
    let serving = tokio::spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            let ledger = counted.clone();
            connections.spawn(async move { server::serve(RawConnection::new(stream).unwrap(), &ledger).await });
        }
    });
    let spec = json!({
        "routes": [{"path": PATH, "protocol": "VLLM"}],
        "scheduling": {"policy": "WorkConserving", "slots": 2},
        "limits": {"batchItemsMax": 8},
        "failure": {"quarantine": "1ms"},
    });
    let proxy = Arc::new(TestProxy::start_in_front_of(&format!("http://{address}"), spec));
    let mut callers = JoinSet::new();
    for _ in 0..CALLERS {
        callers.spawn(run_caller(proxy.clone(), ledger.clone()));
    }
    while let Some(ended) = callers.join_next().await {
        ended.unwrap();
    }
    proxy.wait_idle().await;
    serving.abort();
    let (of, counts) = (|count: &AtomicU64| count.load(Ordering::Relaxed), &ledger.counts);
    let sum = of(&counts.complete) + of(&counts.failed) + of(&counts.truncated) + of(&counts.left);
    assert_eq!(sum, calls(), "{counts:?}");
    assert!(of(&counts.shared) > calls() / 4, "{counts:?}");
    assert!(of(&counts.complete) > calls() / 2, "{counts:?}");
    assert!(of(&counts.dropped) > 0 || calls() < CALLS, "no reader exceeded the buffers: {counts:?}");
}
