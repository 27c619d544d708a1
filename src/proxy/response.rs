//! Conversion to HTTP responses: of a reply from the upstream, and of a failure of the proxy in the
//! dialect of the caller. The latter happens nowhere else.

use std::time::Duration;

use http::Response;

use super::Proxy;
use crate::backend::BufferedReply;
use crate::body::Body;
use crate::error::{Failure, FailureKind};
use crate::protocol::Dialect;

// === impl Proxy ===

impl Proxy {
    /// Returns the response for a failure in the caller's dialect, with the name of the limit that
    /// ended the call, if any. If the request body was not read, the connection is closed after the
    /// response.
    pub(super) fn failure_response(&self, dialect: Dialect, failure: &Failure, limit: Option<&str>) -> Response<Body> {
        let hinted =
            Failure { retry_after: failure.retry_after.or_else(|| retry_after_hint(failure.kind)), ..*failure };
        let reply = dialect.failure_response(&hinted, limit);
        let mut response = to_response(BufferedReply::new(reply, &self.buffers));
        if matches!(failure.kind, FailureKind::BytesFull | FailureKind::SlowBody) {
            response.headers_mut().insert(http::header::CONNECTION, http::HeaderValue::from_static("close"));
        }
        response
    }
}

/// Converts a reply to an HTTP response.
pub(super) fn to_response(BufferedReply { reply, held }: BufferedReply) -> Response<Body> {
    let body = Body::full(reply.body).with_trailers(reply.trailers).with_charge(held);
    let mut response = Response::new(body);
    *response.status_mut() = reply.status;
    *response.headers_mut() = reply.headers;
    response
}

/// Returns the `Retry-After` of a failure for which nothing predicts when capacity or a server is
/// available: 1 s plus up to 50 % jitter, so that clients rejected together do not retry together.
fn retry_after_hint(kind: FailureKind) -> Option<Duration> {
    // A call that is ended by the drain may have been executed, and this process no longer exists a
    // second later, so no retry is suggested.
    (matches!(kind.status(), 429 | 503) && kind != FailureKind::Draining)
        .then(|| Duration::from_millis(rand::random_range(1000..=1500)))
}
