//! The controller's end of the control stream: accepts streams, authenticates their pods, and
//! pushes configuration to each sidecar.
//!
//! ```text
//! listener: TLS, HTTP/2 ─▶ Authenticate: token → PodIdentity ─▶ stream ─▶ ControllerStreamHandler
//!                                                                 ▲        Hello, Report, Event
//!           StreamRegistry::push ─▶ mailbox: the newest Config, Bundle, Goaway
//! ```
//! The server is designed for ten thousand concurrent streams. A stream is one connection with
//! small buffers and two tasks, a message causes no work beyond its own processing, one periodic
//! sweep checks the timeouts of all streams, and a push to all sidecars is one encoded frame that
//! they share. A mailbox has one slot per kind of message: a slow reader receives the newest
//! message of each kind, and a sidecar that reads nothing is disconnected.
//!
//! Authentication is left to [`Authenticate`], which [`TokenReviewer`] implements, and the handling
//! of messages to [`ControllerStreamHandler`].

mod stream_events;
mod claims;
mod listener;
mod mailbox;
mod token_review;
mod stream;
mod registry;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use rustls::server::{NoServerSessionStorage, ResolvesServerCert, ServerConfig};

pub use self::listener::serve;
pub use self::mailbox::EncodedPush;
pub use self::registry::StreamRegistry;
pub use self::stream_events::StreamEvent;
pub use self::token_review::{AUDIENCE, InjectedPods, TokenReviewer};
use super::wire::{Hello, SidecarEvent, SidecarReport};

/// Verified identity of a stream's pod. It is taken from the token and never from what the pod
/// sends.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PodIdentity {
    /// UID of the pod.
    pub uid: String,
    /// Name of the pod.
    pub name: String,
    /// Namespace of the pod.
    pub namespace: String,
}

/// Reason why a token is rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AuthError {
    /// The token is invalid: 401. The sidecar reads its file again.
    #[error("{0}")]
    Invalid(&'static str),
    /// The token is valid but its pod is not allowed to open a stream: 403.
    #[error("{0}")]
    Forbidden(&'static str),
    /// The rate limit is exceeded: 503, with the time after which to retry.
    #[error("too many token reviews: retry later")]
    Busy(Duration),
    /// The token cannot be verified at the moment: 503.
    #[error("{0}")]
    Unavailable(&'static str),
}

/// Verifies tokens.
pub trait Authenticate: Send + Sync + 'static {
    /// Returns the identity of a token's pod, or the reason why the token is rejected. It may take
    /// several seconds, during which the stream waits.
    fn authenticate<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Result<PodIdentity, AuthError>>;
}

/// Receives the messages of sidecars. The methods are called on the tasks that serve the streams:
/// they must not block, and store what they need later.
pub trait ControllerStreamHandler: Send + Sync + 'static {
    /// A sidecar sent `Hello` and can be pushed to, also from within this call. It replaces an
    /// earlier stream of the same UID, for which `on_close` is not called.
    fn on_open(&self, streams: &StreamRegistry, pod: &Arc<PodIdentity>, hello: &Hello);

    /// A sidecar sent a report. Each report is delivered once.
    fn on_report(&self, pod: &Arc<PodIdentity>, report: SidecarReport);

    /// A sidecar sent an event. Each event is delivered once.
    fn on_event(&self, pod: &Arc<PodIdentity>, event: SidecarEvent);

    /// The stream of a sidecar was closed.
    fn on_close(&self, pod: &Arc<PodIdentity>);
}

/// Number of files that are not used for streams: the connections of the webhook (256) and of the
/// port for probes (64), those to the API server, and a margin.
const RESERVED_FILES: usize = 512;

/// Limits of the server and of each stream.
#[derive(Debug, Clone)]
pub struct ServerLimits {
    /// Maximum number of connections. Further connections are closed on accept, and their sidecars
    /// try another replica.
    pub streams_max: usize,
    /// Maximum number of TLS handshakes whose first message is processed at the same time; others
    /// wait for a permit. Each takes about 1 ms of a core, so that open streams wait for at most
    /// these, and a larger number would only delay all of them. Those that wait for the second
    /// message of their client hold no permit and are bounded per address.
    pub handshakes_max: usize,
    /// Timeout for the first message of a connection, and for the handshake once it has its permit.
    pub handshake_timeout: Duration,
    /// Timeout from the connection to `Hello`.
    pub hello_timeout: Duration,
    /// Timeout without a frame after `Hello`: the time of twelve reports.
    pub idle_timeout: Duration,
    /// Timeout for a message that waits for a sidecar that does not read.
    pub slow_timeout: Duration,
    /// Frames per second, and burst. A sidecar sends a report every 5 s, and 32 events after a
    /// reconnect.
    pub frames: (u64, u64),
    /// Bytes per second, and burst: a frame of the maximum size and more.
    pub bytes: (u64, u64),
}

// === impl ServerLimits ===

impl Default for ServerLimits {
    fn default() -> Self {
        Self {
            streams_max: 12_000,
            handshakes_max: 64,
            handshake_timeout: Duration::from_secs(1),
            hello_timeout: Duration::from_secs(30),
            idle_timeout: Duration::from_secs(60),
            slow_timeout: Duration::from_secs(30),
            frames: (10, 100),
            bytes: (256 << 10, 2 << 20),
        }
    }
}

impl ServerLimits {
    /// Lowers the maximum number of connections for a process that may open `files_max` files.
    #[must_use]
    pub fn within(self, files_max: Option<u64>) -> Self {
        let Some(files) = files_max.and_then(|files| usize::try_from(files).ok()) else { return self };
        let streams_max = self.streams_max.min(files.saturating_sub(RESERVED_FILES).max(files / 2));
        Self { streams_max, ..self }
    }
}

/// Returns the TLS configuration of the listener, with certificates that may change while it runs.
///
/// # Errors
/// Returns an error if the crypto provider does not support what TLS 1.2 and 1.3 require, which the
/// built-in one does.
pub fn server_config(certificates: Arc<dyn ResolvesServerCert>) -> Result<Arc<ServerConfig>, rustls::Error> {
    let mut config = ServerConfig::builder_with_provider(crate::tls::provider())
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_cert_resolver(certificates);
    config.alpn_protocols = vec![b"h2".to_vec()];
    // A sidecar reconnects once an hour. A full handshake then costs less than storing ten thousand
    // sessions.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}
