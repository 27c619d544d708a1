//! Names, help texts and buckets of all metrics. A test compares `docs/metrics.md` with this list.

mod controller_metrics;
mod labels;

pub use self::controller_metrics::{AdmissionResult, ControllerMetric, EventResult, WriteResult};
pub use self::labels::{
    EXPIRE_REASONS, HandshakeResult, HoldReason, OTHER_ROUTE, Outcome, OverheadStage, REJECT_REASONS, RelayReason,
    ReloadResult, SLO_RESULTS, UnpredictedReason,
};

/// A metric of the proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Metric {
    /// Client calls by outcome.
    Calls,
    /// End-to-end latency of calls.
    CallDuration,
    /// Calls that were not merged, by reason.
    CallsPassed,
    /// Calls that waited before dispatch, by reason.
    CallsHeld,
    /// Items by outcome.
    Items,
    /// Items that were rejected, by reason.
    ItemsRejected,
    /// Items that were expired, by reason.
    ItemsExpired,
    /// Calls with an SLO, by whether it was met.
    SloCalls,
    /// Executions by the cause of their dispatch.
    Dispatches,
    /// Items in a batch.
    BatchItems,
    /// Weight of a batch.
    BatchWeight,
    /// Items of a batch as a share of the maximum.
    BatchOccupancy,
    /// Share of a batch that is padding.
    BatchPadding,
    /// Time from acceptance to dispatch.
    QueueDelay,
    /// Time of one execution.
    ExecutionDuration,
    /// The proxy's own processing time of a call, by stage.
    Overhead,
    /// Items queued.
    QueueItems,
    /// Age of the oldest queued call.
    QueueOldest,
    /// Maximum number of queued items.
    QueueItemsLimit,
    /// Executions in flight.
    SlotsInUse,
    /// Maximum number of executions in flight.
    SlotsLimit,
    /// Number of executions that the upstream was observed to run concurrently.
    SlotsLearned,
    /// Lead: time before an execution ends at which the next batch may be dispatched.
    Lead,
    /// Constant term of the cost model: the cost of a batch.
    ModelFixed,
    /// Linear term of the cost model: the cost of an item.
    ModelItem,
    /// Mean relative error of the cost model.
    ModelError,
    /// Tail ratio: 98th percentile of observed over predicted execution time.
    ModelTail,
    /// Number of detected changes of the upstream.
    ModelChanges,
    /// Execution time of batches that were sent to explore another size, in whole seconds.
    Exploration,
    /// Time to solve a plan.
    PlanSolve,
    /// 1 while calls are passed one by one.
    StandingAside,
    /// Cost classes that are not merged, because the server rejects their batches.
    MergingSuspended,
    /// Largest shift of SLO deadlines to an earlier time.
    DeadlineShift,
    /// Upstream calls made to isolate a failed batch.
    IsolationExecutions,
    /// Items that were answered by isolation.
    ItemsIsolated,
    /// Upstream calls that batching made unnecessary.
    UpstreamCallsSaved,
    /// Connections open on the data port.
    Connections,
    /// Connections rejected or closed to make room.
    ConnectionsShed,
    /// Connections relayed as bytes, by reason.
    ConnectionsRelayed,
    /// Failed TLS handshakes with clients, by reason.
    TlsHandshakesFailed,
    /// Certificate reloads, by side and result.
    TlsReloads,
    /// Expiry of the certificate in use, by side.
    TlsExpiry,
    /// Bytes buffered.
    BufferedBytes,
    /// Buffers that were evicted to make room for others.
    BuffersEvicted,
    /// A limit in force, by source.
    Limit,
    /// Batch responses that could not be split, by kind.
    Mismatches,
    /// Configuration reloads, by result.
    ConfigReloads,
    /// 1 if the configuration in force is the one read last.
    ConfigCurrent,
    /// Number of settings that take effect at the next start.
    ConfigPending,
    /// 1 while the crash guard passes all calls through.
    CrashGuard,
    /// 1 while the proxy drains and holds no calls.
    Draining,
    /// 1 while the control stream is open.
    ControllerConnected,
    /// Control streams that ended, by reason.
    ControllerEnds,
    /// Messages and fields from the controller that are unknown to this version.
    ControllerUnknown,
    /// Mode `Observe`: calls by predicted outcome.
    PredictedCalls,
    /// Mode `Observe`: predicted executions.
    PredictedDispatches,
    /// Mode `Observe`: items per predicted execution.
    PredictedBatchItems,
    /// Mode `Observe`: predicted time from acceptance to dispatch.
    PredictedQueueDelay,
    /// Mode `Observe`: predicted time from arrival to response.
    PredictedLatency,
    /// Mode `Observe`: calls without a prediction.
    Unpredicted,
    /// Version of this binary.
    BuildInfo,
}

