//! Connection setup: TCP, TLS, HTTP/2, the request, and the response headers.

use std::fmt;
use std::io::Read;
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Request, Response, StatusCode};
use http_body::{Body, Frame};
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::address::ControllerAddress;
use super::{ControlClientConfig, DisconnectReason, SessionEnd};
use crate::wire::PATH;

/// Maximum number of bytes read from the token file. Tokens have about 1 KiB.
const TOKEN_BYTES_MAX: u64 = 8 << 10;
/// Frames buffered between the session and the connection: the one that is written next, and one
/// more.
const FRAMES_MAX: usize = 2;
/// Interval of HTTP/2 pings on an idle connection, which detect a node that vanished without
/// closing its connections.
const PING_INTERVAL: Duration = Duration::from_secs(20);
const PING_TIMEOUT: Duration = Duration::from_secs(10);
/// Flow-control window of the response. A `SidecarConfig` of 1 MiB arrives in parts.
const WINDOW: u32 = 64 << 10;
/// Maximum number of bytes of an error response that are logged.
const WHY_BYTES_MAX: usize = 256;

#[derive(Debug)]
pub(super) struct OpenStream {
    /// Sender of frames to the controller.
    pub(super) up: mpsc::Sender<Bytes>,
    /// Response with the frames of the controller in its body.
    pub(super) response: Response<Incoming>,
    /// Drives the connection, which is closed when this is dropped.
    pub(super) _driver: AbortOnDrop,
}

#[derive(Debug)]
pub(super) struct AbortOnDrop(AbortHandle);

/// Request body that yields frames as they are sent.
struct FrameBody(mpsc::Receiver<Bytes>);

pub(super) async fn open(config: &ControlClientConfig, address: &ControllerAddress) -> Result<OpenStream, SessionEnd> {
    let token = read_token(&config.token).await?;
    let connected = tokio::time::timeout(config.times.connect, Box::pin(connect(config, address))).await;
    let stream = connected.unwrap_or_else(|_| {
        Err(SessionEnd::new(DisconnectReason::Connect, &format!("connection to {address} timed out")))
    })?;
    let mut http = http2::Builder::new(TokioExecutor::new());
    http.timer(TokioTimer::new())
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT);
    let broken = |error: hyper::Error| {
        SessionEnd::new(DisconnectReason::Handshake, &format!("HTTP/2 connection to {address} failed: {error}"))
    };
    let (mut requests, connection) = http.handshake(TokioIo::new(stream)).await.map_err(broken)?;
    let driver = AbortOnDrop(
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "the connection of the control stream failed");
            }
        })
        .abort_handle(),
    );
    let (up, frames) = mpsc::channel(FRAMES_MAX);
    let authority = ControllerAddress { host: config.server_name.clone(), port: config.address.port };
    let request = Request::post(format!("https://{authority}{PATH}"))
        .header(AUTHORIZATION, token)
        .header(CONTENT_TYPE, "application/octet-stream")
        .body(FrameBody(frames))
        .map_err(|error| SessionEnd::new(DisconnectReason::Handshake, &format!("cannot build the request: {error}")))?;
    let answered = tokio::time::timeout(config.times.answer, requests.send_request(request)).await;
    let response = match answered {
        Ok(Ok(response)) => response,
        Ok(Err(error)) => return Err(broken(error)),
        Err(_) => {
            return Err(SessionEnd::new(
                DisconnectReason::Silent,
                &format!("{address} did not respond to the request in time"),
            ));
        }
    };
    if response.status() == StatusCode::OK {
        Ok(OpenStream { up, response, _driver: driver })
    } else {
        Err(refusal_from_response(address, response).await)
    }
}

async fn connect(
    config: &ControlClientConfig,
    address: &ControllerAddress,
) -> Result<TlsStream<TcpStream>, SessionEnd> {
    let no_way = |reason, error: &dyn fmt::Display| SessionEnd::new(reason, &format!("{address}: {error}"));
    let tls = config.trust.client_config().await.map_err(|error| no_way(DisconnectReason::Certificate, &error))?;
    let name = ServerName::try_from(config.server_name.clone())
        .map_err(|error| no_way(DisconnectReason::Certificate, &error))?;
    let stream = TcpStream::connect((address.host.as_str(), address.port))
        .await
        .map_err(|error| no_way(DisconnectReason::Connect, &error))?;
    // Setting the option fails only on a socket that is already closed.
    stream.set_nodelay(true).ok();
    let stream = TlsConnector::from(tls).connect(name, stream).await.map_err(|error| {
        let certificate = error
            .get_ref()
            .and_then(|error| error.downcast_ref::<rustls::Error>())
            .is_some_and(|error| matches!(error, rustls::Error::InvalidCertificate(_)));
        no_way(if certificate { DisconnectReason::Certificate } else { DisconnectReason::Handshake }, &error)
    })?;
    if stream.get_ref().1.alpn_protocol() != Some(b"h2") {
        return Err(SessionEnd::new(DisconnectReason::Handshake, &format!("{address} does not support HTTP/2")));
    }
    Ok(stream)
}

async fn read_token(path: &Path) -> Result<HeaderValue, SessionEnd> {
    let path = path.to_owned();
    let read = tokio::task::spawn_blocking(move || {
        let mut text = String::new();
        let unreadable = |error: std::io::Error| {
            SessionEnd::new(DisconnectReason::Token, &format!("cannot read the token {}: {error}", path.display()))
        };
        let file = std::fs::File::open(&path).map_err(unreadable)?;
        file.take(TOKEN_BYTES_MAX).read_to_string(&mut text).map_err(unreadable)?;
        let mut value = HeaderValue::from_str(&format!("Bearer {}", text.trim())).map_err(|_| {
            SessionEnd::new(
                DisconnectReason::Token,
                &format!("the file {} does not contain a valid token", path.display()),
            )
        })?;
        value.set_sensitive(true);
        Ok(value)
    });
    read.await.unwrap_or_else(|_| Err(SessionEnd::new(DisconnectReason::Token, "the read of the token panicked")))
}

/// Converts an error response into the reason why no stream was opened.
async fn refusal_from_response(address: &ControllerAddress, response: Response<Incoming>) -> SessionEnd {
    let reason = match response.status() {
        StatusCode::UNAUTHORIZED => DisconnectReason::Unauthorized,
        StatusCode::FORBIDDEN => DisconnectReason::Forbidden,
        StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS => DisconnectReason::Busy,
        _ => DisconnectReason::Refused,
    };
    let seconds = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse::<u32>().ok());
    let status = response.status();
    let mut body = response.into_body();
    // The reason is one sentence in one frame. A slow or missing body is not waited for.
    let first = std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context));
    let detail = match tokio::time::timeout(Duration::from_secs(1), first).await {
        Ok(Some(Ok(frame))) => frame.into_data().unwrap_or_default(),
        _ => Bytes::new(),
    };
    let detail =
        String::from_utf8_lossy(detail.get(..WHY_BYTES_MAX.min(detail.len())).unwrap_or_default()).trim().to_owned();
    // `Retry-After` is capped at 15 s. With its jitter the wait stays within 30 s.
    let not_before = Duration::from_secs(seconds.unwrap_or(0).min(15).into());
    SessionEnd { not_before, ..SessionEnd::new(reason, &format!("{address} responded {status}: {detail}")) }
}

// === impl AbortOnDrop ===

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

// === impl FrameBody ===

impl Body for FrameBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        self.0.poll_recv(context).map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes))))
    }
}
