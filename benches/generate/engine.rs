//! A stand-in for an engine that generates text: it batches continuously, streams its responses over
//! HTTP/1.1, and holds as many calls at once as its number of sequences and its KV cache admit.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::tcp::OwnedWriteHalf;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, mpsc};

/// Times of an engine. Each step gives every running call one token.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EngineModel {
    /// Maximum number of running calls.
    pub(crate) calls_max: usize,
    /// Tokens that the KV cache holds. A call reserves those of its prompt and of its whole response,
    /// and waits until they are free; later calls wait behind it.
    pub(crate) cache_tokens: u64,
    /// Time of a step without calls.
    pub(crate) step_time: Duration,
    /// Additional time of a step for each call in it.
    pub(crate) time_per_call: Duration,
    /// Additional time of a step for each token of the prompts that it reads.
    pub(crate) time_per_prompt_token: Duration,
}

/// A running engine.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) address: SocketAddr,
    shared: Arc<EngineShared>,
}

#[derive(Debug, Default)]
struct EngineShared {
    waiting: Mutex<VecDeque<EngineCall>>,
    arrived: Notify,
    tokens: AtomicU64,
}

/// A call in the engine. It ends early if its connection does.
#[derive(Debug)]
struct EngineCall {
    prompt: u64,
    /// Length of the whole response.
    length: u64,
    left: u64,
    tokens: mpsc::Sender<()>,
}

// === impl Engine ===

impl Engine {
    pub(crate) async fn start(model: EngineModel) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let shared = Arc::<EngineShared>::default();
        tokio::spawn(run_steps(model, shared.clone()));
        let accepting = shared.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, accepting.clone()));
            }
        });
        Self { address, shared }
    }

    /// Returns the number of tokens generated so far.
    pub(crate) fn tokens(&self) -> u64 {
        self.shared.tokens.load(Ordering::Relaxed)
    }
}

async fn run_steps(model: EngineModel, shared: Arc<EngineShared>) {
    let mut running: Vec<EngineCall> = Vec::new();
    let mut next = tokio::time::Instant::now();
    loop {
        let prompt_tokens = {
            let mut waiting = shared.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            admit(model, &mut waiting, &mut running)
        };
        if running.is_empty() {
            shared.arrived.notified().await;
            next = tokio::time::Instant::now();
            continue;
        }
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let reading = model.time_per_prompt_token * u32::try_from(prompt_tokens).unwrap_or(u32::MAX);
        next += model.step_time + model.time_per_call * count(running.len()) + reading;
        tokio::time::sleep_until(next).await;
        running.retain_mut(|call| {
            call.left -= 1;
            let is_open = call.tokens.try_send(()).is_ok();
            shared.tokens.fetch_add(u64::from(is_open), Ordering::Relaxed);
            is_open && call.left > 0
        });
    }
}

/// Moves calls that wait to those that run, in their order, and returns the number of tokens of their
/// prompts.
fn admit(model: EngineModel, waiting: &mut VecDeque<EngineCall>, running: &mut Vec<EngineCall>) -> u64 {
    let mut free = model.cache_tokens.saturating_sub(running.iter().map(EngineCall::cache_tokens).sum());
    let mut prompt_tokens = 0;
    while running.len() < model.calls_max {
        // A call larger than the cache runs alone.
        let Some(call) = waiting.pop_front_if(|call| call.cache_tokens() <= free || running.is_empty()) else {
            break;
        };
        free = free.saturating_sub(call.cache_tokens());
        prompt_tokens += call.prompt;
        running.push(call);
    }
    prompt_tokens
}

async fn serve(stream: TcpStream, shared: Arc<EngineShared>) {
    // Small writes are sent at once. An error appears at the next write.
    stream.set_nodelay(true).ok();
    let (read, mut write) = stream.into_split();
    let mut read = BufReader::new(read);
    while let Some((prompt, length)) = read_call(&mut read).await {
        let (sender, receiver) = mpsc::channel(usize::try_from(length).unwrap_or(1));
        let call = EngineCall { prompt, length, left: length, tokens: sender };
        shared.waiting.lock().unwrap_or_else(PoisonError::into_inner).push_back(call);
        shared.arrived.notify_one();
        if stream_tokens(&mut write, receiver).await.is_err() {
            return;
        }
    }
}

/// Reads a request and returns the number of tokens of its prompt, which are its words, and of its
/// response.
async fn read_call(read: &mut (impl AsyncBufReadExt + Unpin)) -> Option<(u64, u64)> {
    let mut length = 0;
    loop {
        let mut line = String::new();
        if read.read_line(&mut line).await.ok()? == 0 {
            return None;
        }
        let line = line.trim_end().to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
    }
    let mut body = vec![0; length];
    read.read_exact(&mut body).await.ok()?;
    let body: serde_json::Value = serde_json::from_slice(&body).ok()?;
    let prompt = body["prompt"].as_str()?.split_whitespace().count();
    Some((u64::try_from(prompt).ok()?, body["max_tokens"].as_u64()?.max(1)))
}

async fn stream_tokens(write: &mut OwnedWriteHalf, mut tokens: mpsc::Receiver<()>) -> std::io::Result<()> {
    const HEAD: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    write.write_all(HEAD).await?;
    while tokens.recv().await.is_some() {
        write_event(write, r#"{"choices":[{"index":0,"text":"a"}]}"#).await?;
    }
    write_event(write, "[DONE]").await?;
    write.write_all(b"0\r\n\r\n").await
}

async fn write_event(write: &mut OwnedWriteHalf, data: &str) -> std::io::Result<()> {
    let event = format!("data: {data}\n\n");
    write.write_all(format!("{:x}\r\n{event}\r\n", event.len()).as_bytes()).await
}

// === impl EngineCall ===

impl EngineCall {
    /// Number of tokens that it reserves in the KV cache.
    fn cache_tokens(&self) -> u64 {
        self.prompt + self.length
    }
}
