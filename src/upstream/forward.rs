//! What is not merged: carried as it came, on an upstream connection pinned to its client's
//! connection.
//!
//! Status, body, trailers, end-to-end headers, their number and their order within a name stay as
//! they are, both ways; the framing is made anew on either side, so nothing can be smuggled.
//! Nothing is added: no `Via`, no `Date`, no `X-Forwarded-For`.

use std::sync::Arc;
use std::task::Context;

use futures_util::future::BoxFuture;
use futures_util::{FutureExt, TryFutureExt};
use http::header::{self, HeaderName, HeaderValue};
use http::{HeaderMap, Request, Response, Version};
use http_body::Body as _;
use hyper::body::Incoming;
use hyper::client::conn::TrySendError;

use super::Inner;
use super::beside::{Connections, forward};
use super::client::{SendError, unless_evicted};
use super::places::Purpose;
use super::wire::PinnedWire;
use crate::backend::{Duplex, Forward, Lane};
use crate::body::Body;
use crate::error::{Failure, FailureKind};
use crate::protocol::{Call, Endpoint, SharedAnswer, headers};
use crate::tls::Speak;

/// The port for everything that is not merged.
#[derive(Debug)]
pub(super) struct Lanes(pub(super) Arc<Inner>);

/// The way of one client connection.
#[derive(Debug)]
pub(super) struct Pinned {
    pub(super) inner: Arc<Inner>,
    /// Of a client that speaks HTTP/1, which sends one call after the other.
    wire: PinnedWire,
    pub(super) connections: Connections,
}

impl Forward for Lanes {
    fn lane(&self) -> Arc<dyn Lane> {
        Arc::new(Pinned { inner: self.0.clone(), wire: PinnedWire::default(), connections: Connections::default() })
    }

    fn open(&self) -> BoxFuture<'static, std::io::Result<Box<dyn Duplex>>> {
        let inner = self.0.clone();
        async move { Ok(Box::new(inner.connect_for(&Purpose::Client, Speak::Http1).await?) as Box<dyn Duplex>) }.boxed()
    }

    fn alone(&self, request: Request<Body>) -> BoxFuture<'static, Result<Response<Body>, Failure>> {
        alone(self.0.clone(), request).boxed()
    }

    fn observe_answer(&self, headers: &HeaderMap) {
        self.0.heard.answered(headers);
    }

    fn observe_lone(&self, endpoint: &Endpoint, call: &Call, answer: SharedAnswer<'_>) {
        endpoint.observe_lone(call, answer, &self.0.evidence);
    }
}

// === impl Pinned ===

impl Lane for Pinned {
    fn send(self: Arc<Self>, mut request: Request<Body>) -> BoxFuture<'static, Result<Response<Body>, Failure>> {
        if request.version() == Version::HTTP_2
            || self.inner.config.http2 == super::Http2::Always
            || wanted_upgrade(request.headers(), request.version()).is_some()
        {
            return forward(self, request).boxed();
        }
        prepare(&mut request, None);
        frame(&mut request);
        request.body_mut().mark(self.wire.moved());
        // Its connection, or the one that is made for it.
        request.body_mut().on_connect();
        match self.wire.try_send(request) {
            Ok(sent) => Box::pin(async move {
                match sent.await {
                    Ok(response) => Ok(self.answer(response)),
                    Err(error) => Box::pin(self.send_again(error)).await,
                }
            }),
            Err(request) => Box::pin(async move { self.send_settled(request).await }),
        }
    }

    fn was_reused(&self) -> bool {
        self.wire.was_reused()
    }

    fn client_speaks_http2(&self) {
        let inner = self.inner.clone();
        tokio::spawn(async move { inner.learn_http2().await });
    }

    fn poll_drive(&self, cx: &mut Context<'_>) {
        self.wire.poll_drive(cx, self.inner.config.pass_through_idle_timeout);
    }
}

impl Pinned {
    /// Sends once the wire has nothing in flight.
    async fn send_settled(&self, request: Request<Body>) -> Result<Response<Body>, Failure> {
        self.wire.settle().await;
        match self.wire.try_send(request) {
            Ok(sent) => match sent.await {
                Ok(response) => Ok(self.answer(response)),
                Err(error) => self.send_again(error).await,
            },
            Err(request) => self.send_fresh(request).await,
        }
    }

    /// The server closed the idle connection before anything was written: nothing was sent, so a
    /// fresh connection may carry it.
    async fn send_again(&self, mut error: TrySendError<Request<Body>>) -> Result<Response<Body>, Failure> {
        match error.take_message() {
            Some(request) => self.send_fresh(request).await,
            None => Err(self.failure(error.error())),
        }
    }

