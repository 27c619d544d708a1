//! Ablations: rows with one feature disabled. Without a feature at least half of its gain in the
//! prototype has to be lost, and no feature may cost anything where it is not needed.

use groupage_batching::Feature;
use groupage_simulator::compare::{AverageFigures, PolicyRuns, shown_calls};
use groupage_simulator::groupage_policy::GroupagePolicy;
use groupage_simulator::scenario::{PolicyOverrides, Scenario};

use super::{CaseReport, named, verdict};
use crate::criteria::{Comparison, CriterionResult, Metric};

/// Reference values with a feature and without it.
#[derive(Debug, Clone, Copy, PartialEq)]
enum ReferenceGain {
    Goodput(f64, f64),
    /// Mean in milliseconds.
    Mean(f64, f64),
    /// No gain: the feature must not cost anything either.
    Nothing,
    /// Shown for comparison and not judged, because another row or feature shows the gain.
    Unjudged,
}

/// A row and the features that are disabled in it, one at a time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Ablation {
    row: &'static str,
    gains: &'static [(Feature, ReferenceGain)],
}

/// Share of its gain that has to be lost without a feature.
const LOSS_SHARE_MIN: f64 = 0.5;
/// Factor of the mean that a feature may cost where it is not needed, for noise.
const FREE_FACTOR: f64 = 1.02;

const ALL: [Ablation; 10] = [
    Ablation { row: "bursty MMPP", gains: &[(Feature::Shedding, ReferenceGain::Goodput(0.756, 0.195))] },
    // Measured here with three seeds; the other values are those of the prototype.
    Ablation { row: "k=4 slots", gains: &[(Feature::Plan, ReferenceGain::Mean(9.35, 9.93))] },
    Ablation {
        row: "padded over",
        gains: &[
            (Feature::Shedding, ReferenceGain::Goodput(0.897, 0.041)),
            (Feature::Grouping, ReferenceGain::Goodput(0.897, 0.339)),
        ],
    },
    Ablation { row: "padded lens", gains: &[(Feature::Grouping, ReferenceGain::Mean(12.8, 18.0))] },
    // In this row the limiter finds two batches in flight, which overlap as with a lead.
    Ablation { row: "host 3ms", gains: &[(Feature::Lead, ReferenceGain::Unjudged)] },
    Ablation {
        row: "thrash",
        gains: &[(Feature::Cost, ReferenceGain::Goodput(1.0, 0.855)), (Feature::Cost, ReferenceGain::Mean(8.8, 37.5))],
    },
    Ablation {
        row: "pow2 shapes",
        gains: &[(Feature::Cost, ReferenceGain::Mean(17.4, 26.9)), (Feature::Plan, ReferenceGain::Unjudged)],
    },
    Ablation { row: "closed 32", gains: &[(Feature::Gather, ReferenceGain::Mean(12.5, 16.2))] },
    Ablation { row: "fan-out 32", gains: &[(Feature::Gather, ReferenceGain::Mean(16.2, 18.8))] },
    Ablation { row: "engine", gains: &[(Feature::StandAside, ReferenceGain::Mean(13.5, 14.3))] },
];

/// The row in which no feature is needed.
const FREE_ROW: Ablation = Ablation {
    row: "mid",
    gains: &[
        (Feature::Cost, ReferenceGain::Nothing),
        (Feature::Plan, ReferenceGain::Nothing),
        (Feature::Gather, ReferenceGain::Nothing),
        (Feature::Lead, ReferenceGain::Nothing),
        (Feature::StandAside, ReferenceGain::Nothing),
    ],
};

// === impl Ablation ===

impl Ablation {
    pub(crate) fn all() -> Vec<Self> {
        ALL.into_iter().chain([FREE_ROW]).collect()
    }

    pub(crate) fn run(self, seeds: u64) -> CaseReport {
        let row = named(self.row);
        let figures = |without| {
            let row = Scenario { tuning: PolicyOverrides { disabled_feature: without, ..row.tuning }, ..row.clone() };
            PolicyRuns::run_seeds(&row, seeds, |seed| Box::new(GroupagePolicy::for_scenario(&row, seed)))
                .figures(&shown_calls(&row))
        };
        let mut case = CaseReport::new(format!("ablation, {}", self.row));
        let whole = figures(None);
        case.push_entry("ours", whole);
        let mut last = None;
        for (feature, gain) in self.gains {
            // Two gains of one feature in sequence share its runs.
            let without = match last {
                Some((same, figures)) if same == *feature => figures,
                _ => {
                    let figures = figures(Some(*feature));
                    case.push_entry(format!("without {}", feature.name()), figures);
                    figures
                }
            };
            last = Some((*feature, without));
            case.verdicts.extend(gain.judge(*feature, &whole, &without));
        }
        case
    }
}

// === impl ReferenceGain ===

impl ReferenceGain {
    fn judge(self, feature: Feature, with: &AverageFigures, without: &AverageFigures) -> Option<CriterionResult> {
        let name = feature.name();
        let judged = match self {
            Self::Unjudged => return None,
            Self::Goodput(high, low) => {
                let limit = with.goodput - LOSS_SHARE_MIN * (high - low);
                let of = format!("without {name}: ours {:.3} − half of {:.3}", with.goodput, high - low);
                CriterionResult {
                    criterion: "part",
                    ..verdict(Metric::Goodput, without.goodput, Comparison::AtMost, limit, of)
                }
            }
            Self::Mean(low, high) => {
                let limit = with.mean + LOSS_SHARE_MIN * (high - low);
                let of = format!("without {name}: ours {:.2} ms + half of {:.1} ms", with.mean, high - low);
                CriterionResult {
                    criterion: "part",
                    ..verdict(Metric::Mean, without.mean, Comparison::AtLeast, limit, of)
                }
            }
            Self::Nothing => {
                let limit = FREE_FACTOR * without.mean;
                let of = format!("{FREE_FACTOR} × {:.2} ms without {name}, which is not needed here", without.mean);
                CriterionResult { criterion: "part", ..verdict(Metric::Mean, with.mean, Comparison::AtMost, limit, of) }
            }
        };
        Some(judged)
    }
}
