//! The ports beside the data port: metrics and probes for the pod's address, changes for loopback only.
//!
//! They run on a thread and a runtime of their own, so that neither a scrape nor a busy data path makes the other wait. Whatever changes something is a
//! POST with a JSON content type on the local port, which also checks `Host`: a page in a browser or a server-side request forgery can do neither. The one exception is
//! the application's drain hook, since a kubelet can only GET: it takes a token that its pod alone knows, and can do nothing but flush.

mod hook;
mod local;
mod server;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

pub use self::server::{Admin, Ports, start};
use crate::batching::Tick;
use crate::clock::Clock;
use crate::memory::BufferBudget;
use crate::telemetry::Metrics;
use crate::telemetry::log::LevelHandle;

/// What the admin ports show and change.
#[derive(Clone)]
pub struct State {
    /// Counters.
    pub metrics: Arc<Metrics>,
    /// Bytes held.
    pub buffers: BufferBudget,
    /// The log's level.
    pub level: LevelHandle,
    /// The clock of the process.
    pub clock: Clock,
    /// When it started.
    pub started: Tick,
    /// Whether the process wants calls.
    pub ready: Arc<dyn Fn() -> bool + Send + Sync>,
    /// The settings in force with their sources, as JSON.
    pub config: Shown,
    /// How reading them again went, as JSON.
    pub reload: Shown,
    /// What the scheduler learned.
    pub scheduler: Learned,
    /// The hooks of the pod's containers.
    pub drain: Drain,
    /// Whether the application accepts connections.
    pub connects: Connects,
}

/// What the hooks of a pod's containers reach.
#[derive(Clone)]
pub struct Drain {
    /// What the application's hook must know; none: it is not there.
    pub token: Option<String>,
    /// The application is about to be stopped: resolves when it may be, with whether everybody was answered.
    pub flush: Asked,
    /// The process is about to be stopped: resolves at once, with whether it heard.
    pub drain: Asked,
    /// `serving`, `flushing` or `draining`.
    pub stage: Arc<dyn Fn() -> &'static str + Send + Sync>,
}

/// Something that is asked for, and whether it came about.
pub type Asked = Arc<dyn Fn() -> Pin<Box<dyn Future<Output = bool> + Send>> + Send + Sync>;

/// Whether the application accepts connections at a port of its own; `None` where that port is not captured.
pub type Connects = Arc<dyn Fn(u16) -> Pin<Box<dyn Future<Output = Option<bool>> + Send>> + Send + Sync>;

/// What is shown as it is when somebody looks.
pub type Shown = Arc<dyn Fn() -> serde_json::Value + Send + Sync>;

/// Asks what the scheduler learned; `None` when it cannot say.
pub type Learned = Arc<dyn Fn() -> Pin<Box<dyn Future<Output = Option<serde_json::Value>> + Send>> + Send + Sync>;

impl std::fmt::Debug for Drain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Drain").field("hook", &self.token.is_some()).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").field("started", &self.started).finish_non_exhaustive()
    }
}
