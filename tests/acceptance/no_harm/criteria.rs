//! The criteria of a row, of a change, and of all rows together.

use std::time::Duration;

use super::{NoHarmReport, WindowRatio};
use crate::criteria::{Comparison, CriterionResult, Metric};

/// Minimum rate in a window, relative to direct calls, except in the first one after a change.
const RATE_LEAST: f64 = 0.9;
/// Rate in a window below which a row is counted, and maximum number of such rows.
const RATE: f64 = 0.97;
const ROWS_BELOW_MAX: u32 = 40;
/// Maximum mean and maximum p99 in a window, relative to direct calls.
const LATENCY_MAX: f64 = 1.05;
/// Maximum p99 in a window with a test, because the calls of a test take longer, at a server where
/// a batch of two costs less than `PAIR_CHEAP` calls.
const TESTED_MAX: f64 = 1.3;
const PAIR_CHEAP: f64 = 1.3;
/// The same at any other server.
const PAIR_MAX: f64 = 2.0;
/// Minimum rate in the first window after a change.
const CHANGED_LEAST: f64 = 0.85;
/// A server that executes more calls at once after a change has room, which has to be used after
/// this number of seconds, or of service times if that is longer: from then on at least `ROOM_RATE`
/// of direct's rate is required.
const ROOM_SECONDS: f64 = 3.0;
const ROOM_SERVICES: f64 = 5.0;
const ROOM_RATE: f64 = 0.95;
/// At a server that executes fewer calls at once after a change, batches have to be formed after
/// this number of sojourn times of direct callers: at least `BATCHED_RATE` times direct's rate is
/// required, where three to ten times are possible.
const BATCHED_SOJOURNS: f64 = 15.0;
const BATCHED_RATE: f64 = 1.5;

/// The criteria of a run.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum HarmCriteria {
    /// The limits of rate, mean and p99 in every window. `pair` is the cost of a batch of two, in
    /// unbatched calls. `reach` is the required rate in the second half of the windows, as a
    /// multiple of direct's, where batching pays.
    Row { pair: f64, reach: Option<f64> },
    /// The limits of the rate in every window, and the requirements of each phase.
    Change(Vec<ServerPhase>),
}

/// A phase of a server that changes. Times are in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct ServerPhase {
    /// First window of the phase.
    pub(super) from: usize,
    /// Time of an unbatched call.
    pub(super) service: f64,
    /// Sojourn time of direct callers.
    pub(super) sojourn: f64,
    /// `true` if the server executes more calls at once than in the phase before.
    pub(super) has_more_slots: bool,
    /// `true` if the server executes fewer calls at once than there are callers.
    pub(super) has_queue: bool,
}

/// The totals of all rows.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct HarmTotals {
    /// Number of rows.
    pub(crate) rows: u32,
    /// Rows with a window below 0.97 of direct's rate, with that rate.
    pub(crate) below: Vec<(String, f64)>,
    /// Number of rows with a window below 0.9 of direct's rate.
    pub(crate) far_below: u32,
    /// Number of rows with a mean above 1.05 of direct's in a window, and above 1.2.
    pub(crate) mean: (u32, u32),
    /// The same for the p99.
    pub(crate) p99: (u32, u32),
}

// === impl HarmCriteria ===

impl HarmCriteria {
    /// Evaluates the criteria over windows of this width.
    pub(super) fn judge(&self, windows: &[WindowRatio], width: Duration) -> Vec<CriterionResult> {
        match self {
            Self::Row { pair, reach } => judge_row(windows, *pair, *reach),
            Self::Change(phases) => judge_change(windows, phases, width),
        }
    }
}

