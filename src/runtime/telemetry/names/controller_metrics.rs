//! Metrics of the controller. They have their own registry: a sidecar exposes none of these, and
//! the controller exposes none of a sidecar's.

use super::MetricKind;

/// A metric of the controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ControllerMetric {
    /// Reconciliations by the result of their writes.
    Reconciles,
    /// Duration of a reconciliation.
    ReconcileDuration,
    /// Known objects by kind.
    Objects,
    /// Failed lists and watches by kind.
    WatchErrors,
    /// Time since the last response of the API server, by kind.
    WatchSilence,
    /// Policies by the reason of their condition `Accepted`.
    Policies,
    /// Pods that request a sidecar and have none.
    PodsMissing,
    /// Status writes by result.
    StatusWrites,
    /// Published events by result.
    Events,
    /// 1 while this replica is the leader.
    Leader,
    /// Admission reviews by result.
    WebhookRequests,
    /// Pods left unmodified, by reason.
    WebhookSkips,
    /// Time to answer an admission review.
    WebhookDuration,
    /// Open streams of sidecars.
    Streams,
    /// Stream events by type.
    StreamEvents,
    /// Pods with settings changed by the tuner, by reason.
    TunerMoves,
    /// Expiry of the served certificate.
    CertExpiry,
    /// Version of this binary.
    BuildInfo,
}

/// Result of an admission review of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AdmissionResult {
    /// The pod is injected.
    Injected,
    /// The pod needs no injection, for a reason that is counted separately.
    Skipped,
    /// The pod's request is invalid, so the pod is left unmodified.
    Refused,
    /// The review is not about the creation of a pod.
    Ignored,
    /// The controller's cluster state is incomplete, so the pod is left unmodified.
    Unsynced,
    /// The review cannot be parsed and is answered with an error.
    Malformed,
}

/// Result of a reconciliation or of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WriteResult {
    /// The write succeeded.
    Ok,
    /// Another client wrote in between; the write is repeated.
    Conflict,
    /// The API server rejected the write or did not respond.
    Error,
}

/// Result of publishing an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EventResult {
    /// The event was published.
    Sent,
    /// The event was dropped, because there were too many.
    Dropped,
    /// The API server rejected the event or did not respond.
    Failed,
}

// === impl ControllerMetric ===

impl ControllerMetric {
    /// All metrics.
    pub const ALL: [Self; 18] = [
        Self::Reconciles,
        Self::ReconcileDuration,
        Self::Objects,
        Self::WatchErrors,
        Self::WatchSilence,
        Self::Policies,
        Self::PodsMissing,
        Self::StatusWrites,
        Self::Events,
        Self::Leader,
        Self::WebhookRequests,
        Self::WebhookSkips,
        Self::WebhookDuration,
        Self::Streams,
        Self::StreamEvents,
        Self::TunerMoves,
        Self::CertExpiry,
        Self::BuildInfo,
    ];

    const fn row(self) -> (&'static str, MetricKind, &'static str, &'static str) {
        match self {
            Self::Reconciles => (
                "groupage_controller_reconciles_total",
                MetricKind::Counter,
                "result",
                "Reconciliations of the whole state, by result of their writes.",
            ),
            Self::ReconcileDuration => (
                "groupage_controller_reconcile_duration_seconds",
                MetricKind::Seconds,
                "",
                "Duration of one reconciliation, without its writes.",
            ),
            Self::Objects => {
                ("groupage_controller_objects", MetricKind::Gauge, "kind", "Objects in the watch cache, by kind.")
            }
            Self::WatchErrors => (
                "groupage_controller_watch_errors_total",
                MetricKind::Counter,
                "kind",
                "Failed lists and watches, which are retried.",
            ),
            Self::WatchSilence => (
                "groupage_controller_watch_silence_seconds",
                MetricKind::Gauge,
                "kind",
                "Time since the last response of the API server about a kind, success or error.",
            ),
            Self::Policies => (
                "groupage_controller_policies",
                MetricKind::Gauge,
                "reason",
                "Policies, by reason of their condition Accepted.",
            ),
            Self::PodsMissing => (
                "groupage_controller_pods_missing_sidecar",
                MetricKind::Gauge,
                "",
                "Running pods that request a sidecar and have none because the webhook was unavailable when they were created.",
            ),
            Self::StatusWrites => (
                "groupage_controller_status_writes_total",
                MetricKind::Counter,
                "result",
                "Writes of statuses and profiles, by result.",
            ),
            Self::Events => (
                "groupage_controller_events_total",
                MetricKind::Counter,
                "result",
                "Events about workloads and policies, by result.",
            ),
            Self::Leader => ("groupage_controller_leader", MetricKind::Gauge, "", "1 while this replica leads."),
            Self::WebhookRequests => (
                "groupage_webhook_requests_total",
                MetricKind::Counter,
                "result",
                "Admission requests for pods, by result.",
            ),
            Self::WebhookSkips => (
                "groupage_webhook_skips_total",
                MetricKind::Counter,
                "reason",
                "Pods that were not injected, by reason.",
            ),
            Self::WebhookDuration => (
                "groupage_webhook_duration_seconds",
                MetricKind::Seconds,
                "",
                "Time from the complete admission request to its response.",
            ),
            Self::Streams => {
                ("groupage_controller_streams", MetricKind::Gauge, "", "Sidecars with an open stream to this replica.")
            }
            Self::StreamEvents => (
                "groupage_controller_stream_events_total",
                MetricKind::Counter,
                "event",
                "Events on the streams of sidecars: opened, refused by reason, ended by reason, messages accepted.",
            ),
            Self::TunerMoves => (
                "groupage_controller_tuner_moves_total",
                MetricKind::Counter,
                "reason",
                "Adjustments of a pod's settings by the tuner, by reason.",
            ),
            Self::CertExpiry => (
                "groupage_webhook_cert_expiry_timestamp_seconds",
                MetricKind::Gauge,
                "",
                "Expiry of the certificate of webhook and stream, in seconds since 1970; 0 without one.",
            ),
            Self::BuildInfo => ("groupage_build_info", MetricKind::Gauge, "version", "Always 1."),
        }
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

// === impl AdmissionResult ===

impl AdmissionResult {
    /// All results.
    pub const ALL: [Self; 6] =
        [Self::Injected, Self::Skipped, Self::Refused, Self::Ignored, Self::Unsynced, Self::Malformed];

    /// Returns the label value.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Injected => "injected",
            Self::Skipped => "skipped",
            Self::Refused => "refused",
            Self::Ignored => "ignored",
            Self::Unsynced => "unsynced",
            Self::Malformed => "malformed",
        }
    }
}

// === impl WriteResult ===

impl WriteResult {
    /// All results.
    pub const ALL: [Self; 3] = [Self::Ok, Self::Conflict, Self::Error];

    /// Returns the label value.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Conflict => "conflict",
            Self::Error => "error",
        }
    }
}

// === impl EventResult ===

impl EventResult {
    /// All results.
    pub const ALL: [Self; 3] = [Self::Sent, Self::Dropped, Self::Failed];

    /// Returns the label value.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Sent => "sent",
            Self::Dropped => "dropped",
            Self::Failed => "failed",
        }
    }
}
