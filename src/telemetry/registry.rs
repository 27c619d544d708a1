//! Registered handles and live counts.

use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Label, Level, Metadata, Recorder, Unit};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder};

use super::names::{EXPIRED, Kind, Metric, Outcome, REJECTED, Reload, SLO_RESULTS, Stage};
use crate::batching::{Cause, Counts, Learned, ObservedOutcome, Tick};
use crate::error::FailureKind;

/// Histogram samples after which the recorder is tidied: it keeps each one until then (16 bytes; some 64 KiB).
const UPKEEP_EVERY: usize = 4096;
/// Tidyings after which what earlier ones let go is freed: it goes by epochs, which move on when the recorder is at work (crossbeam-epoch: every 128th
/// use of it frees up to 8 parcels; a tidying uses it once for each of some 20 histograms and leaves as many parcels).
const SETTLING: usize = 64;

static METADATA: Metadata<'static> = Metadata::new("groupage", Level::INFO, None);

/// Every metric of one proxy instance.
pub struct Metrics {
    recorder: PrometheusRecorder,
    handle: PrometheusHandle,
    policy: String,
    samples: AtomicUsize,
    /// How many there were when the recorder was last settled.
    settled: AtomicUsize,
    /// Live counts for `/api/stats`.
    pub stats: Stats,
    items: [Counter; Outcome::ALL.len()],
    rejected: [Counter; REJECTED.len()],
    expired: [Counter; EXPIRED.len()],
    slo: [Counter; SLO_RESULTS.len()],
    /// The counts of [`Passed`], to be read.
    passed: Mutex<Vec<(&'static str, Arc<AtomicU64>)>>,
    dispatches: [Counter; Cause::ALL.len()],
    overhead: [Histogram; Stage::ALL.len()],
    batch_items: Histogram,
    batch_weight: Histogram,
    batch_occupancy: Histogram,
    batch_padding: Histogram,
    queue_delay: Histogram,
    execution_ok: Histogram,
    execution_failed: Histogram,
    queue_items: Gauge,
    queue_oldest: Gauge,
    /// Since when the oldest queued call has waited, in nanoseconds of the clock; [`u64::MAX`] while none does.
    oldest: AtomicU64,
    queue_items_limit: Gauge,
    slots_in_use: Gauge,
    slots_limit: Gauge,
    learned: LearnedGauges,
    deadline_shift: Gauge,
    plan_solve: Histogram,
    isolation_executions: Counter,
    items_isolated: Counter,
    saved: Counter,
    connections: Gauge,
    connections_shed: Counter,
    buffered_bytes: Gauge,
    reloads: [Counter; Reload::ALL.len()],
    config_current: Gauge,
    config_pending: Gauge,
}

/// What is shown of [`Learned`].
struct LearnedGauges {
    slots: Gauge,
    lead: Gauge,
    fixed: Gauge,
    item: Gauge,
    error: Gauge,
    tail: Gauge,
    changes: Counter,
    exploration: Counter,
    standing_aside: Gauge,
}

/// The counters of one protocol's calls.
#[derive(Clone)]
pub struct CallLabels {
    outcomes: [Counter; Outcome::ALL.len()],
}

/// The counter of one reason for not merging.
#[derive(Clone)]
pub struct Passed(Counter, Arc<AtomicU64>);

/// A batch as it was sent: without who left at the last moment.
#[derive(Debug, Clone, Copy)]
pub struct Dispatched {
    /// Why now.
    pub cause: Cause,
    /// Calls in it.
    pub members: usize,
    /// Their items.
    pub items: u32,
    /// Most items allowed.
    pub items_max: u32,
    /// Their weight.
    pub weight: u64,
    /// That of the heaviest item.
    pub weight_max: u64,
}

/// Live counts.
#[derive(Debug, Default)]
pub struct Stats {
    /// Calls whose head was read.
    pub seen: AtomicU64,
    /// Recognised calls put before the scheduler: their order among each other is settled.
    pub offered: AtomicU64,
    /// Calls answered, by whom ever.
    pub answered: AtomicU64,
    /// Items accepted into the queue.
    pub items_accepted: AtomicU64,
    /// Executions.
    pub batches: AtomicU64,
    /// Items in executions.
    pub batch_items: AtomicU64,
    /// Executions of more than one call.
    pub shared_batches: AtomicU64,
    /// Executions that ended otherwise than well; those that their callers gave up are not among them.
    pub executions_failed: AtomicU64,
    /// Answers to batches that could not be split.
    pub mismatches: AtomicU64,
    /// Upstream calls that isolation made.
    pub isolation_executions: AtomicU64,
    /// Items that isolation answered.
    pub items_isolated: AtomicU64,
    /// Items queued now.
    pub queue_items: AtomicU64,
    /// Executions in flight now.
    pub in_flight: AtomicU64,
}

// === impl Metrics ===

impl Metrics {
    /// A registry of its own. `policy` is the label of every call: `namespace/name`, or `local` for a file.
    #[must_use]
    pub fn new(policy: &str) -> Self {
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
            describe(&recorder, metric);
        }
        let counter = |metric, labels| recorder.register_counter(&key(metric, labels), &METADATA);
        let gauge = |metric| recorder.register_gauge(&key(metric, vec![]), &METADATA);
        let histogram = |metric, labels| recorder.register_histogram(&key(metric, labels), &METADATA);
        let this = Self {
            handle: recorder.handle(),
            policy: policy.to_owned(),
            samples: AtomicUsize::new(0),
            settled: AtomicUsize::new(0),
            stats: Stats::default(),
            items: Outcome::ALL.map(|o| counter(Metric::Items, vec![Label::new("outcome", o.as_str())])),
            rejected: REJECTED.map(|k| counter(Metric::ItemsRejected, vec![Label::new("reason", k.reason())])),
            expired: EXPIRED.map(|k| counter(Metric::ItemsExpired, vec![Label::new("reason", k.reason())])),
            slo: SLO_RESULTS.map(|r| counter(Metric::SloCalls, vec![Label::new("result", r)])),
            passed: Mutex::default(),
            dispatches: Cause::ALL.map(|c| counter(Metric::Dispatches, vec![Label::new("cause", c.as_str())])),
            overhead: Stage::ALL.map(|s| histogram(Metric::Overhead, vec![Label::new("stage", s.as_str())])),
            batch_items: histogram(Metric::BatchItems, vec![]),
            batch_weight: histogram(Metric::BatchWeight, vec![]),
            batch_occupancy: histogram(Metric::BatchOccupancy, vec![]),
            batch_padding: histogram(Metric::BatchPadding, vec![]),
            queue_delay: histogram(Metric::QueueDelay, vec![]),
            execution_ok: histogram(Metric::ExecutionDuration, vec![Label::new("outcome", "ok")]),
            execution_failed: histogram(Metric::ExecutionDuration, vec![Label::new("outcome", "failed")]),
            queue_items: gauge(Metric::QueueItems),
            queue_oldest: gauge(Metric::QueueOldest),
            oldest: AtomicU64::new(u64::MAX),
            queue_items_limit: gauge(Metric::QueueItemsLimit),
            slots_in_use: gauge(Metric::SlotsInUse),
            slots_limit: gauge(Metric::SlotsLimit),
            learned: LearnedGauges {
                slots: gauge(Metric::SlotsLearned),
                lead: gauge(Metric::Lead),
                fixed: gauge(Metric::ModelFixed),
                item: gauge(Metric::ModelItem),
                error: gauge(Metric::ModelError),
                tail: gauge(Metric::ModelTail),
                changes: counter(Metric::ModelChanges, vec![]),
                exploration: counter(Metric::Exploration, vec![]),
                standing_aside: gauge(Metric::StandingAside),
            },
            deadline_shift: gauge(Metric::DeadlineShift),
            plan_solve: histogram(Metric::PlanSolve, vec![]),
            isolation_executions: counter(Metric::IsolationExecutions, vec![]),
            items_isolated: counter(Metric::ItemsIsolated, vec![]),
            saved: counter(Metric::UpstreamCallsSaved, vec![]),
            connections: gauge(Metric::Connections),
            connections_shed: counter(Metric::ConnectionsShed, vec![]),
            buffered_bytes: gauge(Metric::BufferedBytes),
            reloads: Reload::ALL.map(|r| counter(Metric::ConfigReloads, vec![Label::new("result", r.as_str())])),
            config_current: gauge(Metric::ConfigCurrent),
            config_pending: gauge(Metric::ConfigPending),
            recorder,
        };
        this.config_current.set(1.0);
        let version = vec![Label::new("version", env!("CARGO_PKG_VERSION"))];
        this.recorder.register_gauge(&key(Metric::BuildInfo, version), &METADATA).set(1.0);
        this
    }