/// Type of a metric, with the buckets of histograms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricKind {
    /// A monotonic counter.
    Counter,
    /// A gauge.
    Gauge,
    /// A histogram of durations in seconds.
    Seconds,
    /// A histogram of call durations in seconds, up to the response time of a language model.
    CallSeconds,
    /// A histogram of integers, with powers of two as buckets.
    Sizes,
    /// A histogram of ratios between 0 and 1.
    Ratio,
}

// === impl Metric ===

impl Metric {
    /// All metrics.
    pub const ALL: [Self; 61] = [
        Self::Calls,
        Self::CallDuration,
        Self::CallsPassed,
        Self::CallsHeld,
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
        Self::MergingSuspended,
        Self::DeadlineShift,
        Self::IsolationExecutions,
        Self::ItemsIsolated,
        Self::UpstreamCallsSaved,
        Self::Connections,
        Self::ConnectionsShed,
        Self::ConnectionsRelayed,
        Self::TlsHandshakesFailed,
        Self::TlsReloads,
        Self::TlsExpiry,
        Self::BufferedBytes,
        Self::BuffersEvicted,
        Self::Limit,
        Self::Mismatches,
        Self::ConfigReloads,
        Self::ConfigCurrent,
        Self::ConfigPending,
        Self::CrashGuard,
        Self::Draining,
        Self::ControllerConnected,
        Self::ControllerEnds,
        Self::ControllerUnknown,
        Self::PredictedCalls,
        Self::PredictedDispatches,
        Self::PredictedBatchItems,
        Self::PredictedQueueDelay,
        Self::PredictedLatency,
        Self::Unpredicted,
        Self::BuildInfo,
    ];

