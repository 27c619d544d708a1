//! The data port: accepts connections, detects HTTP, recognises calls, queues them for batching and
//! sends the responses. Traffic that no protocol adapter recognises is forwarded unmodified.
//!
//! ```text
//! listener ─ accept ─▶ (terminate: TLS) ─▶ connection (hyper) ─▶ session ─▶ service::routing ─┐
//! ┌───────────────────────────────────────────────────────────────────────────────────────────┘
//! ├─ pass: forwarded over the lane of the client connection, bytes unmodified
//! └─ service: collect the body ▶ parse ▶ queue ▶ response of the batch | unbatched | failure
//! ```
//! The data port does not depend on the kind of its upstream: [`ProxyComponents`] has a [`Backend`]
//! that executes batches, and a [`Forwarder`] for all other calls. `upstream` implements both for a
//! model server that is reached by HTTP.

pub mod body;
pub mod relay;
pub mod bounded_body;
pub mod backend;
pub mod upstream;
pub mod scheduler;
pub mod admin;

use groupage_batching as batching;
use groupage_protocol as protocol;
use groupage_protocol::error;
use groupage_runtime::access_log;
use groupage_runtime::clock;
use groupage_runtime::memory;
use groupage_runtime::permits;
use groupage_runtime::socket;
use groupage_runtime::telemetry;
use groupage_runtime::tls;

mod unbatched;
mod captured;
mod collect;
mod connection;
mod connections;
mod deadline;
mod debug;
mod detect;
mod division;
mod endpoint_choice;
mod poll_sides;
mod memory_accounting;
pub mod frames;
mod frame_monitor;
mod flood;
mod long_head;
mod stream;
mod listener;
mod service;
mod observe;
mod pass_through;
mod priority;
mod recorder;
mod token_meter;
mod response;
mod session;
mod deadline_shift;
mod state;
mod terminate;
mod upload;
mod verification;
mod activity;

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use http::HeaderName;
use strum::VariantArray as _;
use tokio_util::sync::CancellationToken;

pub use self::connections::Connections;
use self::deadline_shift::DeadlineShifts;
use self::division::UndividedClasses;
use self::flood::FloodLog;
pub use self::listener::{ListenerHandle, serve};
pub use self::priority::{OutcomeCounters, PriorityClass, PriorityClasses, TenantWeights};
pub use self::state::{ListenerChannel, ListenerControl, ListenerState};
pub use self::terminate::TlsTermination;
use self::verification::VerificationPermits;
use crate::access_log::AccessLog;
use crate::backend::{Backend, Forwarder};
use crate::batching::{DivisionLimits, LateTreatment, ScopeId};
use crate::clock::Clock;
use crate::memory::BufferBudget;
use crate::protocol::{DigestKey, Routes, TokenCalibration, UnmergeableReason, UnrecognisedCause};
use crate::scheduler::{SchedulerHandle, ShadowRecorder};
use crate::telemetry::{CallCounters, Metrics, RouteDurations, UnmergedCounter, UnrecognisedCounter};

/// Limits applied to client connections.
#[derive(Debug, Clone)]
pub struct ClientLimits {
    /// Maximum size of a request head in bytes.
    pub head_bytes_max: usize,
    /// Maximum number of header lines of a request.
    pub headers_max: usize,
    /// Maximum time from the first byte of a request head to its last.
    pub head_timeout: Duration,
    /// Maximum interval between two reads of a recognised call's body.
    pub body_idle_timeout: Duration,
    /// Maximum time to receive a recognised call's whole body.
    pub body_timeout: Duration,
    /// Idle timeout of a connection that is relayed as bytes, over both directions together.
    pub pass_through_idle_timeout: Duration,
    /// Maximum idle time of a connection without calls.
    pub keep_alive_timeout: Duration,
    /// Maximum time that a client may take nothing of its response.
    pub write_timeout: Duration,
    /// Maximum number of calls on one HTTP/1 connection.
    pub requests_per_connection_max: u64,
    /// Limits of HTTP/2 connections.
    pub http2: Http2Limits,
}

/// HTTP/2 limits applied to client connections.
#[derive(Debug, Clone)]
pub struct Http2Limits {
    /// Maximum number of concurrent streams.
    pub streams_max: u32,
    /// Flow-control window of a stream in bytes.
    pub stream_window: u32,
    /// Flow-control window of a connection in bytes.
    pub connection_window: u32,
    /// Interval between two PING frames on a connection with open streams.
    pub ping_interval: Duration,
    /// Maximum wait for the acknowledgement of a PING.
    pub ping_timeout: Duration,
    /// Maximum number of pending streams reset by the peer before the connection is closed.
    pub resets_max: usize,
    /// Age at which a connection is shut down gracefully.
    pub age_max: Duration,
}

/// Configuration of the data port that is fixed for its lifetime.
#[derive(Debug, Clone)]
pub struct ProxyConfig {
    /// Limits towards clients.
    pub client: ClientLimits,
    /// `true` if the port receives captured traffic: its connections may carry any protocol.
    pub captured: bool,
    /// TLS towards clients. `None`: clients connect in plain text.
    pub tls: Option<Arc<TlsTermination>>,
    /// Maximum number of bytes of an unbatched call's response that are buffered before it is
    /// streamed.
    pub answer_bytes_max: usize,
    /// Maximum interval between two reads of the response to a recognised call.
    pub answer_idle_timeout: Duration,
}

