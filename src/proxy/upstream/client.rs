//! The HTTP client for calls without a pinned connection: HTTP/2 on a shared connection, or
//! HTTP/1.1.

use std::error::Error as _;
use std::future::Future;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Request, Response, Version};
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use super::connect::{Connector, UpstreamIo};
use super::failure::SendError;
use super::http1::{Http1Sender, spawn_http1};
use super::permits::ConnectionPurpose;
use super::{Http2, Inner, UpstreamTarget};
use crate::body::Body;
use crate::frames::PREFACE;
use crate::memory::EvictedError;
use crate::tls::{self, AlpnProtocols};

/// Maximum time for a server to send its HTTP/2 SETTINGS to a probe.
const PROBE_TIMEOUT: Duration = Duration::from_millis(250);
/// Interval and timeout of pings on a connection with calls in flight, so that a lost peer is
/// detected. The values equal those of the downstream side.
const PING_INTERVAL: Duration = Duration::from_secs(20);
const PING_TIMEOUT: Duration = Duration::from_secs(10);
/// HTTP/2 flow control windows for responses of the upstream: one of the default maximum size is
/// received without a stall on loopback.
const RECEIVE_WINDOW: u32 = 4 << 20;

/// The sender for calls on one HTTP/2 connection.
pub(super) type Http2Sender = http2::SendRequest<Body>;

/// Upstream connections that are used again: for batches, or for the concurrent calls of one HTTP/2
/// client.
#[derive(Debug)]
pub(super) struct ReusedConnections {
    h2: tokio::sync::Mutex<Option<Http2Sender>>,
    /// Purpose of the HTTP/2 connection.
    h2_purpose: ConnectionPurpose,
    idle: Mutex<Vec<Http1Sender>>,
    idle_max: usize,
}

// === impl ReusedConnections ===

impl ReusedConnections {
    /// Creates the state without any connection.
    pub(super) fn new(h2_purpose: ConnectionPurpose, idle_max: usize) -> Self {
        Self { h2: tokio::sync::Mutex::default(), h2_purpose, idle: Mutex::default(), idle_max }
    }

    /// Returns the HTTP/2 connection, which is opened if there is none.
    pub(super) async fn http2(&self, inner: &Arc<Inner>) -> Result<Http2Sender, SendError> {
        let mut shared = self.h2.lock().await;
        if let Some(h2) = shared.as_ref().filter(|h2| !h2.is_closed()) {
            return Ok(h2.clone());
        }
        let fresh = inner.open_http2(&self.h2_purpose).await?;
        Ok(shared.insert(fresh).clone())
    }

    /// Drops the HTTP/2 connection.
    pub(super) async fn forget_http2(&self) {
        self.h2.lock().await.take();
    }

    /// Sends a call on the HTTP/2 connection.
    pub(super) async fn send_http2(
        &self,
        inner: &Arc<Inner>,
        mut h2: Http2Sender,
        request: Request<Body>,
    ) -> Result<Response<Incoming>, SendError> {
        match h2.try_send_request(to_http2(request, &inner.config.target)).await {
            Ok(response) => Ok(response),
            // The server closed the connection (GOAWAY) before anything was written, so a fresh
            // connection carries the call.
            Err(mut error) => {
                let request = error.take_message().ok_or_else(|| inner.classify_error(error.error()))?;
                self.forget_http2().await;
                let mut fresh = self.http2(inner).await?;
                fresh.send_request(request).await.map_err(|error| inner.classify_error(&error))
            }
        }
    }

    /// Takes an idle HTTP/1 connection that is open and has nothing in flight.
    pub(super) fn take_idle(&self) -> Option<Http1Sender> {
        let mut idle = self.idle.lock().ok()?;
        idle.retain(|sender| !sender.is_closed());
        let ready = idle.iter().position(Http1Sender::is_ready)?;
        Some(idle.remove(ready))
    }

    /// Keeps an HTTP/1 connection for later calls.
    pub(super) fn keep(&self, sender: Http1Sender) {
        if let Ok(mut idle) = self.idle.lock()
            && idle.len() < self.idle_max
        {
            idle.push(sender);
        }
    }
}

// === impl Inner ===

impl Inner {
    /// Sends a call on a connection that is not pinned to a client: HTTP/2 if the caller allows it
    /// (`http2`) and the server supports it, a fresh HTTP/1 connection, or a reused one if the
    /// configuration allows it.
    pub(super) async fn send(
        self: &Arc<Self>,
        mut request: Request<Body>,
        http2: bool,
    ) -> Result<Response<Incoming>, SendError> {
        // The call is from an HTTP/2 client, and may have a form that only HTTP/2 has: an authority
        // in its target, or cookies in several fields. So it waits for the result of the probe.
        if request.version() == Version::HTTP_2 {
            self.probe_http2().await;
        }
        if self.config.http2 == Http2::Always || (http2 && self.speaks_http2.load(Ordering::Relaxed)) {
            match self.shared.http2(self).await {
                // The server supports only HTTP/1 now.
                Err(SendError::NotHttp2) => {}
                found => return self.shared.send_http2(self, found?, request).await,
            }
        }
        if let Some(mut sender) = self.shared.take_idle() {
            match sender.try_send_request(request).await {
                Ok(response) => {
                    self.shared.keep(sender);
                    return Ok(response);
                }
                // The connection was closed before anything was written, so a fresh one may carry
                // the call.
                Err(mut error) => request = error.take_message().ok_or(SendError::Broken)?,
            }
        }
        let mut sender = self.open_http1(&ConnectionPurpose::Batch).await?;
        let response = sender.send_request(request).await.map_err(|error| self.classify_error(&error))?;
        self.shared.keep(sender);
        Ok(response)
    }

