//! Ablations: rows with one feature disabled. Without a feature at least half of its gain in the
//! prototype has to be lost, and no feature may cost anything where it is not needed.

use crate::batching::Skill;

use super::super::super::ours::{Ours, Tuning};
use super::super::super::scenario::Scenario;
use super::super::bars::{Quantity, Sense};
use super::super::{Figures, Runs, Verdict, judged};
use super::cases::verdict;
use super::{Case, named};

/// Reference values of the prototype with a feature and without it.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Gain {
    Goodput(f64, f64),
    /// Mean in milliseconds.
    Mean(f64, f64),
    /// No gain: the feature must not cost anything either.
    Nothing,
    /// Shown for comparison and not judged, since it is part of another feature.
    Shown,
}

/// A row and the features that are disabled in it, one at a time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in super::super) struct Parts {
    row: &'static str,
    gains: &'static [(Skill, Gain)],
}

/// Share of its gain that has to be lost without a feature.
const SHARE: f64 = 0.5;
/// Factor of the mean that a feature may cost where it is not needed, for noise.
const FREE: f64 = 1.02;

const ALL: [Parts; 9] = [
    Parts { row: "bursty MMPP", gains: &[(Skill::Shedding, Gain::Goodput(0.756, 0.195))] },
    Parts {
        row: "padded over",
        gains: &[(Skill::Shedding, Gain::Goodput(0.897, 0.041)), (Skill::Grouping, Gain::Goodput(0.897, 0.339))],
    },
    Parts { row: "padded lens", gains: &[(Skill::Grouping, Gain::Mean(12.8, 18.0))] },
    // In this row the limiter finds two batches in flight, which overlap as with a lead.
    Parts { row: "host 3ms", gains: &[(Skill::Lead, Gain::Shown)] },
    Parts { row: "thrash", gains: &[(Skill::Cost, Gain::Goodput(1.0, 0.855)), (Skill::Cost, Gain::Mean(8.8, 37.5))] },
    Parts { row: "pow2 shapes", gains: &[(Skill::Cost, Gain::Mean(17.4, 26.9)), (Skill::Plan, Gain::Shown)] },
    Parts { row: "closed 32", gains: &[(Skill::Gather, Gain::Mean(12.5, 16.2))] },
    Parts { row: "fan-out 32", gains: &[(Skill::Gather, Gain::Mean(16.2, 18.8))] },
    Parts { row: "engine", gains: &[(Skill::StandAside, Gain::Mean(13.5, 14.3))] },
];

/// The row in which no feature is needed.
const FREE_ROW: Parts = Parts {
    row: "mid",
    gains: &[
        (Skill::Cost, Gain::Nothing),
        (Skill::Plan, Gain::Nothing),
        (Skill::Gather, Gain::Nothing),
        (Skill::Lead, Gain::Nothing),
        (Skill::StandAside, Gain::Nothing),
    ],
};

// === impl Parts ===

impl Parts {
    pub(in super::super) fn all() -> Vec<Self> {
        ALL.into_iter().chain([FREE_ROW]).collect()
    }

    pub(in super::super) fn run(self, seeds: u64) -> Case {
        let row = named(self.row);
        let figures = |without| {
            let row = Scenario { tuning: Tuning { without, ..row.tuning }, ..row.clone() };
            Runs::of(&row, seeds, |seed| Box::new(Ours::of(&row, seed))).figures(&judged(&row))
        };
        let mut case = Case::new(format!("ablation, {}", self.row));
        let whole = figures(None);
        case.line("ours", whole);
        let mut last = None;
        for (skill, gain) in self.gains {
            // Two gains of one feature in sequence share its runs.
            let without = match last {
                Some((same, figures)) if same == *skill => figures,
                _ => {
                    let figures = figures(Some(*skill));
                    case.line(format!("without {}", skill.name()), figures);
                    figures
                }
            };
            last = Some((*skill, without));
            case.verdicts.extend(gain.judge(*skill, &whole, &without));
        }
        case
    }
}

// === impl Gain ===

impl Gain {
    fn judge(self, skill: Skill, with: &Figures, without: &Figures) -> Option<Verdict> {
        let name = skill.name();
        let judged = match self {
            Self::Shown => return None,
            Self::Goodput(high, low) => {
                let limit = with.goodput - SHARE * (high - low);
                let of = format!("without {name}: ours {:.3} − half of {:.3}", with.goodput, high - low);
                Verdict { bar: "part", ..verdict(Quantity::Goodput, without.goodput, Sense::AtMost, limit, of) }
            }
            Self::Mean(low, high) => {
                let limit = with.mean + SHARE * (high - low);
                let of = format!("without {name}: ours {:.2} ms + half of {:.1} ms", with.mean, high - low);
                Verdict { bar: "part", ..verdict(Quantity::Mean, without.mean, Sense::AtLeast, limit, of) }
            }
            Self::Nothing => {
                let limit = FREE * without.mean;
                let of = format!("{FREE} × {:.2} ms without {name}, which is not needed here", without.mean);
                Verdict { bar: "part", ..verdict(Quantity::Mean, with.mean, Sense::AtMost, limit, of) }
            }
        };
        Some(judged)
    }
}
