//! Comparison of Groupage with baselines and oracles: the rows of the table and their criteria.
//!
//! Every policy of a row meets the same calls and the same noise, seed by seed, from a cold start.
//! Two oracles are computed where possible: the optimal table of an SMDP, run on the same arrivals,
//! and a clairvoyant that knows all arrivals of the first seconds. `criteria` holds the criteria of
//! each row, `optimality_gap` the distance to the optimum by curve and load, `capacity` the maximum
//! rates, `case` comparisons between Groupage runs, `table` all of it as one list of jobs, and
//! `no_harm` Groupage beside direct calls, window by window.
//!
//! Left out: threads and printing. A row is one call, so the caller may run several at once.

mod determinism;
mod criteria;
mod capacity;
mod case;
mod figures;
mod optimality_gap;
mod no_harm;
mod table;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use crate::batching::Tick;

use super::baseline::Baseline;
use super::curve::CostCurve;
use super::groupage::GroupagePolicy;
use super::metrics::CallFilter;
use super::oracle;
use super::random::saturating_u32;
use super::scenario::Scenario;
use super::upstream::UpstreamKind;
use super::workload::ArrivalProcess;

pub use capacity::{CapacityReport, capacity_upstreams, measure_capacity};
pub use case::CaseReport;
pub use criteria::{Comparison, CriterionResult, Metric};
pub use determinism::first_difference;
pub use figures::{AverageFigures, PolicyRuns};
pub use no_harm::{HarmTotals, NoHarmReport, WindowRatio};
pub use optimality_gap::{OptimalityGap, optimality_gap};
pub use table::{Job, JobResult};

/// Parts of a run that the clairvoyant bound covers. Its work grows with the number of items that
/// have to be given up, so the part is shorter in a steady overload.
const CLAIRVOYANT: Duration = Duration::from_secs(6);
const CLAIRVOYANT_OVERLOAD: Duration = Duration::from_secs(2);
/// Instant from which a row is judged. The first seconds are left out: with nothing learned, calls
/// are forwarded as without a proxy.
const JUDGED_FROM: Tick = Tick::from_millis(2000);
/// Minimum duration of a row that is judged from `JUDGED_FROM` on. Shorter rows are judged from the
/// start.
const JUDGED_SETTLED: Duration = Duration::from_secs(4);

/// Settings of a run of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunSettings {
    /// Number of seeds, which count from 0.
    pub seeds: u64,
    /// Runs the baselines and oracles too, and judges the row.
    pub compare: bool,
    /// Marks a row with changed arguments: criteria with absolute limits do not apply to it.
    pub altered: bool,
}

/// The figures of one policy in a row.
#[derive(Debug, Clone, PartialEq)]
pub struct PolicyFigures {
    /// Name of the policy.
    pub name: String,
    /// Its figures.
    pub figures: AverageFigures,
}

/// An upper bound on the goodput of any policy, and the goodput of Groupage on the same arrivals.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ClairvoyantBound {
    /// First part of the run, in which both are measured.
    pub window: Duration,
    /// Goodput of the clairvoyant.
    pub goodput: f64,
    /// Goodput of Groupage.
    pub ours: f64,
}

/// The result of a row.
#[derive(Debug, Clone, PartialEq)]
pub struct RowReport {
    /// Scenario of the row.
    pub scenario: Scenario,
    /// Groupage first, then the baselines, the best window, and the SMDP optimum if it exists.
    pub entries: Vec<PolicyFigures>,
    /// Clairvoyant bound, if the upstream is one server with an exact curve.
    pub bound: Option<ClairvoyantBound>,
    /// Evaluated criteria of the row.
    pub verdicts: Vec<CriterionResult>,
}

/// The input of the criteria.
struct RowResults<'a> {
    scenario: &'a Scenario,
    ours: &'a PolicyRuns,
    baselines: Vec<(Baseline, AverageFigures)>,
    window: Option<PolicyFigures>,
    smdp: Option<PolicyFigures>,
    bound: Option<ClairvoyantBound>,
}

