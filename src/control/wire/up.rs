//! What the sidecar says.
//!
//! Everything in it comes from a pod, so a controller believes only what it has cut to size first ([`Hello::bounded`] and its like).

use serde::{Deserialize, Serialize};

use super::super::sketch::Sketch;
use super::{Limiter, Settings, Unknown};

/// Captured ports of a pod: as many as a proxy takes (`--capture`).
const PORTS_MAX: usize = 64;
/// Ports whose counts a folded report names apart.
const PORTS_FOLDED_MAX: usize = 16;
/// Routes of a port in a report; what is beyond is counted together. A route with traffic has some 3 KiB, and what is too large all the same is folded
/// ([`Report::folded`]).
pub(crate) const ROUTES_MAX: usize = 24;
/// The name of all routes that a report does not name.
pub(crate) const OTHER_ROUTES: &str = "other";
/// Cost classes in a report, over all ports, the busiest first: a model server has one or two that matter.
pub(crate) const CLASSES_MAX: usize = 16;
/// Points of a curve: of 512 sizes the core keeps some dozens.
pub(crate) const POINTS_MAX: usize = 64;
/// A name: of a route, a class, a model.
pub(crate) const NAME_BYTES_MAX: usize = 256;
/// A sentence.
const TEXT_BYTES_MAX: usize = 1024;
/// Words of features.
const FEATURES_MAX: usize = 64;

/// Who opens the stream.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Hello {
    /// Of the program, as in `0.3.1`.
    pub version: String,
    /// The minor version of what it says ([`super::MINOR`]).
    pub minor: u32,
    /// What it understands beyond minor version 0 ([`super::FEATURES`]).
    pub features: Vec<String>,
    /// The pod that it stands in; its UID must be the token's.
    pub pod: Pod,
    /// The ports that it captures.
    pub ports: Vec<CapturedPort>,
    /// This life of the process: the numbers of its reports mean something within it only.
    pub epoch: u64,
    /// What is in force already; absent: nothing that came over a stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config: Option<InForce>,
    /// Fields that are not known.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// A pod.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Pod {
    /// What tells it from a later one of that name.
    pub uid: String,
    /// Its name.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// Where it runs.
    pub node: String,
}

/// A port that calls come through.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CapturedPort {
    /// The application's.
    pub port: u16,
    /// Its name, if it has one.
    pub name: String,
}

/// Settings that are in force.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct InForce {
    /// As in `Config`.
    pub source: String,
    /// As in `Config`.
    pub generation: u64,
    /// The profile in force: the experiment's where one is on.
    pub profile: String,
    /// As in `Config`.
    pub hash: String,
    /// The arm of an experiment that is on, else empty.
    pub arm: String,
    /// What of the tuner's is in force: after the sidecar's own bounds.
    pub settings: Settings,
    /// Settings that wait for the next start of the process.
    pub pending: u32,
}

/// What happened since the report before, and how things stand.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Report {
    /// The life of the process that `seq` is of.
    pub epoch: u64,
    /// Counts reports of this life from 1. The same number is the same report, sent again; 0: not counted.
    pub seq: u64,
    /// The time that the counts cover, in milliseconds.
    pub over_ms: u64,
    /// What is in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config: Option<InForce>,
    /// One for each model server: each captured port has its own.
    pub upstreams: Vec<UpstreamReport>,
    /// Fields that are not known.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// One model server, and the calls to it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct UpstreamReport {
    /// The application's port; 0 where no port is captured.
    pub port: u16,
    /// Its `Server` header.
    pub server: String,
    /// The model that it publishes, with its revision.
    pub model: String,
    /// Whether it accepts connections.
    pub ready: bool,
    /// Items queued now.
    pub queue_items: u64,
    /// Batches in flight now.
    pub in_flight: u64,
    /// Upstream calls that isolation made, since the report before.
    pub isolation_executions: u64,
    /// The largest shift of deadlines in effect, the sidecar's own or the tuner's, in thousandths of its SLO.
    pub shift_permille: u32,
    /// What was learned; absent where the scheduler did not answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub learned: Option<Learned>,
    /// The counts by route.
    pub routes: Vec<RouteReport>,
    /// In mode `Observe`: what batching would have done; absent where nothing was observed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub predicted: Option<Box<Predicted>>,
}

/// What batching would have done with calls that passed, since the report before.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Predicted {
    /// The counts that there would have been, of all routes together.
    pub counts: RouteReport,
    /// The most items in one call of which it was learned what they take: what a batch of more takes is a guess.
    pub measured_items: u32,
}

