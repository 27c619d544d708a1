//! An HTTP/1.1 server for probes, scrapes and the local API, with limits that no peer can exceed.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tower::ServiceExt;

use super::{ConnectionLimiter, ConnectionLimits, ConnectionPermit};

/// Connection limits. Probes and scrapes need only a few connections; the rest absorbs unexpected
/// peers. Each connection holds at most a head of [`HEAD_BYTES_MAX`] and a response of about 100
/// KiB.
const CONNECTION_LIMITS: ConnectionLimits = ConnectionLimits { total: 64, per_peer: 16 };
/// Maximum size of a head, the minimum that hyper accepts. Heads of probes have a few hundred
/// bytes.
const HEAD_BYTES_MAX: usize = 8 << 10;
const HEADERS_MAX: usize = 64;
/// Maximum time without a complete request. It is twice the usual scrape interval, so that
/// connections of scrapers stay open.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum size of a request body, and maximum time to receive it. A change is a small JSON object.
const BODY_BYTES_MAX: usize = 8 << 10;
const BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// Delay after a failed accept. A lack of file descriptors may be short or last, and must neither
/// cause a busy loop nor end the accept loop.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(50);

/// Local address of a connection. It is an extension of the requests of [`serve_router`].
#[derive(Debug, Clone, Copy)]
pub struct LocalAddress(pub SocketAddr);

// === impl LocalAddress ===

impl LocalAddress {
    /// Returns `true` for a loopback address, in its IPv6-mapped form too.
    #[must_use]
    pub fn is_loopback(self) -> bool {
        self.0.ip().to_canonical().is_loopback()
    }
}

/// Serves a router until `stopped` resolves, then completes the requests in progress and returns.
pub async fn serve_router(listener: TcpListener, router: Router, stopped: impl Future<Output = ()>) {
    let graceful = GracefulShutdown::new();
    let limiter = ConnectionLimiter::new(CONNECTION_LIMITS);
    let mut stopped = pin!(stopped);
    let mut is_failing = false;
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = &mut stopped => break,
        };
        match accepted {
            Ok((stream, peer)) => {
                is_failing = false;
                let Some(permit) = limiter.take(peer.ip()) else { continue };
                tokio::spawn(connection(stream, router.clone(), Arc::new(permit), graceful.watcher()));
            }
            Err(error) => {
                if !is_failing {
                    tracing::warn!(%error, "cannot accept a connection on a port for probes");
                }
                is_failing = true;
                tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
            }
        }
    }
    drop(listener);
    graceful.shutdown().await;
}

/// Serves one connection until it ends, is idle for too long, or is evicted.
async fn connection(stream: TcpStream, router: Router, permit: Arc<ConnectionPermit>, watcher: Watcher) {
    // The option fails only on a socket that is already closed.
    stream.set_nodelay(true).ok();
    let local = stream.local_addr().ok().map(LocalAddress);
    let request_permit = permit.clone();
    let service = service_fn(move |request: Request<Incoming>| {
        let (router, permit) = (router.clone(), request_permit.clone());
        async move {
            let (mut head, body) = request.into_parts();
            if let Some(local) = local {
                head.extensions.insert(local);
            }
            // While its body is incomplete the connection waits for its peer, and may be evicted.
            let body = match timeout(BODY_TIMEOUT, Limited::new(body, BODY_BYTES_MAX).collect()).await {
                Ok(Ok(body)) => body.to_bytes(),
                Ok(Err(_)) => return Ok(error_response(StatusCode::PAYLOAD_TOO_LARGE)),
                Err(_) => return Ok(error_response(StatusCode::REQUEST_TIMEOUT)),
            };
            let _busy = permit.mark_busy();
            router.oneshot(Request::from_parts(head, Body::from(body))).await.map_err(|never: Infallible| never)
        }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(IDLE_TIMEOUT)
        .max_buf_size(HEAD_BYTES_MAX)
        .max_headers(HEADERS_MAX);
    let connection = http.serve_connection(TokioIo::new(stream), service);
    tokio::select! {
        // An error is caused by the peer, such as a malformed head or a reset.
        _ = watcher.watch(connection) => {}
        () = permit.wait_for_end(IDLE_TIMEOUT) => {}
    }
}

fn error_response(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    response
}

#[cfg(test)]
mod tests {
    use axum::Extension;
    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// Sends a request on a new connection and returns the first line of the response.
    async fn status_line_of(address: SocketAddr) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET /livez HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer.lines().next().unwrap_or_default().to_owned()
    }

    #[tokio::test]
    async fn silent_connections_and_unfinished_heads_keep_no_probe_out() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new().route("/livez", get(|| async { "ok" }));
        let serving = tokio::spawn(serve_router(listener, router, std::future::pending()));
        let mut held = Vec::new();
        for number in 0..4 * CONNECTION_LIMITS.total {
            let mut stream = TcpStream::connect(address).await.unwrap();
            if number % 2 == 0 {
                stream.write_all(b"GET /livez HTTP/1.1\r\nx: ").await.unwrap();
            }
            held.push(stream);
        }
        assert_eq!(status_line_of(address).await, "HTTP/1.1 200 OK");
        // All connections beyond the share of one address have been closed.
        let (oldest, mut byte) = (&mut held[0], [0]);
        assert!(matches!(oldest.read(&mut byte).await, Ok(0) | Err(_)));
        assert_eq!(status_line_of(address).await, "HTTP/1.1 200 OK");
        serving.abort();
    }

    #[test]
    fn a_mapped_loopback_address_is_loopback() {
        let is_loopback = |text: &str| LocalAddress(text.parse().unwrap()).is_loopback();
        assert!(["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "[::ffff:127.0.0.1]:1"].into_iter().all(is_loopback));
        assert!(!["10.0.0.1:1", "0.0.0.0:1", "[2001:db8::1]:1", "[::ffff:10.0.0.1]:1"].into_iter().any(is_loopback));
    }

    #[tokio::test]
    async fn a_request_carries_the_local_address_of_its_connection() {
        let listener = TcpListener::bind("0.0.0.0:0").await.unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], listener.local_addr().unwrap().port()));
        let handler = move |Extension(local): Extension<LocalAddress>| async move {
            if local.0 == address { StatusCode::OK } else { StatusCode::IM_A_TEAPOT }
        };
        let router = Router::new().route("/livez", get(handler));
        let serving = tokio::spawn(serve_router(listener, router, std::future::pending()));
        assert_eq!(status_line_of(address).await, "HTTP/1.1 200 OK");
        serving.abort();
    }

    #[tokio::test]
    async fn a_large_head_is_refused() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let serving = tokio::spawn(serve_router(listener, Router::new(), std::future::pending()));
        let mut stream = TcpStream::connect(address).await.unwrap();
        let head = format!("GET / HTTP/1.1\r\nhost: h\r\nx: {}\r\n\r\n", "a".repeat(2 * HEAD_BYTES_MAX));
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        // Writing the rest of the head may fail, because the connection may already be closed.
        stream.read_to_end(&mut answer).await.ok();
        assert!(!answer.starts_with(b"HTTP/1.1 2"), "{:?}", String::from_utf8_lossy(&answer));
        serving.abort();
    }
}
