//! Metrics of the controller.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, Key, Label, Recorder};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder};

use super::names::{AdmissionResult, ControllerMetric as Metric, EventResult, WriteResult};
use super::series::{METADATA, describe, to_f64};

/// All metrics of one controller. Cheap to clone.
#[derive(Clone)]
pub struct ControllerMetrics(Arc<ControllerMetricsInner>);

struct ControllerMetricsInner {
    recorder: PrometheusRecorder,
    handle: PrometheusHandle,
    admissions: [Counter; AdmissionResult::ALL.len()],
    reconciles: [Counter; WriteResult::ALL.len()],
    writes: [Counter; WriteResult::ALL.len()],
    events: [Counter; EventResult::ALL.len()],
    webhook: Histogram,
    reconcile: Histogram,
    missing: Gauge,
    leader: Gauge,
    streams: Gauge,
    expiry: Gauge,
}

// === impl ControllerMetrics ===

impl ControllerMetrics {
    /// Creates the metrics in a registry of their own.
    #[must_use]
    pub fn new() -> Self {
        let mut builder = PrometheusBuilder::new();
        for metric in Metric::ALL {
            let buckets = metric.kind().buckets();
            if !buckets.is_empty() {
                builder = builder
                    .set_buckets_for_metric(Matcher::Full(metric.name().into()), buckets)
                    .expect("the buckets are constants and none is empty");
            }
        }
        let recorder = builder.build_recorder();
        for metric in Metric::ALL {
            describe(&recorder, metric.name(), metric.kind(), metric.help());
        }
        let counter = |metric, label, value| recorder.register_counter(&key(metric, label, value), &METADATA);
        let gauge = |metric: Metric| recorder.register_gauge(&Key::from_static_name(metric.name()), &METADATA);
        let histogram = |metric: Metric| recorder.register_histogram(&Key::from_static_name(metric.name()), &METADATA);
        let inner = ControllerMetricsInner {
            handle: recorder.handle(),
            admissions: AdmissionResult::ALL.map(|word| counter(Metric::WebhookRequests, "result", word.as_str())),
            reconciles: WriteResult::ALL.map(|word| counter(Metric::Reconciles, "result", word.as_str())),
            writes: WriteResult::ALL.map(|word| counter(Metric::StatusWrites, "result", word.as_str())),
            events: EventResult::ALL.map(|word| counter(Metric::Events, "result", word.as_str())),
            webhook: histogram(Metric::WebhookDuration),
            reconcile: histogram(Metric::ReconcileDuration),
            missing: gauge(Metric::PodsMissing),
            leader: gauge(Metric::Leader),
            streams: gauge(Metric::Streams),
            expiry: gauge(Metric::CertExpiry),
            recorder,
        };
        let this = Self(Arc::new(inner));
        this.gauge(Metric::BuildInfo, "version", env!("CARGO_PKG_VERSION")).set(1.0);
        this
    }

    /// Renders the metrics in the Prometheus text format.
    #[must_use]
    pub fn render(&self) -> String {
        self.0.handle.run_upkeep();
        self.0.handle.render()
    }

    /// Releases the memory of recorded histogram samples. A process that records many and is never
    /// scraped has to call this.
    pub fn tidy(&self) {
        self.0.handle.run_upkeep();
    }

    /// Records an admission review and the time to answer it.
    pub fn admission(&self, answer: AdmissionResult, took: Duration) {
        self.0.admissions[answer as usize].increment(1);
        self.0.webhook.record(took.as_secs_f64());
    }

    /// Records a pod that was left unmodified.
    pub fn skipped(&self, reason: &'static str) {
        self.0.recorder.register_counter(&key(Metric::WebhookSkips, "reason", reason), &METADATA).increment(1);
    }

    /// Records the duration of a reconciliation.
    pub fn record_reconcile(&self, took: Duration) {
        self.0.reconcile.record(took.as_secs_f64());
    }

