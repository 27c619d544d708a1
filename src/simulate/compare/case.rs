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
use super::{Entry, Verdict};

pub(super) use cases::Kind;
pub(super) use parts::Parts;

/// A set of runs for comparison, with criteria.
#[derive(Debug, Clone, PartialEq)]
pub struct Case {
    /// Name of the case.
    pub name: String,
    /// Figures of each run.
    pub entries: Vec<Entry>,
    /// Evaluated criteria.
    pub verdicts: Vec<Verdict>,
}

fn named(name: &str) -> Scenario {
    scenario::named(name).expect("the named scenarios include every reference row, which a test verifies")
}
