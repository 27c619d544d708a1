//! The listener of the controller for control streams: accepts TCP connections of sidecars,
//! performs the TLS and HTTP/2 handshakes, authenticates the request, and opens a stream.

use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::server::ServerConfig;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::registry::{Connection, SWEEP, ServerState};
use super::stream::{ServerStream, StreamBody};
use super::{AuthError, Authenticate, ControllerStreamHandler, ServerLimits, StreamEvent, StreamRegistry};
use crate::clock::Clock;
use crate::permits;
use crate::tls::wait_for_client_hello;
use crate::wire::{FEATURES, FEATURES_HEADER, MINOR, PATH, PROTOCOL_HEADER};

/// Delay after a failed accept, for example for lack of file descriptors. Without it, the loop
/// would consume a whole core until connections are closed.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(50);
/// Maximum duration of a handshake, including the wait for its permit. A sidecar gives up
/// and reconnects much earlier.
const HANDSHAKE_MAX: Duration = Duration::from_secs(30);
/// Flow-control window of a stream, which has room for a usual report; a larger one arrives in
/// parts. Each sidecar can make the server buffer at most one window: 313 MiB for ten thousand
/// sidecars.
const STREAM_WINDOW: u32 = 32 << 10;
/// Maximum size of the request headers: a `ServiceAccount` token of up to 8 KiB, and other headers.
const HEAD_BYTES_MAX: u32 = 16 << 10;
/// Maximum number of bytes in the send buffer of a stream. A pushed message may be larger: it is
/// encoded once, and all streams share it until it is encrypted (`EncodedPush`).
const SEND_BYTES_MAX: usize = 32 << 10;

/// Serves streams on `port` until `stop` is `true`. From then on no connection is accepted, and the
/// returned future completes when all streams have ended. A `Goaway` that is pushed to all streams
/// before makes their sidecars reconnect to another replica.
///
/// Nothing is served until the returned future is polled. The returned [`StreamRegistry`] can be
/// used before.
pub fn serve(
    port: TcpListener,
    tls: Arc<ServerConfig>,
    (auth, handler): (Arc<dyn Authenticate>, Arc<dyn ControllerStreamHandler>),
    limits: ServerLimits,
    (clock, stop): (Clock, watch::Receiver<bool>),
) -> (StreamRegistry, impl Future<Output = ()> + Send + use<>) {
    let streams = StreamRegistry::new(limits, clock, auth, handler);
    let shared = streams.0.clone();
    (streams, run(shared, port, TlsAcceptor::from(tls), stop))
}

async fn run(shared: Arc<ServerState>, port: TcpListener, tls: TlsAcceptor, mut stop: watch::Receiver<bool>) {
    let mut sweep = tokio::time::interval(SWEEP);
    sweep.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut accepting = true;
    while accepting || !shared.is_idle() {
        tokio::select! {
            accepted = port.accept(), if accepting => accept(&shared, &tls, accepted).await,
            _ = sweep.tick() => shared.sweep(shared.clock.now()),
            () = wait_for_stop(&mut stop), if accepting => accepting = false,
        }
    }
}

async fn wait_for_stop(stop: &mut watch::Receiver<bool>) {
    // An error means that the sender was dropped, which happens only at the end of the process.
    stop.wait_for(|stop| *stop).await.ok();
}

async fn accept(shared: &Arc<ServerState>, tls: &TlsAcceptor, accepted: io::Result<(TcpStream, SocketAddr)>) {
    let (stream, peer) = match accepted {
        Ok(accepted) => accepted,
        Err(error) => {
            tracing::warn!(%error, "cannot accept a connection on the port of control streams");
            shared.counts.increment(StreamEvent::Shed);
            tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
            return;
        }
    };
    let added = shared.add_connection(peer.ip()).map(|connection| StreamPermit { shared: shared.clone(), connection });
    let Some((permit, waiting)) = added.and_then(|permit| Some((permit, shared.waiting.take(peer.ip())?))) else {
        shared.counts.increment(StreamEvent::Shed);
        return;
    };
    // Setting the option fails only on a socket that is already closed.
    stream.set_nodelay(true).ok();
    let connection = permit.connection.clone();
    let tls = tls.clone();
    let task = tokio::spawn(async move {
        let StreamPermit { shared, connection } = &permit;
        match Box::pin(handshake(shared, &tls, stream, &waiting)).await {
            Some(stream) => serve_until_evicted(shared, connection, stream, waiting).await,
            None => shared.counts.increment(StreamEvent::HandshakeFailed),
        }
    });
    connection.set_task(task.abort_handle());
}

/// A guard that removes a connection from the table of connections on drop.
struct StreamPermit {
    shared: Arc<ServerState>,
    connection: Arc<Connection>,
}

impl Drop for StreamPermit {
    fn drop(&mut self) {
        self.shared.remove_connection(&self.connection);
    }
}

/// Performs the TLS handshake of a connection. It holds `permit` as a connection without an
/// accepted `Hello`, and ends early if it is evicted in favour of a newer one.
async fn handshake(
    shared: &ServerState,
    tls: &TlsAcceptor,
    stream: TcpStream,
    permit: &permits::ConnectionPermit,
) -> Option<TlsStream<TcpStream>> {
    tokio::select! {
        stream = handshake_with_permit(shared, tls, stream) => stream,
        () = permit.wait_for_end(HANDSHAKE_MAX) => None,
    }
}

