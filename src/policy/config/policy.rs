//! The effective policy: typed, with every default filled in.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use http::{HeaderName, Method};

use super::capture::Capture;
use super::effective::Setting;
use super::engine::EngineConfig;
use super::units::Share;
use super::upstream::{UpstreamAddress, UpstreamConnection, UpstreamTls};
use crate::api::v1alpha1::{
    CallOrder, Idempotent, LateHandling, LogFormat, MergeRule, Mode, PortRef, Preset, SchedulingPolicy,
};
use crate::protocol::generic::GenericOptions;
use crate::protocol::{Pointer, RouteProtocol};

/// The effective policy of a proxy.
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    /// Default mode of all routes.
    pub mode: Mode,
    /// Latency objective: the 99th percentile of the time from arrival to answer.
    pub slo: Option<Duration>,
    /// Treatment of a call that can no longer meet the objective.
    pub late: LateHandling,
    /// Routes that are batched; the first match applies. If empty: every route that an adapter
    /// recognises.
    pub routes: Vec<Route>,
    /// Limits of calls, batches and the queue.
    pub limits: Limits,
    /// Settings of the scheduler.
    pub scheduling: SchedulingConfig,
    /// Minimum by which SLO deadlines are moved earlier, in thousandths of the SLO. It is not a key
    /// of the schema, but a tuned value.
    pub shift_permille: u32,
    /// Headers that contain a caller's timeout in milliseconds.
    pub deadline_headers: Vec<HeaderName>,
    /// Header that identifies the tenant.
    pub tenant_header: Option<HeaderName>,
    /// Weights of tenants, by the value of that header; 1 for all others.
    pub tenant_weights: BTreeMap<String, u32>,
    /// Priority classes.
    pub priority: Priority,
    /// Handling of failed batches.
    pub failure: FailureHandling,
    /// Share of the members of batches that are also sent unbatched, to compare the responses.
    pub verify: Share,
    /// The model that the process executes itself; `None` with a model server behind it.
    pub engine: Option<EngineConfig>,
    /// Settings of the process.
    pub proxy: ProcessConfig,
    pub(super) settings: Vec<Setting>,
}

/// A route of a policy.
#[derive(Debug, Clone, PartialEq)]
pub struct Route {
    /// Path: exact, or a prefix that ends in `/*`.
    pub path: String,
    /// HTTP method.
    pub method: Method,
    /// Captured ports to which it applies; all if empty.
    pub ports: Vec<PortRef>,
    /// Protocol of the calls.
    pub protocol: RouteProtocol,
    /// Mode of the route, else that of the policy; never `Batch` if the policy's mode is
    /// `Passthrough`.
    pub mode: Mode,
    /// Latency objective of the route, else that of the policy.
    pub slo: Option<Duration>,
    /// Treatment of a call that can no longer meet the objective, of the route, else of the policy.
    pub late: LateHandling,
    /// Limits of the route itself.
    pub limits: LimitsOverride,
    /// Headers and fields that must be equal although they are ignored otherwise.
    pub merge_on: MergeNames,
    /// Headers and fields that may differ; they are dropped from a shared call.
    pub merge_over: MergeNames,
    /// Headers and top-level members of an answer that every member of a shared call may see.
    pub respond_with: MergeNames,
    /// Rule for merging the calls.
    pub merge: MergeRule,
    /// Permission to send members of a failed batch again.
    pub idempotent: Idempotent,
    /// Time limit from dispatch to the last byte (of a stream: the first), and for the time in the
    /// queue; `None` for no limit.
    pub timeout: Option<Duration>,
    /// The model's `tokenizer.json`; `None` if tokens are estimated.
    pub tokenizer: Option<PathBuf>,
    /// Declaration of protocol `Generic`.
    pub generic: Option<GenericOptions>,
}

/// Names of headers and body fields.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MergeNames {
    /// Header names.
    pub headers: Vec<HeaderName>,
    /// Body fields, as JSON Pointers.
    pub fields: Vec<Pointer>,
}