    /// Returns name, type, labels and help text.
    const fn row(self) -> (&'static str, MetricKind, &'static str, &'static str) {
        match self {
            Self::Calls => {
                ("groupage_calls_total", MetricKind::Counter, "policy, protocol, outcome", "Client calls by outcome.")
            }
            Self::CallDuration => (
                "groupage_call_duration_seconds",
                MetricKind::CallSeconds,
                "route, outcome",
                "End-to-end latency of every call, merged or not: from the request head to the complete response, or to the response head for a call that passes through or streams.",
            ),
            Self::CallsHeld => (
                "groupage_calls_held_total",
                MetricKind::Counter,
                "reason",
                "Calls that were held before they were sent, by reason.",
            ),
            Self::CallsPassed => (
                "groupage_calls_passed_total",
                MetricKind::Counter,
                "reason",
                "Calls that were not merged, by reason: forwarded untouched, or sent alone.",
            ),
            Self::Items => {
                ("groupage_items_total", MetricKind::Counter, "outcome", "Items of recognised calls by outcome.")
            }
            Self::ItemsRejected => (
                "groupage_items_rejected_total",
                MetricKind::Counter,
                "reason",
                "Items that were not accepted, by reason.",
            ),
            Self::ItemsExpired => (
                "groupage_items_expired_total",
                MetricKind::Counter,
                "reason",
                "Items that expired before they were sent: their deadline passed, or would have passed.",
            ),
            Self::SloCalls => (
                "groupage_slo_calls_total",
                MetricKind::Counter,
                "result",
                "Recognised calls with an SLO, of their class or else of their route, by whether the SLO was met.",
            ),
            Self::Dispatches => (
                "groupage_dispatches_total",
                MetricKind::Counter,
                "cause",
                "Executions by the cause of their dispatch.",
            ),
            Self::BatchItems => ("groupage_batch_items", MetricKind::Sizes, "", "Items in one execution."),
            Self::BatchWeight => {
                ("groupage_batch_weight", MetricKind::Sizes, "", "Weight of one execution: tokens, rows or bytes.")
            }
            Self::BatchOccupancy => (
                "groupage_batch_occupancy_ratio",
                MetricKind::Ratio,
                "",
                "Items of an execution as a share of batchItemsMax.",
            ),
            Self::BatchPadding => (
                "groupage_batch_padding_ratio",
                MetricKind::Ratio,
                "",
                "Share of an execution that would be padding if every item were padded to the heaviest.",
            ),
            Self::QueueDelay => {
                ("groupage_queue_delay_seconds", MetricKind::Seconds, "", "Time from acceptance to dispatch.")
            }
            Self::ExecutionDuration => (
                "groupage_execution_duration_seconds",
                MetricKind::Seconds,
                "outcome",
                "Duration of one execution, including isolation.",
            ),
            Self::Overhead => (
                "groupage_overhead_seconds",
                MetricKind::Seconds,
                "stage",
                "Time that the proxy itself spends on a call or a batch: read, merge, split, write.",
            ),
            Self::QueueItems => ("groupage_queue_items", MetricKind::Gauge, "", "Items accepted and not dispatched."),
            Self::QueueOldest => {
                ("groupage_queue_oldest_seconds", MetricKind::Gauge, "", "Age of the oldest queued call.")
            }
            Self::QueueItemsLimit => {
                ("groupage_queue_items_limit", MetricKind::Gauge, "", "Maximum number of queued items.")
            }
            Self::SlotsInUse => ("groupage_slots_in_use", MetricKind::Gauge, "", "Executions in flight."),
            Self::SlotsLimit => {
                ("groupage_slots_limit", MetricKind::Gauge, "", "Maximum number of executions in flight.")
            }
            Self::SlotsLearned => (
                "groupage_slots_learned",
                MetricKind::Gauge,
                "",
                "Learned number of executions that the upstream runs in parallel.",
            ),
            Self::Lead => (
                "groupage_lead_seconds",
                MetricKind::Gauge,
                "",
                "Learned time before the end of an execution at which the next one may be dispatched.",
            ),
            Self::ModelFixed => (
                "groupage_model_fixed_seconds",
                MetricKind::Gauge,
                "",
                "Fixed duration of an execution, learned from recent executions.",
            ),
            Self::ModelItem => (
                "groupage_model_item_seconds",
                MetricKind::Gauge,
                "",
                "Duration that each item adds to an execution, learned from recent executions.",
            ),
            Self::ModelError => (
                "groupage_model_error_ratio",
                MetricKind::Gauge,
                "",
                "Mean error of the predicted duration of executions: the absolute logarithm of observed over predicted time.",
            ),
            Self::ModelTail => (
                "groupage_model_tail_ratio",
                MetricKind::Gauge,
                "",
                "Ratio of actual to predicted duration that 98 of 100 executions stay within.",
            ),
            Self::Exploration => (
                "groupage_exploration_seconds_total",
                MetricKind::Counter,
                "",
                "Whole seconds spent on exploration: executions of batches whose size differed from the estimated optimum.",
            ),
            Self::ModelChanges => (
                "groupage_model_changes_total",
                MetricKind::Counter,
                "",
                "Times that a different upstream was detected and the learned model was reset.",
            ),
            Self::PlanSolve => (
                "groupage_plan_solve_seconds",
                MetricKind::Seconds,
                "",
                "Time to compute the batch size for each load, on a separate thread.",
            ),
            Self::StandingAside => (
                "groupage_standing_aside",
                MetricKind::Gauge,
                "",
                "1 while calls are sent one by one because the upstream batches better by itself.",
            ),
            Self::MergingSuspended => (
                "groupage_merging_suspended",
                MetricKind::Gauge,
                "",
                "Kinds of calls that are not merged because the server rejected their batches and accepted their members alone.",
            ),
            Self::DeadlineShift => (
                "groupage_deadline_shift_seconds",
                MetricKind::Gauge,
                "",
                "Time before their SLO by which calls are dropped or sent early, to leave time for the response to reach the caller; the maximum over all SLOs.",
            ),
            Self::IsolationExecutions => (
                "groupage_isolation_executions_total",
                MetricKind::Counter,
                "",
                "Upstream calls made to isolate a failed batch.",
            ),
            Self::ItemsIsolated => {
                ("groupage_items_isolated_total", MetricKind::Counter, "", "Items that were completed by isolation.")
            }
            Self::UpstreamCallsSaved => (
                "groupage_upstream_calls_saved_total",
                MetricKind::Counter,
                "",
                "Upstream calls that batching made unnecessary.",
            ),
            Self::Connections => ("groupage_connections", MetricKind::Gauge, "", "Connections open on the data port."),
            Self::ConnectionsShed => (
                "groupage_connections_shed_total",
                MetricKind::Counter,
                "",
                "Connections closed on accept, or evicted for others: the limit was reached, or no file descriptor was free.",
            ),
            Self::ConnectionsRelayed => (
                "groupage_connections_relayed_total",
                MetricKind::Counter,
                "reason",
                "Connections of captured ports that were relayed as bytes and cannot be merged, by reason.",
            ),
            Self::TlsHandshakesFailed => (
                "groupage_tls_handshakes_failed_total",
                MetricKind::Counter,
                "reason",
                "Failed TLS handshakes with clients, by reason.",
            ),
            Self::TlsReloads => (
                "groupage_tls_reloads_total",
                MetricKind::Counter,
                "side, result",
                "Reloads of changed certificate files, downstream or upstream, by result; after a refused reload the previous certificates stay in use.",
            ),
            Self::TlsExpiry => (
                "groupage_tls_certificate_expiry_seconds",
                MetricKind::Gauge,
                "side",
                "Expiry of the certificate in use, in seconds since 1970.",
            ),
            Self::BufferedBytes => {
                ("groupage_buffered_bytes", MetricKind::Gauge, "", "Bytes of requests and responses in memory.")
            }
            Self::BuffersEvicted => (
                "groupage_buffers_evicted_total",
                MetricKind::Counter,
                "",
                "Unfinished uploads and unread responses that were evicted to free memory.",
            ),
            Self::Limit => {
                ("groupage_limit", MetricKind::Gauge, "limit, source", "A limit in force and where it comes from.")
            }
            Self::Mismatches => (
                "groupage_mismatches_total",
                MetricKind::Counter,
                "kind",
                "Batch responses that could not be split, by kind.",
            ),
            Self::ConfigReloads => {
                ("groupage_config_reloads_total", MetricKind::Counter, "result", "Reloads of the settings, by result.")
            }
            Self::ConfigCurrent => (
                "groupage_config_current",
                MetricKind::Gauge,
                "",
                "1 if the settings that were read last are in force, 0 if they were refused.",
            ),
            Self::ConfigPending => (
                "groupage_config_pending_settings",
                MetricKind::Gauge,
                "",
                "Changed settings under proxy that take effect at the next start.",
            ),
            Self::CrashGuard => (
                "groupage_crash_guard",
                MetricKind::Gauge,
                "",
                "1 while everything passes through untouched because the process crashed 3 times in a minute.",
            ),
            Self::Draining => (
                "groupage_draining",
                MetricKind::Gauge,
                "",
                "1 while no call is held: the pod is shutting down, or its application is being restarted.",
            ),
            Self::ControllerConnected => (
                "groupage_controller_connected",
                MetricKind::Gauge,
                "",
                "1 while the control stream is open, else 0; absent without a controller.",
            ),
            Self::ControllerEnds => (
                "groupage_controller_stream_ends_total",
                MetricKind::Counter,
                "reason",
                "Control streams that ended or could not be opened, by reason.",
            ),
            Self::ControllerUnknown => (
                "groupage_controller_unknown_total",
                MetricKind::Counter,
                "what",
                "Messages and fields from the controller that this version does not know and ignored.",
            ),
            Self::PredictedCalls => (
                "groupage_predicted_calls_total",
                MetricKind::Counter,
                "outcome",
                "Mode Observe: calls that passed through, by their predicted outcome in batches.",
            ),
            Self::PredictedDispatches => (
                "groupage_predicted_dispatches_total",
                MetricKind::Counter,
                "",
                "Mode Observe: predicted upstream calls.",
            ),
            Self::PredictedBatchItems => (
                "groupage_predicted_batch_items",
                MetricKind::Sizes,
                "",
                "Mode Observe: items in one predicted upstream call.",
            ),
            Self::PredictedQueueDelay => (
                "groupage_predicted_queue_delay_seconds",
                MetricKind::Seconds,
                "",
                "Mode Observe: predicted time from acceptance to dispatch.",
            ),
            Self::PredictedLatency => (
                "groupage_predicted_latency_seconds",
                MetricKind::Seconds,
                "",
                "Mode Observe: predicted time from arrival to response.",
            ),
            Self::Unpredicted => (
                "groupage_unpredicted_calls_total",
                MetricKind::Counter,
                "reason",
                "Mode Observe: calls without a prediction, by reason.",
            ),
            Self::BuildInfo => ("groupage_build_info", MetricKind::Gauge, "version", "Always 1."),
        }
    }

