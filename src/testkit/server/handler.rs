//! Answers to requests: recognition of the route, the time of the model, and the refusals that are
//! configured.

mod chat;

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;

pub use self::chat::chat_text;
use super::batching_engine::Engine;
use super::model::{RunError, SimulatedModel};
use super::stats::{InFlightGuard, ServerCounters};
use super::{ServerConfig, TooLargeResponse};
use crate::item::{CallItems, Route};
use crate::refusal::ListResponse;

/// Maximum size of a request body. Larger bodies are answered with 413.
const BODY_BYTES_MAX: usize = 64 * 1024 * 1024;

/// The state of a running server, shared by its connections.
#[derive(Debug)]
pub(super) struct ServerState {
    pub(super) config: ServerConfig,
    pub(super) model: Arc<SimulatedModel>,
    /// Engine that forms batches, if the server batches itself.
    pub(super) inner: Option<Engine>,
    /// Current maximum number of items in one call.
    pub(super) items_max: AtomicUsize,
    pub(super) counts: ServerCounters,
    pub(super) sizes: Mutex<Vec<u64>>,
}

// === impl ServerState ===

impl ServerState {
    /// Answers a request. An error closes the connection without a response.
    pub(super) async fn answer(&self, request: Request<Incoming>) -> io::Result<Response<Full<Bytes>>> {
        let path = request.uri().path();
        match (request.method(), path) {
            (&Method::GET, "/health") => return Ok(json(StatusCode::OK, r#"{"status":"ok"}"#)),
            (&Method::GET, "/info") => return Ok(self.info()),
            _ => {}
        }
        let route = Route::from_path(path);
        if route.is_none() && path != chat::PATH {
            return Ok(json(StatusCode::NOT_FOUND, r#"{"error":"not found"}"#));
        }
        if request.method() != Method::POST {
            return Ok(json(StatusCode::METHOD_NOT_ALLOWED, r#"{"error":"method not allowed"}"#));
        }
        let _in_flight = InFlightGuard::new(&self.counts);
        let Ok(body) = Limited::new(request.into_body(), BODY_BYTES_MAX).collect().await else {
            return Ok(json(StatusCode::PAYLOAD_TOO_LARGE, r#"{"error":"body too large"}"#));
        };
        let body = body.to_bytes();
        let Some(route) = route else { return Ok(self.chat(&body).await) };
        let Some(items) = route.extract_items(&body) else {
            self.count_failure();
            return Ok(json(StatusCode::BAD_REQUEST, r#"{"error":"no items of the form of this route"}"#));
        };
        match self.config.lists.filter(|_| items.raw.len() > 1) {
            Some(refusal) => self.refuse_list(route, &items, refusal).await,
            None => Ok(self.predict(route, &items, &body).await),
        }
    }

    async fn refuse_list(
        &self,
        route: Route,
        items: &CallItems<'_>,
        refusal: ListResponse,
    ) -> io::Result<Response<Full<Bytes>>> {
        self.counts.lists.fetch_add(1, Ordering::Relaxed);
        match refusal {
            ListResponse::Status(status) => {
                let status = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_REQUEST);
                Ok(json(status, r#"{"error":"one item a call"}"#))
            }
            ListResponse::Reset => Err(io::ErrorKind::ConnectionReset.into()),
            ListResponse::FirstResultOnly => {
                let raw = items.raw.iter().take(1).copied().collect();
                Ok(json(StatusCode::OK, route.response_body(&CallItems { raw, model: items.model.clone() })))
            }
            ListResponse::NotJson => Ok(json(StatusCode::OK, "one item a call")),
            // Pending until the client disconnects, which drops this future with its connection.
            ListResponse::NoResponse => std::future::pending().await,
        }
    }

    async fn predict(&self, route: Route, items: &CallItems<'_>, body: &[u8]) -> Response<Full<Bytes>> {
        let n = items.raw.len();
        if let Some(max) = self.items_max().filter(|&max| n > max) {
            self.counts.too_large.fetch_add(1, Ordering::Relaxed);
            return self.too_large(route, n, max);
        }
        let ran = match &self.inner {
            Some(inner) => inner.run(n).await,
            None => self.model.run_with_base(n, self.base_override(body)).await,
        };
        if let Err(error) = ran {
            return self.run_failure(&error);
        }
        if self.config.poison.as_ref().is_some_and(|mark| items.raw.iter().any(|item| item.contains(mark))) {
            self.count_failure();
            return json(StatusCode::INTERNAL_SERVER_ERROR, r#"{"error":"an item could not be computed"}"#);
        }
        self.count_call(n);
        json(StatusCode::OK, route.response_body(items))
    }

    /// Returns the response to a call that was not run.
    fn run_failure(&self, error: &RunError) -> Response<Full<Bytes>> {
        match error {
            RunError::QueueFull => {
                self.counts.refused.fetch_add(1, Ordering::Relaxed);
                let mut answer = json(StatusCode::SERVICE_UNAVAILABLE, r#"{"error":"queue full"}"#);
                answer.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
                answer
            }
            RunError::NoTimer => json(StatusCode::INTERNAL_SERVER_ERROR, r#"{"error":"no timer"}"#),
        }
    }

    fn count_failure(&self) {
        self.counts.failed.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a call that was answered, with its number of items.
    fn count_call(&self, items: usize) {
        self.counts.items.fetch_add(items as u64, Ordering::Relaxed);
        let mut sizes = self.sizes.lock().unwrap_or_else(PoisonError::into_inner);
        if sizes.len() <= items {
            sizes.resize(items + 1, 0);
        }
        sizes[items] += 1;
    }

    /// Returns the fixed cost that applies to a call with this body instead of `base`, if any.
    fn base_override(&self, body: &[u8]) -> Option<Duration> {
        let (mark, base) = self.config.slow.as_ref()?;
        memchr::memmem::find(body, mark.as_bytes()).map(|_| *base)
    }

    fn items_max(&self) -> Option<usize> {
        Some(self.items_max.load(Ordering::Relaxed)).filter(|&max| max < usize::MAX)
    }

    fn too_large(&self, route: Route, n: usize, max: usize) -> Response<Full<Bytes>> {
        let message = format!("batch size {n} > maximum allowed batch size {max}");
        match (self.config.too_large, route) {
            (TooLargeResponse::StatusOnly, _) => json(StatusCode::PAYLOAD_TOO_LARGE, ""),
            (TooLargeResponse::WithMessage, Route::Embed) => {
                json(StatusCode::UNPROCESSABLE_ENTITY, format!(r#"{{"error":"{message}","error_type":"Validation"}}"#))
            }
            (TooLargeResponse::WithMessage, Route::Embeddings | Route::Predict | Route::Ledger) => {
                let body = format!(r#"{{"message":"{message}","code":422,"type":"Validation"}}"#);
                json(StatusCode::UNPROCESSABLE_ENTITY, body)
            }
        }
    }

    fn info(&self) -> Response<Full<Bytes>> {
        match self.items_max().filter(|_| self.config.publish) {
            Some(max) => json(StatusCode::OK, format!(r#"{{"model_id":"stand-in","max_client_batch_size":{max}}}"#)),
            None => json(StatusCode::NOT_FOUND, r#"{"error":"not found"}"#),
        }
    }
}

fn json(status: StatusCode, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut answer = Response::new(Full::new(body.into()));
    *answer.status_mut() = status;
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    answer
}
