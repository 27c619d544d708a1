//! Registered metric handles, and the methods that record into them.

use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, Label, Recorder};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder};

use super::CallObserver;
use super::live::LiveCounts;
use super::names::{
    EXPIRE_REASONS, HandshakeResult, HoldReason, Metric, Outcome, OverheadStage, REJECT_REASONS, RelayReason,
    ReloadResult, SLO_RESULTS, UnpredictedReason,
};
use super::port_gauges::PortGauges;
use super::routes::RouteLabelSet;
use super::series::{METADATA, describe, key, to_f64};
use crate::batching::{BatchOutcome, DispatchCause, LearnedGauges, QueueGauges, Tick};
use crate::error::FailureKind;

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
    /// Gauges of this port.
    gauges: Arc<PortGauges>,
    /// Observer of this port's calls, in addition to the metrics.
    observer: OnceLock<Arc<dyn CallObserver>>,
    /// Observer of predicted calls and executions in mode `Observe`.
    pub(super) predicted_observer: OnceLock<Arc<dyn CallObserver>>,
    /// Numbers of calls without a prediction, by reason.
    pub(super) unpredicted: [AtomicU64; UnpredictedReason::ALL.len()],
}

/// Metrics that are summed over all ports.
pub(super) struct MetricsShared {
    pub(super) recorder: PrometheusRecorder,
    handle: PrometheusHandle,
    policy: String,
    samples: AtomicUsize,
    /// Number of samples at the last [`MetricsShared::settle`].
    settled: AtomicUsize,
    ports: Vec<Arc<PortGauges>>,
    pub(super) routes: RouteLabelSet,
    held: [Counter; HoldReason::ALL.len()],
    items: [Counter; Outcome::ALL.len()],
    rejected: [Counter; REJECT_REASONS.len()],
    expired: [Counter; EXPIRE_REASONS.len()],
    slo: [Counter; SLO_RESULTS.len()],
    /// Counts of [`UnmergedCounter`] by reason, which can be read back.
    passed: Mutex<Vec<(&'static str, Arc<AtomicU64>)>>,
    dispatches: [Counter; DispatchCause::ALL.len()],
    overhead: [Histogram; OverheadStage::ALL.len()],
    batch_items: Histogram,
    batch_weight: Histogram,
    batch_occupancy: Histogram,
    batch_padding: Histogram,
    queue_delay: Histogram,
    execution_ok: Histogram,
    execution_failed: Histogram,
    plan_solve: Histogram,
    isolation_executions: Counter,
    items_isolated: Counter,
    saved: Counter,
    connections: Gauge,
    connections_shed: Counter,
    buffers_evicted: Counter,
    buffered_bytes: Gauge,
    reloads: [Counter; ReloadResult::ALL.len()],
    config_current: Gauge,
    config_pending: Gauge,
    crash_guard: Gauge,
    draining: Gauge,
}

/// Counters of one protocol's calls.
#[derive(Clone)]
pub struct CallCounters {
    outcomes: [Counter; Outcome::ALL.len()],
}

/// Counter of calls that were not merged for one reason.
#[derive(Clone)]
pub struct UnmergedCounter(Counter, Arc<AtomicU64>);

/// A batch as it was dispatched, without calls that were cancelled at the last moment.
#[derive(Debug, Clone, Copy)]
pub struct DispatchSample {
    /// Cause of the dispatch.
    pub cause: DispatchCause,
    /// Number of calls.
    pub members: usize,
    /// Number of items.
    pub items: u32,
    /// Maximum number of items.
    pub items_max: u32,
    /// Total weight.
    pub weight: u64,
    /// Weight of the heaviest item.
    pub weight_max: u64,
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
            unpredicted: [const { AtomicU64::new(0) }; UnpredictedReason::ALL.len()],
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
        self.shared.handle.run_upkeep();
        self.shared.handle.render()
    }

    /// Returns the call counters of one protocol.
    #[must_use]
    pub fn calls(&self, protocol: &'static str) -> CallCounters {
        let outcomes = Outcome::ALL.map(|outcome| {
            let labels = vec![
                Label::new("policy", self.shared.policy.clone()),
                Label::new("protocol", protocol),
                Label::new("outcome", outcome.as_str()),
            ];
            self.shared.recorder.register_counter(&key(Metric::Calls, labels), &METADATA)
        });
        CallCounters { outcomes }
    }

