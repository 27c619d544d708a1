//! The local API: reports, and requests that change the process.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Request, State as Extract};
use axum::http::{Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{AdminState, read_only};
use crate::permits::host;

/// Maximum size of the body of a change.
const CHANGE_BYTES_MAX: usize = 4096;

pub(super) fn router(state: AdminState) -> Router {
    Router::new()
        .route("/api/stats", get(stats))
        .route("/api/config", get(config))
        .route("/api/reload", get(reload))
        .route("/api/scheduler", get(scheduler))
        .route("/api/log-level", post(log_level))
        .route("/api/drain", post(drain))
        .layer(axum::extract::DefaultBodyLimit::max(CHANGE_BYTES_MAX))
        .with_state(state.clone())
        .merge(read_only::router(state))
        .layer(middleware::from_fn(only_local))
}

/// Rejects requests that a browser or a forged request would send: a foreign `Host`, or a change
/// that is not JSON.
async fn only_local(request: Request, next: Next) -> Response {
    if !host::names_loopback(request.headers()) {
        return error(StatusCode::FORBIDDEN, host::REFUSAL);
    }
    let is_json = request
        .headers()
        .get(header::CONTENT_TYPE)
        .and_then(|kind| kind.to_str().ok())
        .and_then(|kind| kind.split(';').next())
        .is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json"));
    if request.method() == Method::POST && !is_json {
        return error(StatusCode::UNSUPPORTED_MEDIA_TYPE, "a change must be sent as application/json");
    }
    next.run(request).await
}

async fn stats(Extract(state): Extract<AdminState>) -> Response {
    let stats = &state.metrics.stats;
    let load = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    let uptime = state.clock.now().since(state.started).as_secs_f64();
    answer(&json!({
        "version": env!("CARGO_PKG_VERSION"),
        "uptime_seconds": uptime,
        "ready": (state.ready)(),
        "stage": (state.drain.stage)(),
        "calls": {"seen": load(&stats.seen), "offered": load(&stats.offered), "answered": load(&stats.answered)},
        "items": {"accepted": load(&stats.items_accepted), "queued": load(&stats.queue_items)},
        "batches": {
            "count": load(&stats.batches),
            "items": load(&stats.batch_items),
            "shared": load(&stats.shared_batches),
            "in_flight": load(&stats.in_flight),
            "failed": load(&stats.executions_failed),
            "mismatched": load(&stats.mismatches),
        },
        "isolation": {"executions": load(&stats.isolation_executions), "items": load(&stats.items_isolated)},
        "passed": state.metrics.unmerged_counts().into_iter().collect::<BTreeMap<_, _>>(),
        "unrecognised": state.metrics.unrecognised_counts().into_iter().collect::<BTreeMap<_, _>>(),
        "passing_routes": state
            .metrics
            .passing_route_counts()
            .into_iter()
            .filter(|(_, calls)| *calls > 0)
            .collect::<BTreeMap<_, _>>(),
        "buffered_bytes": state.buffers.held(),
    }))
}

async fn scheduler(Extract(state): Extract<AdminState>) -> Response {
    match (state.scheduler)().await {
        Some(learned) => answer(&learned),
        None => error(StatusCode::SERVICE_UNAVAILABLE, "the scheduler does not answer"),
    }
}

async fn config(Extract(state): Extract<AdminState>) -> Response {
    answer(&(state.config)())
}

async fn reload(Extract(state): Extract<AdminState>) -> Response {
    answer(&(state.reload)())
}

/// The sidecar's own hook. It returns at once, and the process continues to serve until it receives
/// a signal to end.
async fn drain(Extract(state): Extract<AdminState>) -> Response {
    if (state.drain.drain)().await {
        return answer(&json!({"stage": (state.drain.stage)()}));
    }
    error(StatusCode::SERVICE_UNAVAILABLE, "the process is already shutting down")
}

#[derive(Deserialize)]
struct LogLevel {
    level: String,
}

async fn log_level(Extract(state): Extract<AdminState>, body: Bytes) -> Response {
    let Ok(LogLevel { level }) = serde_json::from_slice(&body) else {
        return error(StatusCode::BAD_REQUEST, "send {\"level\": \"info\"}, with a level or a filter as in RUST_LOG");
    };
    match state.level.set(&level) {
        Ok(()) => {
            tracing::info!(level, "log level changed");
            answer(&json!({"level": level}))
        }
        Err(_) => {
            error(StatusCode::BAD_REQUEST, "invalid log level: use error, warn, info, debug, trace, or target=level")
        }
    }
}

fn answer(value: &Value) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], value.to_string()).into_response()
}

fn error(status: StatusCode, message: &str) -> Response {
    (status, json!({"error": message}).to_string()).into_response()
}
