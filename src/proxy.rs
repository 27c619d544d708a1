//! The data port: accept, recognise, read, queue, answer; and forward whatever no adapter recognises.
//!
//! ```text
//! listener ─ accept ─▶ (terminate: TLS) ─▶ connection (hyper, watched) ─▶ route ─┬─ pass: a lane pinned to the connection, bytes untouched
//!                                                                                └─ merge: collect ▶ read ▶ scheduler ▶ respond | alone | rescue
//! ```
//! It knows no upstream: it is given a [`Forward`] and a scheduler handle.

mod alone;
mod captured;
mod collect;
mod connection;
mod connections;
mod cut;
mod deadline;
mod debug;
mod detect;
mod drive;
mod flow;
pub mod frames;
mod head_rest;
mod io;
mod listener;
mod merge;
mod observe;
mod pass;
mod priority;
mod record;
mod respond;
mod session;
mod shift;
mod terminate;
mod upload;
mod watch;

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use http::HeaderName;

pub use self::connections::Connections;
use self::cut::Cut;
pub use self::listener::{Door, Host, Listening, Welcome, serve};
pub use self::priority::{Ended, Priorities, PriorityClass, TenantWeights};
use self::shift::Shifts;
pub use self::terminate::Tls;
use crate::accesslog::AccessLog;
use crate::backend::{Backend, Forward};
use crate::batching::{Late, ScopeId};
use crate::clock::Clock;
use crate::memory::BufferBudget;
use crate::protocol::{Reason, Routes, Secret};
use crate::scheduler::{Handle, Onlooker};
use crate::telemetry::{CallLabels, Metrics, Passed, RouteDurations};

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
    /// Both directions of what is carried on as bytes.
    pub pass_through_idle_timeout: Duration,
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
    /// The port was captured: its connections may speak anything.
    pub captured: bool,
    /// TLS towards clients; `None`: they speak plain.
    pub tls: Option<Arc<Tls>>,
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
    /// No route can hold for the calls of this captured port: its connections are carried on as bytes.
    pub relays: bool,
    /// A route that is merged names its protocol: it asks for batches also before a server that batches by itself.
    pub names_protocol: bool,
    /// By how much deadlines of an SLO come earlier at least, in thousandths of it.
    pub shift_permille: u32,
    /// Headers that hold a deadline in milliseconds.
    pub deadline_headers: Vec<HeaderName>,
    /// The header that names the tenant: identity, like `Authorization`.
    pub tenant_header: Option<HeaderName>,
    /// Which class a call is of.
    pub priorities: Priorities,
    /// What tenants weigh.
    pub tenant_weights: TenantWeights,
}

/// What is done with recognised calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// They are batched.
    Batch,
    /// They pass, and what batching would have done is reported.
    Observe,
    /// They pass.
    Passthrough,
}

/// What holds for the calls of one route.
#[derive(Debug, Clone)]
pub struct RouteSettings {
    /// As written, for the access log.
    pub name: String,
    /// Its place in the policy's list, for errors that name a key; `None`: no route is written.
    pub index: Option<u16>,
    /// The core's limits.
    pub scope: ScopeId,
    /// Arrival to answer, as the user wants it.
    pub slo: Option<Duration>,
    /// What becomes of a call that cannot meet it any more.
    pub late: Late,
    /// From dispatch to the last byte (of a stream: the first), and the longest wait in the queue; `None`: no limit.
    pub timeout: Option<Duration>,
    /// What is done with them.
    pub mode: Mode,
    /// Most bytes of a body that is read.
    pub item_bytes_max: usize,
    /// The latency histograms of a written route; those of its adapter otherwise. Set by the proxy
    /// that takes the table.
    pub durations: Option<RouteDurations>,
}

/// What all connections share.
#[derive(Debug)]
pub struct Proxy {
    config: Config,
    table: RwLock<Arc<Table>>,
    clock: Clock,
    scheduler: Handle,
    onlooker: Onlooker,
    backend: Arc<dyn Backend>,
    forward: Arc<dyn Forward>,
    buffers: BufferBudget,
    metrics: Arc<Metrics>,
    secret: Secret,
    access_log: Option<AccessLog>,
    labels: HashMap<&'static str, CallLabels>,
    /// Of calls to no written route, by adapter.
    durations: HashMap<&'static str, RouteDurations>,
    /// By the number of the reason.
    passed: Vec<Passed>,
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
    /// Where calls are told that pass in mode `Observe`.
    pub onlooker: Onlooker,
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
        let Parts { clock, scheduler, onlooker, backend, forward, buffers, metrics, access_log } = parts;
        let shifts = Shifts::default();
        shifts.keep(table.slos());
        let labels = || crate::protocol::Label::ALL.iter().map(|label| label.as_str()).chain(["none"]);
        let table = table.measured(&metrics);
        Self {
            labels: labels().map(|label| (label, metrics.calls(label))).collect(),
            durations: labels().map(|label| (label, metrics.route_durations(label))).collect(),
            passed: Reason::ALL.iter().map(|reason| metrics.passed(reason.as_str())).collect(),
            config,
            table: RwLock::new(Arc::new(table)),
            clock,
            scheduler,
            onlooker,
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
        let found = self.shifts.keep(table.slos());
        self.metrics.deadline_shift(table.largest_shift(found));
        *self.table.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(table.measured(&self.metrics));
    }

    /// The largest shift of deadlines in effect, found here or tuned, in thousandths of its SLO.
    #[must_use]
    pub fn shift_permille(&self) -> u32 {
        let table = self.table();
        let permille = |slo: Duration| {
            let found = self.shifts.of(slo).as_nanos() * 1000 / slo.as_nanos().max(1);
            u32::try_from(found).unwrap_or(u32::MAX).max(table.shift_permille)
        };
        table.slos().map(permille).max().unwrap_or_default()
    }

    fn count_passed(&self, reason: Reason) {
        if let Some(counter) = self.passed.get(reason as usize) {
            counter.count();
        }
    }
}

// === impl Table ===

impl Table {
    /// The same table with the latency histograms of its written routes.
    fn measured(mut self, metrics: &Metrics) -> Self {
        for route in self.settings.iter_mut().filter(|route| route.index.is_some()) {
            route.durations = Some(metrics.route_durations(&route.name));
        }
        self
    }

    /// By how much a deadline of this SLO comes earlier at least.
    fn shift(&self, slo: Duration) -> Duration {
        slo * self.shift_permille.min(1000) / 1000
    }

    /// The largest shift, where so much was found.
    fn largest_shift(&self, found: Duration) -> Duration {
        self.slos().map(|slo| self.shift(slo)).fold(found, Duration::max)
    }

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