    /// The text exposition.
    #[must_use]
    pub fn render(&self) -> String {
        self.handle.run_upkeep();
        self.handle.render()
    }

    /// The counters of one protocol.
    #[must_use]
    pub fn calls(&self, protocol: &'static str) -> CallLabels {
        let outcomes = Outcome::ALL.map(|outcome| {
            let labels = vec![
                Label::new("policy", self.policy.clone()),
                Label::new("protocol", protocol),
                Label::new("outcome", outcome.as_str()),
            ];
            self.recorder.register_counter(&key(Metric::Calls, labels), &METADATA)
        });
        CallLabels { outcomes }
    }

    /// The counter of one reason for not merging.
    #[must_use]
    pub fn passed(&self, reason: &'static str) -> Passed {
        let counter =
            self.recorder.register_counter(&key(Metric::CallsPassed, vec![Label::new("reason", reason)]), &METADATA);
        let mut passed = self.passed.lock().unwrap_or_else(PoisonError::into_inner);
        let count = match passed.iter().find(|(known, _)| *known == reason) {
            Some((_, count)) => count.clone(),
            None => {
                passed.push((reason, Arc::default()));
                passed.last().map_or_else(Arc::default, |(_, count)| count.clone())
            }
        };
        Passed(counter, count)
    }