    /// Records the result of the writes that followed a reconciliation.
    pub fn applied(&self, done: WriteResult) {
        self.0.reconciles[done as usize].increment(1);
    }

    /// Records the result of writing a status or profile.
    pub fn written(&self, done: WriteResult) {
        self.0.writes[done as usize].increment(1);
    }

    /// Records the result of publishing an event.
    pub fn event(&self, told: EventResult) {
        self.0.events[told as usize].increment(1);
    }

    /// Sets the number of known objects of a kind.
    pub fn objects(&self, kind: &'static str, count: usize) {
        self.gauge(Metric::Objects, "kind", kind).set(to_f64(count as u64));
    }

    /// Records a failed list or watch of a kind.
    pub fn record_watch_error(&self, kind: &'static str) {
        self.0.recorder.register_counter(&key(Metric::WatchErrors, "kind", kind), &METADATA).increment(1);
    }

    /// Sets the time since the last response of the API server for a kind.
    pub fn set_watch_silence(&self, kind: &'static str, silence: Duration) {
        self.gauge(Metric::WatchSilence, "kind", kind).set(silence.as_secs_f64());
    }

    /// Sets the number of policies with a reason.
    pub fn policies(&self, reason: &'static str, count: usize) {
        self.gauge(Metric::Policies, "reason", reason).set(to_f64(count as u64));
    }

    /// Sets the number of pods that request a sidecar and have none.
    pub fn set_pods_missing(&self, count: usize) {
        self.0.missing.set(to_f64(count as u64));
    }

    /// Sets the number of open streams.
    pub fn streams(&self, count: usize) {
        self.0.streams.set(to_f64(count as u64));
    }

    /// Sets the number of stream events since the process started.
    pub fn set_stream_events(&self, event: &'static str, count: u64) {
        self.0.recorder.register_counter(&key(Metric::StreamEvents, "event", event), &METADATA).absolute(count);
    }

    /// Records that the tuner changed the settings of a pod.
    pub fn tuned(&self, reason: &'static str) {
        self.0.recorder.register_counter(&key(Metric::TunerMoves, "reason", reason), &METADATA).increment(1);
    }

    /// Sets the gauge that shows the leader.
    pub fn leads(&self, leads: bool) {
        self.0.leader.set(f64::from(u8::from(leads)));
    }

    /// Sets the expiry of the certificate, in seconds since the Unix epoch.
    pub fn set_cert_expiry(&self, seconds: u64) {
        self.0.expiry.set(to_f64(seconds));
    }

    fn gauge(&self, metric: Metric, label: &'static str, value: &'static str) -> Gauge {
        self.0.recorder.register_gauge(&key(metric, label, value), &METADATA)
    }
}

impl Default for ControllerMetrics {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for ControllerMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ControllerMetrics")
    }
}

fn key(metric: Metric, label: &'static str, value: &'static str) -> Key {
    Key::from_parts(metric.name(), vec![Label::from_static_parts(label, value)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exposition_shows_results_that_have_not_happened_as_zero() {
        let metrics = ControllerMetrics::new();
        metrics.admission(AdmissionResult::Injected, Duration::from_millis(2));
        metrics.skipped("HostNetwork");
        let text = metrics.render();
        for line in [
            "groupage_webhook_requests_total{result=\"injected\"} 1",
            "groupage_webhook_requests_total{result=\"unsynced\"} 0",
            "groupage_webhook_skips_total{reason=\"HostNetwork\"} 1",
            "groupage_webhook_duration_seconds_bucket{le=\"0.0025\"} 1",
            "groupage_controller_pods_missing_sidecar 0",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
    }

    #[test]
    fn words_index_their_own_counters() {
        assert!(AdmissionResult::ALL.into_iter().enumerate().all(|(at, word)| word as usize == at));
        assert!(WriteResult::ALL.into_iter().enumerate().all(|(at, word)| word as usize == at));
        assert!(EventResult::ALL.into_iter().enumerate().all(|(at, word)| word as usize == at));
    }
}
