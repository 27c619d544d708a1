//! The policy in effect: typed, every default filled in.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use http::{HeaderName, Method};

use super::capture::{Capture, RoutePort};
use super::effective::Setting;
use super::units::Share;
use crate::api::v1alpha1::{Http2, Idempotent, Late, LogFormat, Preset, Reuse};
use crate::protocol::generic::Spec;
use crate::protocol::{Named, Pointer};

/// What the proxy does.
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    /// Whether anything is batched at all.
    pub mode: Mode,
    /// The promised 99th percentile.
    pub slo: Option<Duration>,
    /// What becomes of a call that cannot meet it any more.
    pub late: Late,
    /// What is batched, first match wins; empty: every route that an adapter recognises.
    pub routes: Vec<Route>,
    /// Caps.
    pub limits: Limits,
    /// When a batch leaves.
    pub scheduling: Scheduling,
    /// By how much deadlines of an SLO come earlier at least, in thousandths of it: no key of the schema, but what is tuned.
    pub shift_permille: u32,
    /// How callers name their deadlines.
    pub deadline: Deadline,
    /// The header that names the tenant.
    pub tenant_header: Option<HeaderName>,
    /// What tenants weigh, by the value of that header; 1 for all others.
    pub tenant_weights: BTreeMap<String, u32>,
    /// Classes of calls.
    pub priority: Priority,
    /// What happens when a batch fails.
    pub failure: Failure,
    /// The process.
    pub proxy: Proxy,
    pub(super) settings: Vec<Setting>,
}

/// Whether calls are batched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mode {
    /// They are.
    Batch,
    /// They pass through, and what batching would have done is reported.
    Observe,
    /// A plain proxy.
    Passthrough,
}

/// When a batch leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SchedulingPolicy {
    /// When it pays, by what was learned.
    Adaptive,
    /// When a slot is idle; items are collected while all are busy.
    WorkConserving,
    /// At `items`, or `delay` after an item and a free slot were both there.
    Window,
    /// At `items`, or `delay` after the oldest came.
    Static,
}

/// One route.
#[derive(Debug, Clone, PartialEq)]
pub struct Route {
    /// Exact, or a prefix that ends in `/*`.
    pub path: String,
    /// The method.
    pub method: Method,
    /// The captured ports that it holds for; empty: all.
    pub ports: Vec<RoutePort>,
    /// What is spoken there.
    pub protocol: Named,
    /// The route's own mode or the policy's; never `Batch` where the policy says `Passthrough`.
    pub mode: Mode,
    /// The route's own promise or the policy's.
    pub slo: Option<Duration>,
    /// What becomes of a call that cannot meet it any more: the route's own word or the policy's.
    pub late: Late,
    /// The route's own caps.
    pub limits: LimitsOverride,
    /// Must be equal although ignored otherwise.
    pub merge_on: MergeNames,
    /// Need not be equal; dropped from a shared call.
    pub merge_over: MergeNames,
    /// Answer headers and top-level members that every member of a shared call may see.
    pub respond_with: MergeNames,
    /// Whether members of a failed batch may be sent again.
    pub idempotent: Idempotent,
    /// From dispatch to the last byte (of a stream: the first), and the longest wait in the queue; `None`: no limit.
    pub timeout: Option<Duration>,
    /// The declaration of protocol `Generic`.
    pub generic: Option<Spec>,
}

/// Headers and body fields.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MergeNames {
    /// Header names.
    pub headers: Vec<HeaderName>,
    /// JSON Pointers.
    pub fields: Vec<Pointer>,
}

/// Caps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Items in a batch.
    pub batch_items_max: u32,
    /// Weight of a batch.
    pub batch_weight_max: Option<u64>,
    /// Request bytes of a batch.
    pub batch_bytes_max: usize,
    /// Bytes of a call that is still read whole.
    pub item_bytes_max: usize,
    /// Depth of JSON.
    pub item_nesting_max: usize,
    /// Longest deliberate wait beside a free slot.
    pub queue_delay_max: Duration,
    /// Items waiting.
    pub queue_items_max: u32,
    /// Bytes waiting.
    pub queue_bytes_max: usize,
    /// Calls to the upstream at once; `None`: no wall.
    pub slots_max: Option<u32>,
    /// Calls to the upstream at once while standing aside from a server that batches by itself.
    pub stand_aside_max: u32,
}