    /// Calls that were not merged, by reason.
    #[must_use]
    pub fn passed_counts(&self) -> Vec<(&'static str, u64)> {
        let passed = self.passed.lock().unwrap_or_else(PoisonError::into_inner);
        passed.iter().map(|(reason, count)| (*reason, count.load(Ordering::Relaxed))).collect()
    }

    /// An answer to a batch could not be split.
    pub fn mismatch(&self, kind: &'static str) {
        self.recorder
            .register_counter(&key(Metric::Mismatches, vec![Label::new("kind", kind)]), &METADATA)
            .increment(1);
        self.stats.mismatches.fetch_add(1, Ordering::Relaxed);
    }

    /// A limit in force.
    pub fn limit(&self, limit: &'static str, source: &'static str, value: f64) {
        let labels = vec![Label::new("limit", limit), Label::new("source", source)];
        self.recorder.register_gauge(&key(Metric::Limit, labels), &METADATA).set(value);
    }

    /// A limit has another source now: what this one said is no number any more, which is how a series that cannot be taken back says that it is over.
    pub fn limit_gone(&self, limit: &'static str, source: &'static str) {
        self.limit(limit, source, f64::NAN);
    }

    /// Settings were read again; so many of what is in the file now wait for the next start.
    pub fn reloaded(&self, result: Reload, pending: usize) {
        self.reloads[result as usize].increment(1);
        self.config_current.set(f64::from(u8::from(result == Reload::Applied)));
        self.config_pending.set(to_f64(pending as u64));
    }

    /// Items ended like this.
    pub fn items(&self, outcome: Outcome, items: u32) {
        self.items[outcome as usize].increment(u64::from(items));
    }

    /// Items were refused or ended early, for this reason.
    pub fn items_unserved(&self, outcome: Outcome, kind: FailureKind, items: u32) {
        let place = |kinds: &[FailureKind]| kinds.iter().position(|known| *known == kind);
        let counter = match outcome {
            Outcome::Rejected => place(&REJECTED).and_then(|at| self.rejected.get(at)),
            Outcome::Expired => place(&EXPIRED).and_then(|at| self.expired.get(at)),
            _ => None,
        };
        if let Some(counter) = counter {
            counter.increment(u64::from(items));
        }
    }

    /// A call of a route with an SLO ended.
    pub fn slo(&self, met: bool) {
        self.slo[usize::from(!met)].increment(1);
    }

    /// The largest deadline shift now.
    pub fn deadline_shift(&self, shift: Duration) {
        self.deadline_shift.set(shift.as_secs_f64());
    }

