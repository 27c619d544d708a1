//! Comparisons that a row cannot show: Groupage runs beside each other, and ablations.
//!
//! `cases` holds presets, slow control loops, a warm start and SLOs near the time of an unbatched
//! call, `late` late calls refused and served, `parts` disabled features. Their limits are
//! reference values measured with a Python prototype of the simulator, with a tolerance for noise
//! and for other arrivals.

mod cases;
mod late;
mod parts;

use super::super::scenario::{self, Scenario};
use super::{CriterionResult, PolicyFigures};

pub(super) use cases::CaseKind;
pub(super) use parts::Ablation;

/// A set of runs for comparison, with criteria.
#[derive(Debug, Clone, PartialEq)]
pub struct CaseReport {
    /// Name of the case.
    pub name: String,
    /// Figures of each run.
    pub entries: Vec<PolicyFigures>,
    /// Evaluated criteria.
    pub verdicts: Vec<CriterionResult>,
}

fn named(name: &str) -> Scenario {
    scenario::named(name).expect("the named scenarios include every reference row, which a test verifies")
}
