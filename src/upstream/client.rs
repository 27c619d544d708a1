//! HTTP to the model server, one call at a time: HTTP/2 on a shared connection, or HTTP/1.1.

use std::error::Error as _;
use std::future::Future;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::{Request, Response, Version};
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use super::connect::{Connector, Io};
use super::http1::{Http1, http1};
use super::places::{PlacesFull, Purpose};
use super::{Http2, Inner, Target};
use crate::body::Body;
use crate::error::{Failure, FailureKind};
use crate::memory::Evicted;
use crate::tls::{self, Speak};

/// How long a server may take to show its HTTP/2 SETTINGS (README R9).
const PROBE_LIMIT: Duration = Duration::from_millis(250);
/// Idle HTTP/1 connections kept with `reuse: Always`: as many as batches are commonly in flight.
const REUSED_MAX: usize = 16;
/// Pings on a connection with calls in flight, so that a peer that vanished is noticed (the values of the client side).
const PING_INTERVAL: Duration = Duration::from_secs(20);
const PING_TIMEOUT: Duration = Duration::from_secs(10);
/// Windows of HTTP/2 upstream: an answer of the default cap flows without a stall on loopback.
const WINDOW: u32 = 4 << 20;

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
    /// TLS: nothing was sent, or nothing of it was looked at.
    Tls,
    /// The server chose another HTTP version than was thought: nothing was sent.
    NotHttp2,
    /// The connection broke; the call may have run.
    Broken,
    /// All connections are in use: nothing was sent.
    Full,
    /// The request's body had to make room for others before it had come.
    Evicted,
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
    /// Of a connect that failed.
    pub(super) fn connecting(error: &std::io::Error) -> Self {
        match error.get_ref() {
            Some(error) if error.is::<tls::Refused>() => Self::Tls,
            Some(error) if error.is::<PlacesFull>() => Self::Full,
            _ => Self::Refused,
        }
    }

    pub(super) const fn kind(&self) -> FailureKind {
        match self {
            Self::Refused => FailureKind::UpstreamRefused,
            Self::Tls | Self::NotHttp2 => FailureKind::UpstreamTls,
            Self::Broken => FailureKind::UpstreamBroken,
            Self::Full => FailureKind::ConnectionsFull,
            Self::Evicted => FailureKind::BytesFull,
        }
    }

    pub(super) fn failure(self) -> Failure {
        self.kind().into()
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
            let connection = match self.shared_h2().await {
                // It speaks HTTP/1 now.
                Err(SendError::NotHttp2) => None,
                found => Some(found?),
            };
            if let Some(mut h2) = connection {
                return match h2.try_send_request(to_http2(request, &self.config.target)).await {
                    Ok(response) => Ok(response),
                    // The server was just leaving (GOAWAY) and nothing was written: a fresh connection carries it.
                    Err(mut error) => {
                        let request = error.take_message().ok_or_else(|| self.broken(error.error()))?;
                        self.forget_h2().await;
                        let mut fresh = self.shared_h2().await?;
                        fresh.send_request(request).await.map_err(|error| self.broken(&error))
                    }
                };
            }
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
        let mut sender = self.open_http1(&Purpose::Batch).await?;
        let response = sender.send_request(request).await.map_err(|error| self.broken(&error))?;
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
        let fresh = self.open_http2(&Purpose::Batch).await?;
        *kept = Some(fresh.clone());
        Ok(fresh)
    }

    /// A fresh HTTP/1 connection.
    pub(super) async fn open_http1(self: &std::sync::Arc<Self>, purpose: &Purpose) -> Result<Http1, SendError> {
        // Boxed: a connect is large, and most calls wait for none.
        let connecting = Box::pin(self.connect_for(purpose, Speak::Http1));
        let io = connecting.await.map_err(|error| SendError::connecting(&error))?;
        http1(io).await
    }

    /// A fresh HTTP/2 connection.
    pub(super) async fn open_http2(self: &std::sync::Arc<Self>, purpose: &Purpose) -> Result<H2, SendError> {
        let always = self.config.http2 == Http2::Always;
        let speak = if always { Speak::Http2 } else { Speak::Either };
        let io = Box::pin(self.connect_for(purpose, speak)).await.map_err(|error| SendError::connecting(&error))?;
        // Inside TLS the server says it, each time; one that says nothing speaks HTTP/1, unless the operator knows better.
        if self.connector.says_what_is_spoken() && io.chose_http2() != Some(true) && !always {
            self.shared.set_http2(false);
            return Err(SendError::NotHttp2);
        }
        http2(io).await
    }

    /// A connection broke with a call on it: by TLS, where the server refused our certificate after its own handshake was done, or by anything.
    pub(super) fn broken(&self, error: &hyper::Error) -> SendError {
        match tls::refused_within(error) {
            None if is_evicted(error) => SendError::Evicted,
            None => SendError::Broken,
            Some(why) => {
                self.refused_by_tls(&why);
                SendError::Tls
            }
        }
    }
}

/// A request for which there is a connection.
pub(super) fn connected(mut request: Request<Body>) -> Request<Body> {
    request.body_mut().on_connect();
    request
}

/// Waits for a connection, unless the request's body has to make room for others meanwhile.
pub(super) async fn unless_evicted<T>(
    request: &mut Request<Body>,
    opening: impl Future<Output = Result<T, SendError>>,
) -> Result<T, SendError> {
    tokio::select! {
        biased;
        opened = opening => {
            request.body_mut().on_connect();
            opened
        }
        () = request.body_mut().evicted() => Err(SendError::Evicted),
    }
}

/// Returns `true` where a request's body ended a connection since it had to make room for others.
fn is_evicted(error: &hyper::Error) -> bool {
    let mut cause = error.source();
    while let Some(error) = cause {
        if error.is::<Evicted>() {
            return true;
        }
        cause = error.source();
    }
    false
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
pub(super) fn to_http2(mut request: Request<Body>, target: &Target) -> Request<Body> {
    let (scheme, authority) = (target.scheme(), target.authority());
    let host = request.headers_mut().remove(http::header::HOST);
    let host = host.as_ref().and_then(|host| host.to_str().ok()).unwrap_or(&authority);
    let target = request.uri().path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
    let uri = http::Uri::builder().scheme(scheme).authority(host).path_and_query(target).build();
    // A Host that is no authority goes no further; the path always does.
    let fallback = || http::Uri::builder().scheme(scheme).authority(authority.as_str()).path_and_query(target).build();
    if let Ok(uri) = uri.or_else(|_| fallback()) {
        *request.uri_mut() = uri;
    }
    *request.version_mut() = Version::HTTP_2;
    request
}

/// One probe. Inside TLS the server chooses; else the client preface and an empty SETTINGS frame; a server that speaks HTTP/2 answers with its own SETTINGS (RFC 9113, 3.4).
pub(super) async fn speaks_http2(connector: &Connector) -> bool {
    let probe = async {
        let mut io = connector.connect(Speak::Either).await.ok()?;
        if connector.says_what_is_spoken() {
            return (io.chose_http2() == Some(true)).then_some(());
        }
        let empty_settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
        io.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.ok()?;
        io.write_all(&empty_settings).await.ok()?;
        let mut head = [0_u8; 9];
        io.read_exact(&mut head).await.ok()?;
        // Length u24, type, flags, stream id: SETTINGS is type 4, on stream 0.
        (head[3] == 4 && head[5..9] == [0; 4]).then_some(())
    };
    if connector.says_what_is_spoken() {
        // The connect has its own time.
        return probe.await.is_some();
    }
    matches!(timeout(PROBE_LIMIT, probe).await, Ok(Some(())))
}
