//! HTTP to the model server, one call at a time: HTTP/2 on a shared connection, or HTTP/1.1.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::{Request, Response, Version};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use super::connect::{Connector, Io};
use super::{Http2, Inner};
use crate::body::Body;
use crate::error::{Failure, FailureKind};

/// How long a server may take to show its HTTP/2 SETTINGS (README R9).
const PROBE_LIMIT: Duration = Duration::from_millis(250);
/// Idle HTTP/1 connections kept with `reuse: Always`: as many as batches are commonly in flight.
const REUSED_MAX: usize = 16;
/// Bounds of an answer's head: what we allow a client's (reliability, safe defaults), and hyper allows twice as many bytes by default.
const ANSWER_HEADERS_MAX: usize = 100;
const ANSWER_HEAD_BYTES_MAX: usize = 64 << 10;
/// Pings on a connection with calls in flight, so that a peer that vanished is noticed (the values of the client side).
const PING_INTERVAL: Duration = Duration::from_secs(20);
const PING_TIMEOUT: Duration = Duration::from_secs(10);
/// Windows of HTTP/2 upstream: an answer of the default cap flows without a stall on loopback.
const WINDOW: u32 = 4 << 20;

/// Sends HTTP/1 calls on one connection; its task runs beside it.
pub(super) type Http1 = http1::SendRequest<Body>;
/// Sends HTTP/2 calls on one connection.
pub(super) type H2 = http2::SendRequest<Body>;

/// The connections that batches share, if any.
#[derive(Debug)]
pub(super) struct Shared {
    http2: AtomicBool,
    h2: tokio::sync::Mutex<Option<H2>>,
    reused: Mutex<Vec<Http1>>,
}

/// Why a call got no answer's head.
#[derive(Debug)]
pub(super) enum SendError {
    /// No connection: nothing was sent.
    Refused,
    /// The connection broke; the call may have run.
    Broken,
}

// === impl Shared ===

impl Shared {
    pub(super) fn new(http2: Http2) -> Self {
        Self {
            http2: AtomicBool::new(http2 == Http2::Always),
            h2: tokio::sync::Mutex::new(None),
            reused: Mutex::new(Vec::new()),
        }
    }

    pub(super) fn set_http2(&self, speaks: bool) {
        self.http2.store(speaks, Ordering::Relaxed);
    }

    pub(super) fn speaks_http2(&self) -> bool {
        self.http2.load(Ordering::Relaxed)
    }
}

// === impl SendError ===

impl SendError {
    pub(super) fn failure(self) -> Failure {
        match self {
            Self::Refused => FailureKind::UpstreamRefused.into(),
            Self::Broken => FailureKind::UpstreamBroken.into(),
        }
    }
}

// === impl Inner ===

impl Inner {
    /// Sends a shared call: on HTTP/2 where the server speaks it.
    pub(super) async fn send(
        self: &std::sync::Arc<Self>,
        request: Request<Body>,
    ) -> Result<Response<Incoming>, SendError> {
        self.send_as(request, true).await
    }

    /// Sends a call on a connection that no client owns: HTTP/2, a fresh HTTP/1 one, or a kept one where the operator says so.
    pub(super) async fn send_as(
        self: &std::sync::Arc<Self>,
        request: Request<Body>,
        http2: bool,
    ) -> Result<Response<Incoming>, SendError> {
        if self.config.http2 == Http2::Always || (http2 && self.shared.speaks_http2()) {
            let request = to_http2(request, &self.config.target.authority());
            return match self.shared_h2().await?.try_send_request(request).await {
                Ok(response) => Ok(response),
                // The server was just leaving (GOAWAY) and nothing was written: a fresh connection carries it.
                Err(mut error) => {
                    let request = error.take_message().ok_or(SendError::Broken)?;
                    self.forget_h2().await;
                    self.shared_h2().await?.send_request(request).await.map_err(|_| SendError::Broken)
                }
            };
        }
        let mut request = request;
        if let Some(mut sender) = if self.config.reuse { self.take_reused() } else { None } {
            match sender.try_send_request(request).await {
                Ok(response) => {
                    self.keep_reused(sender);
                    return Ok(response);
                }
                // Closed before anything was written: a fresh connection may carry it.
                Err(mut error) => request = error.take_message().ok_or(SendError::Broken)?,
            }
        }
        let mut sender = http1(self.connect().await.map_err(|_| SendError::Refused)?).await?;
        let response = sender.send_request(request).await.map_err(|_| SendError::Broken)?;
        if self.config.reuse {
            self.keep_reused(sender);
        }
        Ok(response)
    }

