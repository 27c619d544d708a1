//! The runs of a row: Groupage, its rivals, and the oracles where they can be computed.

use std::sync::Arc;
use std::time::Duration;

use groupage_batching::Tick;
use groupage_simulator::baseline::Baseline;
use groupage_simulator::compare::{
    AverageFigures, PolicyFigures, PolicyRuns, best_window, mean, run_baselines, run_groupage,
};
use groupage_simulator::curve::CostCurve;
use groupage_simulator::metrics::CallFilter;
use groupage_simulator::scenario::Scenario;
use groupage_simulator::upstream::UpstreamKind;
use groupage_simulator::workload::ArrivalProcess;

use crate::oracle;

/// Parts of a run that the clairvoyant bound covers. Its work grows with the number of items that
/// have to be given up, so the part is shorter in a steady overload.
const CLAIRVOYANT: Duration = Duration::from_secs(6);
const CLAIRVOYANT_OVERLOAD: Duration = Duration::from_secs(2);

/// An upper bound on the goodput of any policy, and the goodput of Groupage on the same arrivals.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct ClairvoyantBound {
    /// First part of the run, in which both are measured.
    pub(crate) window: Duration,
    /// Goodput of the clairvoyant.
    pub(crate) goodput: f64,
    /// Goodput of Groupage.
    pub(crate) ours: f64,
}

/// The input of the criteria.
#[derive(Debug)]
pub(crate) struct RowResults<'a> {
    pub(crate) scenario: &'a Scenario,
    pub(crate) ours: PolicyRuns,
    pub(crate) baselines: Vec<(Baseline, AverageFigures)>,
    /// The best window of the grid.
    pub(crate) window: Option<PolicyFigures>,
    /// The optimal table, if the arrivals and the curve allow one.
    pub(crate) smdp: Option<PolicyFigures>,
    /// The clairvoyant bound, if the upstream is one server with an exact curve.
    pub(crate) bound: Option<ClairvoyantBound>,
}

// === impl RowResults ===

impl<'a> RowResults<'a> {
    pub(crate) fn new(scenario: &'a Scenario, seeds: u64) -> Self {
        let ours = run_groupage(scenario, seeds);
        let smdp = run_smdp_table(scenario, seeds);
        Self {
            scenario,
            baselines: run_baselines(scenario, seeds),
            smdp: smdp.map(|runs| PolicyFigures::new("SMDP optimum", scenario, &runs)),
            window: best_window(scenario, seeds),
            bound: clairvoyant_bound(scenario, &ours),
            ours,
        }
    }

    /// Returns the baselines and the best window, by name.
    pub(crate) fn rivals(&self) -> impl Iterator<Item = (String, AverageFigures)> {
        let baselines = self.baselines.iter().map(|(baseline, figures)| (baseline.to_string(), *figures));
        baselines.chain(self.window.iter().map(|entry| (entry.name.clone(), entry.figures)))
    }

    /// Returns the figures of every policy: Groupage first, then the rivals and the optimum.
    pub(crate) fn entries(&self) -> Vec<PolicyFigures> {
        let ours = PolicyFigures::new("ours", self.scenario, &self.ours);
        let rivals = self.rivals().map(|(name, figures)| PolicyFigures { name, figures });
        [ours].into_iter().chain(rivals).chain(self.smdp.clone()).collect()
    }
}

/// Runs the table of the SMDP. Returns `None` if the arrivals are not Poisson, the curve is not
/// exact, or no policy keeps up.
pub(crate) fn run_smdp_table(scenario: &Scenario, seeds: u64) -> Option<PolicyRuns> {
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
    let goodput = mean(ours.arrivals_ms(until).map(share));
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
