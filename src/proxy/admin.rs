//! The admin ports: metrics and probes on the pod's address, and a local API on loopback only.
//!
//! They run on a thread and a runtime of their own, so that a scrape and a busy data path do not
//! delay each other. Every request that changes something is a POST with a JSON content type on the
//! local port, which also checks `Host`: neither a page in a browser nor server-side request
//! forgery can send one. The only exception is the application's drain hook, because a kubelet can
//! only send a GET: it requires a token known only to its pod, and can do nothing but flush the
//! queue. Metrics are read with any `Host`, except on loopback. Probes do not check `Host`.

mod hook;
mod local;
mod read_only;
mod server;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

pub use self::server::{AdminAddresses, AdminServer, start};
use crate::batching::Tick;
use crate::clock::Clock;
use crate::memory::BufferBudget;
use crate::telemetry::Metrics;
use crate::telemetry::log::LevelHandle;

/// State that the admin ports report and change.
#[derive(Clone)]
pub struct AdminState {
    /// Metrics of the process.
    pub metrics: Arc<Metrics>,
    /// Memory budget for buffered bytes.
    pub buffers: BufferBudget,
    /// Handle to the log level.
    pub level: LevelHandle,
    /// The clock of the process.
    pub clock: Clock,
    /// Start of the process.
    pub started: Tick,
    /// Returns `true` if the process is ready for calls.
    pub ready: Arc<dyn Fn() -> bool + Send + Sync>,
    /// The configuration in effect with the source of each value, as JSON.
    pub config: JsonView,
    /// Result of the last configuration reload, as JSON.
    pub reload: JsonView,
    /// State learned by the scheduler.
    pub scheduler: SchedulerReport,
    /// The preStop hooks of the pod's containers.
    pub drain: DrainHooks,
    /// Connection test against the application.
    pub connects: ConnectTest,
}

/// The preStop hooks of the pod's containers.
#[derive(Clone)]
pub struct DrainHooks {
    /// Token that the application's hook must present. `None` disables the hook.
    pub token: Option<String>,
    /// Called before the application is stopped. Resolves when it may be, with `true` if every call
    /// was answered.
    pub flush: AsyncAction,
    /// Called before the process is stopped. Resolves at once, with `true` if the drain was
    /// started.
    pub drain: AsyncAction,
    /// `serving`, `flushing` or `draining`.
    pub stage: Arc<dyn Fn() -> &'static str + Send + Sync>,
}

/// An asynchronous action that returns `true` if it succeeded.
pub type AsyncAction = Arc<dyn Fn() -> Pin<Box<dyn Future<Output = bool> + Send>> + Send + Sync>;

/// Tests if the application accepts connections on one of its ports. Resolves to `None` if the port
/// is not captured.
pub type ConnectTest = Arc<dyn Fn(u16) -> Pin<Box<dyn Future<Output = Option<bool>> + Send>> + Send + Sync>;

/// Renders a value as JSON at the time of a request.
pub type JsonView = Arc<dyn Fn() -> serde_json::Value + Send + Sync>;

/// Requests the state learned by the scheduler. Resolves to `None` if the scheduler does not
/// respond.
pub type SchedulerReport =
    Arc<dyn Fn() -> Pin<Box<dyn Future<Output = Option<serde_json::Value>> + Send>> + Send + Sync>;

impl std::fmt::Debug for DrainHooks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DrainHooks").field("hook", &self.token.is_some()).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for AdminState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AdminState").field("started", &self.started).finish_non_exhaustive()
    }
}