    /// What the core has learned by now; `changes` are those since it was last told.
    pub fn learned(&self, learned: &Learned, changes: u64) {
        let gauges = &self.learned;
        let seconds = |nanos| to_f64(nanos) / 1e9;
        let permille = |permille| to_f64(permille) / 1e3;
        gauges.slots.set(f64::from(learned.slots));
        gauges.lead.set(seconds(learned.lead_nanos));
        gauges.fixed.set(seconds(learned.batch_nanos));
        gauges.item.set(seconds(learned.item_nanos));
        gauges.error.set(permille(learned.error_permille));
        gauges.tail.set(permille(learned.tail_permille));
        gauges.changes.increment(changes);
        // Counters are whole numbers.
        gauges.exploration.absolute(learned.exploration_nanos / 1_000_000_000);
        gauges.standing_aside.set(f64::from(u8::from(learned.standing_aside)));
    }

    /// A plan was solved.
    pub fn plan_solved(&self, took: Duration) {
        self.plan_solve.record(took.as_secs_f64());
        self.sampled(1);
    }

    /// Our own work took this long.
    pub fn overhead(&self, stage: Stage, took: Duration) {
        self.overhead[stage as usize].record(took.as_secs_f64());
        self.sampled(1);
    }

    /// A batch left, its members having waited so long.
    pub fn dispatched(&self, batch: &Dispatched, delays: impl Iterator<Item = Duration>) {
        let Dispatched { cause, members, items, items_max, weight, weight_max } = *batch;
        let cause = Cause::ALL.iter().position(|known| *known == cause).unwrap_or(0);
        self.dispatches[cause].increment(1);
        self.batch_items.record(f64::from(items));
        self.batch_weight.record(to_f64(weight));
        self.batch_occupancy.record(f64::from(items) / f64::from(items_max.max(1)));
        let padded = u64::from(items).saturating_mul(weight_max);
        if items > 1 && padded > 0 {
            self.batch_padding.record(1.0 - to_f64(weight.min(padded)) / to_f64(padded));
        }
        self.saved.increment(members.saturating_sub(1) as u64);
        for delay in delays {
            self.queue_delay.record(delay.as_secs_f64());
        }
        self.stats.batches.fetch_add(1, Ordering::Relaxed);
        self.stats.batch_items.fetch_add(u64::from(items), Ordering::Relaxed);
        if members > 1 {
            self.stats.shared_batches.fetch_add(1, Ordering::Relaxed);
        }
        self.sampled(4 + members);
    }

    /// An execution ended. `shared`: it was sent for its callers; what one of them sends alone may fail by its own content.
    pub fn executed(&self, took: Duration, outcome: ObservedOutcome, shared: bool) {
        let histogram = if outcome == ObservedOutcome::Ok { &self.execution_ok } else { &self.execution_failed };
        histogram.record(took.as_secs_f64());
        if shared && !matches!(outcome, ObservedOutcome::Ok | ObservedOutcome::Cancelled) {
            self.stats.executions_failed.fetch_add(1, Ordering::Relaxed);
        }
        self.sampled(1);
    }

    /// Isolation made one upstream call.
    pub fn isolation_execution(&self) {
        self.isolation_executions.increment(1);
        self.stats.isolation_executions.fetch_add(1, Ordering::Relaxed);
    }

    /// Isolation answered this many items.
    pub fn items_isolated(&self, items: u32) {
        self.items_isolated.increment(u64::from(items));
        self.stats.items_isolated.fetch_add(u64::from(items), Ordering::Relaxed);
    }

    /// What the core holds now.
    pub fn held(&self, counts: &Counts, queue_items_max: u32) {
        self.queue_items.set(to_f64(counts.queue_items));
        self.oldest.store(counts.oldest.map_or(u64::MAX, |since| since.0), Ordering::Relaxed);
        self.queue_items_limit.set(f64::from(queue_items_max));
        self.slots_in_use.set(to_f64(counts.in_flight as u64));
        self.slots_limit.set(f64::from(counts.slots));
        self.stats.queue_items.store(counts.queue_items, Ordering::Relaxed);
        self.stats.in_flight.store(counts.in_flight as u64, Ordering::Relaxed);
    }

    /// Connections open.
    pub fn connections(&self, open: usize) {
        self.connections.set(to_f64(open as u64));
        if open == 0 {
            self.settle();
        }
    }

