//! Metrics of a model that is executed in this process.
//!
//! A metric is registered at its first use, so a proxy in front of a model server exposes none of
//! them.

use std::time::Duration;

use super::names::Metric;
use super::registry::Metrics;

// === impl Metrics ===

impl Metrics {
    /// Records a packed batch that the engine executed.
    pub fn engine_batch(&self, tokens: usize, sequences: usize, took: Duration) {
        let recorder = &self.shared.recorder;
        recorder.counter(Metric::EngineBatches, &[]).increment(1);
        recorder.counter(Metric::EngineTokens, &[]).increment(tokens as u64);
        recorder.counter(Metric::EngineSequences, &[]).increment(sequences as u64);
        recorder.histogram(Metric::EngineExecution, &[]).record(took.as_secs_f64());
        self.shared.record_samples(1);
    }

    /// Records the time to parse and tokenise calls.
    pub fn engine_tokenized(&self, took: Duration) {
        self.shared.recorder.histogram(Metric::EngineTokenize, &[]).record(took.as_secs_f64());
        self.shared.record_samples(1);
    }

    /// Records the time to render responses.
    pub fn engine_rendered(&self, took: Duration) {
        self.shared.recorder.histogram(Metric::EngineRender, &[]).record(took.as_secs_f64());
        self.shared.record_samples(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_metrics_of_the_engine_exist_from_the_first_batch_on() {
        let metrics = Metrics::new("local");
        assert!(!metrics.render().contains("groupage_engine_"), "{}", metrics.render());
        metrics.engine_batch(300, 4, Duration::from_millis(7));
        metrics.engine_batch(100, 1, Duration::from_millis(3));
        metrics.engine_tokenized(Duration::from_micros(90));
        metrics.engine_rendered(Duration::from_micros(30));
        let text = metrics.render();
        for line in [
            "groupage_engine_batches_total 2",
            "groupage_engine_tokens_total 400",
            "groupage_engine_sequences_total 5",
            "groupage_engine_execution_seconds_count 2",
            "groupage_engine_tokenize_seconds_count 1",
            "groupage_engine_render_seconds_count 1",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
    }
}
