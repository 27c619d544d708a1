//! A model server with real sockets and real HTTP in front of a simulated model.
//!
//! A call of n items holds one of a few slots for a + b·n. Calls that wait for a slot are in a
//! bounded FIFO queue, and calls above its bound are refused with 503, as model servers do. The
//! server serves HTTP/1.1 with keep-alive and, if enabled, HTTP/2 with prior knowledge on the same
//! port. If a client disconnects, its slot is freed immediately, although many real servers
//! complete the computation. The server can form batches itself (`batching_engine`), and can be
//! changed while it runs ([`ServerHandle::set_curve`] and similar methods). It has no model, no
//! tokeniser and no TLS.

mod batching_engine;
mod chat;
mod model;
#[cfg(test)]
mod tests;

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;
use tokio::task::JoinSet;

use self::batching_engine::Engine;
pub use self::batching_engine::InternalBatching;
pub use self::chat::chat_text;
pub use self::model::CurveShape;
pub(crate) use self::model::{RunError, SimulatedModel};
use super::http1::ServerAddr;
use super::item::{CallItems, Route};
use super::refusal::ListResponse;

/// Maximum size of a request body. Larger bodies are answered with 413.
const BODY_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Delay after a failed accept: long enough to prevent a busy loop, short enough to be negligible.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// Configuration of the simulated server.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// Listen address. TCP port 0 selects a free port.
    pub listen: ServerAddr,
    /// Fixed cost of a call: the a in t(n) = a + b·n.
    pub base: Duration,
    /// Cost of each item: the b in t(n) = a + b·n.
    pub per_item: Duration,
    /// Shape of the cost curve t(n).
    pub shape: CurveShape,
    /// Batching inside the server. If set, an iteration costs t(n), and each slot runs one
    /// iteration at a time.
    pub inner: Option<InternalBatching>,
    /// Number of calls computed concurrently.
    pub slots: usize,
    /// Maximum number of calls that wait for a slot. Further calls are answered with 503.
    pub queue_max: usize,
    /// Maximum number of items in one call, or `None` for no limit.
    pub items_max: Option<usize>,
    /// Response to a call with more items than `items_max`.
    pub too_large: TooLargeResponse,
    /// `true` if `GET /info` publishes `items_max`. Otherwise it is answered with 404.
    pub publish: bool,
    /// Text that poisons an item. A call with an item that contains it is answered with 500.
    pub poison: Option<String>,
    /// Text and fixed cost. A call with the text in its body has this cost instead of `base`.
    pub slow: Option<(String, Duration)>,
    /// Response to a call with more than one item, which is refused immediately. `None` if lists
    /// are accepted.
    pub lists: Option<ListResponse>,
    /// `true` if HTTP/2 with prior knowledge is served on the same port.
    pub http2: bool,
}

/// Response to a call with too many items.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TooLargeResponse {
    /// 422 with a message that contains the limit, as text-embeddings-inference (TEI) does.
    WithMessage,
    /// 413 without a message.
    StatusOnly,
}

/// A running simulated server. Dropping it stops the server.
#[derive(Debug)]
pub struct ServerHandle {
    target: ServerAddr,
    shared: Arc<ServerState>,
    accept: tokio::task::JoinHandle<()>,
    /// Signals that no further connections are accepted.
    closing: watch::Sender<bool>,
}

/// Counters of a simulated server.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerStats {
    /// Number of connections accepted.
    pub connections: u64,
    /// Number of calls answered with 200.
    pub calls: u64,
    /// Number of items in those calls.
    pub items: u64,
    /// Number of calls answered with 503 because the queue was full.
    pub refused: u64,
    /// Number of calls with more items than the limit.
    pub too_large: u64,
    /// Number of calls that were malformed or poisoned.
    pub failed: u64,
    /// Number of calls that were refused because they contained more than one item.
    #[serde(default)]
    pub lists: u64,
    /// Maximum number of calls that were in the server at once, running or waiting.
    #[serde(default)]
    pub in_flight_max: u64,
    /// Numbers of calls answered with 200, indexed by their number of items.
    pub sizes: Vec<u64>,
}

#[derive(Debug)]
struct ServerState {
    config: ServerConfig,
    model: Arc<SimulatedModel>,
    /// Engine that forms batches, if the server batches itself.
    inner: Option<Engine>,
    /// Current maximum number of items in one call.
    items_max: AtomicUsize,
    counts: ServerCounters,
    sizes: Mutex<Vec<u64>>,
}