/// The calls of one route since the report before. Times are in microseconds.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RouteReport {
    /// As the policy writes it; `default` for what no written route matches, `other` for those beyond what a report names.
    pub route: String,
    /// Its promised 99th percentile in microseconds, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slo_us: Option<u64>,
    /// Arrival to answer at the proxy, of calls that were served well.
    pub latency: Sketch,
    /// The same of calls with an SLO only.
    pub slo_latency: Sketch,
    /// Arrival to answer of recognised calls that were passed through.
    pub passed_latency: Sketch,
    /// Acceptance to dispatch, by call.
    pub queue_delay: Sketch,
    /// Time of an execution that went well, isolation included.
    pub execution: Sketch,
    /// Items in an execution.
    pub batch_items: Sketch,
    /// Calls by how they ended.
    pub calls: Outcomes,
    /// Items by how their calls ended.
    pub items: Outcomes,
    /// Calls that the server answered with 429 or 5xx: served or passed by `calls`, and in no latency.
    pub server_errors: u64,
    /// Calls that were answered later than their SLO.
    pub late: u64,
    /// Calls with an SLO that got no answer: refused, given up in the queue, failed.
    pub lost: u64,
    /// Executions: upstream calls without those of isolation.
    pub executions: u64,
    /// Calls that these executions carried. Less the executions: what batching saved.
    pub carried: u64,
    /// Executions that ended otherwise than well.
    pub failed: u64,
}

/// Counts by how a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Outcomes {
    /// Answered by the upstream, alone or in a batch.
    pub served: u64,
    /// No room.
    pub rejected: u64,
    /// Its deadline passed in the queue.
    pub expired: u64,
    /// The client left.
    pub cancelled: u64,
    /// Answered by us with an error.
    pub failed: u64,
    /// Forwarded untouched.
    pub passed: u64,
}

/// What the scheduler learned of a model server.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Learned {
    /// Batches that it runs side by side.
    pub slots: u32,
    /// By how much the next batch may leave before one comes back, in microseconds.
    pub lead_us: u64,
    /// The running mean of execution times, in microseconds.
    pub mean_us: u64,
    /// How often it was found to be another one, since the sidecar started.
    pub changes: u64,
    /// Whether calls are forwarded or held, and whether that is still being learned.
    pub concurrency: Concurrency,
    /// The least weight ceiling that was learned from refusals or failures.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight_ceiling: Option<u64>,
    /// The least ceiling on items that was learned or published.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub items_ceiling: Option<u64>,
    /// What batches cost, the busiest class first.
    pub classes: Vec<LearnedClass>,
    /// SLOs that no execution can meet.
    pub infeasible: Vec<Infeasible>,
}

/// What the concurrency limiters of a server do; `learning` and `trying` are of the busiest cost
/// class.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Concurrency {
    /// Every call is forwarded at once.
    pub open: bool,
    /// Too little has been answered to judge the server's concurrency.
    pub learning: bool,
    /// A trial of another limit is in progress.
    pub trying: bool,
}

/// What batches of a cost class take.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LearnedClass {
    /// The class, as `u8::escape_ascii` writes its bytes.
    pub class: String,
    /// The calls of the class for people: their path, and their model where they name one; empty
    /// from a sidecar without this field.
    pub calls: String,
    /// What a batch costs whatever is in it, in microseconds.
    pub batch_us: u64,
    /// What an item adds, in nanoseconds: for small models it is less than a microsecond.
    pub item_ns: u64,
    /// Batches that it was learned from.
    pub samples: u64,
    /// How far executions are off that line.
    pub error_permille: u64,
    /// Within how many times what was expected 98 of 100 executions end.
    pub tail_permille: u64,
    /// The mean weight of an item, in thousandths.
    pub weight_milli: u64,
    /// What a call alone takes, in microseconds; 0: not known.
    pub lone_us: u64,
    /// The same with nothing else in flight, exceeded but once in fifty times; 0: nothing was alone
    /// in flight yet.
    pub lone_late_us: u64,
    /// Mean times by size: items, microseconds, samples.
    pub points: Vec<(u32, u64, u32)>,
    /// Its concurrency limiter; absent while nothing was concluded, and from a sidecar without this
    /// field.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limiter: Option<Limiter>,
    /// Nothing is merged: the server refuses batches of calls that it answers alone, or takes one
    /// item a call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suspended: Option<Suspended>,
}

/// Why nothing of a cost class is merged.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Suspended {
    /// How the server answered the last batch, in one word: `status`, `too_large`, `mismatch`,
    /// `reset`, `silence`; `one_item` where its limit is one item.
    pub answer: String,
    /// The status of that answer, where it was one of an error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
}

/// An SLO below what a lone call takes.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Infeasible {
    /// The route.
    pub route: String,
    /// The SLO in microseconds.
    pub slo_us: u64,
    /// What a lone call takes but once in fifty times.
    pub lone_us: u64,
}

/// Something that somebody should know: a Kubernetes Event on the pod.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Event {
    /// The life of the process that `seq` is of.
    pub epoch: u64,
    /// Counts events of this life from 1; 0: not counted.
    pub seq: u64,
    /// One word, as in `ConfigRefused`.
    pub reason: String,
    /// A sentence.
    pub message: String,
    /// Whether something is wrong.
    pub warning: bool,
    /// The hash of the `Config` that it is about, if it is about one.
    pub hash: String,
    /// Events that were left out before this one: too many at once.
    pub dropped: u64,
    /// Fields that are not known.
    #[serde(flatten)]
    pub unknown: Unknown,
}

