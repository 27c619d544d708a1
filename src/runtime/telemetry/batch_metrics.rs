//! Metrics of batches and of the scheduler: executions, isolation, processing time, and the state
//! of the core.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::names::{Metric, OverheadStage, VerifyResult};
use super::registry::Metrics;
use super::series::to_f64;
use crate::batching::{BatchOutcome, DispatchCause, LearnedGauges, QueueGauges, Tick};

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
    /// Records a dispatched batch. `delays` contains the queueing time of each member.
    pub fn record_dispatch(&self, batch: &DispatchSample, delays: impl Iterator<Item = Duration>) {
        let DispatchSample { cause, members, items, items_max, weight, weight_max } = *batch;
        let series = &self.shared.batches;
        let cause = DispatchCause::ALL.iter().position(|known| *known == cause).unwrap_or(0);
        series.dispatches[cause].increment(1);
        series.items.record(f64::from(items));
        series.weight.record(to_f64(weight));
        series.occupancy.record(f64::from(items) / f64::from(items_max.max(1)));
        let padded = u64::from(items).saturating_mul(weight_max);
        if items > 1 && padded > 0 {
            series.padding.record(1.0 - to_f64(weight.min(padded)) / to_f64(padded));
        }
        self.shared.upstream.calls_saved.increment(members.saturating_sub(1) as u64);
        for delay in delays {
            series.queue_delay.record(delay.as_secs_f64());
        }
        self.stats.batches.fetch_add(1, Ordering::Relaxed);
        self.stats.batch_items.fetch_add(u64::from(items), Ordering::Relaxed);
        if members > 1 {
            self.stats.shared_batches.fetch_add(1, Ordering::Relaxed);
        }
        self.shared.record_samples(4 + members);
    }

    /// Records a completed execution. `shared` is `false` for an unbatched call sent as received,
    /// which may fail because of its own content.
    pub fn record_execution(&self, took: Duration, outcome: BatchOutcome, shared: bool) {
        let failed = outcome != BatchOutcome::Ok;
        self.shared.batches.executions[usize::from(failed)].record(took.as_secs_f64());
        if shared && failed && outcome != BatchOutcome::Cancelled {
            self.stats.executions_failed.fetch_add(1, Ordering::Relaxed);
        }
        self.shared.record_samples(1);
    }

    /// Records a batch response that could not be split.
    pub fn record_mismatch(&self, kind: &'static str) {
        self.shared.recorder.counter(Metric::Mismatches, &[kind.into()]).increment(1);
        self.stats.mismatches.fetch_add(1, Ordering::Relaxed);
    }

    /// Records a member of a batch that was to be sent unbatched as well.
    pub fn record_verification(&self, result: VerifyResult) {
        self.shared.process.verifications[result as usize].increment(1);
    }

    /// Sets the largest difference found by verifications.
    pub fn set_verify_difference(&self, largest: f64) {
        self.shared.process.verify_difference.set(largest);
    }

    /// Records an upstream call made by isolation.
    pub fn record_isolation_execution(&self) {
        self.shared.upstream.isolation_executions.increment(1);
        self.stats.isolation_executions.fetch_add(1, Ordering::Relaxed);
        if let Some(observer) = self.observer() {
            observer.on_isolation();
        }
    }

    /// Records items answered by isolation.
    pub fn record_isolated_items(&self, items: u32) {
        self.shared.upstream.items_isolated.increment(u64::from(items));
        self.stats.items_isolated.fetch_add(u64::from(items), Ordering::Relaxed);
    }

    /// Records processing time of the proxy.
    pub fn record_overhead(&self, stage: OverheadStage, took: Duration) {
        self.shared.batches.overhead[stage as usize].record(took.as_secs_f64());
        self.shared.record_samples(1);
    }

    /// Sets the largest deadline shift of this port.
    pub fn set_deadline_shift(&self, shift: Duration) {
        self.gauges.series.deadline_shift.set(shift.as_secs_f64());
    }

    /// Sets the number of cost classes that are not merged because the server rejects their
    /// batches.
    pub fn set_merging_suspended(&self, classes: usize) {
        self.gauges.series.merging_suspended.set(to_f64(classes as u64));
    }

    /// Records the learned state of the core. `changes` is the number of upstream changes since the
    /// previous call.
    pub fn set_learned(&self, learned: &LearnedGauges, changes: u64) {
        self.stats.settling.store(learned.settling, Ordering::Relaxed);
        self.gauges.set_learned(learned, changes);
    }

    /// Records the time to solve a plan.
    pub fn record_plan_solved(&self, took: Duration) {
        self.gauges.series.plan_solve.record(took.as_secs_f64());
        self.shared.record_samples(1);
    }

    /// Sets the gauges of queue and slots. `slots_max` is `None` if no limit is set.
    pub fn set_queue_gauges(&self, counts: &QueueGauges, queue_items_max: u32, slots_max: Option<u32>) {
        self.gauges.set_counts(counts, (queue_items_max, slots_max), &self.stats);
    }

    /// Returns the number of items queued and of executions in flight at this port.
    #[must_use]
    pub fn held_now(&self) -> (u64, u64) {
        self.gauges.held_now()
    }

    /// Updates the age of the oldest queued call, which changes without events.
    pub fn update_queue_age(&self, now: Tick) {
        self.shared.ports.iter().for_each(|port| port.update_age(now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_executions_have_a_series_of_their_own() {
        let metrics = Metrics::new("local");
        metrics.record_execution(Duration::from_millis(30), BatchOutcome::Ok, true);
        metrics.record_execution(Duration::from_millis(30), BatchOutcome::Cancelled, true);
        metrics.record_execution(Duration::from_millis(30), BatchOutcome::Ok, true);
        let (text, name) = (metrics.render(), Metric::ExecutionDuration.name());
        for line in ["_count{outcome=\"ok\"} 2", "_count{outcome=\"failed\"} 1"] {
            assert!(text.contains(&format!("{name}{line}")), "{line}: {text}");
        }
        assert_eq!(metrics.stats.executions_failed.load(Ordering::Relaxed), 0);
    }
}
