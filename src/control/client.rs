//! The sidecar's end of the control stream: opens the stream, keeps it open, and passes received
//! messages to a [`SidecarStreamHandler`].
//!
//! It runs beside the data path, on the runtime of the admin ports, and serving never waits for it.
//! Without a controller it reconnects after 0.5 to 30 s, with exponential backoff and jitter, while
//! everything else continues. After an hour it opens another stream, so that load is rebalanced to
//! added replicas.
//!
//! The controller's certificate must be valid for the controller's name and issued by a CA of the
//! bundle received last over a stream, or else of the bundle that the pod was started with. The
//! token is read from its file at each connect, because the kubelet rotates it.
//!
//! Applying a `SidecarConfig`, filling a `SidecarReport` and storing a bundle are left to the
//! [`SidecarStreamHandler`].

mod address;
mod connect;
mod backoff;
mod session;
mod ca_bundles;

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use strum::{IntoStaticStr, VariantArray};
use tokio::sync::Notify;

pub use self::address::ControllerAddress;
pub use self::backoff::StreamTimeouts;
pub use self::ca_bundles::{CaBundleError, CaBundles};
use super::delivery::ReportOutbox;
use super::wire::{Hello, SidecarConfig, SidecarEvent, SidecarReport};
use crate::batching::Tick;
use crate::clock::Clock;

/// Configuration of the stream.
#[derive(Debug)]
pub struct ControlClientConfig {
    /// Address of the controller.
    pub address: ControllerAddress,
    /// Name that the controller's certificate must be valid for, whatever address is dialled.
    pub server_name: String,
    /// Trusted CA bundles.
    pub trust: CaBundles,
    /// Path of the token file.
    pub token: PathBuf,
    /// Intervals and timeouts.
    pub times: StreamTimeouts,
}

/// The process that the stream serves.
pub trait SidecarStreamHandler: Send + Sync + 'static {
    /// Returns the sidecar's identity and the settings in force. The client fills in version,
    /// features and epoch.
    fn hello(&self) -> Hello;

    /// Returns the counts since the previous call. The client fills in epoch and number.
    fn take_report(&self) -> BoxFuture<'_, SidecarReport>;

    /// Applies settings, or rejects them and keeps the previous ones; a rejection is reported as an
    /// event.
    fn on_config(&self, config: SidecarConfig) -> BoxFuture<'_, ()>;

    /// Stores a CA bundle, which is trusted from now on.
    fn on_bundle(&self, pem: String) -> BoxFuture<'_, ()>;

    /// Receives changes of the stream's status, for logs and metrics.
    fn on_status(&self, status: &StreamStatus);
}

/// Status of the stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StreamStatus {
    /// The stream is open.
    Open {
        /// Address that it is connected to.
        address: String,
        /// Protocol version, as advertised by the controller.
        protocol: String,
    },
    /// The stream ended or could not be opened.
    Lost {
        /// Reason, for a metric label.
        reason: DisconnectReason,
        /// Explanation in one sentence.
        message: String,
        /// Time until the next attempt.
        retry_in: Duration,
    },
    /// A message or field that is unknown to this version was ignored.
    Unknown {
        /// Number of messages of an unknown kind.
        kinds: u32,
        /// Number of unknown fields.
        fields: u32,
    },
}

/// Reason why a stream ended or could not be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum DisconnectReason {
    /// The token cannot be read.
    Token,
    /// No connection could be established in time.
    Connect,
    /// The controller's certificate is not trusted: wrong CA, wrong name, or expired.
    Certificate,
    /// TLS or HTTP/2 failed for another reason.
    Handshake,
    /// The controller rejected the token as invalid.
    Unauthorized,
    /// The token's pod is not allowed to open a stream.
    Forbidden,
    /// The controller is overloaded.
    Busy,
    /// The controller responded with another status.
    Refused,
    /// The connection broke.
    Broken,
    /// Invalid frames or messages were received.
    Malformed,
    /// The controller stopped responding.
    Silent,
    /// The controller sent `Goaway`.
    Goaway,
    /// The maximum lifetime of a stream was reached.
    Lifetime,
}

/// The end of a stream, or the reason why it could not be opened.
#[derive(Debug, Clone, PartialEq, Eq)]
struct SessionEnd {
    reason: DisconnectReason,
    message: String,
    /// Address of the next connect, if the controller named one.
    redirect_address: Option<ControllerAddress>,
    /// Minimum delay requested by the controller.
    not_before: Duration,
    /// Time at which the stream was opened, if it was.
    open: Option<Tick>,
}

/// A handle for sending events on the stream. Cheap to clone.
#[derive(Clone)]
pub struct EventSender {
    shared: Arc<ClientShared>,
}

struct ClientShared {
    outbox: Mutex<ReportOutbox>,
    notify: Notify,
}

/// The control stream of one sidecar.
#[derive(Debug)]
pub struct Client {
    config: ControlClientConfig,
    clock: Clock,
    handle: EventSender,
}

// === impl Client ===

impl Client {
    /// Creates a client, which connects once it runs. `epoch` must differ from that of every
    /// earlier process of this pod.
    #[must_use]
    pub fn new(config: ControlClientConfig, clock: Clock, epoch: u64) -> Self {
        let shared = ClientShared { outbox: Mutex::new(ReportOutbox::new(epoch)), notify: Notify::new() };
        Self { config, clock, handle: EventSender { shared: Arc::new(shared) } }
    }

    /// Returns a handle for sending events.
    #[must_use]
    pub fn handle(&self) -> EventSender {
        self.handle.clone()
    }

    /// Keeps the stream open until the process ends.
    pub async fn run(self, sidecar: Arc<dyn SidecarStreamHandler>) {
        let Self { mut config, clock, handle } = self;
        let mut backoff = backoff::Backoff::default();
        let mut redirect_address = None;
        loop {
            let began = clock.now();
            let end = session::run_session(&mut config, clock, &handle, &*sidecar, redirect_address.take()).await;
            // The controller's certificate may be issued by a CA of the other bundle.
            if end.reason == DisconnectReason::Certificate {
                config.trust.switch_bundle();
            }
            let lived = end.open.map(|opened| clock.now().since(opened));
            let again = backoff.next_delay(&end, lived, clock.now().since(began), rand::random());
            tracing::debug!(reason = end.reason.as_str(), message = end.message, ?again, "the control stream ended");
            sidecar.on_status(&StreamStatus::Lost { reason: end.reason, message: end.message, retry_in: again });
            redirect_address = end.redirect_address;
            tokio::time::sleep(again).await;
        }
    }
}

// === impl EventSender ===

impl EventSender {
    /// Sends an event: immediately if a stream is open, otherwise on the next one.
    pub fn send_event(&self, event: SidecarEvent) {
        self.outbox().push_event(event);
        self.shared.notify.notify_one();
    }

    fn outbox(&self) -> MutexGuard<'_, ReportOutbox> {
        self.shared.outbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for EventSender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventSender").field("epoch", &self.outbox().epoch()).finish_non_exhaustive()
    }
}

// === impl SessionEnd ===

impl SessionEnd {
    fn new(reason: DisconnectReason, message: &str) -> Self {
        Self { reason, message: message.to_owned(), redirect_address: None, not_before: Duration::ZERO, open: None }
    }
}

// === impl DisconnectReason ===

impl DisconnectReason {
    /// Returns the label value.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}
