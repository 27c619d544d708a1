//! The head of a client's request, as it is sent to the model server.
//!
//! Batches and unmerged calls share these rules: framing and hop-by-hop headers are generated again
//! for the upstream, end-to-end headers are kept.

use http::header::{self, HeaderName, HeaderValue};
use http::{HeaderMap, Request, Version};
use http_body::Body as _;

use crate::body::Body;
use crate::protocol::headers;

/// Prepares the head of a client's request for the upstream: origin form, a single `Host`, no
/// hop-by-hop headers, and no `Expect: 100-continue`, which is answered by the proxy.
pub(super) fn prepare_upstream_head<B>(request: &mut Request<B>, upgrade: Option<&HeaderValue>) {
    if let Some(authority) = request.uri().authority() {
        // In absolute form and in HTTP/2, the target takes precedence over the `Host` header.
        if let Ok(host) = HeaderValue::from_str(authority.as_str()) {
            request.headers_mut().insert(header::HOST, host);
        }
    }
    if request.version() == Version::HTTP_2 {
        join_cookies(request.headers_mut());
    }
    if request.uri().scheme().is_some() || request.uri().authority().is_some() {
        let origin = request.uri().path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
        // The path and query of a valid target always parse.
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

/// Requests chunked framing for a body of unknown length. For GET or HEAD, hyper sends no body
/// unless the head declares one.
pub(super) fn frame(request: &mut Request<Body>) {
    if !request.body().is_end_stream() && request.body().size_hint().exact().is_none() {
        request.headers_mut().insert(header::TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
    }
}

/// Joins the cookies that HTTP/2 allows to be split into several fields. HTTP/1.1 requires a single
/// field (RFC 9113, section 8.2.3).
fn join_cookies(headers: &mut HeaderMap) {
    if headers.get_all(header::COOKIE).iter().count() < 2 {
        return;
    }
    let joined = headers.get_all(header::COOKIE).iter().map(HeaderValue::as_bytes).collect::<Vec<_>>().join(&b"; "[..]);
    if let Ok(joined) = HeaderValue::from_bytes(&joined) {
        headers.insert(header::COOKIE, joined);
    }
}

/// Returns the protocol that the client requests with `Upgrade`. `h2c` is not supported downstream,
/// so it is not requested upstream.
pub(super) fn requested_upgrade(headers: &HeaderMap, version: Version) -> Option<HeaderValue> {
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