    /// Returns the counter of calls that were not merged for `reason`.
    #[must_use]
    pub fn passed(&self, reason: &'static str) -> UnmergedCounter {
        let counter = self
            .shared
            .recorder
            .register_counter(&key(Metric::CallsPassed, vec![Label::new("reason", reason)]), &METADATA);
        let mut passed = self.shared.passed.lock().unwrap_or_else(PoisonError::into_inner);
        let count = match passed.iter().find(|(known, _)| *known == reason) {
            Some((_, count)) => count.clone(),
            None => {
                passed.push((reason, Arc::default()));
                passed.last().map_or_else(Arc::default, |(_, count)| count.clone())
            }
        };
        UnmergedCounter(counter, count)
    }

    /// Returns the number of calls that were not merged, by reason.
    #[must_use]
    pub fn passed_counts(&self) -> Vec<(&'static str, u64)> {
        let passed = self.shared.passed.lock().unwrap_or_else(PoisonError::into_inner);
        passed.iter().map(|(reason, count)| (*reason, count.load(Ordering::Relaxed))).collect()
    }

    /// Records calls that are dispatched after they waited for `reason`.
    pub fn calls_held(&self, reason: HoldReason, calls: u64) {
        self.shared.held[reason as usize].increment(calls);
    }

    /// Records a batch response that could not be split.
    pub fn mismatch(&self, kind: &'static str) {
        self.shared
            .recorder
            .register_counter(&key(Metric::Mismatches, vec![Label::new("kind", kind)]), &METADATA)
            .increment(1);
        self.stats.mismatches.fetch_add(1, Ordering::Relaxed);
    }

    /// Sets a limit of the policy, which applies to every port.
    pub fn limit(&self, limit: &'static str, source: &'static str, value: f64) {
        let labels = vec![Label::new("limit", limit), Label::new("source", source)];
        self.shared.recorder.register_gauge(&key(Metric::Limit, labels), &METADATA).set(value);
    }

    /// Sets the limit of a previous source to NaN. A series cannot be removed from the registry, so
    /// NaN marks it as obsolete.
    pub fn clear_policy_limit(&self, limit: &'static str, source: &'static str) {
        self.limit(limit, source, f64::NAN);
    }

    /// Sets a limit of this port, learned or published; NaN once the limit has another source.
    pub fn set_port_limit(&self, limit: &'static str, source: &'static str, value: f64) {
        self.gauges.limit(&self.shared.recorder, limit, source, value);
    }

    /// Records a configuration reload. `pending` is the number of changed settings that take effect
    /// at the next start.
    pub fn record_reload(&self, result: ReloadResult, pending: usize) {
        self.shared.reloads[result as usize].increment(1);
        self.shared.config_current.set(f64::from(u8::from(result == ReloadResult::Applied)));
        self.shared.config_pending.set(to_f64(pending as u64));
    }

    /// Sets the state of the crash guard.
    pub fn crash_guard(&self, on: bool) {
        self.shared.crash_guard.set(f64::from(u8::from(on)));
    }

    /// Sets the state of the control stream. Without a controller the series does not exist.
    pub fn set_controller_open(&self, open: bool) {
        let gauge = self.shared.recorder.register_gauge(&key(Metric::ControllerConnected, vec![]), &METADATA);
        gauge.set(f64::from(u8::from(open)));
    }

    /// Records a control stream that ended or could not be opened.
    pub fn record_controller_end(&self, reason: &'static str) {
        let labels = vec![Label::new("reason", reason)];
        self.shared.recorder.register_counter(&key(Metric::ControllerEnds, labels), &METADATA).increment(1);
    }

    /// Records messages and fields of the controller that were ignored because this version does
    /// not know them.
    pub fn record_controller_unknown(&self, kinds: u64, fields: u64) {
        for (what, count) in [("message", kinds), ("field", fields)] {
            let labels = vec![Label::new("what", what)];
            self.shared.recorder.register_counter(&key(Metric::ControllerUnknown, labels), &METADATA).increment(count);
        }
    }

    /// Records the outcome of items.
    pub fn items(&self, outcome: Outcome, items: u32) {
        self.shared.items[outcome as usize].increment(u64::from(items));
    }

    /// Records items that were rejected or expired, by reason.
    pub fn items_unserved(&self, outcome: Outcome, kind: FailureKind, items: u32) {
        let place = |kinds: &[FailureKind]| kinds.iter().position(|known| *known == kind);
        let counter = match outcome {
            Outcome::Rejected => place(&REJECT_REASONS).and_then(|at| self.shared.rejected.get(at)),
            Outcome::Expired => place(&EXPIRE_REASONS).and_then(|at| self.shared.expired.get(at)),
            _ => None,
        };
        if let Some(counter) = counter {
            counter.increment(u64::from(items));
        }
    }

