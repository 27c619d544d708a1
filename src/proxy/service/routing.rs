//! Routing of a call by its head: it is answered at once, passes through, or is handled by the
//! endpoint that recognises it.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use http::header::CONNECTION;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use hyper::body::Incoming;

use super::super::debug::take_debug_header;
use super::super::recorder::CallRecorder;
use super::super::{Proxy, RouteMode, RouteSettings, RoutingTable};
use super::CallArrival;
use crate::body::Body;
use crate::protocol::{Dialect, Endpoint, UnmergeableReason, UnrecognisedCall};
use crate::telemetry::names::Outcome as CallOutcome;

pub(in super::super) enum CallRouting {
    /// The call is answered without reading its body.
    Answered(Response<Body>),
    /// The call proceeds.
    Open(PendingRouting),
}

/// Routing decision for a call that is not answered yet.
pub(in super::super) enum PendingRouting {
    /// The call passes through, for this reason.
    Pass(UnmergeableReason, CallRecorder, Dialect),
    /// The call is parsed for batching, or observed while it passes through.
    Recognised(Box<RecognisedCall>),
}

/// A call that an adapter recognised.
pub(in super::super) struct RecognisedCall {
    pub(super) table: Arc<RoutingTable>,
    pub(super) endpoint: Arc<Endpoint>,
    pub(super) arrival: CallArrival,
    pub(super) recorder: CallRecorder,
}

// === impl Proxy ===

impl Proxy {
    /// Decides from the head of a call how it is handled. `client` is the address of its client.
    pub(in super::super) fn route_call(
        self: &Arc<Self>,
        client: IpAddr,
        request: &mut Request<Incoming>,
    ) -> CallRouting {
        let arrived = self.clock.now();
        self.metrics.stats.seen.fetch_add(1, Ordering::Relaxed);
        let mut recorder = CallRecorder::begin(self, arrived);
        if take_debug_header(request.headers_mut()) {
            recorder.enable_debug();
        }
        // For HTTP/1 such a head was already rejected (`connection`). An HTTP/2 head may refer to
        // one entry of the peer's dynamic table a thousand times at one byte each. Nothing of it is
        // retained.
        if has_more_lines(request.headers(), self.config.client.headers_max) {
            let mut response = Response::new(Body::empty());
            *response.status_mut() = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
            recorder.end(CallOutcome::Rejected, &mut response);
            return CallRouting::Answered(response);
        }
        let table = self.table();
        if let Some(tenant) = &table.tenant_header {
            protect_tenant_header(request.headers_mut(), tenant);
        }
        if request.method() == Method::CONNECT {
            let mut response = Response::new(Body::empty());
            *response.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
            // The following bytes belong to a tunnel that does not exist.
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            recorder.end(CallOutcome::Rejected, &mut response);
            return CallRouting::Answered(response);
        }
        let Some(endpoint) = table.routes.recognise(request.method(), request.uri().path()) else {
            let path = request.uri().path();
            let reason = UnmergeableReason::NotRecognised;
            let UnrecognisedCall { cause, route, dialect } = table.routes.unrecognised(request.method(), path);
            recorder.on_unrecognised(reason, cause, route.map(|route| table.route(route)));
            return CallRouting::Open(PendingRouting::Pass(reason, recorder, dialect));
        };
        let endpoint = self.choose_endpoint(&table, endpoint, request);
        let route = table.route(endpoint.route);
        recorder.on_recognised(endpoint.label.as_str(), route);
        recorder.set_slo(route.slo);
        CallRouting::Open(match pass_reason(&table, route, &endpoint, request) {
            Some(reason) => PendingRouting::Pass(reason, recorder, endpoint.dialect),
            None => {
                let arrival = CallArrival { at: arrived, client };
                PendingRouting::Recognised(Box::new(RecognisedCall { table, endpoint, arrival, recorder }))
            }
        })
    }
}

/// Returns the reason for which a recognised call passes through, if its head shows one.
fn pass_reason(
    table: &RoutingTable,
    route: &RouteSettings,
    endpoint: &Endpoint,
    request: &Request<Incoming>,
) -> Option<UnmergeableReason> {
    let length = content_length(request);
    if route.mode == RouteMode::Passthrough {
        Some(UnmergeableReason::PolicyOff)
    } else if endpoint.is_generation() && !table.admits_generation {
        Some(UnmergeableReason::Generation)
    } else if request.headers().contains_key(http::header::UPGRADE) {
        Some(UnmergeableReason::Header)
    } else if route.mode == RouteMode::Batch && length.is_some_and(|length| length > route.item_bytes_max as u64) {
        Some(UnmergeableReason::TooLarge)
    } else {
        None
    }
}

/// Removes the policy's tenant header from the nominations of `Connection`, so that hop-by-hop
/// processing (RFC 9110, 7.6.1) cannot strip the identity of the caller. Nominations of the
/// well-known identity headers are ignored elsewhere.
fn protect_tenant_header(headers: &mut HeaderMap, tenant: &HeaderName) {
    let is_tenant = |token: &[u8]| token.trim_ascii().eq_ignore_ascii_case(tenant.as_str().as_bytes());
    let values: Vec<HeaderValue> = headers.get_all(CONNECTION).iter().cloned().collect();
    if !values.iter().any(|value| value.as_bytes().split(|byte| *byte == b',').any(is_tenant)) {
        return;
    }
    headers.remove(CONNECTION);
    for value in values {
        let retained: Vec<&[u8]> =
            value.as_bytes().split(|byte| *byte == b',').filter(|token| !is_tenant(token)).collect();
        if let Ok(retained) = HeaderValue::from_bytes(&retained.join(&b","[..])) {
            headers.append(CONNECTION, retained);
        }
    }
}

/// Returns `true` if the head has more than `max` lines. HTTP/2 may split a cookie into several
/// fields, which count as one line (RFC 9113, 8.2.3).
fn has_more_lines(headers: &HeaderMap, max: usize) -> bool {
    let cookie_fields = || headers.get_all(http::header::COOKIE).iter().count();
    headers.len() > max && headers.len() - cookie_fields().saturating_sub(1) > max
}

fn content_length(request: &Request<Incoming>) -> Option<u64> {
    use http_body::Body as _;
    request.body().size_hint().exact()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_connection_header_cannot_nominate_the_tenant_header() {
        let mut headers = HeaderMap::new();
        headers.append(CONNECTION, HeaderValue::from_static("x-hop, X-Acme,keep-alive"));
        headers.append(CONNECTION, HeaderValue::from_static("x-acme"));
        protect_tenant_header(&mut headers, &HeaderName::from_static("x-acme"));
        let left: Vec<_> = headers.get_all(CONNECTION).iter().map(HeaderValue::as_bytes).collect();
        assert_eq!(left, [&b"x-hop,keep-alive"[..], b""]);
    }
}
