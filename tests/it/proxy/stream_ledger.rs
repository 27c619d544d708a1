//! Integrity of merged streams: many streamed completions with nonces, through faults of the server,
//! callers that leave and callers that read slowly. None is misdelivered, reordered, or truncated
//! without an error.
//!
//! `GROUPAGE_STREAM_LEDGER_CALLS` sets the number of calls: 1 000 by default, 10 000 in CI and in
//! `just ledger`.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::setup::{TestProxy, within_timeout};
use super::support::client::{Answer, Client};
use super::support::upstream::{Request, chunk, read_request};
use super::support::wire::{End, RawConnection};

const PATH: &str = "/v1/completions";
/// Concurrent callers: several batches of the maximum size.
const CALLERS: u64 = 48;
/// Maximum number of chunks of a stream.
const CHUNKS_MAX: u64 = 12;

/// Counts of what happened, shared by the server and the callers.
#[derive(Debug, Default)]
struct Ledger {
    next: AtomicU64,
    shared: AtomicU64,
    complete: AtomicU64,
    failed: AtomicU64,
    truncated: AtomicU64,
    left: AtomicU64,
}

/// A fault of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    Status,
    Reset,
    /// The response is no stream.
    Json,
    /// An error before the first chunk.
    FirstError,
    /// An error between chunks.
    LateError,
    /// The connection is closed between chunks.
    Cut,
    /// The stream ends properly, but too early.
    Early,
}

fn calls() -> u64 {
    #[expect(clippy::disallowed_methods, reason = "how much to test is no setting of the proxy")]
    let calls = std::env::var("GROUPAGE_STREAM_LEDGER_CALLS").ok();
    calls.and_then(|calls| calls.parse().ok()).unwrap_or(1_000)
}

/// The finalizer of `SplitMix64` (Steele, Lea and Flood, 2014).
const fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Returns the number of chunks of the stream of a nonce.
const fn chunks_of(nonce: u64) -> u64 {
    1 + mix(nonce ^ 1) % CHUNKS_MAX
}

/// Returns the text of a chunk: a function of the nonce and of its place.
fn piece(nonce: u64, place: u64) -> String {
    format!("{:016x}.{place};", mix(nonce))
}

// === impl Fault ===

impl Fault {
    /// Draws the fault of a request. About one request in four has one.
    const fn draw(seed: u64) -> Self {
        match mix(seed) % 28 {
            0 => Self::Status,
            1 => Self::Reset,
            2 => Self::Json,
            3 => Self::FirstError,
            4 => Self::LateError,
            5 => Self::Cut,
            6 => Self::Early,
            _ => Self::None,
        }
    }
}

