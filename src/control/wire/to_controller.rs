//! Messages from the sidecar to the controller.
//!
//! Their content comes from a pod and is untrusted: a controller truncates it to the sizes of a
//! genuine sidecar before use, with [`Hello::bounded`], [`SidecarReport::bounded`] and
//! [`SidecarEvent::bounded`].

mod counts;
mod hello;
mod learned;

use serde::{Deserialize, Serialize};

pub use self::counts::{OutcomeCounts, RouteReport};
pub use self::hello::{CapturedPort, Hello, PodIdentity};
pub use self::learned::{ClassCostReport, InfeasibleSlo, LearnedReport, LimiterSummary, MergingSuspension};
use super::{TunedSettings, UnknownFields};

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
