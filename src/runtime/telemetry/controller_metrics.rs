//! Metrics of the controller.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::names::{AdmissionResult, ControllerMetric as Metric, ControllerSeries, EventResult, WriteResult};
use super::series::{MetricRecorder, to_f64};

/// All metrics of one controller. Cheap to clone.
#[derive(Clone)]
pub struct ControllerMetrics(Arc<ControllerMetricsInner>);

struct ControllerMetricsInner {
    recorder: MetricRecorder,
    series: ControllerSeries,
}

// === impl ControllerMetrics ===

impl ControllerMetrics {
    /// Creates the metrics in a registry of their own.
    #[must_use]
    pub fn new() -> Self {
        let recorder = MetricRecorder::new(Metric::ALL);
        let series = ControllerSeries::register(&recorder.registrar(None));
        recorder.gauge(Metric::BuildInfo, &[env!("CARGO_PKG_VERSION").into()]).set(1.0);
        Self(Arc::new(ControllerMetricsInner { recorder, series }))
    }

    /// Renders the metrics in the Prometheus text format.
    #[must_use]
    pub fn render(&self) -> String {
        self.0.recorder.render()
    }

    /// Releases the memory of recorded histogram samples. A process that records many and is never
    /// scraped has to call this.
    pub fn run_upkeep(&self) {
        self.0.recorder.run_upkeep();
    }

    /// Records an admission review and the time to answer it.
    pub fn record_admission(&self, answer: AdmissionResult, took: Duration) {
        self.0.series.webhook_requests[answer as usize].increment(1);
        self.0.series.webhook_duration.record(took.as_secs_f64());
    }

    /// Records a pod that was left unmodified.
    pub fn record_skip(&self, reason: &'static str) {
        self.0.recorder.counter(Metric::WebhookSkips, &[reason.into()]).increment(1);
    }

    /// Records the duration of a reconciliation.
    pub fn record_reconcile(&self, took: Duration) {
        self.0.series.reconcile_duration.record(took.as_secs_f64());
    }

    /// Records the result of the writes that followed a reconciliation.
    pub fn record_reconcile_result(&self, done: WriteResult) {
        self.0.series.reconciles[done as usize].increment(1);
    }

    /// Records the result of writing a status or profile.
    pub fn record_status_write(&self, done: WriteResult) {
        self.0.series.status_writes[done as usize].increment(1);
    }

    /// Records the result of publishing an event.
    pub fn record_event(&self, result: EventResult) {
        self.0.series.events[result as usize].increment(1);
    }

    /// Sets the number of known objects of a kind.
    pub fn set_objects(&self, kind: &'static str, count: usize) {
        self.0.recorder.gauge(Metric::Objects, &[kind.into()]).set(to_f64(count as u64));
    }

    /// Records a failed list or watch of a kind.
    pub fn record_watch_error(&self, kind: &'static str) {
        self.0.recorder.counter(Metric::WatchErrors, &[kind.into()]).increment(1);
    }

    /// Sets the time since the last response of the API server for a kind.
    pub fn set_watch_silence(&self, kind: &'static str, silence: Duration) {
        self.0.recorder.gauge(Metric::WatchSilence, &[kind.into()]).set(silence.as_secs_f64());
    }

    /// Sets the number of policies with a reason.
    pub fn set_policies(&self, reason: &'static str, count: usize) {
        self.0.recorder.gauge(Metric::Policies, &[reason.into()]).set(to_f64(count as u64));
    }

    /// Sets the number of pods that request a sidecar and have none.
    pub fn set_pods_missing(&self, count: usize) {
        self.0.series.pods_missing.set(to_f64(count as u64));
    }

    /// Sets the number of open streams.
    pub fn set_streams(&self, count: usize) {
        self.0.series.streams.set(to_f64(count as u64));
    }

    /// Sets the number of stream events since the process started.
    pub fn set_stream_events(&self, event: &'static str, count: u64) {
        self.0.recorder.counter(Metric::StreamEvents, &[event.into()]).absolute(count);
    }

    /// Records that the tuner changed the settings of a pod.
    pub fn record_tuner_change(&self, reason: &'static str) {
        self.0.recorder.counter(Metric::TunerMoves, &[reason.into()]).increment(1);
    }

    /// Sets the gauge that shows the leader.
    pub fn set_leader(&self, leads: bool) {
        self.0.series.leader.set(f64::from(u8::from(leads)));
    }

    /// Sets the expiry of the certificate, in seconds since the Unix epoch.
    pub fn set_cert_expiry(&self, seconds: u64) {
        self.0.series.cert_expiry.set(to_f64(seconds));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exposition_shows_results_that_have_not_happened_as_zero() {
        let metrics = ControllerMetrics::new();
        metrics.record_admission(AdmissionResult::Injected, Duration::from_millis(2));
        metrics.record_skip("HostNetwork");
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
}
