//! Messages from the sidecar to the controller.
//!
//! Their content comes from a pod and is untrusted: a controller truncates it to the sizes of a
//! genuine sidecar before use, with [`Hello::bounded`], [`SidecarReport::bounded`] and
//! [`SidecarEvent::bounded`].

use serde::{Deserialize, Serialize};

use super::super::histogram::Histogram;
use super::{LimiterState, TunedSettings, UnknownFields};

/// Maximum number of captured ports of a pod, as many as a proxy accepts (`--capture`).
const PORTS_MAX: usize = 64;
/// Maximum number of ports with separate counts in a folded report.
const PORTS_FOLDED_MAX: usize = 16;
/// Maximum number of routes per port in a report; the others are counted together. A route with
/// traffic takes about 3 KiB. A report that is still too large is folded
/// ([`SidecarReport::into_folded`]).
pub(crate) const ROUTES_MAX: usize = 24;
/// Name under which routes beyond the maximum are reported.
pub(crate) const OTHER_ROUTES: &str = "other";
/// Maximum number of cost classes in a report, over all ports, the busiest first. A model server
/// has one or two that matter.
pub(crate) const CLASSES_MAX: usize = 16;
/// Maximum number of points of a curve. The core keeps a few dozen of 512 sizes.
pub(crate) const POINTS_MAX: usize = 64;
/// Maximum length of the name of a route, class or model.
pub(crate) const NAME_BYTES_MAX: usize = 256;
/// Maximum length of a message text.
const TEXT_BYTES_MAX: usize = 1024;
/// Maximum number of features.
const FEATURES_MAX: usize = 64;

/// The first message of a stream: the identity and state of a sidecar.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Hello {
    /// Version of the program, as in `0.3.1`.
    pub version: String,
    /// Minor version of the sidecar's protocol ([`super::MINOR`]).
    pub minor: u32,
    /// Features that the sidecar supports beyond minor version 0 ([`super::FEATURES`]).
    pub features: Vec<String>,
    /// The sidecar's pod. Its UID must be that of the token.
    pub pod: PodIdentity,
    /// Captured ports.
    pub ports: Vec<CapturedPort>,
    /// Epoch of the process. The numbers of reports and events are scoped to it.
    pub epoch: u64,
    /// Settings in force; absent if none were received over a stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config: Option<AppliedConfig>,
    /// Number of unknown fields.
    #[serde(flatten)]
    pub unknown: UnknownFields,
}

/// Identity of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodIdentity {
    /// UID, which distinguishes the pod from a later one of the same name.
    pub uid: String,
    /// Name of the pod.
    pub name: String,
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the node that the pod runs on.
    pub node: String,
}

/// A captured port.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CapturedPort {
    /// Port of the application.
    pub port: u16,
    /// Name of the port, if it has one.
    pub name: String,
}

/// Settings that are in force.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AppliedConfig {
    /// Source of the settings, as in `SidecarConfig`.
    pub source: String,
    /// Generation of the settings, as in `SidecarConfig`.
    pub generation: u64,
    /// Profile in force. While an experiment is active, it is the experiment's.
    pub profile: String,
    /// Hash of the settings, as in `SidecarConfig`.
    pub hash: String,
    /// Arm of the active experiment, else empty.
    pub arm: String,
    /// The tuner's values in force, after they were restricted to the sidecar's own bounds.
    pub settings: TunedSettings,
    /// Number of settings that take effect at the next start of the process.
    pub pending: u32,
}

/// Counts since the previous report, and the current state.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SidecarReport {
    /// Epoch that `seq` belongs to.
    pub epoch: u64,
    /// Number of the report within the epoch, starting at 1. The same number means that the same
    /// report was sent again; 0 means that reports are not numbered.
    pub seq: u64,
    /// Time span that the counts cover, in milliseconds.
    pub over_ms: u64,
    /// Settings in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config: Option<AppliedConfig>,
    /// One entry per model server. Each captured port has its own.
    pub upstreams: Vec<UpstreamReport>,
    /// Number of unknown fields.
    #[serde(flatten)]
    pub unknown: UnknownFields,
}

/// State of one model server and counts of the calls to it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct UpstreamReport {
    /// Port of the application; 0 if no port is captured.
    pub port: u16,
    /// Value of the server's `Server` header.
    pub server: String,
    /// Model published by the server, with its revision.
    pub model: String,
    /// `true` if the server accepts connections.
    pub ready: bool,
    /// Number of items queued now.
    pub queue_items: u64,
    /// Number of batches in flight now.
    pub in_flight: u64,
    /// Number of upstream calls made by isolation since the previous report.
    pub isolation_executions: u64,
    /// Largest deadline shift in effect, the sidecar's own or the tuner's, in thousandths of its
    /// SLO.
    pub shift_permille: u32,
    /// State learned by the scheduler; absent if the scheduler did not respond.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub learned: Option<LearnedReport>,
    /// Counts by route.
    pub routes: Vec<RouteReport>,
    /// Predicted effect of batching in mode `Observe`; absent if nothing was observed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub predicted: Option<Box<PredictedReport>>,
}