    /// Records a completed call with an SLO.
    pub fn slo(&self, met: bool) {
        self.shared.slo[usize::from(!met)].increment(1);
    }

    /// Sets the largest deadline shift of this port.
    pub fn deadline_shift(&self, shift: Duration) {
        self.gauges.deadline_shift(shift);
    }

    /// Sets the number of cost classes that are not merged because the server rejects their
    /// batches.
    pub fn merging_suspended(&self, classes: usize) {
        self.gauges.merging_suspended(classes);
    }

    /// Records the learned state of the core. `changes` is the number of upstream changes since the
    /// previous call.
    pub fn learned(&self, learned: &LearnedGauges, changes: u64) {
        self.stats.settling.store(learned.settling, Ordering::Relaxed);
        self.gauges.learned(learned, changes);
    }

    /// Records the time to solve a plan.
    pub fn plan_solved(&self, took: Duration) {
        self.shared.plan_solve.record(took.as_secs_f64());
        self.shared.sampled(1);
    }

    /// Records processing time of the proxy.
    pub fn overhead(&self, stage: OverheadStage, took: Duration) {
        self.shared.overhead[stage as usize].record(took.as_secs_f64());
        self.shared.sampled(1);
    }

    /// Records a dispatched batch. `delays` contains the queueing time of each member.
    pub fn dispatched(&self, batch: &DispatchSample, delays: impl Iterator<Item = Duration>) {
        let DispatchSample { cause, members, items, items_max, weight, weight_max } = *batch;
        let cause = DispatchCause::ALL.iter().position(|known| *known == cause).unwrap_or(0);
        self.shared.dispatches[cause].increment(1);
        self.shared.batch_items.record(f64::from(items));
        self.shared.batch_weight.record(to_f64(weight));
        self.shared.batch_occupancy.record(f64::from(items) / f64::from(items_max.max(1)));
        let padded = u64::from(items).saturating_mul(weight_max);
        if items > 1 && padded > 0 {
            self.shared.batch_padding.record(1.0 - to_f64(weight.min(padded)) / to_f64(padded));
        }
        self.shared.saved.increment(members.saturating_sub(1) as u64);
        for delay in delays {
            self.shared.queue_delay.record(delay.as_secs_f64());
        }
        self.stats.batches.fetch_add(1, Ordering::Relaxed);
        self.stats.batch_items.fetch_add(u64::from(items), Ordering::Relaxed);
        if members > 1 {
            self.stats.shared_batches.fetch_add(1, Ordering::Relaxed);
        }
        self.shared.sampled(4 + members);
    }

    /// Records a completed execution. `shared` is `false` for an unbatched call sent as received,
    /// which may fail because of its own content.
    pub fn executed(&self, took: Duration, outcome: BatchOutcome, shared: bool) {
        let all = &self.shared;
        let histogram = if outcome == BatchOutcome::Ok { &all.execution_ok } else { &all.execution_failed };
        histogram.record(took.as_secs_f64());
        if shared && !matches!(outcome, BatchOutcome::Ok | BatchOutcome::Cancelled) {
            self.stats.executions_failed.fetch_add(1, Ordering::Relaxed);
        }
        self.shared.sampled(1);
    }

    /// Records an upstream call made by isolation.
    pub fn isolation_execution(&self) {
        self.shared.isolation_executions.increment(1);
        self.stats.isolation_executions.fetch_add(1, Ordering::Relaxed);
        if let Some(observer) = self.observer() {
            observer.isolated();
        }
    }

    /// Records items answered by isolation.
    pub fn items_isolated(&self, items: u32) {
        self.shared.items_isolated.increment(u64::from(items));
        self.stats.items_isolated.fetch_add(u64::from(items), Ordering::Relaxed);
    }

    /// Sets the gauges of queue and slots.
    pub fn held(&self, counts: &QueueGauges, queue_items_max: u32) {
        self.gauges.held(counts, queue_items_max, &self.stats);
    }

    /// Returns the number of items queued and of executions in flight at this port.
    #[must_use]
    pub fn held_now(&self) -> (u64, u64) {
        self.gauges.held_now()
    }

    /// Sets the number of open connections.
    pub fn connections(&self, open: usize) {
        self.shared.connections.set(to_f64(open as u64));
        if open == 0 {
            self.shared.settle();
        }
    }

    /// Records a connection that was rejected.
    pub fn connection_shed(&self) {
        self.shared.connections_shed.increment(1);
    }