// === impl Hello ===

impl Hello {
    /// Cut to what a sidecar of ours would send.
    #[must_use]
    pub fn bounded(mut self) -> Self {
        cut(&mut self.version, NAME_BYTES_MAX);
        self.features.truncate(FEATURES_MAX);
        self.features.iter_mut().for_each(|word| cut(word, NAME_BYTES_MAX));
        for name in [&mut self.pod.uid, &mut self.pod.name, &mut self.pod.namespace, &mut self.pod.node] {
            cut(name, NAME_BYTES_MAX);
        }
        self.ports.truncate(PORTS_MAX);
        self.ports.iter_mut().for_each(|port| cut(&mut port.name, NAME_BYTES_MAX));
        self.config.iter_mut().for_each(InForce::bound);
        self
    }

    /// Whether the sidecar understands this.
    #[must_use]
    pub fn has(&self, feature: &str) -> bool {
        self.features.iter().any(|word| word == feature)
    }
}

// === impl InForce ===

impl InForce {
    fn bound(&mut self) {
        for name in [&mut self.source, &mut self.profile, &mut self.hash, &mut self.arm] {
            cut(name, NAME_BYTES_MAX);
        }
        self.settings.start = None;
        while self.settings.tenant_weights.len() > NAME_BYTES_MAX {
            self.settings.tenant_weights.pop_last();
        }
    }
}

// === impl Report ===

impl Report {
    /// Cut to what a sidecar of ours would send.
    #[must_use]
    pub fn bounded(mut self) -> Self {
        self.config.iter_mut().for_each(InForce::bound);
        self.upstreams.truncate(PORTS_MAX);
        let mut classes = CLASSES_MAX;
        for upstream in &mut self.upstreams {
            cut(&mut upstream.server, NAME_BYTES_MAX);
            cut(&mut upstream.model, NAME_BYTES_MAX);
            upstream.routes.truncate(ROUTES_MAX + 1);
            upstream.routes.iter_mut().for_each(|route| cut(&mut route.route, NAME_BYTES_MAX));
            upstream.predicted.iter_mut().for_each(|predicted| predicted.counts.route.clear());
            let Some(learned) = &mut upstream.learned else { continue };
            learned.classes.retain(|class| class.class.len() <= 4 * NAME_BYTES_MAX);
            learned.classes.truncate(classes);
            classes -= learned.classes.len();
            for class in &mut learned.classes {
                class.points.truncate(POINTS_MAX);
                cut(&mut class.calls, NAME_BYTES_MAX);
                class.limiter.iter_mut().for_each(|limiter| cut(&mut limiter.open, NAME_BYTES_MAX));
                class.suspended.iter_mut().for_each(|found| cut(&mut found.answer, NAME_BYTES_MAX));
            }
            learned.infeasible.truncate(ROUTES_MAX);
            learned.infeasible.iter_mut().for_each(|found| cut(&mut found.route, NAME_BYTES_MAX));
        }
        self
    }
}

impl Report {
    /// The same with the routes of each port counted together, and those of all ports from the sixteenth on with it: at most 16 times six sketches of 528
    /// buckets, so below 1 MiB whatever was counted. How things stand is said of every port all the same.
    #[must_use]
    pub fn folded(mut self) -> Self {
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
            // Of SLOs that cannot be met a few are as good as a thousand.
            upstream.learned.iter_mut().for_each(|learned| learned.infeasible.clear());
        }
        self
    }
}

// === impl RouteReport ===

impl RouteReport {
    /// Adds the counts of another one.
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

    /// Upstream calls that batching made unnecessary.
    #[must_use]
    pub const fn saved(&self) -> u64 {
        self.carried.saturating_sub(self.executions)
    }
}

// === impl Outcomes ===

impl Outcomes {
    /// Adds others.
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

    /// All of them.
    #[must_use]
    pub fn sum(&self) -> u64 {
        let Self { served, rejected, expired, cancelled, failed, passed } = *self;
        [served, rejected, expired, cancelled, failed, passed].into_iter().fold(0, u64::saturating_add)
    }
}

// === impl Event ===

impl Event {
    /// Cut to what a sidecar of ours would send.
    #[must_use]
    pub fn bounded(mut self) -> Self {
        // A word goes into labels and Events as it is.
        self.reason.retain(|letter| letter.is_ascii_alphanumeric());
        cut(&mut self.reason, 64);
        cut(&mut self.message, TEXT_BYTES_MAX);
        cut(&mut self.hash, NAME_BYTES_MAX);
        self
    }
}

/// Cuts a text to so many bytes, at the end of a letter.
pub(crate) fn cut(text: &mut String, bytes_max: usize) {
    text.truncate(text.floor_char_boundary(bytes_max));
}