/// Runs a row.
#[must_use]
pub fn run_row(scenario: &Scenario, settings: RunSettings) -> RowReport {
    let runs =
        PolicyRuns::run_seeds(scenario, settings.seeds, |seed| Box::new(GroupagePolicy::for_scenario(scenario, seed)));
    let ours = PolicyFigures { name: "ours".to_owned(), figures: runs.figures(&judged_scope(scenario)) };
    if !settings.compare {
        return RowReport { scenario: scenario.clone(), entries: vec![ours], bound: None, verdicts: Vec::new() };
    }
    let table = RowResults::new(scenario, &runs, settings.seeds);
    let mut verdicts = criteria::judge(&table, settings.altered);
    verdicts.push(determinism::check_determinism(scenario, settings.seeds));
    let RowResults { baselines, window, smdp, bound, .. } = table;
    let others = baselines.into_iter().map(|(baseline, figures)| PolicyFigures { name: baseline.to_string(), figures });
    let entries = [ours].into_iter().chain(others).chain(window).chain(smdp).collect();
    RowReport { scenario: scenario.clone(), entries, bound, verdicts }
}

// === impl Scenario ===

impl Scenario {
    /// Returns the mean number of calls per second, or `None` if it depends on the answers, as in a
    /// closed loop, or is zero.
    #[must_use]
    pub fn mean_rate(&self) -> Option<f64> {
        let seconds = self.horizon.as_secs_f64();
        let recorded = self.workload.recorded.len() as f64 / seconds;
        let drawn = self.workload.streams.iter().map(|stream| match &stream.arrivals {
            ArrivalProcess::Poisson { rate } | ArrivalProcess::Fanout { rate, .. } => Some(*rate),
            ArrivalProcess::Mmpp { rates, stays } => {
                let [one, other] = stays.map(|stay| stay.as_secs_f64());
                Some((rates[0] * one + rates[1] * other) / (one + other).max(1e-9))
            }
            ArrivalProcess::Ramp { low, high, .. } => Some((low + high) / 2.0),
            ArrivalProcess::Step { rate, then, from, until } => {
                let from = from.as_secs_f64().min(seconds);
                let until = until.map_or(seconds, |until| until.as_secs_f64().clamp(from, seconds));
                Some((rate * (seconds - (until - from)) + then * (until - from)) / seconds)
            }
            ArrivalProcess::Closed { .. } => None,
        });
        drawn.sum::<Option<f64>>().map(|drawn| drawn + recorded).filter(|rate| *rate > 0.0)
    }

    /// Multiplies the rate of calls by a factor; closed loops have this many times the clients.
    /// Recorded calls arrive at shorter intervals, so the recording is shorter; each keeps its time
    /// until the deadline and the cancellation.
    #[must_use]
    pub fn scale_rate(mut self, factor: f64) -> Self {
        if !self.workload.recorded.is_empty() {
            self.horizon = self.horizon.div_f64(factor);
        }
        for arrival in &mut self.workload.recorded {
            let sooner = arrival.at.since(Tick::default()).div_f64(factor);
            let by = arrival.at.since(Tick::default()).saturating_sub(sooner);
            let later = sooner.saturating_sub(arrival.at.since(Tick::default()));
            let moved = |at: Tick| at.before(by).after(later);
            arrival.at = moved(arrival.at);
            arrival.cancel_at = arrival.cancel_at.map(moved);
            if let Some(deadline) = &mut arrival.call.deadline {
                deadline.at = moved(deadline.at);
            }
        }
        for stream in &mut self.workload.streams {
            match &mut stream.arrivals {
                ArrivalProcess::Poisson { rate } | ArrivalProcess::Fanout { rate, .. } => *rate *= factor,
                ArrivalProcess::Mmpp { rates, .. } => rates.iter_mut().for_each(|rate| *rate *= factor),
                ArrivalProcess::Ramp { low, high, .. } => {
                    *low *= factor;
                    *high *= factor;
                }
                ArrivalProcess::Step { rate, then, .. } => {
                    *rate *= factor;
                    *then *= factor;
                }
                ArrivalProcess::Closed { clients, .. } => {
                    *clients = saturating_u32((f64::from(*clients) * factor).round()).max(1);
                }
            }
        }
        self
    }
}

// === impl RowResults ===

impl<'a> RowResults<'a> {
    fn new(scenario: &'a Scenario, ours: &'a PolicyRuns, seeds: u64) -> Self {
        let others = Baseline::all(scenario.cap, scenario.curve).into_iter().map(|baseline| {
            let runs = PolicyRuns::run_seeds(scenario, seeds, |_| baseline.build());
            (baseline, runs.figures(&judged_scope(scenario)))
        });
        let baselines = others.collect();
        let smdp = run_smdp_table(scenario, seeds).map(|runs| policy_figures("SMDP optimum", scenario, &runs));
        Self {
            scenario,
            ours,
            baselines,
            window: best_window(scenario, seeds),
            smdp,
            bound: clairvoyant_bound(scenario, ours),
        }
    }

