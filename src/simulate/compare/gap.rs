//! How far a mean lies above the optimum, by curve and load (`scheduling.md` §5.3).

use crate::batching::Tick;

use super::super::baseline::Baseline;
use super::super::metrics::Scope;
use super::super::ours::Ours;
use super::super::scenario::Scenario;
use super::bars::{Quantity, Sense, Verdict};
use super::{Runs, optimum};

/// From here on nearly everything is learned.
const LEARNED: Tick = Tick::from_millis(6000);
/// Bar b.
const SMDP: f64 = 1.06;

/// Means over the optimum's on the same arrivals: 1 is optimal.
#[derive(Debug, Clone, PartialEq)]
pub struct Gap {
    /// The curve and the load.
    pub name: String,
    /// The optimum, in milliseconds.
    pub optimum_ms: f64,
    /// Greedy with one slot.
    pub greedy: f64,
    /// Ours from cold.
    pub cold: f64,
    /// Ours once it has learned.
    pub learned: f64,
    /// Bar b, from cold.
    pub verdict: Verdict,
}

/// Runs one curve at one load; none where no optimum can be computed.
#[must_use]
pub fn gap(scenario: &Scenario, seeds: u64) -> Option<Gap> {
    let (whole, late) = (Scope::default(), Scope { from: LEARNED, ..Scope::default() });
    let best = optimum(scenario, seeds)?;
    let greedy = Runs::of(scenario, seeds, |_| Baseline::greedy(1, scenario.cap, false).build());
    let ours = Runs::of(scenario, seeds, |seed| Box::new(Ours::of(scenario, seed)));
    let over = |runs: &Runs, scope: &Scope| runs.figures(scope).mean / best.figures(scope).mean;
    let (optimum_ms, found) = (best.figures(&whole).mean, ours.figures(&whole).mean);
    let of = format!("{SMDP} × SMDP optimum's {optimum_ms:.2} ms");
    let limit = SMDP * optimum_ms;
    let verdict = Verdict { bar: "b", quantity: Quantity::Mean, found, sense: Sense::AtMost, limit, of };
    Some(Gap {
        name: scenario.name.clone(),
        optimum_ms,
        greedy: over(&greedy, &whole),
        cold: over(&ours, &whole),
        learned: over(&ours, &late),
        verdict,
    })
}