    /// Returns `true` if the metric is exposed only once it has a value, because most processes do
    /// not use its feature.
    #[must_use]
    pub const fn is_optional(self) -> bool {
        matches!(
            self,
            Self::CallDuration
                | Self::ConnectionsRelayed
                | Self::TlsHandshakesFailed
                | Self::TlsReloads
                | Self::TlsExpiry
                | Self::ControllerConnected
                | Self::ControllerEnds
                | Self::ControllerUnknown
                | Self::PredictedCalls
                | Self::PredictedDispatches
                | Self::PredictedBatchItems
                | Self::PredictedQueueDelay
                | Self::PredictedLatency
                | Self::Unpredicted
        )
    }

    /// Returns the name in the exposition.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.row().0
    }

    /// Returns the type of the metric.
    #[must_use]
    pub const fn kind(self) -> MetricKind {
        self.row().1
    }

    /// Returns the label names, comma-separated.
    #[must_use]
    pub const fn labels(self) -> &'static str {
        self.row().2
    }

    /// Returns the help text.
    #[must_use]
    pub const fn help(self) -> &'static str {
        self.row().3
    }
}

// === impl MetricKind ===

impl MetricKind {
    /// Returns the upper bounds of a histogram's buckets, empty for counters and gauges. There are
    /// few, because every bucket is a series.
    #[must_use]
    pub const fn buckets(self) -> &'static [f64] {
        match self {
            Self::Counter | Self::Gauge => &[],
            Self::Seconds => &[0.0001, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0],
            Self::CallSeconds => {
                &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0]
            }
            Self::Sizes => &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 1024.0, 4096.0, 16384.0, 65536.0],
            Self::Ratio => &[0.1, 0.25, 0.5, 0.75, 0.9, 1.0],
        }
    }

    /// Returns the type in the exposition's `TYPE` line.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Seconds | Self::CallSeconds | Self::Sizes | Self::Ratio => "histogram",
        }
    }
}