async fn handshake_with_permit(
    shared: &ServerState,
    tls: &TlsAcceptor,
    stream: TcpStream,
) -> Option<TlsStream<TcpStream>> {
    let timeout = shared.limits.handshake_timeout;
    // A connection takes a permit only after its ClientHello has arrived completely. Otherwise each
    // connection that sends nothing would hold a permit for the whole timeout, and a thousand of
    // them would delay a sidecar by 16 s.
    tokio::time::timeout(timeout, wait_for_client_hello(&stream)).await.ok()?.ok()?;
    // The semaphore is never closed, so a permit becomes available eventually.
    let permit = shared.handshakes.acquire().await.ok()?;
    let mut handshake = pin!(tokio::time::timeout(timeout, tls.accept(stream)));
    // The first poll does nearly all of the computation: it reads the ClientHello, which has
    // arrived, derives the keys, and signs. The permit is released before the second message of the
    // client is awaited, so a client that sends a valid ClientHello and nothing more holds none
    // either.
    let first = poll_fn(|cx| Poll::Ready(handshake.as_mut().poll(cx))).await;
    drop(permit);
    let finished = match first {
        Poll::Ready(finished) => finished,
        Poll::Pending => handshake.await,
    };
    let stream = finished.ok()?.ok()?;
    (stream.get_ref().1.alpn_protocol() == Some(b"h2")).then_some(stream)
}

/// Serves a connection. Until its `Hello` is accepted, it holds `permit` and may be evicted,
/// because a peer without a valid token can complete the TLS handshake too.
async fn serve_until_evicted(
    shared: &Arc<ServerState>,
    connection: &Arc<Connection>,
    stream: TlsStream<TcpStream>,
    permit: permits::ConnectionPermit,
) {
    let mut served = pin!(serve_connection(shared.clone(), connection.clone(), stream));
    tokio::select! {
        biased;
        () = &mut served => return,
        () = connection.opened.notified() => {}
        () = permit.wait_for_end(shared.limits.hello_timeout) => {
            shared.counts.increment(StreamEvent::Idle);
            return;
        }
    }
    drop(permit);
    served.await;
}

async fn serve_connection(shared: Arc<ServerState>, connection: Arc<Connection>, stream: TlsStream<TcpStream>) {
    let mut http = http2::Builder::new(TokioExecutor::new());
    http.timer(TokioTimer::new())
        .initial_stream_window_size(STREAM_WINDOW)
        .max_concurrent_streams(1)
        .max_header_list_size(HEAD_BYTES_MAX)
        .max_send_buf_size(SEND_BYTES_MAX)
        .max_pending_accept_reset_streams(8)
        .auto_date_header(false);
    let service = service_fn(move |request| handle_request(shared.clone(), connection.clone(), request));
    if let Err(error) = http.serve_connection(TokioIo::new(stream), service).await {
        tracing::debug!(%error, "the connection of a control stream failed");
    }
}

async fn handle_request(
    shared: Arc<ServerState>,
    connection: Arc<Connection>,
    request: Request<Incoming>,
) -> Result<Response<StreamBody>, Infallible> {
    if request.uri().path() != PATH || request.method() != Method::POST {
        shared.counts.increment(StreamEvent::NotAStream);
        return Ok(error_response(StatusCode::NOT_FOUND, "not found: open a stream with POST /v1/stream"));
    }
    let authenticated = match bearer_token(request.headers()) {
        Some(token) => shared.auth.authenticate(token).await,
        None => Err(AuthError::Invalid("the request has no bearer token")),
    };
    let refusal = match authenticated {
        Ok(identity) => {
            let stream = ServerStream::new(shared, connection, identity, request.into_body());
            let mut response = Response::new(StreamBody::Stream(Box::new(stream)));
            let protocol = HeaderValue::from_str(&format!("1.{MINOR}")).ok();
            let features = HeaderValue::from_str(&FEATURES.join(",")).ok();
            for (name, value) in [(PROTOCOL_HEADER, protocol), (FEATURES_HEADER, features)] {
                response.headers_mut().extend(value.map(|value| (http::HeaderName::from_static(name), value)));
            }
            return Ok(response);
        }
        Err(refusal) => refusal,
    };
    let (status, event) = match &refusal {
        AuthError::Invalid(_) => (StatusCode::UNAUTHORIZED, StreamEvent::Invalid),
        AuthError::Forbidden(_) => (StatusCode::FORBIDDEN, StreamEvent::Forbidden),
        AuthError::Busy(_) => (StatusCode::SERVICE_UNAVAILABLE, StreamEvent::Busy),
        AuthError::Unavailable(_) => (StatusCode::SERVICE_UNAVAILABLE, StreamEvent::Unavailable),
    };
    shared.counts.increment(event);
    let mut response = error_response(status, &refusal.to_string());
    if let AuthError::Busy(wait) = refusal {
        // Rounded up, so that the sidecar does not return too early.
        let seconds = wait.as_secs() + 1;
        response.headers_mut().insert(RETRY_AFTER, seconds.into());
    }
    Ok(response)
}

fn bearer_token(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

fn error_response(status: StatusCode, reason: &str) -> Response<StreamBody> {
    let mut response = Response::new(StreamBody::Refused(Some(Bytes::from(format!("{reason}\n")))));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}
