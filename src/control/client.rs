//! The sidecar's end: opens the stream, keeps it open, and gives what comes to whoever puts it in force.
//!
//! It runs beside the data path, on the runtime of the admin ports, and serving never waits for it: without a controller it tries again now and then, with full
//! jitter between 0.5 and 30 s, and everything else goes on. After an hour it opens another stream, so that replicas that were added get their share.
//!
//! Whom it trusts: a certificate for the controller's name from a CA of the bundle that came last over a stream, or else of the one that the pod was given. The
//! token is read from its file each time, since the kubelet replaces it.
//!
//! It leaves out what a `Config` does and what stands in a `Report` ([`Sidecar`]), and where a bundle is kept.

mod connect;
mod pace;
mod session;
mod trust;

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::sync::Notify;

pub use self::connect::Address;
pub use self::pace::Times;
pub use self::trust::{NoTrust, Trust};
use super::ledger::Outbox;
use super::wire::{Config as Settings, Event, Hello, Report};
use crate::clock::Clock;

/// What the stream needs to know.
#[derive(Debug)]
pub struct Config {
    /// Where the controller is.
    pub address: Address,
    /// The name that its certificate must be for, wherever it is dialled.
    pub server_name: String,
    /// Whom to trust.
    pub trust: Trust,
    /// The file with the token.
    pub token: PathBuf,
    /// How often, how long.
    pub times: Times,
}

/// What the stream serves: the process around it.
pub trait Sidecar: Send + Sync + 'static {
    /// Who it is, and what is in force. Version, features and epoch are filled in.
    fn hello(&self) -> Hello;

    /// What was counted since this was asked last. Epoch and number are filled in.
    fn report(&self) -> BoxFuture<'_, Report>;

    /// Puts this in force, or keeps what is there and says why.
    fn config(&self, config: Settings) -> BoxFuture<'_, ()>;

    /// Keeps this bundle, which is trusted from now on.
    fn bundle(&self, pem: String) -> BoxFuture<'_, ()>;

    /// How the stream fares: for logs and metrics.
    fn status(&self, status: &Status);
}

/// How the stream fares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Status {
    /// It is open.
    Open {
        /// Where to.
        address: String,
        /// The controller's version of the protocol, as it says.
        protocol: String,
    },
    /// It is not, and why.
    Lost {
        /// In one word, for a metric.
        reason: Reason,
        /// In a sentence.
        message: String,
        /// When it is tried again.
        again: Duration,
    },
    /// A message, or a part of one, that this version does not know, was left out.
    Unknown {
        /// Messages.
        kinds: u32,
        /// Fields.
        fields: u32,
    },
}

/// Why a stream ended, or was not opened, in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The token cannot be read.
    Token,
    /// Nobody answers there.
    Connect,
    /// The controller's certificate is not to be trusted: wrong CA, wrong name, or expired.
    Certificate,
    /// TLS or HTTP/2 fails otherwise.
    Handshake,
    /// The token is none.
    Unauthorized,
    /// The token's pod may open no stream.
    Forbidden,
    /// The controller has no time.
    Busy,
    /// The controller answers something else.
    Refused,
    /// It broke.
    Broken,
    /// What came were no frames of ours.
    Malformed,
    /// Nothing came any more.
    Silent,
    /// The controller asked for it.
    Goaway,
    /// It was open long enough.
    Lifetime,
}

/// Says events on the stream. Cheap to clone.
#[derive(Clone)]
pub struct Handle {
    shared: Arc<Shared>,
}

struct Shared {
    outbox: Mutex<Outbox>,
    news: Notify,
}

/// The stream of one sidecar.
#[derive(Debug)]
pub struct Client {
    config: Config,
    clock: Clock,
    handle: Handle,
}

// === impl Client ===

impl Client {
    /// A stream that is opened once it runs. `epoch` is a number that no earlier process of this pod had.
    #[must_use]
    pub fn new(config: Config, clock: Clock, epoch: u64) -> Self {
        let shared = Shared { outbox: Mutex::new(Outbox::new(epoch)), news: Notify::new() };
        Self { config, clock, handle: Handle { shared: Arc::new(shared) } }
    }

    /// Says events on it.
    #[must_use]
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Keeps the stream open as long as the process runs.
    pub async fn run(self, sidecar: Arc<dyn Sidecar>) {
        let Self { mut config, clock, handle } = self;
        let mut pace = pace::Pace::default();
        let mut named = None;
        loop {
            let began = clock.now();
            let end = session::once(&mut config, clock, &handle, &*sidecar, named.take()).await;
            if end.reason == Reason::Certificate {
                config.trust.next();
            }
            let lived = end.open.map(|opened| clock.now().since(opened));
            let again = pace.again(&end, lived, clock.now().since(began), rand::random());
            tracing::debug!(reason = end.reason.as_str(), message = end.message, ?again, "the control stream ended");
            sidecar.status(&Status::Lost { reason: end.reason, message: end.message, again });
            named = end.named;
            tokio::time::sleep(again).await;
        }
    }
}

// === impl Handle ===

impl Handle {
    /// Says that something happened: at once where a stream is open, else on the next one.
    pub fn event(&self, event: Event) {
        self.outbox().event(event);
        self.shared.news.notify_one();
    }

    fn outbox(&self) -> MutexGuard<'_, Outbox> {
        self.shared.outbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").field("epoch", &self.outbox().epoch()).finish_non_exhaustive()
    }
}

// === impl Reason ===

impl Reason {
    /// Every reason.
    pub const ALL: [Self; 13] = [
        Self::Token,
        Self::Connect,
        Self::Certificate,
        Self::Handshake,
        Self::Unauthorized,
        Self::Forbidden,
        Self::Busy,
        Self::Refused,
        Self::Broken,
        Self::Malformed,
        Self::Silent,
        Self::Goaway,
        Self::Lifetime,
    ];

    /// As a label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Token => "token",
            Self::Connect => "connect",
            Self::Certificate => "certificate",
            Self::Handshake => "handshake",
            Self::Unauthorized => "unauthorized",
            Self::Forbidden => "forbidden",
            Self::Busy => "busy",
            Self::Refused => "refused",
            Self::Broken => "broken",
            Self::Malformed => "malformed",
            Self::Silent => "silent",
            Self::Goaway => "goaway",
            Self::Lifetime => "lifetime",
        }
    }
}
