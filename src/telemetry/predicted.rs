//! What would have happened to calls that passed in mode `Observe`: counted beside what did, under names of its own.
//!
//! Nothing is registered before the first of them, so a proxy that batches shows none of it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use metrics::{Label, Recorder};

use super::Observer;
use super::names::{Metric, Outcome, Unpredicted};
use super::registry::{METADATA, Metrics, key};

/// Who is told of it, and what was left out.
#[derive(Default)]
pub(super) struct Predicted {
    observer: OnceLock<Arc<dyn Observer>>,
    left_out: [AtomicU64; Unpredicted::ALL.len()],
}

// === impl Metrics ===

impl Metrics {
    /// Has this one told of every call and execution that there would have been. Only the first one is.
    pub fn observe_predicted(&self, observer: Arc<dyn Observer>) {
        self.predicted.observer.get_or_init(|| observer);
    }

    /// Whoever is to be told.
    #[must_use]
    pub fn predicted_observer(&self) -> Option<&dyn Observer> {
        self.predicted.observer.get().map(Arc::as_ref)
    }

    /// A batch would have left, its members having waited so long.
    pub fn predicted_leaves(&self, items: u32, delays: impl ExactSizeIterator<Item = Duration>) {
        let recorder = &self.shared.recorder;
        let members = delays.len();
        recorder.register_counter(&key(Metric::PredictedDispatches, vec![]), &METADATA).increment(1);
        recorder.register_histogram(&key(Metric::PredictedBatchItems, vec![]), &METADATA).record(f64::from(items));
        let waited = recorder.register_histogram(&key(Metric::PredictedQueueDelay, vec![]), &METADATA);
        delays.for_each(|delay| waited.record(delay.as_secs_f64()));
        self.shared.sampled(1 + members);
    }

    /// A call would have ended, so long after it came.
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

    /// Nothing was predicted of a call.
    pub fn unpredicted(&self, why: Unpredicted) {
        let labels = vec![Label::new("reason", why.as_str())];
        self.shared.recorder.register_counter(&key(Metric::Unpredicted, labels), &METADATA).increment(1);
        self.predicted.left_out[why as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Calls of which nothing was predicted, by reason; those that there are.
    #[must_use]
    pub fn unpredicted_counts(&self) -> Vec<(Unpredicted, u64)> {
        let count = |why: Unpredicted| (why, self.predicted.left_out[why as usize].load(Ordering::Relaxed));
        Unpredicted::ALL.into_iter().map(count).filter(|(_, count)| *count > 0).collect()
    }
}
