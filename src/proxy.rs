//! The data port: accept, recognise, read, queue, answer; and forward whatever no adapter recognises.
//!
//! ```text
//! listener ─ accept ─▶ connection (hyper, watched) ─▶ route ─┬─ pass: a lane pinned to the connection, bytes untouched
//!                                                            └─ merge: collect ▶ read ▶ scheduler ▶ respond | alone | rescue
//! ```
//! It knows no upstream: it is given a [`Forward`] and a scheduler handle.

mod alone;
mod collect;
mod connection;
mod cut;
mod deadline;
mod debug;
mod io;
mod listener;
mod merge;
mod pass;
mod priority;
mod record;
mod respond;
mod shift;
mod watch;

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use http::HeaderName;

use self::cut::Cut;
pub use self::listener::{Listening, bind, serve};
pub use self::priority::{Ended, Priorities, PriorityClass, TenantWeights};
use self::shift::Shifts;
use crate::accesslog::AccessLog;
use crate::backend::{Backend, Forward};
use crate::batching::ScopeId;
use crate::buffer::BufferBudget;
use crate::clock::Clock;
use crate::protocol::{Reason, Routes, Secret};
use crate::scheduler::Handle;
use crate::telemetry::{CallLabels, Metrics, Passed};

/// Limits towards clients.
#[derive(Debug, Clone)]
pub struct ClientLimits {
    /// Bytes of a request head.
    pub head_bytes_max: usize,
    /// Headers of a request.
    pub headers_max: usize,
    /// From the first byte of a head to its end.
    pub head_timeout: Duration,
    /// Between two reads of a recognised call's body.
    pub body_idle_timeout: Duration,
    /// A recognised call's whole body.
    pub body_timeout: Duration,
    /// An idle connection.
    pub keep_alive_timeout: Duration,
    /// A client that does not take its answer.
    pub write_timeout: Duration,
    /// Calls on one HTTP/1 connection.
    pub requests_per_connection_max: u64,
    /// HTTP/2 frames and windows.
    pub http2: Http2Limits,
}

/// Limits of HTTP/2 towards clients.
#[derive(Debug, Clone)]
pub struct Http2Limits {
    /// Streams open at once.
    pub streams_max: u32,
    /// Flow-control window of a stream.
    pub stream_window: u32,
    /// Flow-control window of a connection.
    pub connection_window: u32,
    /// Between pings on a connection with open streams.
    pub ping_interval: Duration,
    /// Longest wait for a pong.
    pub ping_timeout: Duration,
    /// Resets by the peer before the connection is ended.
    pub resets_max: usize,
    /// Age at which a connection is ended gracefully.
    pub age_max: Duration,
}

/// What the data port needs to know as long as it runs.
#[derive(Debug, Clone)]
pub struct Config {
    /// Limits towards clients.
    pub client: ClientLimits,
    /// Connections open at once.
    pub connections_max: usize,
    /// Most bytes of an answer to a call alone that is read before it is given on.
    pub answer_bytes_max: usize,
    /// Longest silence inside the answer to a recognised call.
    pub answer_idle_timeout: Duration,
}

/// What is recognised, and what holds for it. A call keeps the table that it began with.
#[derive(Debug)]
pub struct Table {
    /// What is recognised.
    pub routes: Routes,
    /// One for each written route, and the last for the default one.
    pub settings: Vec<RouteSettings>,
    /// Everything passes through: the kill switch.
    pub passthrough: bool,
    /// A route that is merged names its protocol: it asks for batches also before a server that batches by itself.
    pub names_protocol: bool,
    /// Headers that hold a deadline in milliseconds.
    pub deadline_headers: Vec<HeaderName>,
    /// The header that names the tenant: identity, like `Authorization`.
    pub tenant_header: Option<HeaderName>,
    /// Which class a call is of.
    pub priorities: Priorities,
    /// What tenants weigh.
    pub tenant_weights: TenantWeights,
}

/// What holds for the calls of one route.
#[derive(Debug, Clone)]
pub struct RouteSettings {
    /// As written, for the access log.
    pub name: String,
    /// The core's limits.
    pub scope: ScopeId,
    /// Arrival to answer, as the user wants it.
    pub slo: Option<Duration>,
    /// From dispatch to the first byte, and the longest wait in the queue.
    pub timeout: Duration,
    /// This route passes through.
    pub passthrough: bool,
    /// Most bytes of a body that is read.
    pub item_bytes_max: usize,
}

/// What all connections share.
#[derive(Debug)]
pub struct Proxy {
    config: Config,
    table: RwLock<Arc<Table>>,
    clock: Clock,
    scheduler: Handle,
    backend: Arc<dyn Backend>,
    forward: Arc<dyn Forward>,
    buffers: BufferBudget,
    metrics: Arc<Metrics>,
    secret: Secret,
    access_log: Option<AccessLog>,
    labels: HashMap<&'static str, CallLabels>,
    passed: HashMap<&'static str, Passed>,
    shifts: Shifts,
    cut: Cut,
}

/// The parts that the data port is built from.
#[derive(Debug)]
pub struct Parts {
    /// The clock of the process.
    pub clock: Clock,
    /// Where calls are queued.
    pub scheduler: Handle,
    /// What executes batches, asked for the limits that its server publishes.
    pub backend: Arc<dyn Backend>,
    /// What carries the rest.
    pub forward: Arc<dyn Forward>,
    /// The bound on buffered bytes.
    pub buffers: BufferBudget,
    /// Counters.
    pub metrics: Arc<Metrics>,
    /// Where sampled calls are written.
    pub access_log: Option<AccessLog>,
}

// === impl Proxy ===

impl Proxy {
    /// Puts the data port together.
    #[must_use]
    pub fn new(config: Config, table: Table, parts: Parts) -> Self {
        let Parts { clock, scheduler, backend, forward, buffers, metrics, access_log } = parts;
        let shifts = Shifts::default();
        shifts.keep(table.slos());
        let labels = crate::protocol::Label::ALL.iter().map(|label| label.as_str()).chain(["none"]);
        Self {
            labels: labels.map(|label| (label, metrics.calls(label))).collect(),
            passed: Reason::ALL.iter().map(|reason| (reason.as_str(), metrics.passed(reason.as_str()))).collect(),
            config,
            table: RwLock::new(Arc::new(table)),
            clock,
            scheduler,
            backend,
            forward,
            buffers,
            metrics,
            secret: Secret::random(),
            shifts,
            cut: Cut::default(),
            access_log,
        }
    }

    /// The drain limit is near: every call that has no answer yet is answered `draining`.
    pub fn cut(&self) {
        self.cut.now();
    }

    /// The table for calls that begin now.
    #[must_use]
    pub fn table(&self) -> Arc<Table> {
        // Nobody can panic while he holds it; were it so, the table would be whole all the same.
        self.table.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Another table for calls that begin from now on.
    pub fn set_table(&self, table: Table) {
        self.metrics.deadline_shift(self.shifts.keep(table.slos()));
        *self.table.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(table);
    }

    fn count_passed(&self, reason: Reason) {
        if let Some(counter) = self.passed.get(reason.as_str()) {
            counter.count();
        }
    }
}

// === impl Table ===

impl Table {
    fn slos(&self) -> impl Iterator<Item = Duration> {
        let routes = self.settings.iter().filter_map(|route| route.slo);
        routes.chain(self.priorities.classes.iter().filter_map(|class| class.slo))
    }

    fn route(&self, route: usize) -> &RouteSettings {
        self.settings
            .get(route)
            .or_else(|| self.settings.last())
            .expect("there is always the default route: the builder of `Table` puts it last")
    }
}
