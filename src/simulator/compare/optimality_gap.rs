//! The optimality gap: the distance of a mean from the optimum, by curve and load.

use crate::batching::Tick;

use super::super::baseline::Baseline;
use super::super::groupage::GroupagePolicy;
use super::super::metrics::CallFilter;
use super::super::scenario::Scenario;
use super::criteria::{Comparison, CriterionResult, Metric};
use super::{PolicyRuns, run_smdp_table};

/// Instant from which nearly everything is learned.
const LEARNED: Tick = Tick::from_millis(6000);
/// Factor of criterion b.
const SMDP: f64 = 1.06;

/// Means relative to the optimum on the same arrivals, where 1 is optimal.
#[derive(Debug, Clone, PartialEq)]
pub struct OptimalityGap {
    /// Curve and load.
    pub name: String,
    /// Optimal mean, in milliseconds.
    pub optimum_ms: f64,
    /// Greedy with one slot.
    pub greedy: f64,
    /// Groupage from a cold start.
    pub cold: f64,
    /// Groupage after it has learned.
    pub learned: f64,
    /// Criterion b, from a cold start.
    pub verdict: CriterionResult,
}

/// Runs one curve at one load. Returns `None` if no optimum can be computed.
#[must_use]
pub fn optimality_gap(scenario: &Scenario, seeds: u64) -> Option<OptimalityGap> {
    let (whole, late) = (CallFilter::default(), CallFilter { from: LEARNED, ..CallFilter::default() });
    let best = run_smdp_table(scenario, seeds)?;
    let greedy = PolicyRuns::run_seeds(scenario, seeds, |_| Baseline::greedy(1, scenario.cap, false).build());
    let ours = PolicyRuns::run_seeds(scenario, seeds, |seed| Box::new(GroupagePolicy::for_scenario(scenario, seed)));
    let over = |runs: &PolicyRuns, scope: &CallFilter| runs.figures(scope).mean / best.figures(scope).mean;
    let (optimum_ms, found) = (best.figures(&whole).mean, ours.figures(&whole).mean);
    let of = format!("{SMDP} × SMDP optimum's {optimum_ms:.2} ms");
    let limit = SMDP * optimum_ms;
    let verdict = CriterionResult { bar: "b", quantity: Metric::Mean, found, sense: Comparison::AtMost, limit, of };
    Some(OptimalityGap {
        name: scenario.name.clone(),
        optimum_ms,
        greedy: over(&greedy, &whole),
        cold: over(&ours, &whole),
        learned: over(&ours, &late),
        verdict,
    })
}