/// The routing table and the settings of its routes. A call keeps the table that was current when
/// it began.
#[derive(Debug)]
pub struct RoutingTable {
    /// The routes by which calls are recognised.
    pub routes: Routes,
    /// One entry per configured route, followed by the entry of the default route.
    pub settings: Vec<RouteSettings>,
    /// `true` if all routes of the policy are for other ports. The connections of this captured
    /// port are then relayed as bytes.
    pub relays: bool,
    /// `true` if a route requests merging explicitly, with `merge: Always` or by the name of its
    /// protocol. Its calls are merged even if the server advertises that it batches by itself.
    pub names_protocol: bool,
    /// `true` if calls for text generation are queued, as under the policy `Adaptive`. Under the
    /// other policies they pass through: the number of slots is fixed and meant for batches, and an
    /// engine executes many such calls at once.
    pub admits_generation: bool,
    /// Minimum amount by which SLO deadlines are moved earlier, in thousandths of the SLO.
    pub shift_permille: u32,
    /// Headers that carry a deadline in milliseconds.
    pub deadline_headers: Vec<HeaderName>,
    /// The header that names the tenant. It is an identity header, like `Authorization`.
    pub tenant_header: Option<HeaderName>,
    /// The priority classes and the header that selects one.
    pub priorities: PriorityClasses,
    /// The fair-queueing weights of tenants.
    pub tenant_weights: TenantWeights,
    /// Share of the members of batches that are sent again unbatched to compare the responses, in
    /// millionths.
    pub verify_ppm: u32,
}

/// Handling of recognised calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RouteMode {
    /// Calls are batched.
    Batch,
    /// Calls are forwarded unbatched, and a shadow simulation reports the effect of batching.
    Observe,
    /// Calls are forwarded unbatched.
    Passthrough,
}

/// Settings that apply to the calls of one route.
#[derive(Debug, Clone)]
pub struct RouteSettings {
    /// The route's name as configured, for the access log.
    pub name: String,
    /// Index in the policy's list of routes, for errors that name a key. `None` for the default
    /// route.
    pub index: Option<u16>,
    /// Scope of the batching limits that apply to the route.
    pub scope: ScopeId,
    /// Target latency from the arrival of a call to its response.
    pub slo: Option<Duration>,
    /// Handling of a call that can no longer meet the SLO.
    pub late: LateTreatment,
    /// Maximum time from dispatch to the last byte of the response (to the first byte if it is
    /// streamed), and maximum wait in the queue. `None`: no limit.
    pub timeout: Option<Duration>,
    /// Handling of the route's calls.
    pub mode: RouteMode,
    /// Maximum size in bytes of a request body that is read for batching.
    pub item_bytes_max: usize,
    /// Sizes above which the policy has a call divided.
    pub division: DivisionLimits,
    /// The latency histograms of a configured route, also for calls that it passes through; `None`
    /// selects those of the adapter. Set by the proxy when it installs the table.
    pub durations: Option<RouteDurations>,
}

/// State shared by all connections of the data port.
#[derive(Debug)]
pub struct Proxy {
    config: ProxyConfig,
    table: RwLock<Arc<RoutingTable>>,
    clock: Clock,
    scheduler: SchedulerHandle,
    shadow: ShadowRecorder,
    backend: Arc<dyn Backend>,
    forward: Arc<dyn Forwarder>,
    buffers: BufferBudget,
    metrics: Arc<Metrics>,
    /// Key of all digests, such as those of client identities. It is random for each process.
    secret: DigestKey,
    access_log: Option<AccessLog>,
    tokens: Arc<TokenCalibration>,
    /// Counters of calls by outcome, by the label of their adapter.
    call_counters: HashMap<&'static str, CallCounters>,
    /// Latency histograms of calls to no configured route, by adapter.
    durations: HashMap<&'static str, RouteDurations>,
    /// Counters of recognised calls that are not merged, indexed by the discriminant of
    /// [`UnmergeableReason`].
    unmerged: Vec<UnmergedCounter>,
    /// Counters of calls that are not recognised, indexed by the discriminant of
    /// [`UnrecognisedCause`].
    unrecognised: Vec<UnrecognisedCounter>,
    shifts: DeadlineShifts,
    floods: FloodLog,
    undivided: UndividedClasses,
    verifications: VerificationPermits,
    /// Cancelled at the drain limit, which ends all waiting calls at once.
    shutdown: CancellationToken,
}

