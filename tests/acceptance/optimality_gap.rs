//! The optimality gap: the distance of a mean from the optimum, by curve and load.

use groupage_batching::Tick;
use groupage_simulator::baseline::Baseline;
use groupage_simulator::compare::PolicyRuns;
use groupage_simulator::groupage_policy::GroupagePolicy;
use groupage_simulator::metrics::CallFilter;
use groupage_simulator::scenario::Scenario;

use crate::criteria::{Comparison, CriterionResult, Metric};
use crate::results::run_smdp_table;

/// Instant from which nearly everything is learned.
const LEARNED: Tick = Tick::from_millis(6000);
/// Factor of criterion b.
const SMDP: f64 = 1.06;

/// Means relative to the optimum on the same arrivals, where 1 is optimal.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct OptimalityGap {
    /// Curve and load.
    pub(crate) name: String,
    /// Optimal mean, in milliseconds.
    pub(crate) optimum_ms: f64,
    /// Greedy with one slot.
    pub(crate) greedy: f64,
    /// Groupage from a cold start.
    pub(crate) cold: f64,
    /// Groupage after it has learned.
    pub(crate) learned: f64,
    /// Criterion b, from a cold start.
    pub(crate) verdict: CriterionResult,
}

/// Runs one curve at one load. Returns `None` if no optimum can be computed.
pub(crate) fn optimality_gap(scenario: &Scenario, seeds: u64) -> Option<OptimalityGap> {
    let (whole, late) = (CallFilter::default(), CallFilter { from: LEARNED, ..CallFilter::default() });
    let best = run_smdp_table(scenario, seeds)?;
    let greedy = PolicyRuns::run_seeds(scenario, seeds, |_| Baseline::greedy(1, scenario.cap, false).build());
    let ours = PolicyRuns::run_seeds(scenario, seeds, |seed| Box::new(GroupagePolicy::for_scenario(scenario, seed)));
    let over = |runs: &PolicyRuns, scope: &CallFilter| runs.figures(scope).mean / best.figures(scope).mean;
    let (optimum_ms, found) = (best.figures(&whole).mean, ours.figures(&whole).mean);
    let of = format!("{SMDP} × SMDP optimum's {optimum_ms:.2} ms");
    let limit = SMDP * optimum_ms;
    let verdict =
        CriterionResult { criterion: "b", quantity: Metric::Mean, found, sense: Comparison::AtMost, limit, of };
    Some(OptimalityGap {
        name: scenario.name.clone(),
        optimum_ms,
        greedy: over(&greedy, &whole),
        cold: over(&ours, &whole),
        learned: over(&ours, &late),
        verdict,
    })
}
