//! The HTTP adapter for the model server: executes batches and forwards all other calls.
//!
//! No connection is pooled across clients: an HTTP/1 connection can shift responses by one, and a
//! check of the number of results would not detect it. A batch uses a fresh HTTP/1 connection, or
//! its own stream on HTTP/2, where stream ids bind responses to requests. Unbatched and
//! pass-through calls use a connection pinned to the connection of their client. Redirects,
//! decompression and proxy variables are not supported.

mod batch;
mod concurrent;
mod client;
mod connect;
mod exchange;
mod failure;
mod forward;
mod head;
mod readiness;
mod http1;
mod identity;
mod isolation;
mod lane;
mod permits;
mod part;
mod part_result;
mod published;
mod pinned;
mod stream;
mod stream_evidence;

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::watch;

use self::client::ReusedConnections;
use self::connect::Connector;
pub use self::connect::UpstreamTarget;
use self::identity::IdentityWatch;
pub use self::identity::ServerIdentity;
use self::permits::ConnectionPurpose;
pub use self::permits::UpstreamPermits;
use self::readiness::Reachability;
use crate::backend::{Backend, Forwarder};
use crate::batching::{ReplayBudget, Tick};
use crate::clock::Clock;
use crate::memory::BufferBudget;
use crate::protocol::{ResponseMismatch, TokenCalibration, UnbatchedEvidence};
use crate::telemetry::Metrics;
use crate::tls::{AlpnProtocols, UpstreamTlsConnector};

/// Maximum number of idle HTTP/1 connections kept with `reuse: Always`, sufficient for the usual
/// number of batches in flight.
const REUSED_MAX: usize = 16;

/// Use of HTTP/2 towards the upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Http2 {
    /// HTTP/2 if a probe detects it.
    Auto,
    /// HTTP/2 with prior knowledge.
    Always,
    /// HTTP/1.1 only.
    Never,
}

/// Configuration of the upstream adapter.
#[derive(Debug, Clone)]
pub struct UpstreamConfig {
    /// Address of the model server.
    pub target: UpstreamTarget,
    /// TLS settings, for a target with TLS.
    pub tls: Option<Arc<UpstreamTlsConnector>>,
    /// Maximum duration of a connect, and separately of the TLS handshake that follows.
    pub connect_timeout: Duration,
    /// Maximum time without data within the response body of a recognised call.
    pub body_idle_timeout: Duration,
    /// Maximum size of the response to a recognised call, in bytes.
    pub answer_bytes_max: usize,
    /// Maximum time without data in either direction of a pass-through call.
    pub pass_through_idle_timeout: Duration,
    /// Use of HTTP/2.
    pub http2: Http2,
    /// Keeps HTTP/1 connections open between batches.
    pub reuse: bool,
    /// Maximum number of members of a failed batch that are replayed one by one.
    pub isolate_above: u32,
    /// Maximum number of replays, in millionths of the number of client calls.
    pub replay_ppm: u32,
}

/// The upstream of a proxy.
#[derive(Debug, Clone)]
pub struct Upstream {
    inner: Arc<Inner>,
}

/// State of the upstream, shared by its executor of batches, its forwarder and its lanes.
#[derive(Debug)]
struct Inner {
    config: UpstreamConfig,
    clock: Clock,
    connector: Connector,
    health: Reachability,
    /// The server is known to support HTTP/2.
    speaks_http2: AtomicBool,
    /// The connections that batches share.
    shared: ReusedConnections,
    published: published::LimitsCache,
    budget: Mutex<ReplayBudget>,
    /// The current value of [`UpstreamConfig::isolate_above`].
    isolate_above: AtomicU32,
    identity: IdentityWatch,
    evidence: UnbatchedEvidence,
    /// The last response that could not be split, and its time.
    last_mismatch: Mutex<Option<(Tick, ResponseMismatch)>>,
    tokens: Arc<TokenCalibration>,
    buffers: BufferBudget,
    permits: UpstreamPermits,
    metrics: Arc<Metrics>,
}

// === impl Upstream ===

impl Upstream {
    /// Creates the adapter. [`Upstream::watch`] starts the probe of the server.
    #[must_use]
    pub fn new(
        config: UpstreamConfig,
        clock: Clock,
        (buffers, permits): (BufferBudget, UpstreamPermits),
        metrics: Arc<Metrics>,
    ) -> Self {
        let connector = Connector::new(config.target.clone(), config.tls.clone(), config.connect_timeout);
        let health = Reachability::new(clock);
        let budget = Mutex::new(ReplayBudget::new(config.replay_ppm));
        let speaks_http2 = AtomicBool::new(config.http2 == Http2::Always);
        let shared = ReusedConnections::new(ConnectionPurpose::Batch, if config.reuse { REUSED_MAX } else { 0 });
        let published = published::LimitsCache::default();
        let isolate_above = AtomicU32::new(config.isolate_above);
        let identity = IdentityWatch::default();
        Self {
            inner: Arc::new(Inner {
                config,
                clock,
                connector,
                health,
                speaks_http2,
                shared,
                published,
                budget,
                isolate_above,
                identity,
                evidence: UnbatchedEvidence::new(clock.now(), Clock::wall_micros() / 1_000_000),
                last_mismatch: Mutex::default(),
                tokens: Arc::default(),
                buffers,
                permits,
                metrics,
            }),
        }
    }

    /// Updates [`UpstreamConfig::isolate_above`] and [`UpstreamConfig::replay_ppm`] for
    /// subsequent failures.
    pub fn set_failure(&self, isolate_above: u32, replay_ppm: u32) {
        self.inner.isolate_above.store(isolate_above, Ordering::Relaxed);
        if let Ok(mut budget) = self.inner.budget.lock() {
            budget.set_share(replay_ppm);
        }
    }

    /// Returns the latest identity of the server, from its responses to recognised calls and from
    /// the limits that it publishes.
    #[must_use]
    pub fn identity(&self) -> watch::Receiver<ServerIdentity> {
        self.inner.identity.subscribe()
    }

    /// Returns `true` if the server accepts a connection now. The result does not affect readiness.
    pub async fn can_connect(&self) -> bool {
        self.inner.connector.connect(AlpnProtocols::Http1).await.is_ok()
    }

    /// Starts a task that probes the server until it accepts a connection, and detects whether it
    /// supports HTTP/2.
    pub fn watch(&self) {
        let inner = self.inner.clone();
        tokio::spawn(async move { inner.probe().await });
    }

    /// Returns `true` if the server has accepted a connection and connects have not failed for long
    /// since then.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.inner.health.is_ready()
    }

    /// Returns the number of times that the server became reachable again after it had refused
    /// connections.
    #[must_use]
    pub fn recoveries(&self) -> watch::Receiver<u64> {
        self.inner.health.returns()
    }

    /// Connects once and returns `true` if the server accepted. On failure, it is probed until it
    /// accepts.
    pub async fn check_connection(&self) -> bool {
        self.inner.connect(self.inner.http_version()).await.is_ok()
    }

    /// Returns the rates of tokens that are learned from responses.
    #[must_use]
    pub fn token_calibration(&self) -> Arc<TokenCalibration> {
        self.inner.tokens.clone()
    }

    /// Returns the interface for batches.
    #[must_use]
    pub fn backend(&self) -> Arc<dyn Backend> {
        Arc::new(batch::BatchExecutor(self.inner.clone()))
    }

    /// Returns the interface for all other calls.
    #[must_use]
    pub fn forward(&self) -> Arc<dyn Forwarder> {
        Arc::new(forward::LaneForwarder(self.inner.clone()))
    }
}
