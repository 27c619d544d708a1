//! The controller's end: takes streams, knows whose each is, and gives every sidecar what is meant for it.
//!
//! ```text
//! listener ─ TLS ─ HTTP/2 ─▶ Authenticate: token → Identity ─▶ stream: Hello, then Reports and Events ─▶ Hub
//!                                                               ▲ mailbox: the newest Config, Bundle, Goaway ◀─ Streams::push
//! ```
//! Ten thousand of these stand beside each other, so a stream is one connection of small buffers and two tasks, nothing is done per message but what the
//! message is, one sweep looks after all, and a change for everybody is one frame of bytes that all share. A mailbox has one place for each kind of message:
//! whoever reads slowly gets the newest, and whoever reads nothing is dropped.
//!
//! It leaves out who a pod is (`Authenticate`, of which [`Reviews`] is one) and what is done with what it says (`Hub`).

mod count;
mod jwt;
mod listener;
mod mailbox;
mod review;
mod stream;
mod streams;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use rustls::server::{NoServerSessionStorage, ResolvesServerCert, ServerConfig};

pub use self::count::Count;
pub use self::listener::serve;
pub use self::mailbox::Push;
pub use self::review::{AUDIENCE, Pods, Reviews};
pub use self::streams::Streams;
use super::wire::{Event, Hello, Report};

/// Whose stream it is: what the token says, and nothing that the pod says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Identity {
    /// The pod's UID.
    pub uid: String,
    /// Its name.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
}

/// Why a token opens no stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// It is no token for us: 401, and the sidecar reads its file again.
    Invalid(&'static str),
    /// It is a token, but of no pod that may: 403.
    Forbidden(&'static str),
    /// Too many at once; come again after so long: 503.
    Busy(Duration),
    /// It cannot be asked now: 503.
    Unavailable(&'static str),
}

/// Says whose a token is.
pub trait Authenticate: Send + Sync + 'static {
    /// Whose it is, or why it opens no stream. It may take some seconds; the stream waits.
    fn authenticate<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Result<Identity, Refusal>>;
}

/// What becomes of what sidecars say. Called where streams are served: it must not block, and takes what it gets into its own keeping.
pub trait Hub: Send + Sync + 'static {
    /// A sidecar is there; it can be pushed to from now on, also from within. One that was there before under the same UID is no more.
    fn opened(&self, streams: &Streams, pod: &Arc<Identity>, hello: &Hello);

    /// What it counted. Each report comes once.
    fn report(&self, pod: &Arc<Identity>, report: Report);

    /// What happened to it. Each event comes once.
    fn event(&self, pod: &Arc<Identity>, event: Event);

    /// It is gone.
    fn closed(&self, pod: &Arc<Identity>);
}

/// Bounds of all streams together and of each.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Connections at once. Above it they are closed as they come, and sidecars try again elsewhere.
    pub streams_max: usize,
    /// TLS handshakes at once; the others wait their turn. Each takes some 1 ms of a core, so more at once would only make all late.
    pub handshakes_max: usize,
    /// For the first byte of a connection, and for the handshake once it is its turn.
    pub handshake_timeout: Duration,
    /// From the connection to `Hello`.
    pub hello_timeout: Duration,
    /// Without a frame, after `Hello`: twelve reports.
    pub idle_timeout: Duration,
    /// What waits for a sidecar that does not read.
    pub slow_timeout: Duration,
    /// Frames a second, and at once: a report every 5 s, and 32 events after a break.
    pub frames: (u64, u64),
    /// Bytes a second, and at once: one frame of the largest size, and some.
    pub bytes: (u64, u64),
}

// === impl Limits ===

impl Default for Limits {
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

// === impl Refusal ===

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid(why) | Self::Forbidden(why) | Self::Unavailable(why) => f.write_str(why),
            Self::Busy(_) => f.write_str("too many tokens at once"),
        }
    }
}

/// TLS for the listener, with certificates that may change while it runs.
///
/// # Errors
/// When the provider lacks what TLS 1.2 and 1.3 need, which the one that is built in does not.
pub fn tls(certificates: Arc<dyn ResolvesServerCert>) -> Result<Arc<ServerConfig>, rustls::Error> {
    let mut config = ServerConfig::builder_with_provider(crate::tls::provider())
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_cert_resolver(certificates);
    config.alpn_protocols = vec![b"h2".to_vec()];
    // A sidecar comes back once an hour, and a whole handshake then costs less than ten thousand sessions kept.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}
