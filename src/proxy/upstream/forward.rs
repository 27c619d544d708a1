//! Forwarding of calls that are not merged, on an upstream connection pinned to that of the client.
//!
//! Status, body, trailers, and end-to-end headers with their number and order within a name are
//! preserved in both directions. The framing is generated again on each side, so requests cannot be
//! smuggled. No header such as `Via`, `Date` or `X-Forwarded-For` is added.

use std::sync::Arc;
use std::task::Context;

use futures_util::future::BoxFuture;
use futures_util::{FutureExt, TryFutureExt};
use http::{HeaderMap, Request, Response, StatusCode, Version};
use hyper::body::Incoming;
use hyper::client::conn::TrySendError;

use super::Inner;
use super::client::connect_or_evicted;
use super::concurrent::forward;
use super::failure::SendError;
use super::head::{frame, prepare_upstream_head, requested_upgrade};
use super::lane::PinnedUpstream;
use super::permits::ConnectionPurpose;
use crate::backend::{ByteStream, Forwarder, Lane};
use crate::body::Body;
use crate::error::{Failure, FailureKind};
use crate::protocol::{BatchResponse, Call, Endpoint, headers};
use crate::tls::AlpnProtocols;

/// The interface for all calls that are not merged.
#[derive(Debug)]
pub(super) struct LaneForwarder(pub(super) Arc<Inner>);

impl Forwarder for LaneForwarder {
    fn lane(&self) -> Arc<dyn Lane> {
        Arc::new(PinnedUpstream::new(self.0.clone()))
    }

    fn open_connection(&self) -> BoxFuture<'static, std::io::Result<Box<dyn ByteStream>>> {
        let inner = self.0.clone();
        async move {
            Ok(Box::new(inner.connect_for(&ConnectionPurpose::Client, AlpnProtocols::Http1).await?)
                as Box<dyn ByteStream>)
        }
        .boxed()
    }

    fn forward_once(&self, request: Request<Body>) -> BoxFuture<'static, Result<Response<Body>, Failure>> {
        forward_unbatched(self.0.clone(), request).boxed()
    }

    fn observe_answer(&self, headers: &HeaderMap) {
        self.0.identity.on_client_response(headers, self.0.health.recovery_count());
    }

    fn observe_unbatched(&self, endpoint: &Endpoint, call: &Call, answer: BatchResponse<'_>) {
        endpoint.observe_unbatched(call, answer, &self.0.evidence);
        endpoint.observe_tokens(&[call], answer, &self.0.tokens);
    }

    fn observe_stream(&self, call: (&Arc<Endpoint>, &Arc<Call>), head: (StatusCode, &HeaderMap), body: Body) -> Body {
        self.0.observe_stream(call, head, body)
    }
}

// === impl PinnedUpstream ===

impl Lane for PinnedUpstream {
    fn send(self: Arc<Self>, mut request: Request<Body>) -> BoxFuture<'static, Result<Response<Body>, Failure>> {
        if request.version() == Version::HTTP_2
            || self.inner.config.http2 == super::Http2::Always
            || requested_upgrade(request.headers(), request.version()).is_some()
        {
            return forward(self, request).boxed();
        }
        prepare_upstream_head(&mut request, None);
        frame(&mut request);
        request.body_mut().set_activity(self.wire.moved());
        // The body is bound to the open connection, or to the one that is opened for it.
        request.body_mut().on_connect();
        match self.wire.try_send(request) {
            Ok(sent) => Box::pin(async move {
                match sent.await {
                    Ok(response) => Ok(self.prepare_response(response)),
                    Err(error) => Box::pin(self.send_again(error)).await,
                }
            }),
            Err(request) => Box::pin(async move { self.send_when_idle(request).await }),
        }
    }

    fn was_reused(&self) -> bool {
        self.wire.was_reused()
    }

    fn client_speaks_http2(&self) {
        let inner = self.inner.clone();
        tokio::spawn(async move { inner.probe_http2().await });
    }

    fn poll_drive(&self, cx: &mut Context<'_>) {
        self.wire.poll_drive(cx, self.inner.config.pass_through_idle_timeout);
    }
}

impl PinnedUpstream {
    /// Sends once the connection has nothing in flight.
    async fn send_when_idle(&self, request: Request<Body>) -> Result<Response<Body>, Failure> {
        self.wire.wait_idle().await;
        match self.wire.try_send(request) {
            Ok(sent) => match sent.await {
                Ok(response) => Ok(self.prepare_response(response)),
                Err(error) => self.send_again(error).await,
            },
            Err(request) => self.send_fresh(request).await,
        }
    }

    /// Sends the call on a fresh connection if the server closed the idle one before anything was
    /// written. Otherwise the call fails.
    async fn send_again(&self, mut error: TrySendError<Request<Body>>) -> Result<Response<Body>, Failure> {
        match error.take_message() {
            Some(request) => self.send_fresh(request).await,
            None => Err(self.failure(error.error())),
        }
    }

    async fn send_fresh(&self, mut request: Request<Body>) -> Result<Response<Body>, Failure> {
        let opening = self.inner.connect_for(&ConnectionPurpose::Client, AlpnProtocols::Http1);
        let opening = opening.map_err(|error| SendError::from_connect_error(&error));
        let io = connect_or_evicted(&mut request, opening).await.map_err(SendError::failure)?;
        match self.wire.connect(io, request).await.map_err(SendError::failure)? {
            Ok(response) => Ok(self.prepare_response(response)),
            Err(error) => Err(self.failure(error.error())),
        }
    }

    fn failure(&self, error: &hyper::Error) -> Failure {
        if self.wire.has_stalled() {
            FailureKind::UpstreamTimeout.into()
        } else {
            self.inner.classify_error(error).failure()
        }
    }

    /// Prepares the response for an HTTP/1 client.
    fn prepare_response(&self, mut response: Response<Incoming>) -> Response<Body> {
        headers::strip_hop_by_hop(response.headers_mut());
        *response.version_mut() = Version::HTTP_11;
        response.extensions_mut().clear();
        let limit = self.inner.config.pass_through_idle_timeout;
        response.map(|body| Body::stream(body).with_idle_timeout(limit, Some(self.wire.moved())))
    }
}

/// Forwards a call on a connection that carries no earlier response.
async fn forward_unbatched(inner: Arc<Inner>, mut request: Request<Body>) -> Result<Response<Body>, Failure> {
    let version = request.version();
    if version == Version::HTTP_2 {
        inner.probe_http2().await;
    }
    prepare_upstream_head(&mut request, None);
    frame(&mut request);
    let response = inner.send(request, version == Version::HTTP_2).await;
    let (mut head, incoming) = response.map_err(SendError::failure)?.into_parts();
    inner.identity.on_client_response(&head.headers, inner.health.recovery_count());
    headers::strip_hop_by_hop(&mut head.headers);
    head.version = if version == Version::HTTP_2 { Version::HTTP_2 } else { Version::HTTP_11 };
    head.extensions.clear();
    Ok(Response::from_parts(head, Body::stream(incoming)))
}
