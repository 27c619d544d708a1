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
mod handler;
mod listener;
mod model;
mod stats;
#[cfg(test)]
mod tests;

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use self::batching_engine::Engine;
pub use self::batching_engine::InternalBatching;
use self::handler::ServerState;
pub use self::handler::chat_text;
use self::listener::{Listener, accept_loop};
pub use self::model::CurveShape;
pub(crate) use self::model::SimulatedModel;
use self::stats::ServerCounters;
pub use self::stats::ServerStats;
use super::boxed_future::BoxedFuture;
use super::http1::ServerAddr;
use super::refusal::ListResponse;

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

/// The simulated model server.
#[derive(Debug, Clone, Copy)]
pub struct Server;

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
    pub fn start(config: ServerConfig) -> BoxedFuture<'static, io::Result<ServerHandle>> {
        Box::pin(async move {
            let listener = Listener::bind(&config.listen).await?;
            Self::serve(config, listener)
        })
    }

    /// Serves on a bound listener.
    fn serve(config: ServerConfig, listener: Listener) -> io::Result<ServerHandle> {
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
    pub fn drain(mut self, limit: Duration) -> BoxedFuture<'static, bool> {
        Box::pin(async move {
            self.closing.send_replace(true);
            tokio::time::timeout(limit, &mut self.accept).await.is_ok()
        })
    }

    /// Stops the server. The port is closed and every connection is dropped when this returns.
    pub fn shutdown(mut self) -> BoxedFuture<'static, ()> {
        Box::pin(async move {
            self.accept.abort();
            // The task was aborted above, so the join error is expected.
            (&mut self.accept).await.ok();
        })
    }
}

impl Drop for ServerHandle {
    fn drop(&mut self) {
        self.accept.abort();
    }
}