    /// Records a connection of a captured port that was relayed as bytes.
    pub fn relayed(&self, why: RelayReason) {
        let labels = vec![Label::new("reason", why.as_str())];
        self.shared.recorder.register_counter(&key(Metric::ConnectionsRelayed, labels), &METADATA).increment(1);
    }

    /// Records a failed TLS handshake with a client.
    pub fn handshake_failed(&self, why: HandshakeResult) {
        let labels = vec![Label::new("reason", why.as_str())];
        self.shared.recorder.register_counter(&key(Metric::TlsHandshakesFailed, labels), &METADATA).increment(1);
    }

    /// Records a certificate reload. `side` is the peer that the certificate is presented to.
    pub fn certificates_reloaded(&self, side: &'static str, result: ReloadResult) {
        let labels = vec![Label::new("side", side), Label::new("result", result.as_str())];
        self.shared.recorder.register_counter(&key(Metric::TlsReloads, labels), &METADATA).increment(1);
    }

    /// Sets the expiry of the certificate in use, in seconds since the Unix epoch.
    pub fn certificate_expires(&self, side: &'static str, at: u64) {
        let labels = vec![Label::new("side", side)];
        self.shared.recorder.register_gauge(&key(Metric::TlsExpiry, labels), &METADATA).set(to_f64(at));
    }

    /// Sets the drain state, which may end when the application has restarted.
    pub fn draining(&self, draining: bool) {
        self.shared.draining.set(f64::from(u8::from(draining)));
    }

    /// Updates the age of the oldest queued call, which changes without events.
    pub fn aged(&self, now: Tick) {
        self.shared.ports.iter().for_each(|port| port.aged(now));
    }

    /// Sets the number of buffered bytes, and the total number of evictions.
    pub fn buffered(&self, bytes: usize, evicted: u64) {
        self.shared.buffered_bytes.set(to_f64(bytes as u64));
        self.shared.buffers_evicted.absolute(evicted);
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
        let counter = |metric, labels| recorder.register_counter(&key(metric, labels), &METADATA);
        let gauge = |metric| recorder.register_gauge(&key(metric, vec![]), &METADATA);
        let histogram = |metric, labels| recorder.register_histogram(&key(metric, labels), &METADATA);
        let this = Self {
            handle: recorder.handle(),
            policy: policy.to_owned(),
            samples: AtomicUsize::new(0),
            settled: AtomicUsize::new(0),
            ports: ports.into_iter().map(|port| Arc::new(PortGauges::new(&recorder, port))).collect(),
            routes: RouteLabelSet::default(),
            held: HoldReason::ALL.map(|r| counter(Metric::CallsHeld, vec![Label::new("reason", r.as_str())])),
            items: Outcome::ALL.map(|o| counter(Metric::Items, vec![Label::new("outcome", o.as_str())])),
            rejected: REJECT_REASONS.map(|k| counter(Metric::ItemsRejected, vec![Label::new("reason", k.reason())])),
            expired: EXPIRE_REASONS.map(|k| counter(Metric::ItemsExpired, vec![Label::new("reason", k.reason())])),
            slo: SLO_RESULTS.map(|r| counter(Metric::SloCalls, vec![Label::new("result", r)])),
            passed: Mutex::default(),
            dispatches: DispatchCause::ALL.map(|c| counter(Metric::Dispatches, vec![Label::new("cause", c.as_str())])),
            overhead: OverheadStage::ALL.map(|s| histogram(Metric::Overhead, vec![Label::new("stage", s.as_str())])),
            batch_items: histogram(Metric::BatchItems, vec![]),
            batch_weight: histogram(Metric::BatchWeight, vec![]),
            batch_occupancy: histogram(Metric::BatchOccupancy, vec![]),
            batch_padding: histogram(Metric::BatchPadding, vec![]),
            queue_delay: histogram(Metric::QueueDelay, vec![]),
            execution_ok: histogram(Metric::ExecutionDuration, vec![Label::new("outcome", "ok")]),
            execution_failed: histogram(Metric::ExecutionDuration, vec![Label::new("outcome", "failed")]),
            plan_solve: histogram(Metric::PlanSolve, vec![]),
            isolation_executions: counter(Metric::IsolationExecutions, vec![]),
            items_isolated: counter(Metric::ItemsIsolated, vec![]),
            saved: counter(Metric::UpstreamCallsSaved, vec![]),
            connections: gauge(Metric::Connections),
            connections_shed: counter(Metric::ConnectionsShed, vec![]),
            buffered_bytes: gauge(Metric::BufferedBytes),
            buffers_evicted: counter(Metric::BuffersEvicted, vec![]),
            reloads: ReloadResult::ALL.map(|r| counter(Metric::ConfigReloads, vec![Label::new("result", r.as_str())])),
            config_current: gauge(Metric::ConfigCurrent),
            config_pending: gauge(Metric::ConfigPending),
            crash_guard: gauge(Metric::CrashGuard),
            draining: gauge(Metric::Draining),
            recorder,
        };
        this.config_current.set(1.0);
        let version = vec![Label::new("version", env!("CARGO_PKG_VERSION"))];
        this.recorder.register_gauge(&key(Metric::BuildInfo, version), &METADATA).set(1.0);
        this
    }