    /// A connection was closed at once.
    pub fn connection_shed(&self) {
        self.connections_shed.increment(1);
    }

    /// What changes while nothing happens: the age of the oldest queued call.
    pub fn aged(&self, now: Tick) {
        let since = self.oldest.load(Ordering::Relaxed);
        let age = if since == u64::MAX { Duration::ZERO } else { now.since(Tick(since)) };
        self.queue_oldest.set(age.as_secs_f64());
    }

    /// Bytes buffered.
    pub fn buffered(&self, bytes: usize) {
        self.buffered_bytes.set(to_f64(bytes as u64));
    }

    /// Histograms keep every sample until they are tidied; there is no task for it, so who records does it now and then.
    fn sampled(&self, samples: usize) {
        let before = self.samples.fetch_add(samples, Ordering::Relaxed);
        if before / UPKEEP_EVERY != (before + samples) / UPKEEP_EVERY {
            self.handle.run_upkeep();
        }
    }

    /// The last connection is gone: gives back what the recorder holds on to after many samples.
    fn settle(&self) {
        let samples = self.samples.load(Ordering::Relaxed);
        if samples.wrapping_sub(self.settled.load(Ordering::Relaxed)) >= UPKEEP_EVERY {
            self.settled.store(samples, Ordering::Relaxed);
            (0..SETTLING).for_each(|_| self.handle.run_upkeep());
        }
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").field("policy", &self.policy).field("stats", &self.stats).finish_non_exhaustive()
    }
}

// === impl CallLabels ===

impl CallLabels {
    /// A call ended.
    pub fn ended(&self, outcome: Outcome) {
        self.outcomes[outcome as usize].increment(1);
    }
}

impl fmt::Debug for CallLabels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CallLabels")
    }
}

// === impl Passed ===

impl Passed {
    /// One call more.
    pub fn count(&self) {
        self.0.increment(1);
        self.1.fetch_add(1, Ordering::Relaxed);
    }
}

impl fmt::Debug for Passed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Passed")
    }
}

fn key(metric: Metric, labels: Vec<Label>) -> Key {
    Key::from_parts(metric.name(), labels)
}

fn describe(recorder: &PrometheusRecorder, metric: Metric) {
    let (name, help): (KeyName, _) = (metric.name().into(), metric.help().into());
    match metric.kind() {
        Kind::Counter => recorder.describe_counter(name, None, help),
        Kind::Gauge => recorder.describe_gauge(name, None, help),
        Kind::Seconds => recorder.describe_histogram(name, Some(Unit::Seconds), help),
        Kind::Sizes | Kind::Ratio => recorder.describe_histogram(name, None, help),
    }
}

/// Gauges are floating point; what we count stays below 2^53.
#[expect(clippy::cast_precision_loss, reason = "what we count stays below 2^53")]
fn to_f64(value: u64) -> f64 {
    value as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exposition_has_types_help_and_buckets() {
        let metrics = Metrics::new("local");
        metrics.calls("openai").ended(Outcome::Served);
        metrics.overhead(Stage::Read, Duration::from_micros(30));
        let text = metrics.render();
        assert!(text.contains("# TYPE groupage_calls_total counter"), "{text}");
        assert!(
            text.contains("groupage_calls_total{policy=\"local\",protocol=\"openai\",outcome=\"served\"} 1"),
            "{text}"
        );
        assert!(text.contains("groupage_overhead_seconds_bucket{stage=\"read\",le=\"0.0001\"} 1"), "{text}");
    }

    #[test]
    fn outcomes_and_stages_index_their_own_counters() {
        for (i, outcome) in Outcome::ALL.into_iter().enumerate() {
            assert_eq!(outcome as usize, i);
        }
        for (i, stage) in Stage::ALL.into_iter().enumerate() {
            assert_eq!(stage as usize, i);
        }
    }

    #[test]
    fn samples_are_tidied_without_a_scrape() {
        let metrics = Metrics::new("local");
        for _ in 0..UPKEEP_EVERY * 2 {
            metrics.overhead(Stage::Write, Duration::from_micros(1));
        }
        assert!(metrics.samples.load(Ordering::Relaxed) >= UPKEEP_EVERY * 2);
    }
}