/// Predicted effect of batching on calls that passed through, since the previous report.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PredictedReport {
    /// Predicted counts of all routes together.
    pub counts: RouteReport,
    /// Largest number of items per call for which execution times were observed. Predictions for
    /// larger batches are extrapolated.
    pub measured_items: u32,
}

/// Counts of one route since the previous report. Times are in microseconds.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RouteReport {
    /// Name of the route as written in the policy; `default` for calls that match no written route,
    /// `other` for routes beyond the maximum of a report.
    pub route: String,
    /// The route's SLO, a bound on the 99th percentile of latency, in microseconds, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slo_us: Option<u64>,
    /// Latency at the proxy, from arrival to response, of calls that were served without a server
    /// error.
    pub latency: Histogram,
    /// The same latency, of calls with an SLO only.
    pub slo_latency: Histogram,
    /// Latency, from arrival to response, of recognised calls that passed through.
    pub passed_latency: Histogram,
    /// Time from acceptance to dispatch, per call.
    pub queue_delay: Histogram,
    /// Time of successful executions, including isolation.
    pub execution: Histogram,
    /// Number of items per execution.
    pub batch_items: Histogram,
    /// Calls by outcome.
    pub calls: OutcomeCounts,
    /// Items by the outcome of their calls.
    pub items: OutcomeCounts,
    /// Calls that the server answered with 429 or 5xx. `calls` counts them as served or passed; the
    /// latencies exclude them.
    pub server_errors: u64,
    /// Calls that were answered later than their SLO.
    pub late: u64,
    /// Calls with an SLO that were rejected, expired in the queue, or failed.
    pub lost: u64,
    /// Executions: upstream calls, without those made by isolation.
    pub executions: u64,
    /// Calls that these executions carried. The difference to `executions` is what batching saved.
    pub carried: u64,
    /// Executions that did not succeed.
    pub failed: u64,
}

/// Counts by outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OutcomeCounts {
    /// Answered by the upstream, alone or in a batch.
    pub served: u64,
    /// Rejected at admission, for lack of room.
    pub rejected: u64,
    /// Expired: the deadline passed in the queue.
    pub expired: u64,
    /// Cancelled by the client.
    pub cancelled: u64,
    /// Answered by the proxy with an error.
    pub failed: u64,
    /// Forwarded unmodified.
    pub passed: u64,
}

/// State that the scheduler learned about a model server.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LearnedReport {
    /// Number of batches that the server executes concurrently.
    pub slots: u32,
    /// Lead in microseconds: time before a batch returns at which the next one may be dispatched.
    pub lead_us: u64,
    /// EWMA of execution times, in microseconds.
    pub mean_us: u64,
    /// Number of times that a change of the server was detected since the sidecar started.
    pub changes: u64,
    /// State of the concurrency limiters.
    pub concurrency: LimiterSummary,
    /// Highest weight limit of a cost class, learned from rejections or failures. `None` while a
    /// class was never refused for its weight.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight_ceiling: Option<u64>,
    /// Smallest limit on items that was learned or published.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub items_ceiling: Option<u64>,
    /// Batch costs by cost class, the busiest first.
    pub classes: Vec<ClassCostReport>,
    /// SLOs that no execution can meet.
    pub infeasible: Vec<InfeasibleSlo>,
}

/// State of a server's concurrency limiters. `learning` and `trying` describe the busiest cost
/// class.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LimiterSummary {
    /// Every call is forwarded on arrival.
    pub open: bool,
    /// Too few responses were observed to determine the server's concurrency.
    pub learning: bool,
    /// A trial of another limit is in progress.
    pub trying: bool,
}