    /// Counts histogram samples and runs upkeep every [`UPKEEP_EVERY`] of them. Histograms keep
    /// every sample until then, and no task exists that would do it.
    pub(super) fn sampled(&self, samples: usize) {
        let before = self.samples.fetch_add(samples, Ordering::Relaxed);
        if before / UPKEEP_EVERY != (before + samples) / UPKEEP_EVERY {
            self.handle.run_upkeep();
        }
    }

    /// Frees the memory that the recorder holds after many samples. Called when the last connection
    /// is closed.
    fn settle(&self) {
        let samples = self.samples.load(Ordering::Relaxed);
        if samples.wrapping_sub(self.settled.load(Ordering::Relaxed)) >= UPKEEP_EVERY {
            self.settled.store(samples, Ordering::Relaxed);
            (0..RECLAIM_RUNS).for_each(|_| self.handle.run_upkeep());
        }
    }
}

// === impl CallCounters ===

impl CallCounters {
    /// Records the outcome of a call.
    pub fn ended(&self, outcome: Outcome) {
        self.outcomes[outcome as usize].increment(1);
    }
}

impl fmt::Debug for CallCounters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CallLabels")
    }
}

// === impl UnmergedCounter ===

impl UnmergedCounter {
    /// Records one call.
    pub fn count(&self) {
        self.0.increment(1);
        self.1.fetch_add(1, Ordering::Relaxed);
    }
}

impl fmt::Debug for UnmergedCounter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Passed")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exposition_has_types_help_and_buckets() {
        let metrics = Metrics::new("local");
        metrics.calls("openai").ended(Outcome::Served);
        metrics.overhead(OverheadStage::Read, Duration::from_micros(30));
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
        ports[0].held(&counts(3), 10);
        ports[1].held(&counts(4), 10);
        ports[0].held(&counts(1), 10);
        ports[1].set_port_limit("batch_items_max", "learned", 7.0);
        for (port, metrics) in ports.iter().enumerate() {
            let exploration_nanos = 2_000_000_000 * (port as u64 + 1);
            metrics.learned(&LearnedGauges { exploration_nanos, ..LearnedGauges::default() }, 1);
            metrics.items(Outcome::Served, 5);
        }
        let stats = &ports[0].stats;
        assert_eq!((stats.queue_items.load(Ordering::Relaxed), stats.in_flight.load(Ordering::Relaxed)), (5, 2));
        let text = ports[1].render();
        for line in [
            "groupage_queue_items{port=\"8080\"} 1",
            "groupage_queue_items{port=\"8081\"} 4",
            "groupage_limit{limit=\"batch_items_max\",source=\"learned\",port=\"8081\"} 7",
            "groupage_exploration_seconds_total 6",
            "groupage_model_changes_total 2",
            "groupage_items_total{outcome=\"served\"} 10",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
        let one = Metrics::of_ports("local", &[8080]);
        one[0].held(&counts(2), 10);
        assert!(one[0].render().contains("groupage_queue_items 2"));
    }

    #[test]
    fn outcomes_and_stages_index_their_own_counters() {
        for (i, outcome) in Outcome::ALL.into_iter().enumerate() {
            assert_eq!(outcome as usize, i);
        }
        for (i, reason) in HoldReason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, i);
        }
        for (i, stage) in OverheadStage::ALL.into_iter().enumerate() {
            assert_eq!(stage as usize, i);
        }
    }

    #[test]
    fn samples_are_tidied_without_a_scrape() {
        let metrics = Metrics::new("local");
        for _ in 0..UPKEEP_EVERY * 2 {
            metrics.overhead(OverheadStage::Write, Duration::from_micros(1));
        }
        assert!(metrics.shared.samples.load(Ordering::Relaxed) >= UPKEEP_EVERY * 2);
    }
}
