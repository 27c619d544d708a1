//! Endpoints that the kubelet calls for the pod's containers: preStop hooks, and a connection test
//! for the application.
//!
//! `GET /connect/PORT` tests a captured port of the application. A `tcpSocket` probe of such a port
//! would reach the sidecar's listener and always succeed, so the injector replaces it by this
//! endpoint. A port that is not captured returns 404, so that the endpoint does not reveal other
//! listeners on loopback.
//!
//! The application's hook is `GET /drain/TOKEN?wait` on the port that the kubelet reaches. It
//! flushes the queue and responds when the application may be stopped, or at once without `wait`.
//! Without the token it returns 404. The sidecar's own hook is a POST on the local port.

use axum::Router;
use axum::extract::{Path, RawQuery, State as Extract};
use axum::http::{Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};

use super::AdminState;

/// Returns the routes on the pod's address in addition to the read-only ones.
pub(super) fn router(state: AdminState) -> Router {
    let mut router = Router::new().route("/connect/{port}", get(connect));
    if state.drain.token.is_some() {
        router = router.route("/drain/{token}", any(flush));
    }
    router.with_state(state)
}

async fn connect(Extract(state): Extract<AdminState>, Path(port): Path<String>) -> Response {
    let Ok(port) = port.parse() else { return StatusCode::NOT_FOUND.into_response() };
    match (state.connects)(port).await {
        Some(true) => "the application accepts connections\n".into_response(),
        Some(false) => {
            (StatusCode::SERVICE_UNAVAILABLE, "the application does not accept connections\n").into_response()
        }
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

async fn flush(
    Extract(state): Extract<AdminState>,
    method: Method,
    Path(token): Path<String>,
    RawQuery(query): RawQuery,
) -> Response {
    if !state.drain.token.as_deref().is_some_and(|known| tokens_equal(known, &token)) {
        return StatusCode::NOT_FOUND.into_response();
    }
    if method != Method::GET {
        return (StatusCode::METHOD_NOT_ALLOWED, [(header::ALLOW, "GET")]).into_response();
    }
    let query = query.unwrap_or_default();
    let waits = query.split('&').any(|word| word.split('=').next() == Some("wait"));
    let flushed = (state.drain.flush)();
    if !waits {
        // The flush continues without the requester.
        tokio::spawn(flushed);
        return "flushing\n".into_response();
    }
    if flushed.await {
        "flushed: every call was answered\n".into_response()
    } else {
        "flush timed out: some calls are not answered yet\n".into_response()
    }
}

/// Compares two tokens in constant time, as digests of equal length.
fn tokens_equal(known: &str, given: &str) -> bool {
    blake3::hash(known.as_bytes()) == blake3::hash(given.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_complete_token_matches() {
        assert!(tokens_equal("s3cret", "s3cret"));
        for wrong in ["", "s3cre", "s3crets", "S3cret"] {
            assert!(!tokens_equal("s3cret", wrong), "{wrong}");
        }
    }
}