/// Learned batch cost of a cost class.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClassCostReport {
    /// Name of the cost class, escaped with `u8::escape_ascii`.
    pub class: String,
    /// Readable description of the calls: their path, and their model if they name one. Empty from
    /// a sidecar without this field.
    pub calls: String,
    /// Constant term of the linear fit, the cost of a batch, in microseconds.
    pub batch_us: u64,
    /// Linear term of the fit, the cost of an item, in nanoseconds: for small models it is less
    /// than a microsecond.
    pub item_ns: u64,
    /// Number of observed batches.
    pub samples: u64,
    /// Relative error of the linear fit, in thousandths.
    pub error_permille: u64,
    /// Tail ratio, the 98th percentile of observed over predicted execution time, in thousandths.
    pub tail_permille: u64,
    /// Mean weight of an item, in thousandths.
    pub weight_milli: u64,
    /// Execution time of one item, in microseconds; 0 if unknown.
    pub lone_us: u64,
    /// 98th percentile of the time of one item with nothing else in flight, in microseconds; 0 if
    /// no call was alone in flight yet.
    pub lone_late_us: u64,
    /// Mean times by size, as triples of items, microseconds and samples.
    pub points: Vec<(u32, u64, u32)>,
    /// Concurrency limiter of the class. Absent if it has no result yet, and from a sidecar without
    /// this field.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limiter: Option<LimiterState>,
    /// Present if merging is suspended: the server rejects batches, or accepts one item per call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suspended: Option<MergingSuspension>,
}

/// Reason why merging is suspended for a cost class.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MergingSuspension {
    /// Response to the last batch, as one word: `status`, `too_large`, `mismatch`, `usage`, `reset`,
    /// `out_of_memory`, `silence`, `overload`; `one_item` if the server's limit is one item.
    pub answer: String,
    /// Status code of that response, if it was an error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
}

/// An SLO that is shorter than the time of an unbatched call.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct InfeasibleSlo {
    /// Name of the route.
    pub route: String,
    /// The SLO in microseconds.
    pub slo_us: u64,
    /// 98th percentile of the time of an unbatched call, in microseconds.
    pub lone_us: u64,
}

/// An occurrence that is published as a Kubernetes Event on the pod.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SidecarEvent {
    /// Epoch that `seq` belongs to.
    pub epoch: u64,
    /// Number of the event within the epoch, starting at 1; 0 means that events are not numbered.
    pub seq: u64,
    /// Reason in one word, as in `ConfigRefused`.
    pub reason: String,
    /// Message, one sentence.
    pub message: String,
    /// `true` for an Event of type `Warning`.
    pub warning: bool,
    /// Hash of the `SidecarConfig` that the event refers to, if any.
    pub hash: String,
    /// Number of events that were dropped before this one, because too many were pending.
    pub dropped: u64,
    /// Number of unknown fields.
    #[serde(flatten)]
    pub unknown: UnknownFields,
}

// === impl Hello ===

impl Hello {
    /// Truncates all fields to the sizes that a genuine sidecar sends.
    #[must_use]
    pub fn bounded(mut self) -> Self {
        truncate_text(&mut self.version, NAME_BYTES_MAX);
        self.features.truncate(FEATURES_MAX);
        self.features.iter_mut().for_each(|word| truncate_text(word, NAME_BYTES_MAX));
        for name in [&mut self.pod.uid, &mut self.pod.name, &mut self.pod.namespace, &mut self.pod.node] {
            truncate_text(name, NAME_BYTES_MAX);
        }
        self.ports.truncate(PORTS_MAX);
        self.ports.iter_mut().for_each(|port| truncate_text(&mut port.name, NAME_BYTES_MAX));
        self.config.iter_mut().for_each(AppliedConfig::truncate);
        self
    }

    /// Returns `true` if the sidecar supports `feature`.
    #[must_use]
    pub fn has_feature(&self, feature: &str) -> bool {
        self.features.iter().any(|word| word == feature)
    }
}

// === impl AppliedConfig ===

impl AppliedConfig {
    fn truncate(&mut self) {
        for name in [&mut self.source, &mut self.profile, &mut self.hash, &mut self.arm] {
            truncate_text(name, NAME_BYTES_MAX);
        }
        self.settings.start = None;
        while self.settings.tenant_weights.len() > NAME_BYTES_MAX {
            self.settings.tenant_weights.pop_last();
        }
    }
}

// === impl SidecarReport ===

impl SidecarReport {
    /// Truncates all fields to the sizes that a genuine sidecar sends.
    #[must_use]
    pub fn bounded(mut self) -> Self {
        self.config.iter_mut().for_each(AppliedConfig::truncate);
        self.upstreams.truncate(PORTS_MAX);
        let mut classes = CLASSES_MAX;
        for upstream in &mut self.upstreams {
            truncate_text(&mut upstream.server, NAME_BYTES_MAX);
            truncate_text(&mut upstream.model, NAME_BYTES_MAX);
            upstream.routes.truncate(ROUTES_MAX + 1);
            upstream.routes.iter_mut().for_each(|route| truncate_text(&mut route.route, NAME_BYTES_MAX));
            upstream.predicted.iter_mut().for_each(|predicted| predicted.counts.route.clear());
            let Some(learned) = &mut upstream.learned else { continue };
            learned.classes.retain(|class| class.class.len() <= 4 * NAME_BYTES_MAX);
            learned.classes.truncate(classes);
            classes -= learned.classes.len();
            for class in &mut learned.classes {
                class.points.truncate(POINTS_MAX);
                truncate_text(&mut class.calls, NAME_BYTES_MAX);
                class.limiter.iter_mut().for_each(|limiter| truncate_text(&mut limiter.open, NAME_BYTES_MAX));
                class.suspended.iter_mut().for_each(|found| truncate_text(&mut found.answer, NAME_BYTES_MAX));
            }
            learned.infeasible.truncate(ROUTES_MAX);
            learned.infeasible.iter_mut().for_each(|found| truncate_text(&mut found.route, NAME_BYTES_MAX));
        }
        self
    }
}

