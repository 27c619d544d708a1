//! A scripted model server. It reads complete requests, gets each answer from a script, and can
//! delay, truncate or reset an answer or stay silent. Requests are parsed strictly (`wire`): one
//! that is not valid HTTP/1.1 is reported, never repaired.

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;

use super::wire::{self, End, Headers, RawConnection};

/// A complete request.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    /// Method as received.
    pub(crate) method: String,
    /// Path with query as received.
    pub(crate) target: String,
    /// Header lines, including framing.
    pub(crate) headers: Headers,
    /// Body without framing.
    pub(crate) body: Vec<u8>,
    /// Trailers of a chunked body.
    pub(crate) trailers: Headers,
}

/// A scripted answer.
#[derive(Debug, Clone)]
pub(crate) struct Reply {
    /// Status code.
    pub(crate) status: u16,
    /// Header lines. Missing framing headers are added.
    pub(crate) headers: Headers,
    /// Delay of the head, from the end of the request.
    pub(crate) delay: Duration,
    /// Body of the answer, or its failure.
    pub(crate) content: Content,
}

/// Body of an answer, or its failure.
#[derive(Debug, Clone)]
pub(crate) enum Content {
    /// The complete body.
    Whole(Vec<u8>),
    /// The complete length in the head and this number of bytes of the body, followed by FIN.
    Cut(Vec<u8>, usize),
    /// A reset (RST) without any byte.
    Reset,
    /// A chunked body with each text at its time after the head. With a number, FIN follows after
    /// that many texts, without the last chunk.
    Events(Vec<(Duration, Vec<u8>)>, Option<usize>),
    /// No byte at all, while the connection stays open until the proxy closes it.
    Hang,
}

/// Source of the answers of an upstream.
pub(crate) trait Script: Send + Sync + 'static {
    /// Returns the answer to a request.
    fn reply(&self, request: Request) -> Reply;
    /// Called for a request that is invalid or incomplete.
    fn unreadable(&self, why: &End);
}

/// The listener and all its connections. Dropping it closes them.
pub(crate) struct Upstream {
    /// Address of the listener.
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
    /// Creates an answer with a complete body and no delay.
    pub(crate) fn plain(status: u16, content_type: &str, body: impl Into<Vec<u8>>) -> Self {
        let headers = vec![("content-type".to_owned(), content_type.into())];
        Self { status, headers, delay: Duration::ZERO, content: Content::Whole(body.into()) }
    }
}

// === impl Upstream ===

impl Upstream {
    /// Starts a server of HTTP/1.1.
    pub(crate) async fn start(script: Arc<dyn Script>) -> io::Result<Self> {
        Self::listen(move |stream| {
            let script = Arc::clone(&script);
            async move { serve(stream, &*script).await.map_err(drop) }
        })
        .await
    }

    /// Starts to listen on loopback, on a port that the kernel chooses, and serves each connection
    /// with `serve`. An error means that the proxy closed the connection. The script detects it by
    /// the requests that are missing.
    pub(crate) async fn listen<F>(serve: impl Fn(TcpStream) -> F + Send + 'static) -> io::Result<Self>
    where
        F: Future<Output = Result<(), ()>> + Send + 'static,
    {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let accepting = tokio::spawn(async move {
            // Owned by this task, so that connections end with the listener.
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(serve(stream));
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
    let mut wire = RawConnection::new(stream)?;
    loop {
        let request = match read_request(&mut wire).await {
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
        let arrival = now();
        let last = wire::nominates(&request.headers, "close");
        let bodiless = request.method == "HEAD";
        let reply = script.reply(request);
        tokio::time::sleep_until(arrival + reply.delay).await;
        if !write(&mut wire, &reply, bodiless).await? || last || wire::nominates(&reply.headers, "close") {
            return Ok(());
        }
    }
}

/// Reads a complete request. Returns `None` if the connection ends before its first byte.
pub(crate) async fn read_request(wire: &mut RawConnection) -> Result<Option<Request>, End> {
    let Some((method, target, headers)) = wire.request().await? else { return Ok(None) };
    let framing = wire::request_framing(&headers)?;
    let mut body = Vec::new();
    let trailers = wire.body(framing, &mut body).await?;
    Ok(Some(Request { method, target, headers, body, trailers }))
}

/// Writes an answer. Returns `false` if the connection ends with it.
async fn write(wire: &mut RawConnection, reply: &Reply, bodiless: bool) -> io::Result<bool> {
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
                // An empty chunk would end the body.
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

/// Encodes the head and adds the framing: the length (none for a 204), or chunked if there is no
/// length.
fn head(reply: &Reply, length: Option<usize>) -> Vec<u8> {
    let reason = http::StatusCode::from_u16(reply.status).ok().and_then(|s| s.canonical_reason()).unwrap_or_default();
    let mut text = format!("HTTP/1.1 {} {reason}\r\n", reply.status).into_bytes();
    for (name, value) in &reply.headers {
        text.extend_from_slice(name.as_bytes());
        text.extend_from_slice(b": ");
        text.extend_from_slice(value);
        text.extend_from_slice(b"\r\n");
    }
    let has_header = |name| !wire::values(&reply.headers, name).is_empty();
    match length {
        Some(n) if reply.status != 204 && !has_header("content-length") => {
            text.extend_from_slice(format!("content-length: {n}\r\n").as_bytes());
        }
        None if !has_header("transfer-encoding") => text.extend_from_slice(b"transfer-encoding: chunked\r\n"),
        _ => {}
    }
    text.extend_from_slice(b"\r\n");
    text
}

/// Encodes one chunk of a chunked body.
pub(crate) fn chunk(text: &[u8]) -> Vec<u8> {
    let mut chunk = format!("{:x}\r\n", text.len()).into_bytes();
    chunk.extend_from_slice(text);
    chunk.extend_from_slice(b"\r\n");
    chunk
}

/// Returns the current time. Tests of a running process use real time.
pub(crate) fn now() -> Instant {
    #[expect(clippy::disallowed_methods, reason = "a black-box test measures real time")]
    Instant::now()
}