/// Limits of calls, batches and the queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of items in a batch.
    pub batch_items_max: u32,
    /// Maximum weight of a batch.
    pub batch_weight_max: Option<u64>,
    /// Maximum number of request bytes in a batch.
    pub batch_bytes_max: usize,
    /// Maximum number of bytes of a call that is still buffered completely.
    pub item_bytes_max: usize,
    /// Maximum nesting depth of JSON.
    pub item_nesting_max: usize,
    /// Maximum time for which a call is deliberately held while a slot is free.
    pub queue_delay_max: Duration,
    /// Maximum number of queued items.
    pub queue_items_max: u32,
    /// Maximum number of queued bytes.
    pub queue_bytes_max: usize,
    /// Maximum number of concurrent upstream calls; `None` for no limit.
    pub slots_max: Option<u32>,
    /// Maximum number of concurrent upstream calls while calls are passed one by one to a server
    /// that batches by itself.
    pub passthrough_calls_max: u32,
}

/// Limits of a route. `None` selects the limit of the policy.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LimitsOverride {
    /// Maximum number of items in a batch.
    pub batch_items_max: Option<u32>,
    /// Maximum weight of a batch.
    pub batch_weight_max: Option<u64>,
    /// Maximum number of request bytes in a batch.
    pub batch_bytes_max: Option<usize>,
    /// Maximum number of bytes of a call that is still buffered completely.
    pub item_bytes_max: Option<usize>,
    /// Maximum nesting depth of JSON.
    pub item_nesting_max: Option<usize>,
    /// Maximum time for which a call is deliberately held while a slot is free.
    pub queue_delay_max: Option<Duration>,
    /// Maximum number of queued items.
    pub queue_items_max: Option<u32>,
    /// Maximum number of queued bytes.
    pub queue_bytes_max: Option<usize>,
    /// Maximum number of concurrent upstream calls.
    pub slots_max: Option<u32>,
}

/// Settings of the scheduler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SchedulingConfig {
    /// Dispatch algorithm.
    pub policy: SchedulingPolicy,
    /// Preference of `Adaptive` between latency and throughput.
    pub preset: Preset,
    /// Order of calls of one class and tenant.
    pub order: CallOrder,
    /// Boundaries between length buckets, ascending.
    pub length_buckets: Vec<u64>,
    /// Number of concurrent upstream calls; never above `slots_max`.
    pub slots: u32,
    /// Number of items at which a batch is dispatched.
    pub items: u32,
    /// Delay after which a smaller batch is dispatched.
    pub delay: Duration,
}

/// Priority classes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Priority {
    /// Header that contains the class.
    pub header: Option<HeaderName>,
    /// Classes; the first one is the default.
    pub classes: Vec<PriorityClass>,
}

/// A priority class.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PriorityClass {
    /// Name of the class.
    pub name: String,
    /// Weight of the class.
    pub weight: u32,
    /// Latency objective of the class, which replaces that of the route.
    pub slo: Option<Duration>,
    /// `true` if its calls go before those of all other classes.
    pub strict: bool,
    /// `true` if its calls only fill the room that other classes leave in a batch.
    pub filler: bool,
}

/// Handling of failed batches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailureHandling {
    /// Maximum number of members up to which a failed batch is retried one by one. A larger one is
    /// bisected.
    pub isolate_above: u32,
    /// Maximum number of upstream calls in excess of client calls, as a share of client calls.
    pub replay_budget: Share,
    /// Time for which nothing is merged after a mismatch.
    pub quarantine: Duration,
}

