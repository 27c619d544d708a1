//! Metrics of a run.
//!
//! *Goodput* is the share of the arrived items that were answered by their deadline. Means and
//! quantiles cover answered items only, so a policy that gives up many items appears fast: read
//! them together with the goodput. Every item of a call has the latency of the call. Calls that
//! their client intends to cancel count as load only: they are left out whatever their outcome, so
//! that every policy is measured on the same calls.

use std::collections::BTreeMap;
use std::fmt;

use crate::batching::{TenantId, Tick};

use super::call::{CallOutcome, CompletedCall};
use super::event_loop::RunResult;

/// The selection of calls that count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CallFilter {
    /// Earliest arrival.
    pub from: Tick,
    /// Latest arrival; if absent, the horizon.
    pub until: Option<Tick>,
    /// Tenant, if calls of only one count.
    pub tenant: Option<TenantId>,
    /// Priority class, if calls of only one count.
    pub class: Option<u8>,
}

/// Statistics of a selection of calls, in items and milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct LatencySummary {
    /// Number of items that arrived.
    pub arrived_items: u64,
    /// Share answered in time.
    pub goodput: f64,
    /// Share expired in the queue.
    pub expired: f64,
    /// Share not admitted to the queue.
    pub rejected: f64,
    /// Share refused by the upstream.
    pub refused: f64,
    /// Share without an outcome at the end of the run.
    pub unanswered: f64,
    /// Mean latency of the answered items; infinite if there are none.
    pub mean_ms: f64,
    /// Median latency.
    pub p50_ms: f64,
    /// 95th percentile of the latency.
    pub p95_ms: f64,
    /// 99th percentile of the latency.
    pub p99_ms: f64,
}

// === impl RunResult ===

impl RunResult {
    /// Summarizes all calls.
    #[must_use]
    pub fn summary(&self) -> LatencySummary {
        self.summary_of(&CallFilter::default())
    }

    /// Summarizes the calls of a scope.
    #[must_use]
    pub fn summary_of(&self, scope: &CallFilter) -> LatencySummary {
        let until = scope.until.unwrap_or(self.horizon);
        LatencySummary::of(self.calls.iter().filter(|ended| {
            let arrival = &ended.arrival;
            (scope.from..=until).contains(&arrival.at)
                && scope.tenant.is_none_or(|tenant| arrival.call.tenant == tenant)
                && scope.class.is_none_or(|class| arrival.class == class)
        }))
    }

    /// Returns the mean number of items in a batch, including batches that were sent again.
    #[must_use]
    pub fn items_per_batch(&self) -> f64 {
        self.counts.items as f64 / self.counts.batches.max(1) as f64
    }
}

// === impl LatencySummary ===

impl LatencySummary {
    fn of<'a>(calls: impl Iterator<Item = &'a CompletedCall>) -> Self {
        let mut latencies: Vec<(u64, u32)> = Vec::new();
        let (mut arrived, mut good) = (0_u64, 0_u64);
        let mut ends: BTreeMap<CallOutcome, u64> = BTreeMap::new();
        for ended in calls.filter(|ended| ended.arrival.cancel_at.is_none()) {
            let items = ended.arrival.call.items;
            arrived += u64::from(items);
            good += u64::from(ended.is_in_time()) * u64::from(items);
            *ends.entry(ended.outcome).or_default() += u64::from(items);
            if ended.outcome == CallOutcome::Answered {
                latencies.push((ended.at.0 - ended.arrival.at.0, items));
            }
        }
        latencies.sort_unstable();
        let answered: u64 = latencies.iter().map(|(_, items)| u64::from(*items)).sum();
        let sum: f64 = latencies.iter().map(|(latency, items)| *latency as f64 / 1e6 * f64::from(*items)).sum();
        let share = |items: u64| items as f64 / arrived.max(1) as f64;
        let ended = |outcome: CallOutcome| share(ends.get(&outcome).copied().unwrap_or(0));
        let quantile = |permille| quantile(&latencies, answered, permille);
        Self {
            arrived_items: arrived,
            goodput: share(good),
            expired: ended(CallOutcome::Expired),
            rejected: ended(CallOutcome::Rejected),
            refused: ended(CallOutcome::Refused),
            unanswered: ended(CallOutcome::Unanswered),
            mean_ms: if answered == 0 { f64::INFINITY } else { sum / answered as f64 },
            p50_ms: quantile(500),
            p95_ms: quantile(950),
            p99_ms: quantile(990),
        }
    }
}

