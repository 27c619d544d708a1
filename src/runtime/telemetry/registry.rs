//! The metrics of one proxy instance: its recorder, its registered series, and the ports that
//! record into them. The methods that record are in the modules of their subjects.

use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use strum::VariantArray as _;

use super::CallObserver;
use super::labelled_counts::LabelledCounts;
use super::live::LiveCounts;
use super::names::{
    BatchSeries, CallSeries, ConnectionSeries, Metric, ProcessSeries, UnpredictedReason, UpstreamSeries,
};
use super::port_gauges::PortGauges;
use super::routes::RouteLabelSet;
use super::series::MetricRecorder;

/// Number of histogram samples after which upkeep of the recorder runs. The recorder keeps every
/// sample until then (16 bytes each, about 64 KiB).
const UPKEEP_EVERY: usize = 4096;
/// Number of upkeep runs that free the memory released by earlier ones. Memory is reclaimed by
/// epochs, which advance while the recorder is in use (crossbeam-epoch: every 128th use frees up to
/// 8 parcels; an upkeep run uses it once for each of about 20 histograms, and releases as many
/// parcels).
const RECLAIM_RUNS: usize = 64;

/// All metrics of one proxy instance, as recorded by one of its ports.
pub struct Metrics {
    pub(super) shared: Arc<MetricsShared>,
    /// Live counts for `/api/stats`, summed over all ports.
    pub stats: Arc<LiveCounts>,
    pub(super) gauges: Arc<PortGauges>,
    /// Observer of this port's calls, in addition to the metrics.
    observer: OnceLock<Arc<dyn CallObserver>>,
    /// Observer of predicted calls and executions in mode `Observe`.
    pub(super) predicted_observer: OnceLock<Arc<dyn CallObserver>>,
    /// Numbers of calls without a prediction, by reason.
    pub(super) unpredicted: [AtomicU64; UnpredictedReason::VARIANTS.len()],
}

/// Metrics that are summed over all ports.
pub(super) struct MetricsShared {
    pub(super) recorder: MetricRecorder,
    pub(super) policy: String,
    samples: AtomicUsize,
    /// Number of samples at the last [`MetricsShared::release_samples`].
    settled: AtomicUsize,
    pub(super) ports: Vec<Arc<PortGauges>>,
    pub(super) routes: RouteLabelSet,
    pub(super) calls: CallSeries,
    /// Numbers of calls that were not merged, by reason.
    pub(super) passed: LabelledCounts<&'static str>,
    /// Numbers of calls that no adapter recognised, by cause.
    pub(super) unrecognised: LabelledCounts<&'static str>,
    /// Numbers of calls that a route of the policy passed through, by route.
    pub(super) passing_routes: LabelledCounts<String>,
    pub(super) batches: BatchSeries,
    pub(super) upstream: UpstreamSeries,
    pub(super) connections: ConnectionSeries,
    pub(super) process: ProcessSeries,
}

// === impl Metrics ===

impl Metrics {
    /// Creates the metrics of a proxy with one port, in a registry of their own. `policy` is a
    /// label of every call: `namespace/name`, or `local` for a file.
    #[must_use]
    pub fn new(policy: &str) -> Self {
        let shared = Arc::new(MetricsShared::new(policy, vec![None]));
        Self::of_port(&shared, &Arc::default(), 0)
    }

    /// Creates the metrics of several ports in one registry. Each port has its own gauges, labelled
    /// with its number; a single port has no label.
    #[must_use]
    pub fn of_ports(policy: &str, ports: &[u16]) -> Vec<Arc<Self>> {
        let labels =
            if ports.len() > 1 { ports.iter().map(|port| Some(port.to_string())).collect() } else { vec![None] };
        let (shared, stats) = (Arc::new(MetricsShared::new(policy, labels)), Arc::default());
        (0..shared.ports.len()).map(|port| Arc::new(Self::of_port(&shared, &stats, port))).collect()
    }

    fn of_port(shared: &Arc<MetricsShared>, stats: &Arc<LiveCounts>, port: usize) -> Self {
        let gauges = shared.ports.get(port).expect("`port` is an index into the ports of `shared`").clone();
        Self {
            shared: shared.clone(),
            stats: stats.clone(),
            gauges,
            observer: OnceLock::new(),
            predicted_observer: OnceLock::new(),
            unpredicted: [const { AtomicU64::new(0) }; UnpredictedReason::VARIANTS.len()],
        }
    }

    /// Installs the observer of this port's calls and executions. Later calls have no effect.
    pub fn observe(&self, observer: Arc<dyn CallObserver>) {
        self.observer.get_or_init(|| observer);
    }

    /// Returns the observer, if one is installed.
    #[must_use]
    pub fn observer(&self) -> Option<&dyn CallObserver> {
        self.observer.get().map(Arc::as_ref)
    }

    /// Renders the metrics in the Prometheus text format.
    #[must_use]
    pub fn render(&self) -> String {
        self.shared.recorder.render()
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics")
            .field("policy", &self.shared.policy)
            .field("stats", &self.stats)
            .finish_non_exhaustive()
    }
}

