//! A row of the table: a scenario with Groupage, its rivals and the oracles on the same arrivals,
//! and the criteria of the row.

use groupage_simulator::compare::PolicyFigures;
use groupage_simulator::scenario::Scenario;

use crate::criteria::{self, CriterionResult};
use crate::determinism;
use crate::results::{ClairvoyantBound, RowResults};

/// The result of a row.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RowReport {
    pub(crate) scenario: Scenario,
    /// Groupage first, then the baselines, the best window, and the SMDP optimum if it exists.
    pub(crate) entries: Vec<PolicyFigures>,
    pub(crate) bound: Option<ClairvoyantBound>,
    /// Evaluated criteria of the row.
    pub(crate) verdicts: Vec<CriterionResult>,
}

/// Runs a row with seeds that count from 0.
pub(crate) fn run_row(scenario: &Scenario, seeds: u64) -> RowReport {
    let results = RowResults::new(scenario, seeds);
    let mut verdicts = criteria::judge(&results);
    verdicts.push(determinism::check_determinism(scenario, seeds));
    RowReport { scenario: scenario.clone(), entries: results.entries(), bound: results.bound, verdicts }
}