/// A route's own caps; `None`: the policy's.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LimitsOverride {
    /// Items in a batch.
    pub batch_items_max: Option<u32>,
    /// Weight of a batch.
    pub batch_weight_max: Option<u64>,
    /// Request bytes of a batch.
    pub batch_bytes_max: Option<usize>,
    /// Bytes of a call that is still read whole.
    pub item_bytes_max: Option<usize>,
    /// Depth of JSON.
    pub item_nesting_max: Option<usize>,
    /// Longest deliberate wait beside a free slot.
    pub queue_delay_max: Option<Duration>,
    /// Items waiting.
    pub queue_items_max: Option<u32>,
    /// Bytes waiting.
    pub queue_bytes_max: Option<usize>,
    /// Calls to the upstream at once.
    pub slots_max: Option<u32>,
}

/// When a batch leaves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scheduling {
    /// By which policy.
    pub policy: SchedulingPolicy,
    /// What `Adaptive` prefers.
    pub preset: Preset,
    /// Calls to the upstream at once; never above `slots_max`.
    pub slots: u32,
    /// Send at this many.
    pub items: u32,
    /// Or after this long.
    pub delay: Duration,
}

/// How callers name their deadlines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deadline {
    /// Headers with a timeout in milliseconds.
    pub headers: Vec<HeaderName>,
}

/// Classes of calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Priority {
    /// The header that names the class.
    pub header: Option<HeaderName>,
    /// The first one is the default.
    pub classes: Vec<PriorityClass>,
}

/// A class of calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PriorityClass {
    /// Its name.
    pub name: String,
    /// Its share.
    pub weight: u32,
    /// Its own promise instead of the route's.
    pub slo: Option<Duration>,
    /// Goes before all others.
    pub strict: bool,
    /// Takes the room that others leave.
    pub filler: bool,
}

/// What happens when a batch fails.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Members up to which a failed batch is sent again one by one.
    pub isolate_above: u32,
    /// Upstream calls beyond the number of client calls.
    pub replay_budget: Share,
    /// No merging after a mismatch.
    pub quarantine: Duration,
}

/// The process.
#[derive(Debug, Clone, PartialEq)]
pub struct Proxy {
    /// Where it listens; at least one. Means nothing where ports are captured.
    pub listen: Vec<SocketAddr>,
    /// The model server. Means nothing where ports are captured.
    pub upstream: Option<Upstream>,
    /// TLS for callers; `None`: plain.
    pub tls: Option<Tls>,
    /// TLS to an upstream with `https`.
    pub upstream_tls: UpstreamTls,
    /// Captured ports, each before the application's port of that number; empty outside a pod.
    pub captures: Vec<Capture>,
    /// Bounds on callers.
    pub client: Client,
    /// Bounds on the process.
    pub process: Process,
    /// Connections to the upstream.
    pub connection: Connection,
    /// The end.
    pub drain: Drain,
    /// The read-only listener; `None`: off.
    pub metrics: Option<SocketAddr>,
    /// The loopback listener; `None`: off.
    pub admin: Option<SocketAddr>,
    /// Logs.
    pub log: Log,
    /// The folder for what was learned and the last good settings.
    pub state: Option<PathBuf>,
}

/// Files with what callers are shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tls {
    /// The chain.
    pub cert_file: PathBuf,
    /// Its key.
    pub key_file: PathBuf,
    /// Authorities of callers, if these must show a certificate.
    pub client_ca_file: Option<PathBuf>,
}

/// Whom of upstreams to believe, and what they are shown.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UpstreamTls {
    /// Authorities; `None`: those of the machine.
    pub ca_file: Option<PathBuf>,
    /// The name to check; `None`: the host.
    pub server_name: Option<String>,
    /// Chain and key, if any are shown.
    pub pair: Option<(PathBuf, PathBuf)>,
}

