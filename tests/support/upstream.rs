//! A model server as a script: it reads requests whole, asks the script what to answer, and can be slow, cut its
//! answers, reset or stay silent. What it gets is judged strictly (`wire`): a request that is not clean HTTP/1.1 is
//! reported, never repaired.

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;

use super::wire::{self, End, Framing, Headers, Wire};

/// One request, read whole.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    /// As it came.
    pub(crate) method: String,
    /// Path with query, as it came.
    pub(crate) target: String,
    /// Header lines, framing included.
    pub(crate) headers: Headers,
    /// The body without its framing.
    pub(crate) body: Vec<u8>,
    /// Trailers of a chunked body.
    pub(crate) trailers: Headers,
}

/// One answer.
#[derive(Debug, Clone)]
pub(crate) struct Reply {
    /// Status code.
    pub(crate) status: u16,
    /// Header lines; the framing is added where they do not say it.
    pub(crate) headers: Headers,
    /// Wait before the head, from the end of the request.
    pub(crate) delay: Duration,
    /// What follows.
    pub(crate) content: Content,
}

/// What an answer consists of.
#[derive(Debug, Clone)]
pub(crate) enum Content {
    /// The whole body.
    Whole(Vec<u8>),
    /// The whole length in the head, this much of the body, then FIN.
    Cut(Vec<u8>, usize),
    /// RST without a byte.
    Reset,
    /// Chunked: each text at its time after the head. With a number: FIN after so many texts, without the last chunk.
    Events(Vec<(Duration, Vec<u8>)>, Option<usize>),
    /// Never a byte; open until the proxy closes.
    Hang,
}

/// What decides the answers.
pub(crate) trait Script: Send + Sync + 'static {
    /// The answer to a request.
    fn reply(&self, request: Request) -> Reply;
    /// A request came that cannot be read, or ended early.
    fn unreadable(&self, why: &End);
}

/// The listener and all its connections; dropping it ends them.
pub(crate) struct Upstream {
    /// Where it listens.
    pub(crate) address: SocketAddr,
    accepting: JoinHandle<()>,
}

impl fmt::Debug for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upstream").field("address", &self.address).finish_non_exhaustive()
    }
}

// === impl Reply ===

impl Reply {
    /// A plain answer at once.
    pub(crate) fn plain(status: u16, content_type: &str, body: impl Into<Vec<u8>>) -> Self {
        let headers = vec![("content-type".to_owned(), content_type.into())];
        Self { status, headers, delay: Duration::ZERO, content: Content::Whole(body.into()) }
    }
}

// === impl Upstream ===

impl Upstream {
    /// Listens on loopback, on a port that the kernel picks.
    pub(crate) async fn start(script: Arc<dyn Script>) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let accepting = tokio::spawn(async move {
            // In here, so that they end with the listener.
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let script = Arc::clone(&script);
                connections.spawn(async move {
                    // An error is the proxy's going away, which the script learns by what did not arrive.
                    serve(stream, &*script).await.ok();
                });
            }
        });
        Ok(Self { address, accepting })
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn serve(stream: TcpStream, script: &dyn Script) -> io::Result<()> {
    let mut wire = Wire::new(stream)?;
    loop {
        let request = match read(&mut wire).await {
            Ok(Some(request)) => request,
            Ok(None) => return Ok(()),
            Err(end) => {
                script.unreadable(&end);
                if matches!(end, End::Garbled(_)) {
                    wire.write(b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\r\n").await?;
                }
                return Ok(());
            }
        };
        let came = now();
        let last = wire::nominates(&request.headers, "close");
        let bodiless = request.method == "HEAD";
        let reply = script.reply(request);
        tokio::time::sleep_until(came + reply.delay).await;
        if !write(&mut wire, &reply, bodiless).await? || last || wire::nominates(&reply.headers, "close") {
            return Ok(());
        }
    }
}

async fn read(wire: &mut Wire) -> Result<Option<Request>, End> {
    let Some(head) = wire.head().await? else { return Ok(None) };
    let mut words = head.start.split(' ');
    let (Some(method), Some(target), Some("HTTP/1.1" | "HTTP/1.0"), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Err(End::Garbled(format!("request line {}", head.start.escape_debug())));
    };
    let (method, target) = (method.to_owned(), target.to_owned());
    let framing = wire::framing(&head.headers, Framing::Empty).map_err(End::Garbled)?;
    let mut body = Vec::new();
    let trailers = wire.body(framing, &mut body).await?;
    Ok(Some(Request { method, target, headers: head.headers, body, trailers }))
}

/// Writes an answer; false where the connection ends with it.
async fn write(wire: &mut Wire, reply: &Reply, bodiless: bool) -> io::Result<bool> {
    match &reply.content {
        Content::Whole(body) => {
            let mut text = head(reply, Some(body.len()));
            if !bodiless && reply.status != 204 {
                text.extend(body);
            }
            wire.write(&text).await?;
            Ok(true)
        }
        Content::Cut(body, after) => {
            let mut text = head(reply, Some(body.len()));
            text.extend(body.iter().take(*after));
            wire.write(&text).await?;
            Ok(false)
        }
        Content::Reset => {
            wire.stream().set_zero_linger()?;
            Ok(false)
        }
        Content::Events(events, cut) => {
            wire.write(&head(reply, None)).await?;
            let started = now();
            for (at, text) in events.iter().take(cut.unwrap_or(usize::MAX)) {
                tokio::time::sleep_until(started + *at).await;
                // An empty chunk would be the last one.
                if !text.is_empty() {
                    wire.write(&chunk(text)).await?;
                }
            }
            if cut.is_some() {
                return Ok(false);
            }
            wire.write(b"0\r\n\r\n").await?;
            Ok(true)
        }
        Content::Hang => {
            wire.closed().await;
            Ok(false)
        }
    }
}

/// Head with the framing added: the length, none to a 204, chunked where there is no length.
fn head(reply: &Reply, length: Option<usize>) -> Vec<u8> {
    let reason = http::StatusCode::from_u16(reply.status).ok().and_then(|s| s.canonical_reason()).unwrap_or_default();
    let mut text = format!("HTTP/1.1 {} {reason}\r\n", reply.status).into_bytes();
    for (name, value) in &reply.headers {
        text.extend_from_slice(name.as_bytes());
        text.extend_from_slice(b": ");
        text.extend_from_slice(value);
        text.extend_from_slice(b"\r\n");
    }
    let said = |name| !wire::values(&reply.headers, name).is_empty();
    match length {
        Some(n) if reply.status != 204 && !said("content-length") => {
            text.extend_from_slice(format!("content-length: {n}\r\n").as_bytes());
        }
        None if !said("transfer-encoding") => text.extend_from_slice(b"transfer-encoding: chunked\r\n"),
        _ => {}
    }
    text.extend_from_slice(b"\r\n");
    text
}

/// One chunk of a chunked body.
pub(crate) fn chunk(text: &[u8]) -> Vec<u8> {
    let mut chunk = format!("{:x}\r\n", text.len()).into_bytes();
    chunk.extend_from_slice(text);
    chunk.extend_from_slice(b"\r\n");
    chunk
}

/// Tests of a running process live in real time.
pub(crate) fn now() -> Instant {
    #[expect(clippy::disallowed_methods, reason = "a black-box test measures real time")]
    Instant::now()
}
