//! Comparisons that a row cannot show: Groupage runs beside each other, and ablations.
//!
//! `cases` holds presets, slow control loops, a warm start and SLOs near the time of an unbatched
//! call, `late` late calls refused and served, `ablation` disabled features. Their limits are
//! reference values measured with a Python prototype of the simulator, with a tolerance for noise
//! and for other arrivals.

mod cases;
mod late;
mod ablation;

use groupage_simulator::compare::{AverageFigures, PolicyFigures};
use groupage_simulator::scenario::{self, Scenario};

use crate::criteria::{Comparison, CriterionResult, Metric};

pub(super) use ablation::Ablation;
pub(super) use cases::CaseKind;

/// A set of runs for comparison, with criteria.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct CaseReport {
    /// Name of the case.
    pub(crate) name: String,
    /// Figures of each run.
    pub(crate) entries: Vec<PolicyFigures>,
    /// Evaluated criteria.
    pub(crate) verdicts: Vec<CriterionResult>,
}

// === impl CaseReport ===

impl CaseReport {
    fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), entries: Vec::new(), verdicts: Vec::new() }
    }

    fn push_entry(&mut self, name: impl Into<String>, figures: AverageFigures) {
        self.entries.push(PolicyFigures { name: name.into(), figures });
    }
}

fn named(name: &str) -> Scenario {
    scenario::find(name).expect("the named scenarios include every reference row, which a test verifies")
}

/// Judges a goodput, which must be at least `limit`.
fn goodput(found: f64, limit: f64, of: String) -> CriterionResult {
    verdict(Metric::Goodput, found, Comparison::AtLeast, limit, of)
}

/// Judges a figure of a case.
fn verdict(quantity: Metric, found: f64, sense: Comparison, limit: f64, of: String) -> CriterionResult {
    CriterionResult { criterion: "case", quantity, found, sense, limit, of }
}