    /// Opens an HTTP/1 connection.
    pub(super) async fn open_http1(self: &Arc<Self>, purpose: &ConnectionPurpose) -> Result<Http1Sender, SendError> {
        // Boxed because the future of a connect is large, and most calls need none.
        let connecting = Box::pin(self.connect_for(purpose, AlpnProtocols::Http1));
        let io = connecting.await.map_err(|error| SendError::from_connect_error(&error))?;
        spawn_http1(io).await
    }

    /// Opens an HTTP/2 connection.
    ///
    /// # Errors
    /// [`SendError::NotHttp2`] if the server chose HTTP/1, which later calls then use.
    async fn open_http2(self: &Arc<Self>, purpose: &ConnectionPurpose) -> Result<Http2Sender, SendError> {
        let is_required = self.config.http2 == Http2::Always;
        let protocols = if is_required { AlpnProtocols::Http2 } else { AlpnProtocols::Either };
        let io = Box::pin(self.connect_for(purpose, protocols))
            .await
            .map_err(|error| SendError::from_connect_error(&error))?;
        // With TLS, the server negotiates the version on every connection. A server without ALPN
        // uses HTTP/1, unless the configuration requires HTTP/2.
        if self.connector.negotiates_alpn() && io.negotiated_http2() != Some(true) && !is_required {
            self.speaks_http2.store(false, Ordering::Relaxed);
            return Err(SendError::NotHttp2);
        }
        spawn_http2(io).await
    }

    /// Classifies the error of a connection that broke during a call. A TLS error means that the
    /// server rejected the proxy's certificate after completing its own handshake.
    pub(super) fn classify_error(&self, error: &hyper::Error) -> SendError {
        match tls::find_tls_failure(error) {
            None if is_evicted(error) => SendError::Evicted,
            None => SendError::Broken,
            Some(failure) => {
                self.record_tls_error(&failure);
                SendError::Tls
            }
        }
    }
}

/// Records in the body of a request that the request occupies an upstream connection.
pub(super) fn mark_connected(mut request: Request<Body>) -> Request<Body> {
    request.body_mut().on_connect();
    request
}

/// Waits for a connection, unless the request's body is evicted from the buffers in the meantime.
pub(super) async fn connect_or_evicted<T>(
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

/// Returns `true` if a connection ended because the body of its request was evicted from the
/// buffers.
fn is_evicted(error: &hyper::Error) -> bool {
    let mut cause = error.source();
    while let Some(error) = cause {
        if error.is::<EvictedError>() {
            return true;
        }
        cause = error.source();
    }
    false
}

/// Opens an HTTP/2 connection on a stream, driven by a task of its own.
pub(super) async fn spawn_http2(io: UpstreamIo) -> Result<Http2Sender, SendError> {
    let (sender, connection) = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT)
        .initial_stream_window_size(RECEIVE_WINDOW)
        .initial_connection_window_size(RECEIVE_WINDOW)
        .handshake(TokioIo::new(io))
        .await
        .map_err(|_| SendError::Broken)?;
    tokio::spawn(async move {
        // The sender reports the same error to the call.
        connection.await.ok();
    });
    Ok(sender)
}

/// Converts a request to HTTP/2, which requires scheme and authority in the target and no `Host`
/// beside it.
fn to_http2(mut request: Request<Body>, target: &UpstreamTarget) -> Request<Body> {
    let (scheme, authority) = (target.scheme(), target.authority());
    let host = request.headers_mut().remove(http::header::HOST);
    let host = host.as_ref().and_then(|host| host.to_str().ok()).unwrap_or(&authority);
    let target = request.uri().path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
    let uri = http::Uri::builder().scheme(scheme).authority(host).path_and_query(target).build();
    // A `Host` that is not a valid authority is replaced by that of the target. The path is always
    // kept.
    let fallback = || http::Uri::builder().scheme(scheme).authority(authority.as_str()).path_and_query(target).build();
    if let Ok(uri) = uri.or_else(|_| fallback()) {
        *request.uri_mut() = uri;
    }
    *request.version_mut() = Version::HTTP_2;
    request
}

/// Probes for HTTP/2. With TLS, the server chooses with ALPN. Otherwise the client preface and an
/// empty SETTINGS frame are sent, and a server that supports HTTP/2 answers with its own SETTINGS
/// (RFC 9113, section 3.4).
pub(super) async fn probe_http2(connector: &Connector) -> bool {
    let probe = async {
        let mut io = connector.connect(AlpnProtocols::Either).await.ok()?;
        if connector.negotiates_alpn() {
            return (io.negotiated_http2() == Some(true)).then_some(());
        }
        let empty_settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
        io.write_all(PREFACE).await.ok()?;
        io.write_all(&empty_settings).await.ok()?;
        let mut head = [0_u8; 9];
        io.read_exact(&mut head).await.ok()?;
        // Frame head: length u24, type, flags, stream id. SETTINGS has type 4 and is sent on stream
        // 0.
        (head[3] == 4 && head[5..9] == [0; 4]).then_some(())
    };
    if connector.negotiates_alpn() {
        // The connect has its own timeout.
        return probe.await.is_some();
    }
    matches!(timeout(PROBE_TIMEOUT, probe).await, Ok(Some(())))
}
