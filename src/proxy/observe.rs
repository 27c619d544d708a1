//! The path of a recognised call in mode `Observe`: it is forwarded unmodified, and a copy is
//! passed to the shadow simulation.
//!
//! The call never waits for the copy: its bytes are shared and not copied, and a call that cannot
//! be observed is skipped and counted. The evaluation belongs to `scheduler::Onlooker`.

use std::sync::Arc;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, Request, Response};

use super::merge::Asked;
use super::record::Ending;
use super::{Proxy, Table};
use crate::backend::Lane;
use crate::batching::Tick;
use crate::body::{Body, Tap};
use crate::gather::Pieces;
use crate::memory::Held;
use crate::protocol::{Endpoint, Merge, Peer, Reason, Secret};
use crate::scheduler::{Awaited, Coming, Passing, Reading};
use crate::telemetry::names::Unpredicted;

/// A tap on the request body, which retains its bytes up to the size limit of a merged call.
#[derive(Debug)]
struct Copy {
    coming: Option<(Coming, Box<Passing>)>,
    head: Option<Parts>,
    secret: Secret,
    pieces: Pieces,
    held: Option<Held>,
    left: usize,
}

/// A tap on the response body, which reports its end.
#[derive(Debug)]
struct Answer {
    awaited: Awaited,
    well: bool,
}

// === impl Proxy ===

impl Proxy {
    /// Forwards a call unmodified and observes it.
    pub(super) async fn observe(
        self: &Arc<Self>,
        table: &Table,
        endpoint: &Arc<Endpoint>,
        lane: Arc<dyn Lane>,
        request: Request<Body>,
        (arrived, ending): (Tick, Ending),
    ) -> Response<Body> {
        let route = table.route(endpoint.route);
        let (head, body) = request.into_parts();
        let Asked { priority, slo, times, .. } = self.asks(table, route, &head.headers, arrived);
        let passing = Passing {
            endpoint: endpoint.clone(),
            scope: route.scope,
            priority,
            tenant_weight: table.tenant_weights.of(&head.headers),
            began: arrived,
            deadline: times.first,
            later: times.later,
            slo,
            names_protocol: table.names_protocol,
        };
        let (coming, awaited) = self.onlooker.begins();
        let copy = Copy {
            coming: Some((coming, Box::new(passing))),
            head: Some(head_of(&head)),
            secret: self.secret.clone(),
            pieces: Pieces::default(),
            held: Some(self.buffers.empty()),
            left: route.item_bytes_max,
        };
        let body = body.tapped(Box::new(copy));
        let request = Request::from_parts(head, body);
        let response = self.pass(lane, request, Reason::PolicyObserve, ending, endpoint.dialect).await;
        let well = response.status().is_success();
        response.map(|body| body.tapped(Box::new(Answer { awaited, well })))
    }
}

/// Copies the parts of a head that parsing needs. Extensions may hold resources of the connection,
/// so only the peer's identity is copied.
fn head_of(head: &Parts) -> Parts {
    let (mut copy, ()) = Request::new(()).into_parts();
    copy.method.clone_from(&head.method);
    copy.uri.clone_from(&head.uri);
    copy.version = head.version;
    copy.headers.clone_from(&head.headers);
    if let Some(peer) = head.extensions.get::<Peer>() {
        copy.extensions.insert(*peer);
    }
    copy
}

// === impl Copy ===

impl Copy {
    fn leave_out(&mut self, why: Unpredicted) {
        if let Some((coming, _)) = self.coming.take() {
            coming.left_out(why);
        }
        (self.pieces, self.held) = (Pieces::default(), None);
    }
}

impl Tap for Copy {
    fn data(&mut self, data: &Bytes) {
        let Some(held) = &mut self.held else { return };
        match self.left.checked_sub(data.len()) {
            None => self.leave_out(Unpredicted::TooLarge),
            Some(_) if held.grow(data.len()).is_err() => self.leave_out(Unpredicted::BuffersFull),
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
            let mut call = endpoint.read(&head, bytes, &secret);
            // The body is already forwarded, so only the properties of the call are retained.
            (call.body, call.head.headers) = (Bytes::new(), HeaderMap::new());
            if trailers && matches!(call.merge, Merge::With(_)) {
                call.merge = Merge::Alone(Reason::Header);
            }
            drop(held);
            call
        };
        coming.came(passing, Reading(Box::new(read)));
    }
}

// === impl Answer ===

impl Tap for Answer {
    fn data(&mut self, _: &Bytes) {}

    fn end(&mut self, _: bool) {
        self.awaited.answered(self.well);
    }
}