    async fn send_fresh(&self, mut request: Request<Body>) -> Result<Response<Body>, Failure> {
        let opening = self.inner.connect_for(&Purpose::Client, Speak::Http1);
        let opening = opening.map_err(|error| SendError::connecting(&error));
        let io = unless_evicted(&mut request, opening).await.map_err(SendError::failure)?;
        match self.wire.connect(io, request).await.map_err(SendError::failure)? {
            Ok(response) => Ok(self.answer(response)),
            Err(error) => Err(self.failure(error.error())),
        }
    }

    fn failure(&self, error: &hyper::Error) -> Failure {
        if self.wire.has_stalled() { FailureKind::UpstreamTimeout.into() } else { self.inner.broken(error).failure() }
    }

    /// The answer to a client that speaks HTTP/1, made fit to be given on.
    fn answer(&self, mut response: Response<Incoming>) -> Response<Body> {
        headers::strip_hop_by_hop(response.headers_mut());
        *response.version_mut() = Version::HTTP_11;
        response.extensions_mut().clear();
        let limit = self.inner.config.pass_through_idle_timeout;
        response.map(|body| Body::from(body).idle_after(limit, Some(self.wire.moved())))
    }
}

/// Carries a call on a connection of its own, which no earlier answer can linger on.
async fn alone(inner: Arc<Inner>, mut request: Request<Body>) -> Result<Response<Body>, Failure> {
    let version = request.version();
    if version == Version::HTTP_2 {
        inner.learn_http2().await;
    }
    prepare(&mut request, None);
    frame(&mut request);
    let response = inner.send_as(request, version == Version::HTTP_2).await;
    let (mut head, incoming) = response.map_err(SendError::failure)?.into_parts();
    inner.heard.answered(&head.headers);
    headers::strip_hop_by_hop(&mut head.headers);
    head.version = if version == Version::HTTP_2 { Version::HTTP_2 } else { Version::HTTP_11 };
    head.extensions.clear();
    Ok(Response::from_parts(head, Body::from(incoming)))
}

/// Makes a client's head fit to be sent on: origin form, one `Host`, no hop-by-hop headers, no
/// `Expect` that was answered here.
pub(super) fn prepare<B>(request: &mut Request<B>, upgrade: Option<&HeaderValue>) {
    if let Some(authority) = request.uri().authority() {
        // Absolute form, or HTTP/2: the target wins over the Host header.
        if let Ok(host) = HeaderValue::from_str(authority.as_str()) {
            request.headers_mut().insert(header::HOST, host);
        }
    }
    if request.version() == Version::HTTP_2 {
        join_cookies(request.headers_mut());
    }
    if request.uri().scheme().is_some() || request.uri().authority().is_some() {
        let origin = request.uri().path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
        // What was a target a moment ago still is one.
        if let Ok(uri) = origin.parse() {
            *request.uri_mut() = uri;
        }
    }
    let headers = request.headers_mut();
    headers::strip_hop_by_hop(headers);
    if headers.get(header::EXPECT).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"100-continue")) {
        headers.remove(header::EXPECT);
    }
    if let Some(protocol) = upgrade {
        headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(header::UPGRADE, protocol.clone());
    }
    if request.version() != Version::HTTP_10 {
        *request.version_mut() = Version::HTTP_11;
    }
    request.extensions_mut().clear();
}

/// A body of unknown length goes in chunks whatever the method: hyper sends none with a GET or HEAD
/// unless the head says so.
pub(super) fn frame(request: &mut Request<Body>) {
    if !request.body().is_end_stream() && request.body().size_hint().exact().is_none() {
        request.headers_mut().insert(header::TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
    }
}

/// HTTP/2 may cut a cookie in pieces; HTTP/1.1 wants it whole (RFC 9113, 8.2.3).
fn join_cookies(headers: &mut HeaderMap) {
    if headers.get_all(header::COOKIE).iter().count() < 2 {
        return;
    }
    let joined = headers.get_all(header::COOKIE).iter().map(HeaderValue::as_bytes).collect::<Vec<_>>().join(&b"; "[..]);
    if let Ok(joined) = HeaderValue::from_bytes(&joined) {
        headers.insert(header::COOKIE, joined);
    }
}

/// The protocol that the client wants to switch to; `h2c` is not offered, so it is not asked for
/// upstream either.
pub(super) fn wanted_upgrade(headers: &HeaderMap, version: Version) -> Option<HeaderValue> {
    static H2C: HeaderValue = HeaderValue::from_static("h2c");
    let nominated = |name: &HeaderName| {
        headers.get_all(header::CONNECTION).iter().any(|value| {
            value
                .as_bytes()
                .split(|byte| *byte == b',')
                .any(|token| token.trim_ascii().eq_ignore_ascii_case(name.as_str().as_bytes()))
        })
    };
    let protocol = headers.get(header::UPGRADE)?;
    (version == Version::HTTP_11 && protocol != H2C && nominated(&header::UPGRADE)).then(|| protocol.clone())
}
