//! The controller's metrics. It counts in registries of its own: a sidecar shows none of these, the controller none of a sidecar's.

use super::Kind;

/// A metric of the controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ControllerMetric {
    /// Rounds of looking at everything.
    Reconciles,
    /// How long one takes.
    ReconcileDuration,
    /// Objects known, by kind.
    Objects,
    /// Errors of following a kind.
    WatchErrors,
    /// Time since anything was heard of a kind.
    WatchSilence,
    /// Policies by what they were found to be.
    Policies,
    /// Pods that ask for a sidecar and have none.
    PodsMissing,
    /// Writes of statuses.
    StatusWrites,
    /// Events.
    Events,
    /// Whether this replica leads.
    Leader,
    /// Questions of the API server about pods.
    WebhookRequests,
    /// Pods left as they were, by reason.
    WebhookSkips,
    /// How long an answer takes.
    WebhookDuration,
    /// Streams of sidecars that are open.
    Streams,
    /// What happened to streams.
    StreamEvents,
    /// Settings that the slow loop moved.
    TunerMoves,
    /// When the certificate that is shown expires.
    CertExpiry,
    /// What this binary is.
    BuildInfo,
}

/// What the API server was answered about a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Admission {
    /// With a patch.
    Injected,
    /// Nothing is to be done, for a reason that is counted apart.
    Skipped,
    /// What the pod asks for cannot be read, so it stays as it was.
    Refused,
    /// Not a pod that is being made.
    Ignored,
    /// Not everything is known yet, so it stays as it was.
    Unsynced,
    /// A question that cannot be read, answered with an error.
    Malformed,
}

/// What became of a round, or of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Done {
    /// It is done.
    Ok,
    /// Somebody else wrote in between; it is done again.
    Conflict,
    /// The API server refused it or did not answer.
    Error,
}

/// What became of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Told {
    /// It was sent.
    Sent,
    /// There were too many.
    Dropped,
    /// The API server refused it or did not answer.
    Failed,
}

// === impl ControllerMetric ===

impl ControllerMetric {
    /// Every metric.
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

    const fn row(self) -> (&'static str, Kind, &'static str, &'static str) {
        match self {
            Self::Reconciles => (
                "groupage_controller_reconciles_total",
                Kind::Counter,
                "result",
                "Rounds of looking at everything that is known, by what became of the writes that followed.",
            ),
            Self::ReconcileDuration => (
                "groupage_controller_reconcile_duration_seconds",
                Kind::Seconds,
                "",
                "Time of one such round, without the writes.",
            ),
            Self::Objects => ("groupage_controller_objects", Kind::Gauge, "kind", "Objects known."),
            Self::WatchErrors => (
                "groupage_controller_watch_errors_total",
                Kind::Counter,
                "kind",
                "Lists and watches that failed, and are tried again.",
            ),
            Self::WatchSilence => (
                "groupage_controller_watch_silence_seconds",
                Kind::Gauge,
                "kind",
                "Time since the API server last answered about a kind, well or badly.",
            ),
            Self::Policies => (
                "groupage_controller_policies",
                Kind::Gauge,
                "reason",
                "Policies by the reason of their condition Accepted.",
            ),
            Self::PodsMissing => (
                "groupage_controller_pods_missing_sidecar",
                Kind::Gauge,
                "",
                "Running pods that ask for a sidecar and have none: the webhook was not there when they were made.",
            ),
            Self::StatusWrites => {
                ("groupage_controller_status_writes_total", Kind::Counter, "result", "Statuses and profiles written.")
            }
            Self::Events => {
                ("groupage_controller_events_total", Kind::Counter, "result", "Events about workloads and policies.")
            }
            Self::Leader => ("groupage_controller_leader", Kind::Gauge, "", "1 while this replica leads."),
            Self::WebhookRequests => (
                "groupage_webhook_requests_total",
                Kind::Counter,
                "result",
                "Pods that the API server asked about, by what it was answered.",
            ),
            Self::WebhookSkips => {
                ("groupage_webhook_skips_total", Kind::Counter, "reason", "Pods left as they were, and why.")
            }
            Self::WebhookDuration => {
                ("groupage_webhook_duration_seconds", Kind::Seconds, "", "Time from the whole question to its answer.")
            }
            Self::Streams => {
                ("groupage_controller_streams", Kind::Gauge, "", "Sidecars whose stream to this replica is open.")
            }
            Self::StreamEvents => (
                "groupage_controller_stream_events_total",
                Kind::Counter,
                "event",
                "What happened to the streams of sidecars: opened, refused and why, ended and why, messages taken.",
            ),
            Self::TunerMoves => (
                "groupage_controller_tuner_moves_total",
                Kind::Counter,
                "reason",
                "Pods whose settings the tuner moved, and why.",
            ),
            Self::CertExpiry => (
                "groupage_webhook_cert_expiry_timestamp_seconds",
                Kind::Gauge,
                "",
                "When the certificate of webhook and stream expires, in seconds since 1970; 0 without one.",
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

// === impl Admission ===

impl Admission {
    /// Every result.
    pub const ALL: [Self; 6] =
        [Self::Injected, Self::Skipped, Self::Refused, Self::Ignored, Self::Unsynced, Self::Malformed];

    /// The label value.
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

// === impl Done ===

impl Done {
    /// Every result.
    pub const ALL: [Self; 3] = [Self::Ok, Self::Conflict, Self::Error];

    /// The label value.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Conflict => "conflict",
            Self::Error => "error",
        }
    }
}

// === impl Told ===

impl Told {
    /// Every result.
    pub const ALL: [Self; 3] = [Self::Sent, Self::Dropped, Self::Failed];

    /// The label value.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Sent => "sent",
            Self::Dropped => "dropped",
            Self::Failed => "failed",
        }
    }
}
