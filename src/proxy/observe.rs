//! The path of a recognised call in mode `Observe`: it is forwarded unmodified, and a copy is
//! passed to the shadow simulation.
//!
//! The call never waits for the copy: its bytes are shared and not copied, and a call that cannot
//! be observed is skipped and counted. The evaluation belongs to `scheduler::ShadowRecorder`.

use std::sync::Arc;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, Request, Response};

use super::recorder::CallRecorder;
use super::service::{CallArrival, CallRequirements};
use super::{Proxy, RoutingTable};
use crate::backend::Lane;
use crate::body::{Body, BodyTap};
use crate::bounded_body::FrameBuffer;
use crate::memory::BufferGuard;
use crate::protocol::{DigestKey, Endpoint, MergeEligibility, PeerIdentity, UnmergeableReason};
use crate::scheduler::{DeferredParse, ObservedCall, PendingBody, PendingResponse};
use crate::telemetry::names::UnpredictedReason;

/// A tap on the request body, which retains its bytes up to the size limit of a merged call.
#[derive(Debug)]
struct RequestTap {
    coming: Option<(PendingBody, Box<ObservedCall>)>,
    head: Option<Parts>,
    secret: DigestKey,
    pieces: FrameBuffer,
    held: Option<BufferGuard>,
    left: usize,
}

/// A tap on the response body, which reports its end.
#[derive(Debug)]
struct ResponseTap {
    awaited: PendingResponse,
    succeeded: bool,
}

// === impl Proxy ===

impl Proxy {
    /// Forwards a call unmodified and observes it.
    pub(super) async fn observe(
        self: &Arc<Self>,
        table: &RoutingTable,
        endpoint: &Arc<Endpoint>,
        lane: Arc<dyn Lane>,
        request: Request<Body>,
        (arrival, recorder): (CallArrival, CallRecorder),
    ) -> Response<Body> {
        let route = table.route(endpoint.route);
        let (head, body) = request.into_parts();
        let CallRequirements { priority, slo, core_deadlines: times, .. } =
            self.resolve_requirements(table, route, &head.headers, arrival.at);
        let passing = ObservedCall {
            endpoint: endpoint.clone(),
            scope: route.scope,
            priority,
            tenant_weight: table.tenant_weights.of(&head.headers),
            client: arrival.client,
            began: arrival.at,
            deadline: times.first,
            later: times.fallback,
            slo,
            names_protocol: table.names_protocol,
        };
        let (coming, awaited) = self.shadow.register_call();
        let copy = RequestTap {
            coming: Some((coming, Box::new(passing))),
            head: Some(copy_head(&head)),
            secret: self.secret.clone(),
            pieces: FrameBuffer::default(),
            held: Some(self.buffers.empty()),
            left: route.item_bytes_max,
        };
        let body = body.with_tap(Box::new(copy));
        let request = Request::from_parts(head, body);
        let response = self.pass(lane, request, UnmergeableReason::PolicyObserve, recorder, endpoint.dialect).await;
        let succeeded = response.status().is_success();
        response.map(|body| body.with_tap(Box::new(ResponseTap { awaited, succeeded })))
    }
}

/// Copies the parts of a head that parsing needs. Extensions may hold resources of the connection,
/// so only the peer's identity is copied.
fn copy_head(head: &Parts) -> Parts {
    let (mut copy, ()) = Request::new(()).into_parts();
    copy.method.clone_from(&head.method);
    copy.uri.clone_from(&head.uri);
    copy.version = head.version;
    copy.headers.clone_from(&head.headers);
    if let Some(peer) = head.extensions.get::<PeerIdentity>() {
        copy.extensions.insert(*peer);
    }
    copy
}

// === impl RequestTap ===

impl RequestTap {
    fn skip(&mut self, reason: UnpredictedReason) {
        if let Some((coming, _)) = self.coming.take() {
            coming.skip(reason);
        }
        (self.pieces, self.held) = (FrameBuffer::default(), None);
    }
}

impl BodyTap for RequestTap {
    fn data(&mut self, data: &Bytes) {
        let Some(held) = &mut self.held else { return };
        match self.left.checked_sub(data.len()) {
            None => self.skip(UnpredictedReason::TooLarge),
            Some(_) if held.grow(data.len()).is_err() => self.skip(UnpredictedReason::BuffersFull),
            Some(left) => {
                self.left = left;
                self.pieces.push(data.clone());
            }
        }
    }

    fn end(&mut self, trailers: bool) {
        let (Some((coming, passing)), Some(head), Some(held)) =
            (self.coming.take(), self.head.take(), self.held.take())
        else {
            return;
        };
        let (endpoint, secret) = (passing.endpoint.clone(), self.secret.clone());
        let bytes = std::mem::take(&mut self.pieces).join();
        let read = move || {
            let mut call = endpoint.parse_call(&head, bytes, &secret);
            // The body is already forwarded, so only the properties of the call are retained.
            (call.body, call.head.headers) = (Bytes::new(), HeaderMap::new());
            if trailers && matches!(call.merge, MergeEligibility::With(_)) {
                call.merge = MergeEligibility::Unbatched(UnmergeableReason::Header);
            }
            drop(held);
            call
        };
        coming.on_body_complete(passing, DeferredParse(Box::new(read)));
    }
}

// === impl ResponseTap ===

impl BodyTap for ResponseTap {
    fn data(&mut self, _: &Bytes) {}

    fn end(&mut self, _: bool) {
        self.awaited.on_response(self.succeeded);
    }
}