fn judge_row(windows: &[WindowRatio], pair: f64, reach: Option<f64>) -> Vec<CriterionResult> {
    let judged = || windows.iter().enumerate().filter(|(_, ratio)| ratio.is_judged());
    let tested_max = if pair < PAIR_CHEAP { TESTED_MAX } else { PAIR_MAX };
    let p99_max = |ratio: &WindowRatio| if ratio.tested { tested_max } else { LATENCY_MAX };
    let rate = judged().min_by(|a, b| a.1.rate.total_cmp(&b.1.rate));
    let mean = judged().max_by(|a, b| a.1.mean.total_cmp(&b.1.mean));
    let p99 = judged().max_by(|a, b| (a.1.p99 / p99_max(a.1)).total_cmp(&(b.1.p99 / p99_max(b.1))));
    let at = |place: usize| format!("direct's, window {}", place + 1);
    // Of each figure, the worst window is reported.
    let mut verdicts = Vec::new();
    verdicts.extend(rate.map(|(place, ratio)| at_least(Metric::RateRatio, ratio.rate, RATE_LEAST, at(place))));
    verdicts.extend(mean.map(|(place, ratio)| at_most(Metric::MeanRatio, ratio.mean, LATENCY_MAX, at(place))));
    verdicts.extend(p99.map(|(place, ratio)| at_most(Metric::P99Ratio, ratio.p99, p99_max(ratio), at(place))));
    if let Some(gain) = reach {
        let last = windows.iter().skip(windows.len() / 2);
        let (ours, direct) = last.fold((0.0, 0.0), |(ours, direct), ratio| {
            (ours + ratio.rate * f64::from(ratio.direct), direct + f64::from(ratio.direct))
        });
        verdicts.push(at_least(
            Metric::RateRatio,
            ours / f64::max(direct, 1.0),
            gain,
            "direct's, last half".to_owned(),
        ));
    }
    verdicts
}

fn judge_change(windows: &[WindowRatio], phases: &[ServerPhase], width: Duration) -> Vec<CriterionResult> {
    let width = width.as_secs_f64();
    let is_first = |place: usize| phases.iter().any(|phase| phase.from > 0 && phase.from == place);
    let least = |first: bool| {
        let judged = windows.iter().enumerate().filter(|(place, _)| is_first(*place) == first);
        judged.min_by(|a, b| a.1.rate.total_cmp(&b.1.rate))
    };
    let at = |place: usize| format!("direct's, window {}", place + 1);
    let mut verdicts = Vec::new();
    // The first window after a change has a lower limit than the others.
    for (first, limit) in [(true, CHANGED_LEAST), (false, RATE_LEAST)] {
        verdicts.extend(least(first).map(|(place, ratio)| at_least(Metric::RateRatio, ratio.rate, limit, at(place))));
    }
    let ends = phases.iter().skip(1).map(|phase| phase.from).chain([windows.len()]);
    for (phase, end) in phases.iter().zip(ends).filter(|(phase, _)| phase.from > 0) {
        // The windows of the phase from this time after the change on.
        let from = |seconds: f64| {
            let windows = windows.iter().enumerate().take(end).skip(phase.from);
            windows.filter(move |(place, _)| (*place - phase.from) as f64 * width >= seconds)
        };
        if phase.has_more_slots {
            let used = from(ROOM_SECONDS.max(ROOM_SERVICES * phase.service));
            let used = used.min_by(|a, b| a.1.rate.total_cmp(&b.1.rate));
            let of = |place| format!("direct's, more room, window {}", place + 1);
            verdicts.extend(used.map(|(place, ratio)| at_least(Metric::RateRatio, ratio.rate, ROOM_RATE, of(place))));
        } else if phase.has_queue {
            let batched = from(BATCHED_SOJOURNS * phase.sojourn).next();
            let of = |place| format!("direct's, less room, window {}", place + 1);
            verdicts
                .extend(batched.map(|(place, ratio)| at_least(Metric::RateRatio, ratio.rate, BATCHED_RATE, of(place))));
        }
    }
    verdicts
}

fn at_least(quantity: Metric, found: f64, limit: f64, of: String) -> CriterionResult {
    CriterionResult { criterion: "harm", quantity, found, sense: Comparison::AtLeast, limit, of }
}

fn at_most(quantity: Metric, found: f64, limit: f64, of: String) -> CriterionResult {
    CriterionResult { criterion: "harm", quantity, found, sense: Comparison::AtMost, limit, of }
}

// === impl HarmTotals ===

