//! The runs of one policy, one per seed, and their average figures.

use crate::batching::{DispatchPolicy as Rule, Limits, PriorityClass, ScopeLimits, Tick};

use super::super::groupage_policy::GroupagePolicy;
use super::super::metrics::CallFilter;
use super::super::scenario::Scenario;
use super::super::{RunResult, SimPolicy, run};

/// The runs of a policy.
#[derive(Debug)]
pub struct PolicyRuns(pub Vec<RunResult>);

/// Means over seeds. Times are in milliseconds and infinite if no item was answered.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AverageFigures {
    /// Number of items that arrived, in all seeds together.
    pub items: u64,
    /// Share answered in time.
    pub goodput: f64,
    /// Mean latency of the answered items.
    pub mean: f64,
    /// Median latency.
    pub p50: f64,
    /// 99th percentile of the latency.
    pub p99: f64,
    /// Mean number of items in a batch, over the whole run.
    pub items_per_batch: f64,
    /// Share of slot time spent executing, over the whole run.
    pub busy: f64,
    /// Share expired in the queue.
    pub expired: f64,
    /// Share not admitted, or refused by the upstream.
    pub refused: f64,
    /// Share without an outcome at the end.
    pub unanswered: f64,
}

// === impl PolicyRuns ===

impl PolicyRuns {
    /// Runs a fresh policy for each seed.
    #[must_use]
    pub fn run_seeds(scenario: &Scenario, seeds: u64, make: impl Fn(u64) -> Box<dyn SimPolicy>) -> Self {
        Self((0..seeds).map(|seed| run(scenario, make(seed).as_mut(), seed)).collect())
    }

    /// Applies a function to each run.
    #[must_use]
    pub fn map(self, change: impl Fn(RunResult) -> RunResult) -> Self {
        Self(self.0.into_iter().map(change).collect())
    }

    /// Computes the figures of the calls in a scope.
    #[must_use]
    pub fn figures(&self, scope: &CallFilter) -> AverageFigures {
        let summaries: Vec<_> = self.0.iter().map(|run| run.summary_of(scope)).collect();
        let average = |of: fn(&super::super::metrics::LatencySummary) -> f64| mean(summaries.iter().map(of));
        AverageFigures {
            items: summaries.iter().map(|summary| summary.arrived_items).sum(),
            goodput: average(|summary| summary.goodput),
            mean: average(|summary| summary.mean_ms),
            p50: average(|summary| summary.p50_ms),
            p99: average(|summary| summary.p99_ms),
            items_per_batch: mean(self.0.iter().map(RunResult::items_per_batch)),
            busy: mean(self.0.iter().map(|run| run.busy)),
            expired: average(|summary| summary.expired),
            refused: average(|summary| summary.rejected + summary.refused),
            unanswered: average(|summary| summary.unanswered),
        }
    }

    /// Returns the arrival times up to an instant, in milliseconds, seed by seed.
    pub fn arrivals_ms(&self, until: Tick) -> impl Iterator<Item = Vec<f64>> {
        self.0.iter().map(move |run| {
            let before = run.calls.iter().map(|ended| ended.arrival.at).filter(|at| *at <= until);
            before.map(|at| at.since(Tick::default()).as_secs_f64() * 1e3).collect()
        })
    }
}

// === impl GroupagePolicy ===

impl GroupagePolicy {
    /// Creates the adaptive policy as it starts in a row: cold, with a batch cap as its only limit,
    /// and with a queue that only deadlines bound.
    #[must_use]
    pub fn with_cap_only(cap: u32, seed: u64) -> Self {
        let scope = ScopeLimits {
            batch_items_max: cap,
            batch_bytes_max: u64::MAX,
            queue_items_max: u32::MAX,
            queue_bytes_max: u64::MAX,
            ..ScopeLimits::default()
        };
        let limits = Limits {
            policy: Rule::Adaptive { hold_permille: 0 },
            slots: scope.slots_max,
            queue_items_max: u32::MAX,
            queue_bytes_max: u64::MAX,
            scopes: vec![scope],
            // The priority classes of a default policy.
            priorities: vec![PriorityClass { weight: 8, ..PriorityClass::PLAIN }, PriorityClass::PLAIN],
            ..Limits::default()
        };
        Self::new("ours", limits, seed)
    }
}

/// Returns the mean of some numbers, or zero if there are none.
pub fn mean(numbers: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = numbers.fold((0.0, 0_u32), |(sum, count), number| (sum + number, count + 1));
    sum / f64::from(count.max(1))
}
