//! The stand-in model server: real sockets, real HTTP, a pretended model.
//!
//! A call of n items holds one of a few slots for a + b·n; calls before the slots wait in a bounded queue, first come first served, and over it are
//! refused with 503, as model servers do. HTTP/1.1 with kept connections, and HTTP/2 with prior knowledge on the same port where that is switched on.
//! A caller that leaves frees its slot at once (many real servers compute on). It may batch by itself (`inner`), and may change while it runs
//! ([`Running::set_curve`] and its like). No model, no tokeniser, no TLS.

mod inner;
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

use self::inner::Engine;
pub use self::inner::Inner;
pub use self::model::Shape;
pub(crate) use self::model::{Model, NotRun};
use super::item::{Items, Route};
use super::refusal::ListRefusal;
use super::wire::Target;

/// Larger request bodies are answered 413.
const BODY_BYTES_MAX: usize = 64 * 1024 * 1024;
/// After a failed accept: long enough not to spin, short enough not to be noticed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// What the stand-in shall be like.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// Where to listen; TCP port 0 takes a free one.
    pub listen: Target,
    /// The a in t(n) = a + b·n.
    pub base: Duration,
    /// The b in t(n) = a + b·n.
    pub per_item: Duration,
    /// What t(n) is like.
    pub shape: Shape,
    /// Batches by itself: an iteration costs t(n), and there is one at a time for each slot.
    pub inner: Option<Inner>,
    /// Calls computed at once.
    pub slots: usize,
    /// Calls that may wait for a slot; one more is answered 503.
    pub queue_max: usize,
    /// Items that one call may have; absent: any number.
    pub items_max: Option<usize>,
    /// How a call with more items is answered.
    pub too_large: TooLarge,
    /// Whether `GET /info` says `items_max`; otherwise it is a 404.
    pub publish: bool,
    /// A call with an item that contains this is answered 500 as a whole.
    pub poison: Option<String>,
    /// A call whose body contains this text has this in place of the a.
    pub slow: Option<(String, Duration)>,
    /// One item a call: how a list of more is answered, at once.
    pub lists: Option<ListRefusal>,
    /// Whether HTTP/2 with prior knowledge is spoken on the same port.
    pub http2: bool,
}

/// How a call with too many items is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TooLarge {
    /// 422 naming the limit, as text-embeddings-inference does.
    Named,
    /// A bare 413.
    Bare,
}

/// A running stand-in; ends when dropped.
#[derive(Debug)]
pub struct Running {
    target: Target,
    shared: Arc<Shared>,
    accept: tokio::task::JoinHandle<()>,
    /// Told when nobody is let in any more.
    closing: watch::Sender<bool>,
}

/// What a stand-in has seen so far.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stats {
    /// Connections accepted.
    pub connections: u64,
    /// Calls answered 200.
    pub calls: u64,
    /// Items in them.
    pub items: u64,
    /// Calls answered 503 because the queue was full.
    pub refused: u64,
    /// Calls with more items than the limit.
    pub too_large: u64,
    /// Calls that were of no known form, or poisoned.
    pub failed: u64,
    /// Lists that were refused for being lists.
    #[serde(default)]
    pub lists: u64,
    /// Calls answered 200 by their number of items.
    pub sizes: Vec<u64>,
}

#[derive(Debug)]
struct Shared {
    config: ServerConfig,
    model: Arc<Model>,
    /// Where it batches by itself.
    inner: Option<Engine>,
    /// Items that one call may have now.
    items_max: AtomicUsize,
    counts: Counts,
    sizes: Mutex<Vec<u64>>,
}

#[derive(Debug, Default)]
struct Counts {
    connections: AtomicU64,
    items: AtomicU64,
    refused: AtomicU64,
    too_large: AtomicU64,
    failed: AtomicU64,
    lists: AtomicU64,
}

/// The stand-in model server.
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
            listen: Target::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))),
            base: Duration::from_millis(5),
            per_item: Duration::from_micros(100),
            shape: Shape::Line,
            inner: None,
            slots: 1,
            queue_max: 64,
            items_max: Some(32),
            too_large: TooLarge::Named,
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
    /// Binds, and serves on the current runtime until the handle is dropped.
    ///
    /// # Errors
    /// The address cannot be bound.
    pub async fn start(config: ServerConfig) -> io::Result<Running> {
        let listener = Listener::bind(&config.listen).await?;
        let target = listener.target()?;
        let model = Model::new(config.base, config.per_item, config.slots, config.queue_max).shaped(config.shape);
        let model = Arc::new(model);
        let inner = config.inner.map(|inner| Engine::new(model.clone(), inner));
        let items_max = AtomicUsize::new(config.items_max.unwrap_or(usize::MAX));
        let (counts, sizes) = (Counts::default(), Mutex::default());
        let shared = Arc::new(Shared { config, model, inner, items_max, counts, sizes });
        let (closing, closes) = watch::channel(false);
        let accept = tokio::spawn(accept(listener, Arc::clone(&shared), closes));
        Ok(Running { target, shared, accept, closing })
    }
}