impl HarmTotals {
    /// Returns the totals, or `None` if no row was run.
    pub(crate) fn of<'a>(harms: impl Iterator<Item = &'a NoHarmReport>) -> Option<Self> {
        let mut totals = Self { rows: 0, below: Vec::new(), far_below: 0, mean: (0, 0), p99: (0, 0) };
        for harm in harms.filter(|harm| harm.is_counted) {
            let (rate, mean, p99) = harm.worst();
            totals.rows += 1;
            if rate < RATE {
                totals.below.push((harm.name.clone(), rate));
            }
            totals.far_below += u32::from(rate < RATE_LEAST);
            for (count, found) in [(&mut totals.mean, mean), (&mut totals.p99, p99)] {
                count.0 += u32::from(found > LATENCY_MAX);
                count.1 += u32::from(found > 1.2);
            }
        }
        totals.below.sort_by(|a, b| a.1.total_cmp(&b.1));
        (totals.rows > 0).then_some(totals)
    }

    /// Evaluates the number of rows below the required rate.
    pub(crate) fn verdict(&self) -> CriterionResult {
        let (found, limit) = (self.below.len() as f64, f64::from(ROWS_BELOW_MAX));
        at_most(Metric::Rows, found, limit, format!("below {RATE} of direct's rate in a window, of {}", self.rows))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ratio(rate: f64, p99: f64, tested: bool) -> WindowRatio {
        WindowRatio { direct: 200, rate, mean: 1.0, p99, tested }
    }

    fn missed(verdicts: &[CriterionResult]) -> Vec<Metric> {
        verdicts.iter().filter(|verdict| !verdict.is_met()).map(|verdict| verdict.quantity).collect()
    }

    #[test]
    fn a_window_with_a_test_may_have_a_longer_p99() {
        let misses = |pair, windows: &[WindowRatio]| missed(&judge_row(windows, pair, None));
        assert_eq!(misses(1.06, &[ratio(1.0, 1.2, false)]), [Metric::P99Ratio]);
        assert_eq!(misses(1.06, &[ratio(1.0, 1.2, true)]), []);
        assert_eq!(misses(1.06, &[ratio(1.0, 1.6, true)]), [Metric::P99Ratio]);
        assert_eq!(misses(2.0, &[ratio(1.0, 1.6, true)]), []);
        assert_eq!(misses(2.0, &[ratio(0.89, 1.0, true)]), [Metric::RateRatio]);
    }

    #[test]
    fn the_target_rate_is_judged_in_the_last_half() {
        let windows = [ratio(1.0, 1.0, false), ratio(3.0, 1.0, false)];
        assert_eq!(missed(&judge_row(&windows, 1.0, Some(3.1))), [Metric::RateRatio]);
        assert_eq!(missed(&judge_row(&windows, 1.0, Some(2.9))), []);
    }

    #[test]
    fn the_first_window_after_a_change_may_lose_more() {
        let phase = |from, more, queues| ServerPhase {
            from,
            service: 0.05,
            sojourn: 0.05,
            has_more_slots: more,
            has_queue: queues,
        };
        let phases = [phase(0, false, true), phase(1, true, false)];
        let judged = |rates: &[f64]| {
            let windows: Vec<WindowRatio> = rates.iter().map(|rate| ratio(*rate, 1.0, false)).collect();
            missed(&judge_change(&windows, &phases, Duration::from_secs(4))).len()
        };
        assert_eq!(judged(&[1.0, 0.86, 0.96]), 0);
        assert_eq!(judged(&[1.0, 0.84, 0.96]), 1);
        assert_eq!(judged(&[1.0, 0.86, 0.94]), 1);
        assert_eq!(judged(&[1.0, 0.86, 0.89]), 2);
        assert_eq!(judged(&[0.89, 0.86, 0.96]), 1);
    }

    #[test]
    fn a_queue_after_a_change_must_raise_the_rate_after_some_sojourns() {
        let phase =
            |from, queues| ServerPhase { from, service: 0.05, sojourn: 1.0, has_more_slots: false, has_queue: queues };
        let phases = [phase(0, false), phase(1, true)];
        let judged = |last: f64| {
            let windows: Vec<WindowRatio> = [1.0, 1.0, 1.0, last].iter().map(|rate| ratio(*rate, 1.0, false)).collect();
            missed(&judge_change(&windows, &phases, Duration::from_secs(8))).len()
        };
        assert_eq!((judged(1.0), judged(1.6)), (1, 0));
    }
}