/// Serves one connection.
async fn serve(mut wire: RawConnection, ledger: &Ledger) {
    while let Ok(Some(request)) = read_request(&mut wire).await {
        let nonces = nonces(&request);
        if nonces.len() > 1 {
            ledger.shared.fetch_add(nonces.len() as u64, Ordering::Relaxed);
        }
        let seed = nonces[0] ^ (nonces.len() as u64) << 48;
        let fault = Fault::draw(seed);
        let whole = |status, body: &str| super::scripted_server::reply(status, body);
        let written = match fault {
            Fault::Status => wire.write(&whole(500, r#"{"error":"model failed"}"#)).await,
            Fault::Json => wire.write(&whole(200, r#"{"choices":[]}"#)).await,
            Fault::Reset => {
                wire.stream().set_zero_linger().unwrap();
                return;
            }
            _ => stream(&mut wire, &request, &nonces, (seed, fault)).await,
        };
        if written.is_err() || fault == Fault::Cut {
            return;
        }
    }
}

fn nonces(request: &Request) -> Vec<u64> {
    let body: Value = serde_json::from_slice(&request.body).unwrap();
    let nonce = |prompt: &Value| prompt.as_str().unwrap().strip_prefix("nonce ").unwrap().parse().unwrap();
    match &body["prompt"] {
        Value::Array(prompts) => prompts.iter().map(nonce).collect(),
        prompt => vec![nonce(prompt)],
    }
}

/// Writes the chunks of all results, interleaved, in pieces that ignore where events end.
async fn stream(
    wire: &mut RawConnection,
    request: &Request,
    nonces: &[u64],
    (seed, fault): (u64, Fault),
) -> std::io::Result<()> {
    let body: Value = serde_json::from_slice(&request.body).unwrap();
    let counts = body["stream_options"]["continuous_usage_stats"] == json!(true);
    let mut left: Vec<(usize, u64)> = nonces.iter().enumerate().map(|(index, _)| (index, 0)).collect();
    let total: u64 = nonces.iter().map(|nonce| chunks_of(*nonce)).sum();
    let stop = mix(seed ^ 2) % total;
    let mut text = String::new();
    if fault == Fault::FirstError {
        text += "data: {\"error\":{\"message\":\"failed at once\"}}\n\ndata: [DONE]\n\n";
        left.clear();
    }
    for sent in 0.. {
        if left.is_empty() {
            break;
        }
        if sent == stop && matches!(fault, Fault::LateError | Fault::Cut | Fault::Early) {
            break;
        }
        let turn = usize::try_from(mix(seed ^ sent << 8) % left.len() as u64).unwrap();
        let (index, place) = left[turn];
        let nonce = nonces[index];
        let is_last = place + 1 == chunks_of(nonce);
        let usage = json!({"prompt_tokens": nonce % 100, "total_tokens": 0, "completion_tokens": place + 1});
        let chunk = json!({
            "id": "cmpl-shared", "object": "text_completion", "created": 1, "model": "m",
            "choices": [{"index": index, "text": piece(nonce, place), "finish_reason": is_last.then_some("stop")}],
            "usage": if counts { usage } else { Value::Null },
        });
        text += &format!("data: {chunk}\n\n");
        if mix(seed ^ sent << 16).is_multiple_of(8) {
            text += ": ping\r\n\r\n";
        }
        if is_last {
            left.swap_remove(turn);
        } else {
            left[turn].1 += 1;
        }
    }
    match fault {
        Fault::LateError => text += "data: {\"error\":{\"message\":\"failed late\"}}\n\n",
        Fault::None => text += "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":1}}\n\ndata: [DONE]\n\n",
        _ => {}
    }
    wire.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n").await?;
    let mut rest = text.as_bytes();
    while !rest.is_empty() {
        let size = usize::try_from(1 + mix(seed ^ rest.len() as u64) % 700).unwrap().min(rest.len());
        let (part, more) = rest.split_at(size);
        wire.write(&chunk(part)).await?;
        tokio::task::yield_now().await;
        rest = more;
    }
    if fault == Fault::Cut {
        return Ok(());
    }
    wire.write(b"0\r\n\r\n").await
}

/// Makes calls until all are made. Some callers leave, and others read slowly.
async fn call(proxy: Arc<TestProxy>, ledger: Arc<Ledger>) {
    let mut client = None;
    loop {
        let nonce = ledger.next.fetch_add(1, Ordering::Relaxed);
        if nonce >= calls() {
            return;
        }
        let wants_usage = mix(nonce ^ 3).is_multiple_of(2);
        let mut body = json!({"model": "m", "prompt": format!("nonce {nonce}"), "stream": true});
        if wants_usage {
            body["stream_options"] = json!({"include_usage": true});
        }
        let request = proxy.post(PATH, &[], &body.to_string());
        let mut own = match client.take() {
            Some(own) => own,
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
            0 => {
                tokio::select! {
                    () = own.receive("POST", &mut answer) => {}
                    () = turns(400) => {}
                }
                ledger.left.fetch_add(1, Ordering::Relaxed);
                check_prefix(nonce, &answer);
                continue;
            }
            1 => turns(2000).await,
            _ => {}
        }
        within_timeout(own.receive("POST", &mut answer)).await;
        check(nonce, wants_usage, &answer, &ledger);
        if answer.end == Some(End::Proper) {
            client = Some(own);
        }
    }
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
fn check(nonce: u64, wants_usage: bool, answer: &Answer, ledger: &Ledger) {
    let (chunks, mut rest) = check_prefix(nonce, answer);
    if answer.status != Some(200) || answer.body == br#"{"choices":[]}"# {
        // The server's own response to a call that was sent alone.
        ledger.failed.fetch_add(1, Ordering::Relaxed);
        return;
    }
    // A call that was sent alone receives the end of the server, proper or not.
    let is_early = rest.is_empty() && Fault::draw(nonce ^ 1 << 48) == Fault::Early;
    if answer.end != Some(End::Proper) || is_early {
        ledger.truncated.fetch_add(1, Ordering::Relaxed);
        return;
    }
    if rest.last().is_some_and(|line| line == "[DONE]") {
        rest.pop();
    } else {
        let is_lone_error = rest.last().is_some_and(|line| line.contains("error"));
        assert!(is_lone_error, "nonce {nonce}: a proper end without one of the stream: {rest:?}");
    }
    if rest.iter().any(|line| line.contains("\"error\"")) {
        ledger.failed.fetch_add(1, Ordering::Relaxed);
        return;
    }
    assert_eq!(chunks, chunks_of(nonce), "nonce {nonce}");
    let usage: Vec<Value> = rest.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    if wants_usage && usage.iter().all(|usage| usage["id"].is_string()) {
        assert_eq!(usage.len(), 1, "nonce {nonce}");
        assert_eq!(usage[0]["usage"]["prompt_tokens"], json!(nonce % 100));
        assert_eq!(usage[0]["usage"]["completion_tokens"], json!(chunks));
    }
    ledger.complete.fetch_add(1, Ordering::Relaxed);
}

#[tokio::test]
async fn no_stream_is_misdelivered_reordered_or_truncated_without_an_error() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address: SocketAddr = listener.local_addr().unwrap();
    let ledger = Arc::new(Ledger::default());
    let counted = ledger.clone();
    let serving = tokio::spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            let ledger = counted.clone();
            connections.spawn(async move { serve(RawConnection::new(stream).unwrap(), &ledger).await });
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
        callers.spawn(call(proxy.clone(), ledger.clone()));
    }
    while let Some(ended) = callers.join_next().await {
        ended.unwrap();
    }
    proxy.wait_idle().await;
    serving.abort();
    let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
    let sum = of(&ledger.complete) + of(&ledger.failed) + of(&ledger.truncated) + of(&ledger.left);
    assert_eq!(sum, calls(), "{ledger:?}");
    assert!(of(&ledger.shared) > calls() / 4, "{ledger:?}");
    assert!(of(&ledger.complete) > calls() / 2, "{ledger:?}");
}