impl fmt::Display for LatencySummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "good {:.3} mean {:8.2} p50 {:8.1} p95 {:8.1} p99 {:8.1}",
            self.goodput, self.mean_ms, self.p50_ms, self.p95_ms, self.p99_ms
        )?;
        let lost = [
            ("expired", self.expired),
            ("rejected", self.rejected),
            ("refused", self.refused),
            ("left", self.unanswered),
        ];
        lost.into_iter().filter(|(_, share)| *share > 0.0).try_for_each(|(name, share)| write!(f, " {name} {share:.3}"))
    }
}

/// Returns the latency below which this number of thousandths of the items lies, in milliseconds,
/// or infinity if there are no items.
fn quantile(sorted: &[(u64, u32)], items: u64, permille: u64) -> f64 {
    let rank = (items * permille / 1000).min(items.saturating_sub(1));
    let mut before = 0;
    for (latency, items) in sorted {
        before += u64::from(*items);
        if before > rank {
            return *latency as f64 / 1e6;
        }
    }
    f64::INFINITY
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batching::{Call, CallId, Deadline, DeadlineSource};
    use crate::{Arrival, DispatchCounts};

    fn ended(items: u32, latency: u64, outcome: CallOutcome) -> CompletedCall {
        let deadline = Some(Deadline { at: Tick::from_millis(50), source: DeadlineSource::Slo });
        let call = Call { items, deadline, ..Call::new(CallId(0)) };
        let arrival = Arrival { at: Tick::default(), call, class: 0, cancel_at: None };
        CompletedCall { arrival, outcome, at: Tick::from_millis(latency) }
    }

    fn run(calls: Vec<CompletedCall>) -> RunResult {
        RunResult { calls, counts: DispatchCounts::default(), busy: 0.0, horizon: Tick::from_millis(1) }
    }

    #[test]
    fn metrics_count_items_and_not_calls() {
        let run = run(vec![
            ended(9, 10, CallOutcome::Answered),
            ended(1, 60, CallOutcome::Answered),
            ended(10, 50, CallOutcome::Expired),
        ]);
        let summary = run.summary();
        assert_eq!((summary.arrived_items, summary.goodput, summary.expired), (20, 0.45, 0.5));
        assert_eq!((summary.mean_ms, summary.p50_ms, summary.p95_ms), (15.0, 10.0, 60.0));
    }

    #[test]
    fn an_answer_at_its_deadline_is_in_time_and_one_later_is_not() {
        let goodput = |latency| run(vec![ended(1, latency, CallOutcome::Answered)]).summary().goodput;
        assert_eq!((goodput(50), goodput(51)), (1.0, 0.0));
    }

    #[test]
    fn calls_to_be_cancelled_are_not_counted() {
        let mut leaver = ended(1, 3, CallOutcome::Cancelled);
        leaver.arrival.cancel_at = Some(Tick::from_millis(3));
        let summary = run(vec![leaver, ended(1, 5, CallOutcome::Answered)]).summary();
        assert_eq!((summary.arrived_items, summary.goodput), (1, 1.0));
    }

    #[test]
    fn without_an_answer_the_mean_is_infinite() {
        let summary = run(vec![ended(1, 5, CallOutcome::Expired)]).summary();
        assert!(summary.mean_ms.is_infinite() && summary.p99_ms.is_infinite());
    }
}