// === impl Running ===

impl Running {
    /// Where it listens.
    #[must_use]
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// Its TCP address; of a unix socket, port 0.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        match &self.target {
            Target::Tcp(addr) => *addr,
            Target::Unix(_) => SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
        }
    }

    /// What `--upstream` takes.
    #[must_use]
    pub fn url(&self) -> String {
        match &self.target {
            Target::Tcp(addr) => format!("http://{addr}"),
            Target::Unix(path) => format!("unix:{}", path.display()),
        }
    }

    /// What it has seen so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let counts = &self.shared.counts;
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let sizes = self.shared.sizes.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Stats {
            connections: get(&counts.connections),
            calls: sizes.iter().sum(),
            items: get(&counts.items),
            refused: get(&counts.refused),
            too_large: get(&counts.too_large),
            failed: get(&counts.failed),
            lists: get(&counts.lists),
            sizes,
        }
    }

    /// Another a and b of t(n) = a + b·n, for what starts from now on.
    pub fn set_curve(&self, base: Duration, per_item: Duration) {
        self.shared.model.set_curve(base, per_item);
    }

    /// Another number of calls computed at once; what is being computed goes on.
    pub fn set_slots(&self, slots: usize) {
        self.shared.model.set_slots(slots);
    }

    /// Another limit for the items of one call; `None`: any number.
    pub fn set_items_max(&self, items_max: Option<usize>) {
        self.shared.items_max.store(items_max.unwrap_or(usize::MAX), Ordering::Relaxed);
    }

    /// Ends it as model servers end when told to stop: the port is closed at once, kept connections after the answer they owe, and what is not answered
    /// within `limit` is dropped. Says whether everything was answered.
    pub async fn drain(mut self, limit: Duration) -> bool {
        self.closing.send_replace(true);
        tokio::time::timeout(limit, &mut self.accept).await.is_ok()
    }

    /// Ends it: the port is closed and every connection dropped when this returns.
    pub async fn shutdown(mut self) {
        self.accept.abort();
        // Cancelled, as asked.
        (&mut self.accept).await.ok();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.accept.abort();
    }
}

// === impl Stats ===

impl Stats {
    /// Mean number of items in a call.
    #[must_use]
    pub fn items_per_call(&self) -> f64 {
        if self.calls == 0 { 0.0 } else { self.items as f64 / self.calls as f64 }
    }

    /// What has happened since `earlier`.
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
            sizes: self.sizes.iter().enumerate().map(|(size, count)| count - before(size)).collect(),
        }
    }
}

// === impl Listener ===

impl Listener {
    async fn bind(target: &Target) -> io::Result<Self> {
        match target {
            Target::Tcp(addr) => Ok(Self::Tcp(TcpListener::bind(addr).await?)),
            Target::Unix(path) => Ok(Self::Unix(UnixListener::bind(path)?, path.clone())),
        }
    }

