//! Metrics of a model that is executed in this process.
//!
//! A metric is registered at its first use, so a proxy in front of a model server exposes none of
//! them. That of padding is used when the model is loaded.

use std::time::Duration;

use super::names::Metric;
use super::registry::Metrics;
use super::series::to_f64;

/// Counts of the work of a GPU since the start of the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EngineDeviceCounts {
    /// Executions with a replayed graph of launches.
    pub replayed: u64,
    /// Executions that recorded their launches as a graph.
    pub recorded: u64,
    /// Executions with one launch after the other.
    pub eager: u64,
    /// Tokens of padding.
    pub padding_tokens: u64,
    /// Number of tokens up to which a batch is executed whole.
    pub token_ceiling: usize,
}

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

    /// Records that the model is loaded: the memory that the engine has reserved on its device, in
    /// bytes, and no padding yet. On a CPU there never is any, and the series exists all the same,
    /// so that its ratio to the tokens can be computed everywhere.
    pub fn engine_loaded(&self, weights: usize, scratch: usize) {
        let recorder = &self.shared.recorder;
        for (name, bytes) in [("weights", weights), ("scratch", scratch)] {
            recorder.gauge(Metric::EngineMemory, &[name.into()]).set(to_f64(bytes as u64));
        }
        recorder.counter(Metric::EnginePadding, &[]).absolute(0);
    }

    /// Sets the counts of the work of a GPU.
    pub fn engine_device(&self, counts: EngineDeviceCounts) {
        let recorder = &self.shared.recorder;
        for (mode, count) in [("replayed", counts.replayed), ("recorded", counts.recorded), ("eager", counts.eager)] {
            recorder.counter(Metric::EngineLaunches, &[mode.into()]).absolute(count);
        }
        recorder.counter(Metric::EnginePadding, &[]).absolute(counts.padding_tokens);
        recorder.gauge(Metric::EngineTokenCeiling, &[]).set(to_f64(counts.token_ceiling as u64));
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
        assert!(!text.contains("groupage_engine_launches_total"), "an engine on a CPU launches no kernels: {text}");
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

    #[test]
    fn a_loaded_model_has_no_padding() {
        let metrics = Metrics::new("local");
        metrics.engine_loaded(1000, 50);
        metrics.engine_batch(300, 4, Duration::from_millis(7));
        let text = metrics.render();
        assert!(text.contains("groupage_engine_padding_tokens_total 0\n"), "{text}");
    }

    #[test]
    fn counts_of_a_gpu_are_set_and_not_added() {
        let metrics = Metrics::new("local");
        metrics.engine_loaded(1000, 50);
        let counts =
            EngineDeviceCounts { replayed: 1, recorded: 2, eager: 3, padding_tokens: 40, token_ceiling: 16_384 };
        metrics.engine_device(counts);
        metrics.engine_device(EngineDeviceCounts { replayed: 9, token_ceiling: 8192, ..counts });
        let text = metrics.render();
        for line in [
            "groupage_engine_memory_bytes{use=\"weights\"} 1000",
            "groupage_engine_memory_bytes{use=\"scratch\"} 50",
            "groupage_engine_launches_total{mode=\"replayed\"} 9",
            "groupage_engine_launches_total{mode=\"recorded\"} 2",
            "groupage_engine_launches_total{mode=\"eager\"} 3",
            "groupage_engine_padding_tokens_total 40",
            "groupage_engine_token_ceiling 8192",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
    }
}
