//! The optimality gap: the distance of a mean from the optimum, by curve and load.

use crate::batching::Tick;

use super::super::baseline::Baseline;
use super::super::metrics::Scope;
use super::super::ours::Ours;
use super::super::scenario::Scenario;
use super::bars::{Quantity, Sense, Verdict};
use super::{Runs, optimum};

/// Instant from which nearly everything is learned.
const LEARNED: Tick = Tick::from_millis(6000);
/// Factor of criterion b.
const SMDP: f64 = 1.06;

/// Means relative to the optimum on the same arrivals, where 1 is optimal.
#[derive(Debug, Clone, PartialEq)]
pub struct Gap {
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
    pub verdict: Verdict,
}

/// Runs one curve at one load. Returns `None` if no optimum can be computed.
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
