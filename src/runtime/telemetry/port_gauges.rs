//! Gauges of one port: its queue, its slots, and what was learned about its server.
//!
//! Counters and histograms of several ports add up in one series. Gauges do not: if several ports
//! are captured, each has its own series with the label `port`; with one port the label is omitted.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use metrics::{Counter, Gauge, Label, Recorder};
use metrics_exporter_prometheus::PrometheusRecorder;

use super::live::LiveCounts;
use super::names::Metric;
use super::series::{METADATA, key, to_f64};
use crate::batching::{LearnedGauges, QueueGauges, Tick};

/// The gauges of one port.
pub(super) struct PortGauges {
    /// Value of the label `port`, if there is one.
    port: Option<String>,
    queue_items: Gauge,
    queue_oldest: Gauge,
    /// Time since which the oldest queued call has waited, in nanoseconds of the clock;
    /// [`u64::MAX`] if the queue is empty.
    oldest: AtomicU64,
    queue_items_limit: Gauge,
    slots_in_use: Gauge,
    slots_limit: Gauge,
    deadline_shift: Gauge,
    learned: LearnedSeries,
    /// The share of this port in the counts of the process.
    counted: PublishedCounts,
}

/// Gauges for the values of [`LearnedGauges`].
struct LearnedSeries {
    slots: Gauge,
    lead: Gauge,
    fixed: Gauge,
    item: Gauge,
    error: Gauge,
    tail: Gauge,
    standing_aside: Gauge,
    merging_suspended: Gauge,
    // Counters, which are shared between ports.
    changes: Counter,
    exploration: Counter,
}

/// The last values of this port, so that only differences are added to the sums of all ports.
#[derive(Default)]
struct PublishedCounts {
    queue_items: AtomicU64,
    in_flight: AtomicU64,
    exploration_seconds: AtomicU64,
}

// === impl PortGauges ===

impl PortGauges {
    pub(super) fn new(recorder: &PrometheusRecorder, port: Option<String>) -> Self {
        let labels = || port.iter().map(|port| Label::new("port", port.clone())).collect();
        let gauge = |metric| recorder.register_gauge(&key(metric, labels()), &METADATA);
        let counter = |metric| recorder.register_counter(&key(metric, vec![]), &METADATA);
        Self {
            queue_items: gauge(Metric::QueueItems),
            queue_oldest: gauge(Metric::QueueOldest),
            oldest: AtomicU64::new(u64::MAX),
            queue_items_limit: gauge(Metric::QueueItemsLimit),
            slots_in_use: gauge(Metric::SlotsInUse),
            slots_limit: gauge(Metric::SlotsLimit),
            deadline_shift: gauge(Metric::DeadlineShift),
            learned: LearnedSeries {
                slots: gauge(Metric::SlotsLearned),
                lead: gauge(Metric::Lead),
                fixed: gauge(Metric::ModelFixed),
                item: gauge(Metric::ModelItem),
                error: gauge(Metric::ModelError),
                tail: gauge(Metric::ModelTail),
                standing_aside: gauge(Metric::StandingAside),
                merging_suspended: gauge(Metric::MergingSuspended),
                changes: counter(Metric::ModelChanges),
                exploration: counter(Metric::Exploration),
            },
            counted: PublishedCounts::default(),
            port,
        }
    }

    /// Sets a limit of this port, learned or published by its server.
    pub(super) fn limit(&self, recorder: &PrometheusRecorder, limit: &'static str, source: &'static str, value: f64) {
        let port = self.port.iter().map(|port| Label::new("port", port.clone()));
        let labels = [Label::new("limit", limit), Label::new("source", source)].into_iter().chain(port).collect();
        recorder.register_gauge(&key(Metric::Limit, labels), &METADATA).set(value);
    }

    pub(super) fn deadline_shift(&self, shift: Duration) {
        self.deadline_shift.set(shift.as_secs_f64());
    }

    pub(super) fn merging_suspended(&self, classes: usize) {
        self.learned.merging_suspended.set(to_f64(classes as u64));
    }

    pub(super) fn learned(&self, learned: &LearnedGauges, changes: u64) {
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
        // Counters hold integers, so whole seconds are counted.
        let seconds = learned.exploration_nanos / 1_000_000_000;
        let before = self.counted.exploration_seconds.swap(seconds, Ordering::Relaxed);
        gauges.exploration.increment(seconds.saturating_sub(before));
        gauges.standing_aside.set(f64::from(u8::from(learned.standing_aside)));
    }

    pub(super) fn held(&self, counts: &QueueGauges, queue_items_max: u32, stats: &LiveCounts) {
        self.queue_items.set(to_f64(counts.queue_items));
        self.oldest.store(counts.oldest.map_or(u64::MAX, |since| since.0), Ordering::Relaxed);
        self.queue_items_limit.set(f64::from(queue_items_max));
        self.slots_in_use.set(to_f64(counts.in_flight as u64));
        self.slots_limit.set(f64::from(counts.slots));
        update_sum(&stats.queue_items, &self.counted.queue_items, counts.queue_items);
        update_sum(&stats.in_flight, &self.counted.in_flight, counts.in_flight as u64);
    }

    pub(super) fn held_now(&self) -> (u64, u64) {
        (self.counted.queue_items.load(Ordering::Relaxed), self.counted.in_flight.load(Ordering::Relaxed))
    }

    pub(super) fn aged(&self, now: Tick) {
        let since = self.oldest.load(Ordering::Relaxed);
        let age = if since == u64::MAX { Duration::ZERO } else { now.since(Tick(since)) };
        self.queue_oldest.set(age.as_secs_f64());
    }
}

impl fmt::Debug for PortGauges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gauges").field("port", &self.port).finish_non_exhaustive()
    }
}

/// Sets this part of a sum to `now`. Each part is written by one task. The sum uses wrapping
/// arithmetic, so it is correct also if the part has decreased.
fn update_sum(sum: &AtomicU64, part: &AtomicU64, now: u64) {
    let before = part.swap(now, Ordering::Relaxed);
    if before != now {
        sum.fetch_add(now.wrapping_sub(before), Ordering::Relaxed);
    }
}
