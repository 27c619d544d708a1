//! Every metric name, its help text and its buckets. A test compares `docs/metrics.md` with this list.

use crate::error::FailureKind;

/// A metric of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Metric {
    /// Client calls by outcome.
    Calls,
    /// Calls that were not merged, by reason.
    CallsPassed,
    /// Items by outcome.
    Items,
    /// Items that were refused, by reason.
    ItemsRejected,
    /// Items that were ended early, by reason.
    ItemsExpired,
    /// Calls by whether they were answered within the SLO.
    SloCalls,
    /// Batches by cause.
    Dispatches,
    /// Items in a batch.
    BatchItems,
    /// Weight of a batch.
    BatchWeight,
    /// Items as a share of the most allowed.
    BatchOccupancy,
    /// The part of a batch that is padding.
    BatchPadding,
    /// Time from acceptance to dispatch.
    QueueDelay,
    /// Time of one trip upstream.
    ExecutionDuration,
    /// Our own time in a call, by stage.
    Overhead,
    /// Items queued.
    QueueItems,
    /// Age of the oldest queued call.
    QueueOldest,
    /// Most items that may be queued.
    QueueItemsLimit,
    /// Batches in flight.
    SlotsInUse,
    /// Most batches in flight.
    SlotsLimit,
    /// Executions that the upstream was found to run side by side.
    SlotsLearned,
    /// How early the next batch leaves.
    Lead,
    /// What a batch costs, whatever is in it.
    ModelFixed,
    /// What an item adds.
    ModelItem,
    /// How far the line is off.
    ModelError,
    /// How much longer the slowest batches take.
    ModelTail,
    /// How often the upstream was found to be another one.
    ModelChanges,
    /// Whole seconds of execution spent to learn.
    Exploration,
    /// Time to solve a plan.
    PlanSolve,
    /// Whether calls are passed one by one.
    StandingAside,
    /// How much earlier deadlines count.
    DeadlineShift,
    /// Upstream calls made to isolate a failed batch.
    IsolationExecutions,
    /// Items that were answered by isolation.
    ItemsIsolated,
    /// Upstream calls that batching made unnecessary.
    UpstreamCallsSaved,
    /// Connections open on the data port.
    Connections,
    /// Connections refused or shed.
    ConnectionsShed,
    /// Bytes buffered.
    BufferedBytes,
    /// A limit in force, by source.
    Limit,
    /// Mismatched answers by kind.
    Mismatches,
    /// Settings that were read again, by what came of it.
    ConfigReloads,
    /// Whether the settings in force are those that were read last.
    ConfigCurrent,
    /// Settings that wait for the next start.
    ConfigPending,
    /// What this binary is.
    BuildInfo,
}

/// How a metric is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Seconds, in classic buckets.
    Seconds,
    /// Whole numbers, in powers of two.
    Sizes,
    /// A share of one.
    Ratio,
}

/// How a call or an item ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// Answered by the upstream, alone or in a batch.
    Served,
    /// Never accepted: no room.
    Rejected,
    /// Its deadline passed in the queue.
    Expired,
    /// The client left.
    Cancelled,
    /// Answered by us with an error.
    Failed,
    /// Not ours to merge: forwarded untouched.
    Passed,
}

/// What came of reading the settings again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reload {
    /// They are in force.
    Applied,
    /// Something is wrong with them: those before stay in force.
    Refused,
}

/// A part of our own work on a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stage {
    /// Scanning a call and making its key.
    Read,
    /// Writing a batch.
    Merge,
    /// Validating and cutting its answer.
    Split,
    /// Making the answer of one caller.
    Write,
}

/// Why items are refused, in the order of the metrics page.
pub const REJECTED: [FailureKind; 5] = [
    FailureKind::QueueFull,
    FailureKind::BytesFull,
    FailureKind::TenantShare,
    FailureKind::LatePredicted,
    FailureKind::Draining,
];

/// Why items are ended early, in the order of the metrics page.
pub const EXPIRED: [FailureKind; 2] = [FailureKind::Deadline, FailureKind::LatePredicted];

/// What came of an SLO.
pub const SLO_RESULTS: [&str; 2] = ["met", "missed"];

// === impl Metric ===

