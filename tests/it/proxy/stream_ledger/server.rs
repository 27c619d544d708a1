//! The model server of the ledger: it streams the results of a request, and has faults.

use std::io;

use serde_json::{Value, json};

use super::super::scripted_server::reply;
use super::super::support::upstream::{Request, chunk, read_request};
use super::super::support::wire::RawConnection;
use super::ledger::StreamLedger;
use super::seeded_faults::{Fault, chunks_of, is_long, mix, piece, response_seed};

/// Maximum size of a write, and size of a response from which writes are larger.
const WRITE_MAX: u64 = 700;
const LARGE_WRITE_MAX: u64 = 128 << 10;
const LARGE: usize = 1 << 20;

/// Serves one connection.
pub(super) async fn serve(mut wire: RawConnection, ledger: &StreamLedger) {
    while let Ok(Some(request)) = read_request(&mut wire).await {
        let nonces = nonces(&request);
        let seed = response_seed(&nonces);
        let fault = Fault::draw(seed);
        let response = ledger.begin_response(&nonces, fault);
        let written = match fault {
            Fault::Status => wire.write(&reply(500, r#"{"error":"model failed"}"#)).await,
            Fault::Json => wire.write(&reply(200, r#"{"choices":[]}"#)).await,
            Fault::Reset => {
                wire.stream().set_zero_linger().unwrap();
                Err(io::ErrorKind::ConnectionReset.into())
            }
            _ => stream(&mut wire, &request, &nonces, (seed, fault)).await,
        };
        ledger.end_response(&response);
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

/// Writes the events of all results, in pieces that ignore where events end.
async fn stream(
    wire: &mut RawConnection,
    request: &Request,
    nonces: &[u64],
    (seed, fault): (u64, Fault),
) -> io::Result<()> {
    let body: Value = serde_json::from_slice(&request.body).unwrap();
    let counts = body["stream_options"]["continuous_usage_stats"] == json!(true);
    let text = events(nonces, counts, (seed, fault));
    wire.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n").await?;
    let most = if text.len() < LARGE { WRITE_MAX } else { LARGE_WRITE_MAX };
    let mut rest = text.as_bytes();
    while !rest.is_empty() {
        let size = usize::try_from(1 + mix(seed ^ rest.len() as u64) % most).unwrap().min(rest.len());
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

/// Returns the chunks of all results as events, interleaved.
fn events(nonces: &[u64], counts: bool, (seed, fault): (u64, Fault)) -> String {
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
        let turn = choose_turn(&left, nonces, mix(seed ^ sent << 8));
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
    text
}

/// Returns the place in `left` of the result with the next chunk. The streams beside a long one end
/// after it, so that they outlast a reader that is dropped.
fn choose_turn(left: &[(usize, u64)], nonces: &[u64], drawn: u64) -> usize {
    let any = usize::try_from(drawn % left.len() as u64).unwrap();
    let (index, place) = left[any];
    let is_last = place + 1 == chunks_of(nonces[index]);
    let long = left.iter().position(|(index, _)| is_long(nonces[*index]));
    long.filter(|_| is_last).unwrap_or(any)
}
