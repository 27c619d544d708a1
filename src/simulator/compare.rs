//! Comparison of Groupage with other policies on the same calls.
//!
//! Every policy meets the same calls and the same noise, seed by seed, from a cold start. The
//! figures leave the first seconds out, in which nothing is learned yet.
//!
//! Left out: threads and printing. A row is one call, so the caller may run several at once.

mod figures;

use std::fmt;
use std::time::Duration;

use crate::batching::Tick;

use super::baseline::Baseline;
use super::groupage_policy::GroupagePolicy;
use super::metrics::CallFilter;
use super::scenario::Scenario;

pub use figures::{AverageFigures, PolicyRuns, mean};

/// Instant from which a row is shown. The first seconds are left out: with nothing learned, calls
/// are forwarded as without a proxy.
const SHOWN_FROM: Tick = Tick::from_millis(2000);
/// Minimum duration of a row that is shown from `SHOWN_FROM` on. Shorter rows are shown from the
/// start.
const SETTLED_MIN: Duration = Duration::from_secs(4);

/// The figures of one policy in a row.
#[derive(Debug, Clone, PartialEq)]
pub struct PolicyFigures {
    /// Name of the policy.
    pub name: String,
    /// Its figures.
    pub figures: AverageFigures,
}

/// The figures of a scenario.
#[derive(Debug, Clone, PartialEq)]
pub struct ScenarioReport {
    /// Scenario of the row.
    pub scenario: Scenario,
    /// Groupage first, then the other policies if they were run.
    pub entries: Vec<PolicyFigures>,
}

/// Runs a scenario with Groupage, and with `compare` also the baselines and the best window. Seeds
/// count from 0.
#[must_use]
pub fn run_scenario(scenario: &Scenario, seeds: u64, compare: bool) -> ScenarioReport {
    let mut entries = vec![PolicyFigures::new("ours", scenario, &run_groupage(scenario, seeds))];
    if compare {
        let named = |(baseline, figures): (Baseline, _)| PolicyFigures { name: baseline.to_string(), figures };
        entries.extend(run_baselines(scenario, seeds).into_iter().map(named));
        entries.extend(best_window(scenario, seeds));
    }
    ScenarioReport { scenario: scenario.clone(), entries }
}

/// Runs Groupage.
#[must_use]
pub fn run_groupage(scenario: &Scenario, seeds: u64) -> PolicyRuns {
    PolicyRuns::run_seeds(scenario, seeds, |seed| Box::new(GroupagePolicy::for_scenario(scenario, seed)))
}

/// Runs every baseline that can serve the scenario.
#[must_use]
pub fn run_baselines(scenario: &Scenario, seeds: u64) -> Vec<(Baseline, AverageFigures)> {
    let with_figures = |baseline: Baseline| {
        let runs = PolicyRuns::run_seeds(scenario, seeds, |_| baseline.build());
        (baseline, runs.figures(&shown_calls(scenario)))
    };
    Baseline::all(scenario.cap, scenario.curve).into_iter().map(with_figures).collect()
}

/// Returns the window of the grid that does best in this row: by goodput to a thousandth, then by
/// the mean. It is chosen on the first seed.
#[must_use]
pub fn best_window(scenario: &Scenario, seeds: u64) -> Option<PolicyFigures> {
    let tried = Baseline::windows().map(|window| {
        let figures = PolicyRuns::run_seeds(scenario, 1, |_| window.build()).figures(&shown_calls(scenario));
        (window, (figures.goodput * 1000.0).round(), figures.mean)
    });
    let best = tried.min_by(|a, b| b.1.total_cmp(&a.1).then(a.2.total_cmp(&b.2)))?.0;
    let runs = PolicyRuns::run_seeds(scenario, seeds, |_| best.build());
    Some(PolicyFigures::new(format!("best {best}"), scenario, &runs))
}

/// Returns the calls with figures that are shown.
#[must_use]
pub fn shown_calls(scenario: &Scenario) -> CallFilter {
    let from = if scenario.horizon >= SETTLED_MIN { SHOWN_FROM } else { Tick::default() };
    CallFilter { from, ..CallFilter::default() }
}

// === impl PolicyFigures ===

impl PolicyFigures {
    /// Heading of a table whose rows are formatted by [`Display`](fmt::Display).
    pub const HEADING: &str = "policy                                  goodput       mean        p50        p99  items/batch   busy  expired  refused   left";

    /// Computes the figures of some runs of a scenario.
    #[must_use]
    pub fn new(name: impl Into<String>, scenario: &Scenario, runs: &PolicyRuns) -> Self {
        Self { name: name.into(), figures: runs.figures(&shown_calls(scenario)) }
    }
}

impl fmt::Display for PolicyFigures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, figures } = self;
        write!(
            f,
            "{name:<38} {:>8.3} {:>10} {:>10} {:>10} {:>12.1} {:>6.2} {:>8.3} {:>8.3} {:>6.3}",
            figures.goodput,
            format_millis(figures.mean, 2),
            format_millis(figures.p50, 1),
            format_millis(figures.p99, 1),
            figures.items_per_batch,
            figures.busy,
            figures.expired,
            figures.refused,
            figures.unanswered
        )
    }
}

fn format_millis(millis: f64, digits: usize) -> String {
    if millis.is_finite() { format!("{millis:.digits$}") } else { "-".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::short;

    #[test]
    fn equal_arguments_give_equal_rows() {
        let bursty = short("bursty MMPP", 1);
        assert_eq!(run_scenario(&bursty, 1, true), run_scenario(&bursty, 1, true));
    }

    #[test]
    fn twice_the_rate_brings_twice_as_many_items() {
        let items = |row: &Scenario| run_scenario(row, 1, false).entries[0].figures.items as f64;
        for name in ["mid", "ramp", "fan-out 32", "rate x10"] {
            let one = short(name, 10);
            let ratio = items(&one.clone().scale_rate(2.0)) / items(&one);
            assert!((1.7..2.3).contains(&ratio), "{name}: {ratio}");
        }
    }
}