#[derive(Debug, Default)]
struct ServerCounters {
    connections: AtomicU64,
    items: AtomicU64,
    refused: AtomicU64,
    too_large: AtomicU64,
    failed: AtomicU64,
    lists: AtomicU64,
    in_flight: AtomicU64,
    in_flight_max: AtomicU64,
}

/// Guard that counts a call as in the server until it is dropped.
struct InFlightGuard<'a>(&'a ServerCounters);

/// The simulated model server.
#[derive(Debug, Clone, Copy)]
pub struct Server;

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
}

// === impl ServerConfig ===

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            listen: ServerAddr::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))),
            base: Duration::from_millis(5),
            per_item: Duration::from_micros(100),
            shape: CurveShape::Linear,
            inner: None,
            slots: 1,
            queue_max: 64,
            items_max: Some(32),
            too_large: TooLargeResponse::WithMessage,
            publish: false,
            poison: None,
            slow: None,
            lists: None,
            http2: false,
        }
    }
}

// === impl Server ===

impl Server {
    /// Binds the listen address and serves on the current runtime until the handle is dropped.
    ///
    /// # Errors
    /// The address cannot be bound.
    pub async fn start(config: ServerConfig) -> io::Result<ServerHandle> {
        let listener = Listener::bind(&config.listen).await?;
        let target = listener.target()?;
        let model =
            SimulatedModel::new(config.base, config.per_item, config.slots, config.queue_max).with_shape(config.shape);
        let model = Arc::new(model);
        let inner = config.inner.map(|inner| Engine::new(model.clone(), inner));
        let items_max = AtomicUsize::new(config.items_max.unwrap_or(usize::MAX));
        let (counts, sizes) = (ServerCounters::default(), Mutex::default());
        let shared = Arc::new(ServerState { config, model, inner, items_max, counts, sizes });
        let (closing, closes) = watch::channel(false);
        let accept = tokio::spawn(accept_loop(listener, Arc::clone(&shared), closes));
        Ok(ServerHandle { target, shared, accept, closing })
    }
}

// === impl ServerHandle ===

impl ServerHandle {
    /// Returns the address on which the server listens.
    #[must_use]
    pub fn target(&self) -> &ServerAddr {
        &self.target
    }

    /// Returns the TCP address. For a Unix socket, the port is 0.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        match &self.target {
            ServerAddr::Tcp(addr) => *addr,
            ServerAddr::Unix(_) => SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
        }
    }

    /// Returns the address as a value of `--upstream`.
    #[must_use]
    pub fn url(&self) -> String {
        match &self.target {
            ServerAddr::Tcp(addr) => format!("http://{addr}"),
            ServerAddr::Unix(path) => format!("unix:{}", path.display()),
        }
    }

    /// Returns the current counters.
    #[must_use]
    pub fn stats(&self) -> ServerStats {
        let counts = &self.shared.counts;
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let sizes = self.shared.sizes.lock().unwrap_or_else(PoisonError::into_inner).clone();
        ServerStats {
            connections: get(&counts.connections),
            calls: sizes.iter().sum(),
            items: get(&counts.items),
            refused: get(&counts.refused),
            too_large: get(&counts.too_large),
            failed: get(&counts.failed),
            lists: get(&counts.lists),
            in_flight_max: get(&counts.in_flight_max),
            sizes,
        }
    }

    /// Replaces a and b of t(n) = a + b·n for executions that start from now on.
    pub fn set_curve(&self, base: Duration, per_item: Duration) {
        self.shared.model.set_curve(base, per_item);
    }

    /// Changes the number of calls computed concurrently. Running computations are not interrupted.
    pub fn set_slots(&self, slots: usize) {
        self.shared.model.set_slots(slots);
    }

    /// Changes the maximum number of items in one call. `None` removes the limit.
    pub fn set_items_max(&self, items_max: Option<usize>) {
        self.shared.items_max.store(items_max.unwrap_or(usize::MAX), Ordering::Relaxed);
    }

    /// Drains the server as model servers do on SIGTERM: closes the port immediately, closes each
    /// connection after its outstanding response, and drops all calls that are not answered within
    /// `limit`. Returns `true` if every call was answered.
    pub async fn drain(mut self, limit: Duration) -> bool {
        self.closing.send_replace(true);
        tokio::time::timeout(limit, &mut self.accept).await.is_ok()
    }

    /// Stops the server. The port is closed and every connection is dropped when this returns.
    pub async fn shutdown(mut self) {
        self.accept.abort();
        // The task was aborted above, so the join error is expected.
        (&mut self.accept).await.ok();
    }
}

impl Drop for ServerHandle {
    fn drop(&mut self) {
        self.accept.abort();
    }
}

// === impl ServerStats ===

