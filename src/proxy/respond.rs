//! Answers: a reply of the upstream's, or a failure of ours in the caller's dialect. The only place that makes the latter into HTTP.

use std::time::Duration;

use http::Response;

use super::Proxy;
use crate::body::Body;
use crate::error::{Failure, FailureKind};
use crate::protocol::{Dialect, Reply};

// === impl Proxy ===

impl Proxy {
    /// A reply as an HTTP response; its bytes count as buffered until they are sent.
    pub(super) fn respond(&self, reply: Reply) -> Response<Body> {
        let held = self.buffers.force(reply.body.len());
        let body = Body::full(reply.body).with_trailers(reply.trailers).charged(held);
        let mut response = Response::new(body);
        *response.status_mut() = reply.status;
        *response.headers_mut() = reply.headers;
        response
    }

    /// A failure in the caller's dialect, with the name of the limit that ended the call, if one did. Where the body was not read the connection ends with
    /// it.
    pub(super) fn rescue(&self, dialect: Dialect, failure: &Failure, limit: Option<&str>) -> Response<Body> {
        let hinted = Failure { retry_after: failure.retry_after.or_else(|| hint(failure.kind)), ..*failure };
        let mut response = self.respond(dialect.reply(&hinted, limit));
        if matches!(failure.kind, FailureKind::BytesFull | FailureKind::SlowBody) {
            response.headers_mut().insert(http::header::CONNECTION, http::HeaderValue::from_static("close"));
        }
        response
    }
}

/// A hint where nothing predicts when there will be room, or a server: a second, drawn up to half of it longer so that those who were refused together
/// do not come back together (README R14).
fn hint(kind: FailureKind) -> Option<Duration> {
    // Who is told at the end of the drain may have been executed, and this server is not there in a second.
    (matches!(kind.status(), 429 | 503) && kind != FailureKind::Draining)
        .then(|| Duration::from_millis(rand::random_range(1000..=1500)))
}
