//! Metrics of the controller. They have their own registry: a sidecar exposes none of these, and
//! the controller exposes none of a sidecar's.

use strum::{IntoStaticStr, VariantArray};

metric_table! {
    /// A metric of the controller.
    pub enum ControllerMetric;

    struct ControllerSeries {
        Reconciles: Counter, "groupage_controller_reconciles_total", "result",
            "Reconciliations of the whole state, by result of their writes."
            => [reconciles] of WriteResult::VARIANTS.iter().map(Into::into);
        ReconcileDuration: Seconds, "groupage_controller_reconcile_duration_seconds", "",
            "Duration of one reconciliation, without its writes." => reconcile_duration;
        Objects: Gauge, "groupage_controller_objects", "kind", "Objects in the watch cache, by kind.";
        WatchErrors: Counter, "groupage_controller_watch_errors_total", "kind",
            "Failed lists and watches, which are retried.";
        WatchSilence: Gauge, "groupage_controller_watch_silence_seconds", "kind",
            "Time since the last response of the API server about a kind, success or error.";
        Policies: Gauge, "groupage_controller_policies", "reason", "Policies, by reason of their condition Accepted.";
        PodsMissing: Gauge, "groupage_controller_pods_missing_sidecar", "",
            "Running pods that request a sidecar and have none because the webhook was unavailable when they were created."
            => pods_missing;
        StatusWrites: Counter, "groupage_controller_status_writes_total", "result",
            "Writes of statuses and profiles, by result."
            => [status_writes] of WriteResult::VARIANTS.iter().map(Into::into);
        Events: Counter, "groupage_controller_events_total", "result",
            "Events about workloads and policies, by result."
            => [events] of EventResult::VARIANTS.iter().map(Into::into);
        Leader: Gauge, "groupage_controller_leader", "", "1 while this replica leads." => leader;
        WebhookRequests: Counter, "groupage_webhook_requests_total", "result",
            "Admission requests for pods, by result."
            => [webhook_requests] of AdmissionResult::VARIANTS.iter().map(Into::into);
        WebhookSkips: Counter, "groupage_webhook_skips_total", "reason", "Pods that were not injected, by reason.";
        WebhookDuration: Seconds, "groupage_webhook_duration_seconds", "",
            "Time from the complete admission request to its response." => webhook_duration;
        Streams: Gauge, "groupage_controller_streams", "", "Sidecars with an open stream to this replica." => streams;
        StreamEvents: Counter, "groupage_controller_stream_events_total", "event",
            "Events on the streams of sidecars: opened, refused by reason, ended by reason, messages accepted.";
        TunerMoves: Counter, "groupage_controller_tuner_moves_total", "reason",
            "Adjustments of a pod's settings by the tuner, by reason.";
        CertExpiry: Gauge, "groupage_webhook_cert_expiry_timestamp_seconds", "",
            "Expiry of the certificate of webhook and stream, in seconds since 1970; 0 without one." => cert_expiry;
        BuildInfo: Gauge, "groupage_build_info", "version", "Always 1.";
    }
}

/// Result of an admission review of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum WriteResult {
    /// The write succeeded.
    Ok,
    /// Another client wrote in between; the write is repeated.
    Conflict,
    /// The API server rejected the write or did not respond.
    Error,
}

/// Result of publishing an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum EventResult {
    /// The event was published.
    Sent,
    /// The event was dropped, because there were too many.
    Dropped,
    /// The API server rejected the event or did not respond.
    Failed,
}

label_values!(AdmissionResult, WriteResult, EventResult);