    /// Takes one connection in.
    async fn accept(
        &self,
        connections: &mut JoinSet<()>,
        shared: &Arc<Shared>,
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

    fn target(&self) -> io::Result<Target> {
        match self {
            Self::Tcp(listener) => listener.local_addr().map(Target::Tcp),
            Self::Unix(_, path) => Ok(Target::Unix(path.clone())),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Self::Unix(_, path) = self {
            // Somebody may have removed it before.
            std::fs::remove_file(path).ok();
        }
    }
}

async fn accept(listener: Listener, shared: Arc<Shared>, mut closes: watch::Receiver<bool>) {
    let mut connections = JoinSet::new();
    loop {
        let closing = closes.clone();
        let accepted = tokio::select! {
            // Dropped without having been told: the same.
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

async fn serve<S>(stream: S, shared: Arc<Shared>, mut closes: watch::Receiver<bool>)
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
    // A connection that breaks is the peer's affair.
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

// === impl Shared ===

impl Shared {
    /// The answer; an error ends the connection without one.
    async fn answer(&self, request: Request<Incoming>) -> io::Result<Response<Full<Bytes>>> {
        let path = request.uri().path();
        match (request.method(), path) {
            (&Method::GET, "/health") => return Ok(json(StatusCode::OK, r#"{"status":"ok"}"#)),
            (&Method::GET, "/info") => return Ok(self.info()),
            _ => {}
        }
        let Some(route) = Route::of(path) else { return Ok(json(StatusCode::NOT_FOUND, r#"{"error":"not found"}"#)) };
        if request.method() != Method::POST {
            return Ok(json(StatusCode::METHOD_NOT_ALLOWED, r#"{"error":"method not allowed"}"#));
        }
        let Ok(body) = Limited::new(request.into_body(), BODY_BYTES_MAX).collect().await else {
            return Ok(json(StatusCode::PAYLOAD_TOO_LARGE, r#"{"error":"body too large"}"#));
        };
        let body = body.to_bytes();
        let Some(items) = route.items(&body) else {
            self.counts.failed.fetch_add(1, Ordering::Relaxed);
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
        items: &Items<'_>,
        refusal: ListRefusal,
    ) -> io::Result<Response<Full<Bytes>>> {
        self.counts.lists.fetch_add(1, Ordering::Relaxed);
        match refusal {
            ListRefusal::Status(status) => {
                let status = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_REQUEST);
                Ok(json(status, r#"{"error":"one item a call"}"#))
            }
            ListRefusal::Reset => Err(io::ErrorKind::ConnectionReset.into()),
            ListRefusal::First => {
                let raw = items.raw.iter().take(1).copied().collect();
                Ok(json(StatusCode::OK, route.answer(&Items { raw, model: items.model.clone() })))
            }
            ListRefusal::NotJson => Ok(json(StatusCode::OK, "one item a call")),
            // Until the caller leaves: it is dropped with its connection.
            ListRefusal::Silence => std::future::pending().await,
        }
    }

    async fn predict(&self, route: Route, items: &Items<'_>, body: &[u8]) -> Response<Full<Bytes>> {
        let n = items.raw.len();
        if let Some(max) = self.items_max().filter(|&max| n > max) {
            self.counts.too_large.fetch_add(1, Ordering::Relaxed);
            return self.too_large(route, n, max);
        }
        let ran = match &self.inner {
            Some(inner) => inner.run(n).await,
            None => self.model.run_as(n, self.slow(body)).await,
        };
        match ran {
            Ok(()) => {}
            Err(NotRun::QueueFull) => {
                self.counts.refused.fetch_add(1, Ordering::Relaxed);
                let mut answer = json(StatusCode::SERVICE_UNAVAILABLE, r#"{"error":"queue full"}"#);
                answer.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
                return answer;
            }
            Err(NotRun::NoTimer) => return json(StatusCode::INTERNAL_SERVER_ERROR, r#"{"error":"no timer"}"#),
        }
        if self.config.poison.as_ref().is_some_and(|mark| items.raw.iter().any(|item| item.contains(mark))) {
            self.counts.failed.fetch_add(1, Ordering::Relaxed);
            return json(StatusCode::INTERNAL_SERVER_ERROR, r#"{"error":"an item could not be computed"}"#);
        }
        self.counts.items.fetch_add(n as u64, Ordering::Relaxed);
        let mut sizes = self.sizes.lock().unwrap_or_else(PoisonError::into_inner);
        if sizes.len() <= n {
            sizes.resize(n + 1, 0);
        }
        sizes[n] += 1;
        drop(sizes);
        json(StatusCode::OK, route.answer(items))
    }

    /// The base that a call with this body has of its own.
    fn slow(&self, body: &[u8]) -> Option<Duration> {
        let (mark, base) = self.config.slow.as_ref()?;
        memchr::memmem::find(body, mark.as_bytes()).map(|_| *base)
    }

    fn items_max(&self) -> Option<usize> {
        Some(self.items_max.load(Ordering::Relaxed)).filter(|&max| max < usize::MAX)
    }

    fn too_large(&self, route: Route, n: usize, max: usize) -> Response<Full<Bytes>> {
        let message = format!("batch size {n} > maximum allowed batch size {max}");
        match (self.config.too_large, route) {
            (TooLarge::Bare, _) => json(StatusCode::PAYLOAD_TOO_LARGE, ""),
            (TooLarge::Named, Route::Embed) => {
                json(StatusCode::UNPROCESSABLE_ENTITY, format!(r#"{{"error":"{message}","error_type":"Validation"}}"#))
            }
            (TooLarge::Named, Route::Embeddings | Route::Predict | Route::Ledger) => {
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
