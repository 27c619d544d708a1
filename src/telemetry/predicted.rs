//! Metrics of predictions in mode `Observe`: the hypothetical outcome of calls that passed through,
//! under separate metric names.
//!
//! A metric is registered with its first prediction, so a proxy that batches exposes none of them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use metrics::{Label, Recorder};

use super::Observer;
use super::names::{Metric, Outcome, Unpredicted};
use super::registry::{METADATA, Metrics, key};

/// The observer of predictions, and the counts of calls without a prediction.
#[derive(Default)]
pub(super) struct Predicted {
    observer: OnceLock<Arc<dyn Observer>>,
    left_out: [AtomicU64; Unpredicted::ALL.len()],
}

// === impl Metrics ===

impl Metrics {
    /// Installs the observer of predicted calls and executions. Later calls have no effect.
    pub fn observe_predicted(&self, observer: Arc<dyn Observer>) {
        self.predicted.observer.get_or_init(|| observer);
    }

    /// Returns the observer of predictions, if one is installed.
    #[must_use]
    pub fn predicted_observer(&self) -> Option<&dyn Observer> {
        self.predicted.observer.get().map(Arc::as_ref)
    }

    /// Records a predicted dispatch of a batch. `delays` contains the queueing time of each member.
    pub fn predicted_leaves(&self, items: u32, delays: impl ExactSizeIterator<Item = Duration>) {
        let recorder = &self.shared.recorder;
        let members = delays.len();
        recorder.register_counter(&key(Metric::PredictedDispatches, vec![]), &METADATA).increment(1);
        recorder.register_histogram(&key(Metric::PredictedBatchItems, vec![]), &METADATA).record(f64::from(items));
        let waited = recorder.register_histogram(&key(Metric::PredictedQueueDelay, vec![]), &METADATA);
        delays.for_each(|delay| waited.record(delay.as_secs_f64()));
        self.shared.sampled(1 + members);
    }

    /// Records the predicted end of a call and its latency since arrival.
    pub fn predicted_ends(&self, outcome: Outcome, latency: Duration) {
        let recorder = &self.shared.recorder;
        let labels = vec![Label::new("outcome", outcome.as_str())];
        recorder.register_counter(&key(Metric::PredictedCalls, labels), &METADATA).increment(1);
        if outcome == Outcome::Served {
            let seconds = recorder.register_histogram(&key(Metric::PredictedLatency, vec![]), &METADATA);
            seconds.record(latency.as_secs_f64());
            self.shared.sampled(1);
        }
    }

    /// Records a call without a prediction.
    pub fn unpredicted(&self, why: Unpredicted) {
        let labels = vec![Label::new("reason", why.as_str())];
        self.shared.recorder.register_counter(&key(Metric::Unpredicted, labels), &METADATA).increment(1);
        self.predicted.left_out[why as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the calls without a prediction by reason, without reasons that have not occurred.
    #[must_use]
    pub fn unpredicted_counts(&self) -> Vec<(Unpredicted, u64)> {
        let count = |why: Unpredicted| (why, self.predicted.left_out[why as usize].load(Ordering::Relaxed));
        Unpredicted::ALL.into_iter().map(count).filter(|(_, count)| *count > 0).collect()
    }
}