// === impl MetricsShared ===

impl MetricsShared {
    fn new(policy: &str, ports: Vec<Option<String>>) -> Self {
        let recorder = MetricRecorder::new(Metric::ALL);
        let registrar = recorder.registrar(None);
        let this = Self {
            policy: policy.to_owned(),
            samples: AtomicUsize::new(0),
            settled: AtomicUsize::new(0),
            ports: ports.into_iter().map(|port| Arc::new(PortGauges::new(&recorder, port))).collect(),
            routes: RouteLabelSet::default(),
            calls: CallSeries::register(&registrar),
            passed: LabelledCounts::default(),
            unrecognised: LabelledCounts::default(),
            passing_routes: LabelledCounts::default(),
            batches: BatchSeries::register(&registrar),
            upstream: UpstreamSeries::register(&registrar),
            connections: ConnectionSeries::register(&registrar),
            process: ProcessSeries::register(&registrar),
            recorder,
        };
        this.process.config_current.set(1.0);
        this.recorder.gauge(Metric::BuildInfo, &[env!("CARGO_PKG_VERSION").into()]).set(1.0);
        this
    }

    /// Counts histogram samples and runs upkeep every [`UPKEEP_EVERY`] of them. Histograms keep
    /// every sample until then, and no task exists that would do it.
    pub(super) fn record_samples(&self, samples: usize) {
        let before = self.samples.fetch_add(samples, Ordering::Relaxed);
        if before / UPKEEP_EVERY != (before + samples) / UPKEEP_EVERY {
            self.recorder.run_upkeep();
        }
    }

    /// Frees the memory that the recorder holds after many samples. Called when the last connection
    /// is closed.
    pub(super) fn release_samples(&self) {
        let samples = self.samples.load(Ordering::Relaxed);
        if samples.wrapping_sub(self.settled.load(Ordering::Relaxed)) >= UPKEEP_EVERY {
            self.settled.store(samples, Ordering::Relaxed);
            (0..RECLAIM_RUNS).for_each(|_| self.recorder.run_upkeep());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::names::{Outcome, OverheadStage};
    use super::*;
    use crate::batching::{LearnedGauges, QueueGauges};

    #[test]
    fn the_exposition_has_types_help_and_buckets() {
        let metrics = Metrics::new("local");
        metrics.call_counters("openai").record(Outcome::Served);
        metrics.record_overhead(OverheadStage::Read, Duration::from_micros(30));
        let text = metrics.render();
        assert!(text.contains("# TYPE groupage_calls_total counter"), "{text}");
        assert!(
            text.contains("groupage_calls_total{policy=\"local\",protocol=\"openai\",outcome=\"served\"} 1"),
            "{text}"
        );
        assert!(text.contains("groupage_overhead_seconds_bucket{stage=\"read\",le=\"0.0001\"} 1"), "{text}");
    }

    #[test]
    fn several_ports_have_gauges_of_their_own_and_counts_that_add_up() {
        let ports = Metrics::of_ports("local", &[8080, 8081]);
        let counts = |items| QueueGauges { queue_items: items, in_flight: 1, slots: 2, ..QueueGauges::default() };
        ports[0].set_queue_gauges(&counts(3), 10, Some(2));
        ports[1].set_queue_gauges(&counts(4), 10, None);
        ports[0].set_queue_gauges(&counts(1), 10, Some(2));
        ports[1].set_port_limit("batch_items_max", "learned", 7.0);
        for (port, metrics) in ports.iter().enumerate() {
            let exploration_nanos = 2_000_000_000 * (port as u64 + 1);
            metrics.set_learned(&LearnedGauges { exploration_nanos, ..LearnedGauges::default() }, 1);
            metrics.record_items(Outcome::Served, 5);
        }
        let stats = &ports[0].stats;
        assert_eq!((stats.queue_items.load(Ordering::Relaxed), stats.in_flight.load(Ordering::Relaxed)), (5, 2));
        let text = ports[1].render();
        for line in [
            "groupage_queue_items{port=\"8080\"} 1",
            "groupage_queue_items{port=\"8081\"} 4",
            "groupage_slots_limit{port=\"8080\"} 2",
            "groupage_slots_limit{port=\"8081\"} inf",
            "groupage_limit{limit=\"batch_items_max\",source=\"learned\",port=\"8081\"} 7",
            "groupage_exploration_seconds_total 6",
            "groupage_model_changes_total 2",
            "groupage_items_total{outcome=\"served\"} 10",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
        let one = Metrics::of_ports("local", &[8080]);
        one[0].set_queue_gauges(&counts(2), 10, None);
        assert!(one[0].render().contains("groupage_queue_items 2"));
    }

    #[test]
    fn samples_are_tidied_without_a_scrape() {
        let metrics = Metrics::new("local");
        for _ in 0..UPKEEP_EVERY * 2 {
            metrics.record_overhead(OverheadStage::Write, Duration::from_micros(1));
        }
        assert!(metrics.shared.samples.load(Ordering::Relaxed) >= UPKEEP_EVERY * 2);
    }
}
