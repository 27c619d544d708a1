//! What a row alone cannot show: runs of ours beside runs of ours (`scheduling.md` §5.5), and what each part is worth (§5.4).
//!
//! `cases` holds presets, slow loops, a warm start and SLOs near the time of a lone call, `late` late calls refused and served, `parts` the parts taken out. Their bars are the prototype's
//! numbers, with what noise and another stream of arrivals may take.

mod cases;
mod late;
mod parts;

use super::super::scenario::{self, Scenario};
use super::{Entry, Verdict};

pub(super) use cases::Kind;
pub(super) use parts::Parts;

/// Some runs side by side, and what is asked of them.
#[derive(Debug, Clone, PartialEq)]
pub struct Case {
    /// What it is about.
    pub name: String,
    /// Who did what.
    pub entries: Vec<Entry>,
    /// What was asked and what came.
    pub verdicts: Vec<Verdict>,
}

fn named(name: &str) -> Scenario {
    scenario::named(name).expect("the named scenarios hold every row of the design, which a test checks")
}
