//! What a kubelet asks for the pod's containers: the hooks that it calls before it stops one, and whether the application accepts connections.
//!
//! `GET /connect/PORT` tries a captured port of the application. A `tcpSocket` probe of such a port would end at the sidecar's listener and always hold, so the
//! injector turns it into this. A port that is not captured is not there: nobody can look through us at what else listens on loopback.
//!
//! The application's is `GET /drain/TOKEN?wait` on the port that the kubelet reaches; without `wait` it is answered at once. It flushes the queue and is answered when the
//! application may be stopped. Whoever does not know the token finds nothing there. The sidecar's own is a POST on the local port.

use axum::Router;
use axum::extract::{Path, RawQuery, State as Extract};
use axum::http::{Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};

use super::State;

/// What the pod's address answers besides what anybody may read.
pub(super) fn router(state: State) -> Router {
    let mut router = Router::new().route("/connect/{port}", get(connect));
    if state.drain.token.is_some() {
        router = router.route("/drain/{token}", any(flush));
    }
    router.with_state(state)
}

async fn connect(Extract(state): Extract<State>, Path(port): Path<String>) -> Response {
    let Ok(port) = port.parse() else { return StatusCode::NOT_FOUND.into_response() };
    match (state.connects)(port).await {
        Some(true) => "the application accepts connections\n".into_response(),
        Some(false) => (StatusCode::SERVICE_UNAVAILABLE, "the application accepts no connections\n").into_response(),
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

async fn flush(
    Extract(state): Extract<State>,
    method: Method,
    Path(token): Path<String>,
    RawQuery(query): RawQuery,
) -> Response {
    if !state.drain.token.as_deref().is_some_and(|known| is_same(known, &token)) {
        return StatusCode::NOT_FOUND.into_response();
    }
    if method != Method::GET {
        return (StatusCode::METHOD_NOT_ALLOWED, [(header::ALLOW, "GET")]).into_response();
    }
    let query = query.unwrap_or_default();
    let waits = query.split('&').any(|word| word.split('=').next() == Some("wait"));
    let flushed = (state.drain.flush)();
    if !waits {
        // It goes on without whoever asked.
        tokio::spawn(flushed);
        return "flushing\n".into_response();
    }
    if flushed.await {
        "flushed: everybody was answered\n".into_response()
    } else {
        "flushed as far as the time went: some calls are not answered yet\n".into_response()
    }
}

/// Compares in the same time whatever differs: digests of one length, compared whole.
fn is_same(known: &str, given: &str) -> bool {
    blake3::hash(known.as_bytes()) == blake3::hash(given.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_token_is_the_token() {
        assert!(is_same("s3cret", "s3cret"));
        for wrong in ["", "s3cre", "s3crets", "S3cret"] {
            assert!(!is_same("s3cret", wrong), "{wrong}");
        }
    }
}
