//! The model server over HTTP: how batches are executed and how everything else is carried.
//!
//! Nothing is pooled across clients: an HTTP/1 connection can shift answers by one, and no count check would see it. A shared batch gets a fresh HTTP/1
//! connection, or a stream of its own on HTTP/2 where stream ids bind answers; what goes alone or passes through travels on a connection pinned to its
//! client's connection. Never a redirect, never decompression, never a proxy variable.

mod batch;
mod beside;
mod client;
mod connect;
mod exchange;
mod forward;
mod health;
mod http1;
mod identity;
mod places;
mod published;
mod wire;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::watch;

use self::connect::Connector;
pub use self::connect::Target;
use self::health::Health;
use self::identity::Heard;
pub use self::identity::Identity;
pub use self::places::UpstreamPlaces;
use crate::backend::{Backend, Forward};
use crate::batching::ReplayBudget;
use crate::clock::Clock;
use crate::memory::BufferBudget;
use crate::protocol::LoneEvidence;
use crate::telemetry::Metrics;
use crate::tls::{Servers, Speak};

/// Whether HTTP/2 is spoken upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Http2 {
    /// Where one probe finds it.
    Auto,
    /// Prior knowledge.
    Always,
    /// HTTP/1.1 only.
    Never,
}

/// What the upstream adapter needs.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where the model server listens.
    pub target: Target,
    /// For a target with TLS.
    pub tls: Option<Arc<Servers>>,
    /// Longest connect, and longest handshake after it.
    pub connect_timeout: Duration,
    /// Longest silence inside the answer to a recognised call.
    pub body_idle_timeout: Duration,
    /// Most bytes of an answer to a recognised call.
    pub answer_bytes_max: usize,
    /// Longest silence of both directions of what passes through.
    pub pass_through_idle_timeout: Duration,
    /// Whether HTTP/2 is spoken.
    pub http2: Http2,
    /// Keep HTTP/1 connections between batches.
    pub reuse: bool,
    /// Members up to which a failed batch is replayed one by one.
    pub isolate_above: u32,
    /// Replays beyond the number of client calls, in thousandths of it.
    pub replay_permille: u32,
}

/// The upstream of one proxy.
#[derive(Debug, Clone)]
pub struct Upstream {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    config: Config,
    clock: Clock,
    connector: Connector,
    health: Health,
    shared: client::Shared,
    published: published::Cache,
    budget: Mutex<ReplayBudget>,
    isolate_above: AtomicU32,
    heard: Heard,
    evidence: LoneEvidence,
    buffers: BufferBudget,
    places: UpstreamPlaces,
    metrics: Arc<Metrics>,
}

// === impl Upstream ===

impl Upstream {
    /// Makes the adapter. [`Upstream::watch`] starts looking for the server.
    #[must_use]
    pub fn new(
        config: Config,
        clock: Clock,
        (buffers, places): (BufferBudget, UpstreamPlaces),
        metrics: Arc<Metrics>,
    ) -> Self {
        let connector = Connector::new(config.target.clone(), config.tls.clone(), config.connect_timeout);
        let health = Health::new(clock);
        let budget = Mutex::new(ReplayBudget::new(config.replay_permille));
        let shared = client::Shared::new(config.http2);
        let published = published::Cache::default();
        let isolate_above = AtomicU32::new(config.isolate_above);
        let heard = Heard::default();
        Self {
            inner: Arc::new(Inner {
                config,
                clock,
                connector,
                health,
                shared,
                published,
                budget,
                isolate_above,
                heard,
                evidence: LoneEvidence::default(),
                buffers,
                places,
                metrics,
            }),
        }
    }

    /// Other values for [`Config::isolate_above`] and [`Config::replay_permille`]: for what fails from now on.
    pub fn set_failure(&self, isolate_above: u32, replay_permille: u32) {
        self.inner.isolate_above.store(isolate_above, Ordering::Relaxed);
        if let Ok(mut budget) = self.inner.budget.lock() {
            budget.set_share(replay_permille);
        }
    }

    /// What the server last said of itself, in answers to recognised calls and where it publishes its limits.
    #[must_use]
    pub fn identity(&self) -> watch::Receiver<Identity> {
        self.inner.heard.subscribe()
    }

    /// Whether the server accepts a connection now. It counts for nothing else.
    pub async fn accepts(&self) -> bool {
        self.inner.connector.connect(Speak::Http1).await.is_ok()
    }

    /// Looks for the server until it accepts a connection, once, and learns whether it speaks HTTP/2.
    pub fn watch(&self) {
        let inner = self.inner.clone();
        tokio::spawn(async move { inner.probe().await });
    }

    /// Whether the server has accepted a connection, and connects have not failed for long since.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.inner.health.is_ready()
    }

    /// How often the server was back after it had refused connections.
    #[must_use]
    pub fn returns(&self) -> watch::Receiver<u64> {
        self.inner.health.returns()
    }

    /// Connects once, and says whether the server accepted; where it did not, it is looked for until it does.
    pub async fn check(&self) -> bool {
        self.inner.connect(self.inner.speaks()).await.is_ok()
    }

    /// The port for batches.
    #[must_use]
    pub fn backend(&self) -> Arc<dyn Backend> {
        Arc::new(batch::Executor(self.inner.clone()))
    }

    /// The port for everything else.
    #[must_use]
    pub fn forward(&self) -> Arc<dyn Forward> {
        Arc::new(forward::Lanes(self.inner.clone()))
    }
}
