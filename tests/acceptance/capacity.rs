//! The maximum Poisson rate that is served in time.

use std::time::Duration;

use groupage_batching::Tick;
use groupage_simulator::baseline::Baseline;
use groupage_simulator::groupage_policy::GroupagePolicy;
use groupage_simulator::metrics::CallFilter;
use groupage_simulator::scenario::{self, Scenario};
use groupage_simulator::{SimPolicy, run};

use crate::criteria::{Comparison, CriterionResult, Metric};

/// Share of the items that has to be in time, and the instant from which it is measured, after the
/// first seconds.
const IN_TIME: f64 = 0.99;
const FROM: Tick = Tick::from_millis(2000);
/// Searched range of rates, in items per second, and the ratio between its ends at which the search
/// stops.
const RATES: (f64, f64) = (50.0, 16_000.0);
const STEP: f64 = 1.025;
/// Seed of the arrivals. The search uses only one.
const SEED: u64 = 11;

/// The capacity of an upstream under each policy.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct CapacityReport {
    /// Name of the upstream.
    pub(crate) name: String,
    /// Maximum rates in items per second, Groupage first.
    pub(crate) rates: Vec<(String, f64)>,
    /// Groupage compared with the best of the others, to one step of the search.
    pub(crate) verdict: CriterionResult,
}

/// Returns the number of upstreams that are measured.
pub(crate) fn capacity_upstreams() -> usize {
    scenario::capacity(RATES.0).len()
}

/// Measures one upstream, by its index in [`scenario::capacity`].
pub(crate) fn measure_capacity(upstream: usize) -> Option<CapacityReport> {
    let Scenario { name, cap, .. } = scenario::capacity(RATES.0).into_iter().nth(upstream)?;
    let window = |millis| Baseline::Window { items: 32, delay: Duration::from_millis(millis) };
    let greedy = |slots| Baseline::greedy(slots, cap, false);
    let (cork, asbs) = (Baseline::Cork { items: cap }, Baseline::Asbs { items: cap });
    let others = [Baseline::Direct, window(5), window(20), Baseline::Aimd, cork, asbs, greedy(1), greedy(2), greedy(4)];
    let mut rates =
        vec![("ours".to_owned(), search_max_rate(upstream, || Box::new(GroupagePolicy::with_cap_only(cap, SEED))))];
    rates.extend(others.map(|baseline| (baseline.to_string(), search_max_rate(upstream, || baseline.build()))));
    let (best, most) = rates.iter().skip(1).max_by(|a, b| a.1.total_cmp(&b.1)).cloned()?;
    let verdict = CriterionResult {
        criterion: "rate",
        quantity: Metric::Rate,
        found: rates[0].1,
        sense: Comparison::AtLeast,
        limit: most / STEP,
        of: format!("{best}'s {most:.0}, to a step of the search"),
    };
    Some(CapacityReport { name, rates, verdict })
}

/// Finds the maximum rate by bisection on a logarithmic scale, to one step.
fn search_max_rate(upstream: usize, make: impl Fn() -> Box<dyn SimPolicy>) -> f64 {
    let (mut low, mut high) = RATES;
    while high / low > STEP {
        let rate = (low * high).sqrt();
        let scope = CallFilter { from: FROM, ..CallFilter::default() };
        let served = scenario::capacity(rate)
            .get(upstream)
            .is_some_and(|row| run(row, make().as_mut(), SEED).summary_of(&scope).goodput >= IN_TIME);
        (low, high) = if served { (rate, high) } else { (low, rate) };
    }
    low
}