/// Settings of the process.
#[derive(Debug, Clone, PartialEq)]
pub struct ProcessConfig {
    /// Listen addresses; at least one. Without effect if ports are captured.
    pub listen: Vec<SocketAddr>,
    /// Model server. Without effect if ports are captured.
    pub upstream: Option<UpstreamAddress>,
    /// Downstream TLS; `None` for plaintext.
    pub tls: Option<DownstreamTls>,
    /// Upstream TLS, for an upstream with `https`.
    pub upstream_tls: UpstreamTls,
    /// Captured ports, each in front of the application's port of that number; empty outside a pod.
    pub captures: Vec<Capture>,
    /// Limits of downstream connections and requests.
    pub client: DownstreamLimits,
    /// Limits of the process.
    pub process: ProcessLimits,
    /// Settings of upstream connections.
    pub connection: UpstreamConnection,
    /// Graceful shutdown.
    pub drain: DrainConfig,
    /// Address of the read-only listener; `None` if off.
    pub metrics: Option<SocketAddr>,
    /// Address of the loopback listener; `None` if off.
    pub admin: Option<SocketAddr>,
    /// Logging.
    pub log: LogConfig,
    /// Folder for learned state and the last valid settings.
    pub state: Option<PathBuf>,
}

/// Files for downstream TLS: the server certificate and the CA certificates of clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DownstreamTls {
    /// Certificate chain.
    pub cert_file: PathBuf,
    /// Private key of the certificate.
    pub key_file: PathBuf,
    /// CA certificates of clients. If set, clients must present a certificate.
    pub client_ca_file: Option<PathBuf>,
}

/// Limits of downstream connections and requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DownstreamLimits {
    /// Maximum number of bytes of the request line and headers.
    pub head_bytes_max: usize,
    /// Maximum number of headers of a request.
    pub headers_max: usize,
    /// Time limit for receiving the head.
    pub head_timeout: Duration,
    /// Maximum time between reads of a recognised body.
    pub body_idle_timeout: Duration,
    /// Time limit for receiving a complete recognised body.
    pub body_timeout: Duration,
    /// Maximum time without progress in either direction of a pass-through.
    pub pass_through_idle_timeout: Duration,
    /// Maximum idle time between calls.
    pub keep_alive_timeout: Duration,
    /// Time limit for a client to accept some of its answer.
    pub write_timeout: Duration,
    /// Maximum number of calls on an HTTP/1 connection.
    pub requests_per_connection_max: u32,
    /// Settings of HTTP/2.
    pub http2: DownstreamHttp2,
}

/// Settings of downstream HTTP/2.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DownstreamHttp2 {
    /// Maximum number of concurrent streams on a connection.
    pub streams_max: u32,
    /// Flow-control window of a stream, in bytes.
    pub stream_window: u32,
    /// Flow-control window of a connection, in bytes.
    pub connection_window: u32,
    /// Interval between pings on a quiet connection.
    pub ping_interval: Duration,
    /// Time limit for the answer to a ping.
    pub ping_timeout: Duration,
    /// Maximum number of reset streams before the connection is closed.
    pub resets_max: usize,
    /// Age at which the client is requested to close the connection.
    pub age_max: Duration,
}

/// Limits of the process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessLimits {
    /// Maximum number of client connections.
    pub connections_max: usize,
    /// Maximum number of bytes of requests and answers buffered at once.
    pub buffered_bytes_max: usize,
}

/// Graceful shutdown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DrainConfig {
    /// Time between the signal and the failure of readiness.
    pub delay: Duration,
    /// Time limit for answering all accepted calls.
    pub limit: Duration,
}

/// Logging.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogConfig {
    /// Format of a line.
    pub format: LogFormat,
    /// Log filter for `tracing_subscriber::EnvFilter`.
    pub level: String,
    /// Share of the calls written to the access log.
    pub access: Share,
}

// === impl Route ===

impl Route {
    /// Returns `true` if the route applies to calls of a port. Outside a pod it applies to all
    /// calls.
    #[must_use]
    pub fn applies_to(&self, capture: Option<&Capture>) -> bool {
        self.ports.is_empty() || capture.is_none_or(|capture| capture.is_selected_by(&self.ports))
    }
}

// === impl Limits ===

impl Limits {
    /// Returns these limits, with those of a route in their place.
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
            passthrough_calls_max: self.passthrough_calls_max,
        }
    }
}