impl Metric {
    /// Every metric.
    pub const ALL: [Self; 42] = [
        Self::Calls,
        Self::CallsPassed,
        Self::Items,
        Self::ItemsRejected,
        Self::ItemsExpired,
        Self::SloCalls,
        Self::Dispatches,
        Self::BatchItems,
        Self::BatchWeight,
        Self::BatchOccupancy,
        Self::BatchPadding,
        Self::QueueDelay,
        Self::ExecutionDuration,
        Self::Overhead,
        Self::QueueItems,
        Self::QueueOldest,
        Self::QueueItemsLimit,
        Self::SlotsInUse,
        Self::SlotsLimit,
        Self::SlotsLearned,
        Self::Lead,
        Self::ModelFixed,
        Self::ModelItem,
        Self::ModelError,
        Self::ModelTail,
        Self::ModelChanges,
        Self::Exploration,
        Self::PlanSolve,
        Self::StandingAside,
        Self::DeadlineShift,
        Self::IsolationExecutions,
        Self::ItemsIsolated,
        Self::UpstreamCallsSaved,
        Self::Connections,
        Self::ConnectionsShed,
        Self::BufferedBytes,
        Self::Limit,
        Self::Mismatches,
        Self::ConfigReloads,
        Self::ConfigCurrent,
        Self::ConfigPending,
        Self::BuildInfo,
    ];

    /// Name, kind, labels, help.
    const fn row(self) -> (&'static str, Kind, &'static str, &'static str) {
        match self {
            Self::Calls => {
                ("groupage_calls_total", Kind::Counter, "policy, protocol, outcome", "Client calls by outcome.")
            }
            Self::CallsPassed => (
                "groupage_calls_passed_total",
                Kind::Counter,
                "reason",
                "Calls that were not merged, and why: forwarded untouched, or sent alone.",
            ),
            Self::Items => ("groupage_items_total", Kind::Counter, "outcome", "Items of recognised calls by outcome."),
            Self::ItemsRejected => {
                ("groupage_items_rejected_total", Kind::Counter, "reason", "Items that were not accepted, and why.")
            }
            Self::ItemsExpired => (
                "groupage_items_expired_total",
                Kind::Counter,
                "reason",
                "Items ended before they were sent: their deadline passed, or would have.",
            ),
            Self::SloCalls => (
                "groupage_slo_calls_total",
                Kind::Counter,
                "result",
                "Recognised calls with an SLO, that of their class or else of their route, by whether they were answered within it.",
            ),
            Self::Dispatches => {
                ("groupage_dispatches_total", Kind::Counter, "cause", "Executions by the cause of their dispatch.")
            }
            Self::BatchItems => ("groupage_batch_items", Kind::Sizes, "", "Items in one execution."),
            Self::BatchWeight => {
                ("groupage_batch_weight", Kind::Sizes, "", "Weight of one execution: tokens, rows or bytes.")
            }
            Self::BatchOccupancy => (
                "groupage_batch_occupancy_ratio",
                Kind::Ratio,
                "",
                "Items of an execution as a share of batchItemsMax.",
            ),
            Self::BatchPadding => (
                "groupage_batch_padding_ratio",
                Kind::Ratio,
                "",
                "The part of an execution that would be padding if every item were as heavy as the heaviest.",
            ),
            Self::QueueDelay => {
                ("groupage_queue_delay_seconds", Kind::Seconds, "", "Time from acceptance to dispatch.")
            }
            Self::ExecutionDuration => (
                "groupage_execution_duration_seconds",
                Kind::Seconds,
                "outcome",
                "Time of one execution, isolation included.",
            ),
            Self::Overhead => (
                "groupage_overhead_seconds",
                Kind::Seconds,
                "stage",
                "Our own work on a call or a batch: read, merge, split, write.",
            ),
            Self::QueueItems => ("groupage_queue_items", Kind::Gauge, "", "Items accepted and not dispatched."),
            Self::QueueOldest => ("groupage_queue_oldest_seconds", Kind::Gauge, "", "Age of the oldest queued call."),
            Self::QueueItemsLimit => ("groupage_queue_items_limit", Kind::Gauge, "", "Most items that may be queued."),
            Self::SlotsInUse => ("groupage_slots_in_use", Kind::Gauge, "", "Executions in flight."),
            Self::SlotsLimit => ("groupage_slots_limit", Kind::Gauge, "", "Most executions in flight."),
            Self::SlotsLearned => (
                "groupage_slots_learned",
                Kind::Gauge,
                "",
                "Executions that the upstream was found to run side by side.",
            ),
            Self::Lead => (
                "groupage_lead_seconds",
                Kind::Gauge,
                "",
                "How long before an execution ends the next one may leave, as learned.",
            ),
            Self::ModelFixed => (
                "groupage_model_fixed_seconds",
                Kind::Gauge,
                "",
                "What an execution costs whatever is in it, as learned of the calls that were sent last.",
            ),
            Self::ModelItem => (
                "groupage_model_item_seconds",
                Kind::Gauge,
                "",
                "What an item adds to it, as learned of the calls that were sent last.",
            ),
            Self::ModelError => {
                ("groupage_model_error_ratio", Kind::Gauge, "", "How far executions are off that line, on average.")
            }
            Self::ModelTail => (
                "groupage_model_tail_ratio",
                Kind::Gauge,
                "",
                "Within how many times what was expected of them 98 of 100 executions end.",
            ),
            Self::Exploration => (
                "groupage_exploration_seconds_total",
                Kind::Counter,
                "",
                "Whole seconds of execution of batches that were sent in another size than seemed best, to learn.",
            ),
            Self::ModelChanges => (
                "groupage_model_changes_total",
                Kind::Counter,
                "",
                "How often the upstream was found to be another one, and all that was learned was forgotten.",
            ),
            Self::PlanSolve => (
                "groupage_plan_solve_seconds",
                Kind::Seconds,
                "",
                "Time to work out which size to send at which load, on a thread of its own.",
            ),
            Self::StandingAside => (
                "groupage_standing_aside",
                Kind::Gauge,
                "",
                "1 while calls are passed one by one, since the upstream batches better by itself.",
            ),
            Self::DeadlineShift => (
                "groupage_deadline_shift_seconds",
                Kind::Gauge,
                "",
                "How much earlier than their SLO calls are given up or sent, for what an answer takes from its batch to its caller; the largest of all SLOs.",
            ),
            Self::IsolationExecutions => (
                "groupage_isolation_executions_total",
                Kind::Counter,
                "",
                "Upstream calls made to isolate a failed batch.",
            ),
            Self::ItemsIsolated => {
                ("groupage_items_isolated_total", Kind::Counter, "", "Items that were answered by isolation.")
            }
            Self::UpstreamCallsSaved => (
                "groupage_upstream_calls_saved_total",
                Kind::Counter,
                "",
                "Upstream calls that batching made unnecessary.",
            ),
            Self::Connections => ("groupage_connections", Kind::Gauge, "", "Connections open on the data port."),
            Self::ConnectionsShed => (
                "groupage_connections_shed_total",
                Kind::Counter,
                "",
                "Connections closed at once: too many, or no descriptor.",
            ),
            Self::BufferedBytes => ("groupage_buffered_bytes", Kind::Gauge, "", "Bytes of requests and answers held."),
            Self::Limit => {
                ("groupage_limit", Kind::Gauge, "limit, source", "A limit in force and where it comes from.")
            }
            Self::Mismatches => (
                "groupage_mismatches_total",
                Kind::Counter,
                "kind",
                "Answers to a batch that could not be split, by kind.",
            ),
            Self::ConfigReloads => (
                "groupage_config_reloads_total",
                Kind::Counter,
                "result",
                "Settings read again while running, by what came of it.",
            ),
            Self::ConfigCurrent => (
                "groupage_config_current",
                Kind::Gauge,
                "",
                "1 if the settings in force are those read last, 0 if those were refused.",
            ),
            Self::ConfigPending => (
                "groupage_config_pending_settings",
                Kind::Gauge,
                "",
                "Settings under proxy that were changed and wait for the next start.",
            ),
            Self::BuildInfo => ("groupage_build_info", Kind::Gauge, "version", "Always 1."),
        }
    }

