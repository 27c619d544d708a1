//! Gauges of one port: its queue, its slots, and what was learned about its server.
//!
//! Counters and histograms of several ports add up in one series. Gauges do not: if several ports
//! are captured, each has its own series with the label `port`; with one port the label is omitted.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::live::LiveCounts;
use super::names::{Metric, SchedulerSeries};
use super::series::{MetricRecorder, to_f64};
use crate::batching::{LearnedGauges, QueueGauges, Tick};

/// The series of one port, and its share in the sums of all ports.
pub(super) struct PortGauges {
    /// Value of the label `port`, if there is one.
    port: Option<String>,
    pub(super) series: SchedulerSeries,
    /// Arrival of the oldest queued call as a tick; [`u64::MAX`] if the queue is empty.
    oldest: AtomicU64,
    published: PublishedCounts,
}

/// The last values of this port, so that only differences are added to the sums and counters of all
/// ports.
#[derive(Default)]
struct PublishedCounts {
    queue_items: AtomicU64,
    in_flight: AtomicU64,
    exploration_seconds: AtomicU64,
}

// === impl PortGauges ===

impl PortGauges {
    pub(super) fn new(recorder: &MetricRecorder, port: Option<String>) -> Self {
        let series = SchedulerSeries::register(&recorder.registrar(port.as_deref()));
        Self { port, series, oldest: AtomicU64::new(u64::MAX), published: PublishedCounts::default() }
    }

    /// Sets a limit of this port, learned or published by its server.
    pub(super) fn set_limit(&self, recorder: &MetricRecorder, limit: &'static str, source: &'static str, value: f64) {
        recorder.port_gauge(Metric::Limit, &[limit.into(), source.into()], self.port.as_deref()).set(value);
    }

    /// Sets the gauges of learned values. `changes`: number of changes of the server that were
    /// detected since the last update.
    pub(super) fn set_learned(&self, learned: &LearnedGauges, changes: u64) {
        let series = &self.series;
        let seconds = |nanos| to_f64(nanos) / 1e9;
        let permille = |permille| to_f64(permille) / 1e3;
        series.slots_learned.set(f64::from(learned.slots));
        series.lead.set(seconds(learned.lead_nanos));
        series.model_fixed.set(seconds(learned.batch_nanos));
        series.model_item.set(seconds(learned.item_nanos));
        series.model_error.set(permille(learned.error_permille));
        series.model_tail.set(permille(learned.tail_permille));
        series.model_changes.increment(changes);
        // Counters hold integers, so whole seconds are counted.
        let seconds = learned.exploration_nanos / 1_000_000_000;
        let before = self.published.exploration_seconds.swap(seconds, Ordering::Relaxed);
        series.exploration.increment(seconds.saturating_sub(before));
        series.standing_aside.set(f64::from(u8::from(learned.standing_aside)));
    }

    /// Sets the gauges of the queue and the slots, and updates the sums of all ports in `stats`.
    pub(super) fn set_counts(
        &self,
        counts: &QueueGauges,
        (queue_items_max, slots_max): (u32, Option<u32>),
        stats: &LiveCounts,
    ) {
        self.series.queue_items.set(to_f64(counts.queue_items));
        self.oldest.store(counts.oldest.map_or(u64::MAX, |since| since.0), Ordering::Relaxed);
        self.series.queue_items_limit.set(f64::from(queue_items_max));
        self.series.slots_in_use.set(to_f64(counts.in_flight as u64));
        // Infinite, like the gauges of other limits that are not set. In relation to the number
        // that the process uses instead, few slots in use would look like a server with free slots.
        self.series.slots_limit.set(slots_max.map_or(f64::INFINITY, f64::from));
        update_sum(&stats.queue_items, &self.published.queue_items, counts.queue_items);
        update_sum(&stats.in_flight, &self.published.in_flight, counts.in_flight as u64);
    }

    /// Returns the numbers of queued items and of executions in flight, as last set.
    pub(super) fn held_now(&self) -> (u64, u64) {
        (self.published.queue_items.load(Ordering::Relaxed), self.published.in_flight.load(Ordering::Relaxed))
    }

    /// Updates the age of the oldest queued call, which changes without an event.
    pub(super) fn update_age(&self, now: Tick) {
        let since = self.oldest.load(Ordering::Relaxed);
        let age = if since == u64::MAX { Duration::ZERO } else { now.since(Tick(since)) };
        self.series.queue_oldest.set(age.as_secs_f64());
    }
}

impl fmt::Debug for PortGauges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PortGauges").field("port", &self.port).finish_non_exhaustive()
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
