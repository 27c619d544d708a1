//! Calls for text of two classes at random times, each on a connection of its own.

use std::net::SocketAddr;
use std::time::Duration;

use groupage::batching::rng::SplitMix64;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// A call to make.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PlannedCall {
    pub(crate) at: Duration,
    pub(crate) is_urgent: bool,
    /// Number of tokens of the prompt.
    pub(crate) prompt: u64,
    /// Number of tokens of the response.
    pub(crate) length: u64,
}

/// The result of a call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CallResult {
    pub(crate) call: PlannedCall,
    /// Time to the first token; `None` if the call was refused or had no response in time.
    pub(crate) first_token: Option<Duration>,
}

/// Returns Poisson arrivals at this rate per second. A fifth of the calls are urgent, and the lengths of
/// prompts and responses are uniformly distributed between these limits.
pub(crate) fn plan(
    seed: u64,
    horizon: Duration,
    rate: f64,
    prompts: (u64, u64),
    lengths: (u64, u64),
) -> Vec<PlannedCall> {
    let mut random = SplitMix64::new(seed);
    let (mut calls, mut at) = (Vec::new(), Duration::ZERO);
    loop {
        at += Duration::from_secs_f64(-(1.0 - random.next_f64()).ln() / rate);
        if at >= horizon {
            return calls;
        }
        let mut draw = |(least, most): (u64, u64)| least + random.next_u64() % (most - least + 1);
        let (prompt, length) = (draw(prompts), draw(lengths));
        calls.push(PlannedCall { at, is_urgent: random.next_bool(200), prompt, length });
    }
}

/// Makes the calls at their times, and returns those that had a result until `end`.
pub(crate) async fn run(address: SocketAddr, calls: Vec<PlannedCall>, end: Duration) -> Vec<CallResult> {
    let begun = Instant::now();
    let mut tasks = JoinSet::new();
    for call in calls {
        tasks.spawn(async move {
            tokio::time::sleep_until(begun + call.at).await;
            let first_token = tokio::time::timeout_at(begun + end, make_call(address, call)).await.ok().flatten();
            CallResult { call, first_token }
        });
    }
    tasks.join_all().await
}

/// Makes a call and reads its response to the end. Returns the time to the first token.
async fn make_call(address: SocketAddr, call: PlannedCall) -> Option<Duration> {
    let begun = Instant::now();
    let mut stream = TcpStream::connect(address).await.ok()?;
    let class = if call.is_urgent { "urgent" } else { "bulk" };
    let prompt = "word ".repeat(usize::try_from(call.prompt).unwrap_or(1));
    let body = format!(r#"{{"model":"m","prompt":"{prompt}","stream":true,"max_tokens":{}}}"#, call.length);
    let request = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\nx-priority: {class}\r\n\
         connection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.ok()?;
    let (mut read, mut first) = (Vec::new(), None);
    loop {
        let end = stream.read_buf(&mut read).await.ok()? == 0;
        let text = String::from_utf8_lossy(&read);
        if first.is_none() && text.contains("data: ") {
            first = Some(begun.elapsed());
        }
        if text.contains("[DONE]") {
            return first;
        }
        if end || text.starts_with("HTTP/1.1 ") && !text.starts_with("HTTP/1.1 200") {
            return None;
        }
        // The last bytes may be the begin of the mark.
        let kept = read.len().saturating_sub(16);
        if first.is_some() {
            read.drain(..kept);
        }
    }
}
