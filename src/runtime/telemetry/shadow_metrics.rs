//! Metrics of predictions in mode `Observe`: the hypothetical outcome of calls that passed through,
//! under separate metric names.
//!
//! A metric is registered with its first prediction, so a proxy that batches exposes none of them.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use strum::VariantArray as _;

use super::CallObserver;
use super::names::{Metric, Outcome, UnpredictedReason};
use super::registry::Metrics;

// === impl Metrics ===

impl Metrics {
    /// Installs the observer of predicted calls and executions. Later calls have no effect.
    pub fn observe_predicted(&self, observer: Arc<dyn CallObserver>) {
        self.predicted_observer.get_or_init(|| observer);
    }

    /// Returns the observer of predictions, if one is installed.
    #[must_use]
    pub fn predicted_observer(&self) -> Option<&dyn CallObserver> {
        self.predicted_observer.get().map(Arc::as_ref)
    }

    /// Records a predicted dispatch of a batch. `delays` contains the queueing time of each member.
    pub fn record_predicted_dispatch(&self, items: u32, delays: impl ExactSizeIterator<Item = Duration>) {
        let recorder = &self.shared.recorder;
        let members = delays.len();
        recorder.counter(Metric::PredictedDispatches, &[]).increment(1);
        recorder.histogram(Metric::PredictedBatchItems, &[]).record(f64::from(items));
        let waited = recorder.histogram(Metric::PredictedQueueDelay, &[]);
        delays.for_each(|delay| waited.record(delay.as_secs_f64()));
        self.shared.record_samples(1 + members);
    }

    /// Records the predicted end of a call and its latency since arrival.
    pub fn record_predicted_completion(&self, outcome: Outcome, latency: Duration) {
        let recorder = &self.shared.recorder;
        recorder.counter(Metric::PredictedCalls, &[outcome.as_str().into()]).increment(1);
        if outcome == Outcome::Served {
            recorder.histogram(Metric::PredictedLatency, &[]).record(latency.as_secs_f64());
            self.shared.record_samples(1);
        }
    }

    /// Records a call without a prediction.
    pub fn record_unpredicted(&self, reason: UnpredictedReason) {
        self.shared.recorder.counter(Metric::Unpredicted, &[reason.as_str().into()]).increment(1);
        self.unpredicted[reason as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the calls without a prediction by reason, without reasons that have not occurred.
    #[must_use]
    pub fn unpredicted_counts(&self) -> Vec<(UnpredictedReason, u64)> {
        let count = |reason: UnpredictedReason| (reason, self.unpredicted[reason as usize].load(Ordering::Relaxed));
        UnpredictedReason::VARIANTS.iter().copied().map(count).filter(|(_, count)| *count > 0).collect()
    }
}
