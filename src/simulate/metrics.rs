//! What a run is worth.
//!
//! *Goodput* is the share of the items that came whose answer came by its deadline; means and quantiles cover answered items, so a policy that
//! gives up many looks quick: read them beside it. Every item of a call has the call's latency. A caller who means to leave is load and no
//! customer: such calls are left out, whatever became of them, so that every policy is measured on the same ones.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::batching::{TenantId, Tick};

use super::call::{Ended, Outcome};
use super::engine::Run;

/// Which calls count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Scope {
    /// Those that came from here on.
    pub from: Tick,
    /// And no later than here; without it, the horizon.
    pub until: Option<Tick>,
    /// Of this tenant.
    pub tenant: Option<TenantId>,
    /// Of this class.
    pub class: Option<u8>,
}

/// The outcome of some calls, in items and milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Summary {
    /// Items that came.
    pub came: u64,
    /// Share answered in time.
    pub goodput: f64,
    /// Share given up in the queue.
    pub expired: f64,
    /// Share not taken in.
    pub rejected: f64,
    /// Share refused by the upstream.
    pub refused: f64,
    /// Share that had no end when the run had.
    pub unanswered: f64,
    /// Mean latency of what was answered; infinite if nothing was.
    pub mean: f64,
    /// Half were faster.
    pub p50: f64,
    /// 95 % were faster.
    pub p95: f64,
    /// 99 % were faster.
    pub p99: f64,
}

// === impl Run ===

impl Run {
    /// All calls together.
    #[must_use]
    pub fn summary(&self) -> Summary {
        self.summary_of(&Scope::default())
    }

    /// Some of them.
    #[must_use]
    pub fn summary_of(&self, scope: &Scope) -> Summary {
        let until = scope.until.unwrap_or(self.horizon);
        Summary::of(self.calls.iter().filter(|ended| {
            let arrival = &ended.arrival;
            (scope.from..=until).contains(&arrival.at)
                && scope.tenant.is_none_or(|tenant| arrival.call.tenant == tenant)
                && scope.class.is_none_or(|class| arrival.class == class)
        }))
    }

    /// By tenant.
    #[must_use]
    pub fn by_tenant(&self) -> BTreeMap<TenantId, Summary> {
        let mut groups: BTreeMap<TenantId, Vec<&Ended>> = BTreeMap::new();
        for ended in &self.calls {
            groups.entry(ended.arrival.call.tenant).or_default().push(ended);
        }
        groups.into_iter().map(|(tenant, calls)| (tenant, Summary::of(calls.into_iter()))).collect()
    }

    /// By class.
    #[must_use]
    pub fn by_class(&self) -> BTreeMap<u8, Summary> {
        let classes: BTreeSet<u8> = self.calls.iter().map(|ended| ended.arrival.class).collect();
        let of = |class| self.summary_of(&Scope { class: Some(class), ..Scope::default() });
        classes.into_iter().map(|class| (class, of(class))).collect()
    }

    /// Mean items in a batch, those sent again among them.
    #[must_use]
    pub fn items_per_batch(&self) -> f64 {
        self.counts.items as f64 / self.counts.batches.max(1) as f64
    }
}

// === impl Summary ===

impl Summary {
    fn of<'a>(calls: impl Iterator<Item = &'a Ended>) -> Self {
        let mut latencies: Vec<(u64, u32)> = Vec::new();
        let (mut came, mut good) = (0_u64, 0_u64);
        let mut ends: BTreeMap<Outcome, u64> = BTreeMap::new();
        for ended in calls.filter(|ended| ended.arrival.cancel_at.is_none()) {
            let items = ended.arrival.call.items;
            came += u64::from(items);
            good += u64::from(ended.is_good()) * u64::from(items);
            *ends.entry(ended.outcome).or_default() += u64::from(items);
            if ended.outcome == Outcome::Answered {
                latencies.push((ended.at.0 - ended.arrival.at.0, items));
            }
        }
        latencies.sort_unstable();
        let answered: u64 = latencies.iter().map(|(_, items)| u64::from(*items)).sum();
        let sum: f64 = latencies.iter().map(|(latency, items)| *latency as f64 / 1e6 * f64::from(*items)).sum();
        let share = |items: u64| items as f64 / came.max(1) as f64;
        let ended = |outcome: Outcome| share(ends.get(&outcome).copied().unwrap_or(0));
        let quantile = |permille| quantile(&latencies, answered, permille);
        Self {
            came,
            goodput: share(good),
            expired: ended(Outcome::Expired),
            rejected: ended(Outcome::Rejected),
            refused: ended(Outcome::Refused),
            unanswered: ended(Outcome::Unanswered),
            mean: if answered == 0 { f64::INFINITY } else { sum / answered as f64 },
            p50: quantile(500),
            p95: quantile(950),
            p99: quantile(990),
        }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "good {:.3} mean {:8.2} p50 {:8.1} p95 {:8.1} p99 {:8.1}",
            self.goodput, self.mean, self.p50, self.p95, self.p99
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

/// The latency below which this many thousandths of the items are, in milliseconds; infinite if there are none.
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
    use crate::simulate::{Arrival, Counts};

    fn ended(items: u32, latency: u64, outcome: Outcome) -> Ended {
        let deadline = Some(Deadline { at: Tick::from_millis(50), source: DeadlineSource::Slo });
        let call = Call { items, deadline, ..Call::new(CallId(0)) };
        let arrival = Arrival { at: Tick::default(), call, class: 0, cancel_at: None };
        Ended { arrival, outcome, at: Tick::from_millis(latency) }
    }

    fn run(calls: Vec<Ended>) -> Run {
        Run { calls, counts: Counts::default(), busy: 0.0, horizon: Tick::from_millis(1) }
    }

    #[test]
    fn items_count_and_not_calls() {
        let run = run(vec![
            ended(9, 10, Outcome::Answered),
            ended(1, 60, Outcome::Answered),
            ended(10, 50, Outcome::Expired),
        ]);
        let summary = run.summary();
        assert_eq!((summary.came, summary.goodput, summary.expired), (20, 0.45, 0.5));
        assert_eq!((summary.mean, summary.p50, summary.p95), (15.0, 10.0, 60.0));
    }

    #[test]
    fn an_answer_at_its_deadline_is_in_time_and_one_later_is_not() {
        let goodput = |latency| run(vec![ended(1, latency, Outcome::Answered)]).summary().goodput;
        assert_eq!((goodput(50), goodput(51)), (1.0, 0.0));
    }

    #[test]
    fn who_means_to_leave_does_not_count() {
        let mut leaver = ended(1, 3, Outcome::Cancelled);
        leaver.arrival.cancel_at = Some(Tick::from_millis(3));
        let summary = run(vec![leaver, ended(1, 5, Outcome::Answered)]).summary();
        assert_eq!((summary.came, summary.goodput), (1, 1.0));
    }

    #[test]
    fn nothing_answered_has_no_finite_mean() {
        let summary = run(vec![ended(1, 5, Outcome::Expired)]).summary();
        assert!(summary.mean.is_infinite() && summary.p99.is_infinite());
    }
}
