//! Forwarding on connections with tasks of their own: for the concurrent calls of an HTTP/2 client,
//! and for calls that switch protocols.

use std::sync::Arc;

use http::{Request, Response, StatusCode, Version};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;

use super::client::{connect_or_evicted, mark_connected};
use super::failure::SendError;
use super::head::{frame, prepare_upstream_head, requested_upgrade};
use super::lane::PinnedUpstream;
use super::permits::ConnectionPurpose;
use crate::body::{ActivityFlag, Body};
use crate::error::{Failure, FailureKind};
use crate::protocol::headers;
use crate::relay::{relay, run_while_active};

/// Forwards a call on a connection with a task of its own: for an HTTP/2 client, or if the call may
/// switch protocols.
pub(super) async fn forward(lane: Arc<PinnedUpstream>, mut request: Request<Body>) -> Result<Response<Body>, Failure> {
    let inner = lane.inner.clone();
    let version = request.version();
    let upgrade = requested_upgrade(request.headers(), version);
    let from_client = upgrade.is_some().then(|| request.extensions_mut().remove::<OnUpgrade>()).flatten();
    prepare_upstream_head(&mut request, upgrade.as_ref());
    frame(&mut request);
    let limit = inner.config.pass_through_idle_timeout;
    let moved = ActivityFlag::default();
    request.body_mut().set_activity(moved.clone());
    // Boxed so that the state of sending is freed while the response streams.
    let send =
        Box::pin(lane.send_concurrent(request.map(|body| body.with_idle_timeout(limit, Some(moved.clone()))), version));
    let response = match run_while_active(send, limit, &moved).await {
        None => return Err(FailureKind::UpstreamTimeout.into()),
        Some(Err(error)) => return Err(error.failure()),
        Some(Ok(response)) => response,
    };
    let (mut head, incoming) = response.into_parts();
    if head.status == StatusCode::SWITCHING_PROTOCOLS {
        let Some(from_client) = from_client else { return Err(FailureKind::UpstreamBroken.into()) };
        let from_upstream = hyper::upgrade::on(Response::from_parts(head.clone(), incoming));
        tokio::spawn(tunnel(from_client, from_upstream, limit));
        head.extensions.clear();
        head.version = Version::HTTP_11;
        return Ok(Response::from_parts(head, Body::empty()));
    }
    headers::strip_hop_by_hop(&mut head.headers);
    head.version = if version == Version::HTTP_2 { Version::HTTP_2 } else { Version::HTTP_11 };
    head.extensions.clear();
    Ok(Response::from_parts(head, Body::stream(incoming).with_idle_timeout(limit, Some(moved))))
}

/// Relays bytes in both directions after a switch of protocols.
async fn tunnel(client: OnUpgrade, upstream: OnUpgrade, limit: std::time::Duration) {
    let (Ok(client), Ok(upstream)) = tokio::join!(client, upstream) else { return };
    relay(TokioIo::new(client), TokioIo::new(upstream), limit).await;
}

// === impl PinnedUpstream ===

impl PinnedUpstream {
    /// Sends on a pinned connection, or opens one and pins it.
    async fn send_concurrent(
        &self,
        mut request: Request<Body>,
        version: Version,
    ) -> Result<Response<Incoming>, SendError> {
        if self.inner.config.http2 == super::Http2::Always
            || (version == Version::HTTP_2 && self.inner.forwards_http2().await)
        {
            match connect_or_evicted(&mut request, self.connections.http2(&self.inner)).await {
                // The server supports only HTTP/1 now.
                Err(SendError::NotHttp2) => {}
                found => return self.connections.send_http2(&self.inner, found?, mark_connected(request)).await,
            }
        }
        // A call that switches protocols takes over its connection.
        if version != Version::HTTP_2 {
            let mut sender =
                connect_or_evicted(&mut request, self.inner.open_http1(&ConnectionPurpose::Client)).await?;
            return sender.send_request(request).await.map_err(|error| self.inner.classify_error(&error));
        }
        let mut request = match self.connections.take_idle() {
            None => request,
            Some(mut sender) => match sender.try_send_request(mark_connected(request)).await {
                Ok(response) => {
                    self.connections.keep(sender);
                    return Ok(response);
                }
                // The server closed the idle connection before anything was written, so a fresh
                // connection may carry the call.
                Err(mut error) => match error.take_message() {
                    Some(request) => request,
                    None => return Err(SendError::Broken),
                },
            },
        };
        let purpose = ConnectionPurpose::Http2Client(self.open.clone());
        let mut sender = connect_or_evicted(&mut request, self.inner.open_http1(&purpose)).await?;
        let response = sender.send_request(request).await.map_err(|error| self.inner.classify_error(&error))?;
        self.connections.keep(sender);
        Ok(response)
    }
}
