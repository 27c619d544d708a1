//! Metrics and probes, which both admin ports serve.

use axum::Router;
use axum::extract::{Request, State as Extract};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use super::AdminState;
use crate::permits::host;

/// Returns the routes that every peer in the cluster may read. A page in a browser may not read the
/// metrics, which list models and routes; a probe reveals nothing, and a kubelet may send any
/// `Host`.
pub(super) fn router(state: AdminState) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .with_state(state)
}

async fn metrics(Extract(state): Extract<AdminState>, request: Request) -> Response {
    if !host::is_remote_or_loopback(&request) {
        return (StatusCode::FORBIDDEN, host::REFUSAL).into_response();
    }
    state.metrics.set_buffered(state.buffers.held(), state.buffers.evictions());
    state.metrics.update_queue_age(state.clock.now());
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], state.metrics.render()).into_response()
}

async fn ready(Extract(state): Extract<AdminState>) -> Response {
    if (state.ready)() {
        "ready\n".into_response()
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "not ready: the upstream is not reachable, or the process is draining\n")
            .into_response()
    }
}