impl ServerStats {
    /// Returns the mean number of items in a call.
    #[must_use]
    pub fn items_per_call(&self) -> f64 {
        if self.calls == 0 { 0.0 } else { self.items as f64 / self.calls as f64 }
    }

    /// Returns the difference between these counters and `earlier` ones. The maximum in flight stays
    /// that since the start.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let before = |size: usize| earlier.sizes.get(size).copied().unwrap_or_default();
        Self {
            connections: self.connections - earlier.connections,
            calls: self.calls - earlier.calls,
            items: self.items - earlier.items,
            refused: self.refused - earlier.refused,
            too_large: self.too_large - earlier.too_large,
            failed: self.failed - earlier.failed,
            lists: self.lists - earlier.lists,
            in_flight_max: self.in_flight_max,
            sizes: self.sizes.iter().enumerate().map(|(size, count)| count - before(size)).collect(),
        }
    }
}

// === impl InFlightGuard ===

impl<'a> InFlightGuard<'a> {
    fn new(counts: &'a ServerCounters) -> Self {
        let now = counts.in_flight.fetch_add(1, Ordering::Relaxed) + 1;
        counts.in_flight_max.fetch_max(now, Ordering::Relaxed);
        Self(counts)
    }
}

impl Drop for InFlightGuard<'_> {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

// === impl Listener ===

impl Listener {
    async fn bind(target: &ServerAddr) -> io::Result<Self> {
        match target {
            ServerAddr::Tcp(addr) => Ok(Self::Tcp(TcpListener::bind(addr).await?)),
            ServerAddr::Unix(path) => Ok(Self::Unix(UnixListener::bind(path)?, path.clone())),
        }
    }

    /// Accepts one connection and spawns its task.
    async fn accept(
        &self,
        connections: &mut JoinSet<()>,
        shared: &Arc<ServerState>,
        closes: watch::Receiver<bool>,
    ) -> io::Result<()> {
        match self {
            Self::Tcp(listener) => listener.accept().await.map(|(stream, _)| {
                stream.set_nodelay(true).ok();
                connections.spawn(serve(stream, Arc::clone(shared), closes));
            }),
            Self::Unix(listener, _) => listener.accept().await.map(|(stream, _)| {
                connections.spawn(serve(stream, Arc::clone(shared), closes));
            }),
        }
    }

    fn target(&self) -> io::Result<ServerAddr> {
        match self {
            Self::Tcp(listener) => listener.local_addr().map(ServerAddr::Tcp),
            Self::Unix(_, path) => Ok(ServerAddr::Unix(path.clone())),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Self::Unix(_, path) = self {
            // The file may have been removed already.
            std::fs::remove_file(path).ok();
        }
    }
}

async fn accept_loop(listener: Listener, shared: Arc<ServerState>, mut closes: watch::Receiver<bool>) {
    let mut connections = JoinSet::new();
    loop {
        let closing = closes.clone();
        let accepted = tokio::select! {
            // An error means that the sender was dropped, which also ends the server.
            _ = closes.wait_for(|closes| *closes) => break,
            accepted = listener.accept(&mut connections, &shared, closing) => accepted,
        };
        match accepted {
            Ok(()) => {
                shared.counts.connections.fetch_add(1, Ordering::Relaxed);
            }
            Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
        while connections.try_join_next().is_some() {}
    }
    drop(listener);
    connections.join_all().await;
}

async fn serve<S>(stream: S, shared: Arc<ServerState>, mut closes: watch::Receiver<bool>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let io = TokioIo::new(stream);
    let http2 = shared.config.http2;
    let service = service_fn(move |request| {
        let shared = Arc::clone(&shared);
        async move { shared.answer(request).await }
    });
    let closing = closes.wait_for(|closes| *closes);
    // A broken connection is the client's concern and is ignored.
    if http2 {
        let builder = auto::Builder::new(TokioExecutor::new());
        let mut connection = pin!(builder.serve_connection(io, service));
        tokio::select! {
            _ = connection.as_mut() => return,
            _ = closing => connection.as_mut().graceful_shutdown(),
        }
        connection.await.ok();
    } else {
        let mut connection = pin!(hyper::server::conn::http1::Builder::new().serve_connection(io, service));
        tokio::select! {
            _ = connection.as_mut() => return,
            _ = closing => connection.as_mut().graceful_shutdown(),
        }
        connection.await.ok();
    }
}

// === impl ServerState ===

impl ServerState {
    /// Answers a request. An error closes the connection without a response.
    async fn answer(&self, request: Request<Incoming>) -> io::Result<Response<Full<Bytes>>> {
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