impl SidecarReport {
    /// Reduces the size of the report: the routes of each port are merged into one, and those of
    /// all ports from the 16th on are merged together. At most 16 routes with six histograms of 528
    /// buckets remain, which is below 1 MiB for any counts. The state of every port is kept.
    #[must_use]
    pub fn into_folded(mut self) -> Self {
        for upstream in &mut self.upstreams {
            let Some((first, rest)) = upstream.routes.split_first_mut() else { continue };
            rest.iter().for_each(|route| first.merge(route));
            first.route = OTHER_ROUTES.to_owned();
            upstream.routes.truncate(1);
        }
        let Some((named, beyond)) = self.upstreams.split_at_mut_checked(PORTS_FOLDED_MAX) else { return self };
        let Some(last) = named.last_mut() else { return self };
        for upstream in beyond {
            match (last.routes.first_mut(), upstream.routes.pop()) {
                (Some(all), Some(route)) => all.merge(&route),
                (None, route) => last.routes.extend(route),
                (Some(_), None) => {}
            }
            // The infeasible SLOs of the first ports suffice: a few are as informative as a
            // thousand.
            upstream.learned.iter_mut().for_each(|learned| learned.infeasible.clear());
        }
        self
    }
}

// === impl RouteReport ===

impl RouteReport {
    /// Adds the counts of another report.
    pub fn merge(&mut self, other: &Self) {
        let sketches = [
            (&mut self.latency, &other.latency),
            (&mut self.slo_latency, &other.slo_latency),
            (&mut self.passed_latency, &other.passed_latency),
            (&mut self.queue_delay, &other.queue_delay),
            (&mut self.execution, &other.execution),
            (&mut self.batch_items, &other.batch_items),
        ];
        for (own, other) in sketches {
            own.merge(other);
        }
        self.calls.merge(&other.calls);
        self.items.merge(&other.items);
        let counts = [
            (&mut self.server_errors, other.server_errors),
            (&mut self.late, other.late),
            (&mut self.lost, other.lost),
            (&mut self.executions, other.executions),
            (&mut self.carried, other.carried),
            (&mut self.failed, other.failed),
        ];
        for (own, other) in counts {
            *own = own.saturating_add(other);
        }
    }

    /// Returns the number of upstream calls that batching made unnecessary.
    #[must_use]
    pub const fn calls_saved(&self) -> u64 {
        self.carried.saturating_sub(self.executions)
    }
}

// === impl OutcomeCounts ===

impl OutcomeCounts {
    /// Adds the counts of `other`.
    pub fn merge(&mut self, other: &Self) {
        let counts = [
            (&mut self.served, other.served),
            (&mut self.rejected, other.rejected),
            (&mut self.expired, other.expired),
            (&mut self.cancelled, other.cancelled),
            (&mut self.failed, other.failed),
            (&mut self.passed, other.passed),
        ];
        for (own, other) in counts {
            *own = own.saturating_add(other);
        }
    }

    /// Returns the sum of all outcomes.
    #[must_use]
    pub fn sum(&self) -> u64 {
        let Self { served, rejected, expired, cancelled, failed, passed } = *self;
        [served, rejected, expired, cancelled, failed, passed].into_iter().fold(0, u64::saturating_add)
    }
}

// === impl SidecarEvent ===

impl SidecarEvent {
    /// Truncates all fields to the sizes that a genuine sidecar sends.
    #[must_use]
    pub fn bounded(mut self) -> Self {
        // The reason is used unmodified in labels and Kubernetes Events.
        self.reason.retain(|letter| letter.is_ascii_alphanumeric());
        truncate_text(&mut self.reason, 64);
        truncate_text(&mut self.message, TEXT_BYTES_MAX);
        truncate_text(&mut self.hash, NAME_BYTES_MAX);
        self
    }
}

/// Truncates a text to at most `bytes_max` bytes, at a character boundary.
pub(crate) fn truncate_text(text: &mut String, bytes_max: usize) {
    text.truncate(text.floor_char_boundary(bytes_max));
}