    /// Returns the baselines and the best window, by name.
    fn rivals(&self) -> impl Iterator<Item = (String, AverageFigures)> {
        let baselines = self.baselines.iter().map(|(baseline, figures)| (baseline.to_string(), *figures));
        baselines.chain(self.window.iter().map(|entry| (entry.name.clone(), entry.figures)))
    }
}

fn policy_figures(name: impl Into<String>, scenario: &Scenario, runs: &PolicyRuns) -> PolicyFigures {
    PolicyFigures { name: name.into(), figures: runs.figures(&judged_scope(scenario)) }
}

/// Returns the part of a row that is judged and shown.
fn judged_scope(scenario: &Scenario) -> CallFilter {
    let from = if scenario.horizon >= JUDGED_SETTLED { JUDGED_FROM } else { Tick::default() };
    CallFilter { from, ..CallFilter::default() }
}

/// Returns the window of the grid that does best in this row: by goodput to a thousandth, then by
/// the mean. It is chosen on the first seed.
fn best_window(scenario: &Scenario, seeds: u64) -> Option<PolicyFigures> {
    let tried = Baseline::windows().map(|window| {
        let figures = PolicyRuns::run_seeds(scenario, 1, |_| window.build()).figures(&judged_scope(scenario));
        (window, (figures.goodput * 1000.0).round(), figures.mean)
    });
    let best = tried.min_by(|a, b| b.1.total_cmp(&a.1).then(a.2.total_cmp(&b.2)))?.0;
    Some(policy_figures(format!("best {best}"), scenario, &PolicyRuns::run_seeds(scenario, seeds, |_| best.build())))
}

/// Runs the table of the SMDP. Returns `None` if the arrivals are not Poisson, the curve is not
/// exact, or no policy keeps up.
fn run_smdp_table(scenario: &Scenario, seeds: u64) -> Option<PolicyRuns> {
    let (curve, Some(rate)) = (scenario.curve?, poisson_rate(scenario)) else { return None };
    let times = times(curve, scenario.cap, round_trip_ms(scenario));
    let best = oracle::solve_smdp(rate, &times);
    if best.mean_ms.is_infinite() {
        return None;
    }
    let table = Baseline::Table { sizes: Arc::from(best.table) };
    Some(PolicyRuns::run_seeds(scenario, seeds, |_| table.build()))
}

/// Computes the clairvoyant bound for the calls at the start of the run.
fn clairvoyant_bound(scenario: &Scenario, ours: &PolicyRuns) -> Option<ClairvoyantBound> {
    let curve = scenario.curve?;
    let overload = poisson_rate(scenario).is_some_and(|rate| rate >= curve.rate_max(scenario.cap));
    let window = if overload { CLAIRVOYANT_OVERLOAD } else { CLAIRVOYANT }.min(scenario.horizon);
    let until = Tick::default().after(window);
    let slo = scenario.slo.as_secs_f64() * 1e3 - round_trip_ms(scenario);
    let times = times(curve, scenario.cap, 0.0);
    let share = |arrivals: Vec<f64>| oracle::clairvoyant(&arrivals, slo, &times);
    let goodput = figures::mean(ours.arrivals_ms(until).map(share));
    let scope = CallFilter { until: Some(until), ..CallFilter::default() };
    Some(ClairvoyantBound { window, goodput, ours: ours.figures(&scope).goodput })
}

/// Returns the time of a batch of each size, increased by `more`, in milliseconds.
fn times(curve: CostCurve, cap: u32, more: f64) -> Vec<f64> {
    (1..=cap).map(|items| curve.millis_of(items) + more).collect()
}

fn round_trip_ms(scenario: &Scenario) -> f64 {
    let UpstreamKind::Server(server) = &scenario.upstream else { return 0.0 };
    server.round_trip.as_secs_f64() * 1e3
}

/// Returns the rate of a row that is one Poisson stream, in items per second.
fn poisson_rate(scenario: &Scenario) -> Option<f64> {
    match scenario.workload.streams.as_slice() {
        [stream] if let ArrivalProcess::Poisson { rate } = stream.arrivals => Some(rate),
        _ => None,
    }
}