/// The components that the data port is built from.
#[derive(Debug)]
pub struct ProxyComponents {
    /// The clock of the process.
    pub clock: Clock,
    /// Submits calls to the scheduler.
    pub scheduler: SchedulerHandle,
    /// Reports the calls that pass through in mode `Observe` to the shadow simulation.
    pub shadow: ShadowRecorder,
    /// Executes batches, and provides the limits that its server publishes.
    pub backend: Arc<dyn Backend>,
    /// Forwards everything that is not batched.
    pub forward: Arc<dyn Forwarder>,
    /// Memory budget for buffered bytes.
    pub buffers: BufferBudget,
    /// Metrics of the process.
    pub metrics: Arc<Metrics>,
    /// Destination of sampled call records.
    pub access_log: Option<AccessLog>,
    /// Rates of tokens, by which texts are weighed.
    pub tokens: Arc<TokenCalibration>,
}

// === impl Proxy ===

impl Proxy {
    /// Creates a data port from its components.
    #[must_use]
    pub fn new(config: ProxyConfig, table: RoutingTable, parts: ProxyComponents) -> Self {
        let ProxyComponents { clock, scheduler, shadow, backend, forward, buffers, metrics, access_log, tokens } =
            parts;
        let shifts = DeadlineShifts::default();
        shifts.set_slos(table.slos());
        let labels = || protocol::ProtocolLabel::VARIANTS.iter().map(|label| label.as_str()).chain(["none"]);
        let table = table.with_route_durations(&metrics);
        Self {
            call_counters: labels().map(|label| (label, metrics.call_counters(label))).collect(),
            durations: labels().map(|label| (label, metrics.route_durations(label))).collect(),
            unmerged: UnmergeableReason::VARIANTS
                .iter()
                .map(|reason| metrics.unmerged_counter(reason.as_str()))
                .collect(),
            unrecognised: UnrecognisedCause::VARIANTS
                .iter()
                .map(|cause| metrics.unrecognised_counter(cause.as_str()))
                .collect(),
            config,
            table: RwLock::new(Arc::new(table)),
            clock,
            scheduler,
            shadow,
            backend,
            forward,
            buffers,
            metrics,
            secret: DigestKey::random(),
            shifts,
            floods: FloodLog::default(),
            undivided: UndividedClasses::default(),
            verifications: VerificationPermits::default(),
            shutdown: CancellationToken::new(),
            access_log,
            tokens,
        }
    }

    /// Ends the drain: every call without a response is answered with the error `draining`.
    pub fn cancel_waiting_calls(&self) {
        self.shutdown.cancel();
    }

    /// Returns the table that applies to calls beginning now.
    #[must_use]
    pub fn table(&self) -> Arc<RoutingTable> {
        // No code panics while holding this lock, and the table is replaced atomically, so a
        // poisoned lock is safe to use.
        self.table.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the table for calls that begin from now on.
    pub fn set_table(&self, table: RoutingTable) {
        let learned = self.shifts.set_slos(table.slos());
        self.metrics.set_deadline_shift(table.max_deadline_shift(learned));
        *self.table.write().unwrap_or_else(PoisonError::into_inner) =
            Arc::new(table.with_route_durations(&self.metrics));
        self.undivided.clear();
    }

    /// Returns the largest deadline shift in effect, learned or configured, in thousandths of its
    /// SLO.
    #[must_use]
    pub fn shift_permille(&self) -> u32 {
        let table = self.table();
        let permille = |slo: Duration| {
            let learned = self.shifts.get(slo).as_nanos() * 1000 / slo.as_nanos().max(1);
            u32::try_from(learned).unwrap_or(u32::MAX).max(table.shift_permille)
        };
        table.slos().map(permille).max().unwrap_or_default()
    }

    fn count_unmerged(&self, reason: UnmergeableReason) {
        if let Some(counter) = self.unmerged.get(reason as usize) {
            counter.count();
        }
    }

    fn count_unrecognised(&self, cause: UnrecognisedCause) {
        if let Some(counter) = self.unrecognised.get(cause as usize) {
            counter.count();
        }
    }
}

// === impl RoutingTable ===

impl RoutingTable {
    /// Returns the table with the latency histograms of its configured routes attached.
    fn with_route_durations(mut self, metrics: &Metrics) -> Self {
        for route in self.settings.iter_mut().filter(|route| route.index.is_some()) {
            route.durations = Some(metrics.route_durations(&route.name));
        }
        self
    }

    /// Returns the configured minimum by which a deadline of this SLO is moved earlier.
    fn min_deadline_shift(&self, slo: Duration) -> Duration {
        slo * self.shift_permille.min(1000) / 1000
    }

    /// Returns the largest shift in effect, given the largest one learned.
    fn max_deadline_shift(&self, learned: Duration) -> Duration {
        self.slos().map(|slo| self.min_deadline_shift(slo)).fold(learned, Duration::max)
    }

    /// Iterates over the SLOs of all routes and priority classes.
    fn slos(&self) -> impl Iterator<Item = Duration> {
        let routes = self.settings.iter().filter_map(|route| route.slo);
        routes.chain(self.priorities.classes.iter().filter_map(|class| class.slo))
    }

    /// Returns the settings of the route with this index, or those of the default route.
    fn route(&self, route: usize) -> &RouteSettings {
        self.settings
            .get(route)
            .or_else(|| self.settings.last())
            .expect("`RoutingTable::settings` ends with the default route")
    }
}
