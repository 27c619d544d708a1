//! Choice of the endpoint of a recognised call where its path alone does not determine it: by the
//! content type, by what is known of the model server, and by the body.

use std::sync::Arc;

use http::Request;
use hyper::body::Incoming;

use super::unbatched::BufferedRequest;
use super::{Proxy, RouteMode, RoutingTable};
use crate::protocol::{Call, Endpoint, LimitsSource, MergeEligibility, UnmergeableReason};

// === impl Proxy ===

impl Proxy {
    /// Returns the endpoint for the head of a call.
    pub(super) fn choose_endpoint(
        &self,
        table: &RoutingTable,
        recognised: Arc<Endpoint>,
        request: &Request<Incoming>,
    ) -> Arc<Endpoint> {
        if let Some(tensors) = table.routes.tensor_form(&recognised, request.headers()) {
            return tensors;
        }
        if table.routes.depends_on_model(&recognised) {
            let kind = self.backend.published_limits(&LimitsSource::Info).limits().and_then(|limits| limits.model_kind);
            return kind.and_then(|kind| table.routes.model_form(&recognised, kind)).unwrap_or(recognised);
        }
        let merging = table.routes.merging_form(&recognised, request.uri().path());
        match merging.filter(|_| table.route(recognised.route).mode != RouteMode::Passthrough) {
            // Calls for text are merged once the server is known not to batch them by itself.
            Some(merging) if self.backend.batches_text() == Some(false) => merging,
            _ => recognised,
        }
    }

    /// Parses a call. One for a reranker is parsed in the form of its body, where the server executes
    /// both. One for text that cannot be merged is queued like all calls for text, which have limits
    /// and measurements of their own.
    pub(super) fn parse_call(
        &self,
        table: &RoutingTable,
        endpoint: &Arc<Endpoint>,
        buffered: &BufferedRequest,
    ) -> (Arc<Endpoint>, Call) {
        let parse = |endpoint: &Endpoint| endpoint.parse_call(&buffered.head, buffered.bytes.clone(), &self.secret);
        let mut call = parse(endpoint);
        if let Some(class) = self.class_once_merged(table, endpoint, &call, buffered) {
            call.cost_class = class;
        }
        if call.unbatched_reason() == Some(UnmergeableReason::ItemForm)
            && self.backend.executes_members()
            && let Some(documents) = table.routes.documents_form(endpoint)
        {
            let own = parse(&documents);
            if own.unbatched_reason().is_none() {
                return (documents, own);
            }
        }
        let reason = call.unbatched_reason().filter(|_| table.admits_generation);
        let queued = || table.routes.queued_form(endpoint, buffered.head.uri.path());
        let Some((reason, queued)) = reason.and_then(|reason| Some((reason, queued()?))) else {
            return (endpoint.clone(), call);
        };
        let mut call = parse(&queued);
        call.merge = MergeEligibility::Unbatched(reason);
        (queued, call)
    }

    /// Returns the cost class that a call for text, parsed by the endpoint `queued`, has once the
    /// server is known not to batch by itself. `None` if it keeps its own.
    ///
    /// The calls that are merged then queue in the server behind those from before. In another
    /// class these would not count as in flight, so latency would seem not to depend on the load,
    /// and a constant load would show no knee.
    fn class_once_merged(
        &self,
        table: &RoutingTable,
        queued: &Endpoint,
        call: &Call,
        buffered: &BufferedRequest,
    ) -> Option<Box<[u8]>> {
        let merging = table.routes.merging_form(queued, buffered.head.uri.path())?;
        // Streams have classes of their own, whose limit follows from their tokens.
        if call.streaming || self.backend.batches_text() == Some(true) {
            return None;
        }
        let merged = merging.parse_call(&buffered.head, buffered.bytes.clone(), &self.secret);
        merged.unbatched_reason().is_none().then_some(merged.cost_class)
    }
}