    fn keep_reused(&self, sender: Http1) {
        if let Ok(mut reused) = self.shared.reused.lock()
            && reused.len() < REUSED_MAX
        {
            reused.push(sender);
        }
    }

    /// A kept connection that is open and has nothing in flight.
    fn take_reused(&self) -> Option<Http1> {
        let mut reused = self.shared.reused.lock().ok()?;
        reused.retain(|sender| !sender.is_closed());
        let ready = reused.iter().position(Http1::is_ready)?;
        Some(reused.swap_remove(ready))
    }

    /// Gives up the shared HTTP/2 connection.
    pub(super) async fn forget_h2(&self) {
        self.shared.h2.lock().await.take();
    }

    async fn shared_h2(self: &std::sync::Arc<Self>) -> Result<H2, SendError> {
        let mut kept = self.shared.h2.lock().await;
        if let Some(h2) = kept.as_ref()
            && !h2.is_closed()
        {
            return Ok(h2.clone());
        }
        let fresh = http2(self.connect().await.map_err(|_| SendError::Refused)?).await?;
        *kept = Some(fresh.clone());
        Ok(fresh)
    }
}

/// An HTTP/1 connection on this stream, run by a task of its own.
pub(super) async fn http1(io: Io) -> Result<Http1, SendError> {
    let (sender, connection) = http1::Builder::new()
        .max_headers(ANSWER_HEADERS_MAX)
        .max_buf_size(ANSWER_HEAD_BYTES_MAX)
        .handshake(TokioIo::new(io))
        .await
        .map_err(|_| SendError::Broken)?;
    tokio::spawn(async move {
        // The caller sees the same error on its own side.
        connection.with_upgrades().await.ok();
    });
    Ok(sender)
}

/// An HTTP/2 connection on this stream, run by a task of its own.
pub(super) async fn http2(io: Io) -> Result<H2, SendError> {
    let (sender, connection) = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT)
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .handshake(TokioIo::new(io))
        .await
        .map_err(|_| SendError::Broken)?;
    tokio::spawn(async move {
        // The caller sees the same error on its own side.
        connection.await.ok();
    });
    Ok(sender)
}

/// HTTP/2 wants scheme and authority in the target, and no `Host` beside it.
pub(super) fn to_http2(mut request: Request<Body>, authority: &str) -> Request<Body> {
    let host = request.headers_mut().remove(http::header::HOST);
    let host = host.as_ref().and_then(|host| host.to_str().ok()).unwrap_or(authority);
    let target = request.uri().path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
    let uri = http::Uri::builder().scheme("http").authority(host).path_and_query(target).build();
    // A Host that is no authority goes no further; the path always does.
    let fallback = || http::Uri::builder().scheme("http").authority(authority).path_and_query(target).build();
    if let Ok(uri) = uri.or_else(|_| fallback()) {
        *request.uri_mut() = uri;
    }
    *request.version_mut() = Version::HTTP_2;
    request
}

/// One probe: the client preface and an empty SETTINGS frame; a server that speaks HTTP/2 answers with its own SETTINGS (RFC 9113, 3.4).
pub(super) async fn speaks_http2(connector: &Connector) -> bool {
    let probe = async {
        let mut io = connector.connect().await.ok()?;
        let empty_settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
        io.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.ok()?;
        io.write_all(&empty_settings).await.ok()?;
        let mut head = [0_u8; 9];
        io.read_exact(&mut head).await.ok()?;
        // Length u24, type, flags, stream id: SETTINGS is type 4, on stream 0.
        (head[3] == 4 && head[5..9] == [0; 4]).then_some(())
    };
    matches!(timeout(PROBE_LIMIT, probe).await, Ok(Some(())))
}