    /// The name in the exposition.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.row().0
    }

    /// How it is counted.
    #[must_use]
    pub const fn kind(self) -> Kind {
        self.row().1
    }

    /// Its label names, comma-separated.
    #[must_use]
    pub const fn labels(self) -> &'static str {
        self.row().2
    }

    /// Its help text.
    #[must_use]
    pub const fn help(self) -> &'static str {
        self.row().3
    }
}

// === impl Kind ===

impl Kind {
    /// The upper bounds of a histogram's buckets; empty for counters and gauges. Few on purpose: every bucket is a series.
    #[must_use]
    pub const fn buckets(self) -> &'static [f64] {
        match self {
            Self::Counter | Self::Gauge => &[],
            Self::Seconds => &[0.0001, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0],
            Self::Sizes => &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 1024.0, 4096.0, 16384.0, 65536.0],
            Self::Ratio => &[0.1, 0.25, 0.5, 0.75, 0.9, 1.0],
        }
    }

    /// The word in the exposition's TYPE line.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Seconds | Self::Sizes | Self::Ratio => "histogram",
        }
    }
}

// === impl Outcome ===

impl Outcome {
    /// Every outcome.
    pub const ALL: [Self; 6] =
        [Self::Served, Self::Rejected, Self::Expired, Self::Cancelled, Self::Failed, Self::Passed];

    /// The label value.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Served => "served",
            Self::Rejected => "rejected",
            Self::Expired => "expired",
            Self::Cancelled => "cancelled",
            Self::Failed => "failed",
            Self::Passed => "passed",
        }
    }
}

// === impl Reload ===

impl Reload {
    /// Every result.
    pub const ALL: [Self; 2] = [Self::Applied, Self::Refused];

    /// The label value.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Applied => "applied",
            Self::Refused => "refused",
        }
    }
}

// === impl Stage ===

impl Stage {
    /// Every stage.
    pub const ALL: [Self; 4] = [Self::Read, Self::Merge, Self::Split, Self::Write];

    /// The label value.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Merge => "merge",
            Self::Split => "split",
            Self::Write => "write",
        }
    }
}