/// The model server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Upstream {
    /// Over TCP.
    Http {
        /// Name or address, without brackets.
        host: String,
        /// Its port.
        port: u16,
        /// Both as written, for a `Host` header of our own.
        authority: String,
        /// `https`.
        tls: bool,
    },
    /// Over a unix socket.
    Unix(PathBuf),
}

/// Bounds on callers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Client {
    /// Request line and headers.
    pub head_bytes_max: usize,
    /// Headers of a request.
    pub headers_max: usize,
    /// Time to send the head.
    pub head_timeout: Duration,
    /// Time between reads of a recognised body.
    pub body_idle_timeout: Duration,
    /// Time for a whole recognised body.
    pub body_timeout: Duration,
    /// Time in which neither direction of a pass-through moved.
    pub pass_through_idle_timeout: Duration,
    /// Idle time between calls.
    pub keep_alive_timeout: Duration,
    /// Time in which a caller must take some of its answer.
    pub write_timeout: Duration,
    /// Calls on one HTTP/1 connection.
    pub requests_per_connection_max: u32,
    /// HTTP/2.
    pub http2: ClientHttp2,
}

/// HTTP/2 from callers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientHttp2 {
    /// Calls at once on a connection.
    pub streams_max: u32,
    /// Window of a stream.
    pub stream_window: u32,
    /// Window of a connection.
    pub connection_window: u32,
    /// Between pings on a quiet connection.
    pub ping_interval: Duration,
    /// To answer one.
    pub ping_timeout: Duration,
    /// Resets before the connection is ended.
    pub resets_max: usize,
    /// Age at which it is asked to end.
    pub age_max: Duration,
}

/// Bounds on the process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Client connections.
    pub connections_max: usize,
    /// Bytes of requests and answers held at once.
    pub buffered_bytes_max: usize,
}

/// Connections to the upstream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Connection {
    /// Time to connect.
    pub connect_timeout: Duration,
    /// Time between reads of a recognised answer.
    pub body_idle_timeout: Duration,
    /// The largest answer that is read whole.
    pub answer_bytes_max: usize,
    /// Whether HTTP/2 is spoken.
    pub http2: Http2,
    /// Whether HTTP/1 connections are kept for batches.
    pub reuse: Reuse,
}

/// The end of the process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drain {
    /// Between the signal and being not ready.
    pub delay: Duration,
    /// Time to answer everything accepted.
    pub limit: Duration,
}

/// Logs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Log {
    /// How a line looks.
    pub format: LogFormat,
    /// A filter that `tracing_subscriber::EnvFilter` takes.
    pub level: String,
    /// Share of calls in the access log.
    pub access: Share,
}

// === impl Route ===

impl Route {
    /// Whether it holds for the calls of a port; outside a pod it holds for all.
    #[must_use]
    pub fn holds_for(&self, capture: Option<&Capture>) -> bool {
        self.ports.is_empty() || capture.is_none_or(|capture| capture.is_named(&self.ports))
    }
}

// === impl Limits ===

impl Limits {
    /// These with a route's own in their place.
    #[must_use]
    pub fn overridden(&self, by: &LimitsOverride) -> Self {
        Self {
            batch_items_max: by.batch_items_max.unwrap_or(self.batch_items_max),
            batch_weight_max: by.batch_weight_max.or(self.batch_weight_max),
            batch_bytes_max: by.batch_bytes_max.unwrap_or(self.batch_bytes_max),
            item_bytes_max: by.item_bytes_max.unwrap_or(self.item_bytes_max),
            item_nesting_max: by.item_nesting_max.unwrap_or(self.item_nesting_max),
            queue_delay_max: by.queue_delay_max.unwrap_or(self.queue_delay_max),
            queue_items_max: by.queue_items_max.unwrap_or(self.queue_items_max),
            queue_bytes_max: by.queue_bytes_max.unwrap_or(self.queue_bytes_max),
            slots_max: by.slots_max.or(self.slots_max),
            stand_aside_max: self.stand_aside_max,
        }
    }
}
