//! The cost of serving late calls for those that can be in time: rows in which calls are late, with
//! `late: Refuse` and with `late: Serve`.

use groupage_batching::LateTreatment;
use groupage_simulator::baseline::Baseline;
use groupage_simulator::compare::{AverageFigures, PolicyRuns};
use groupage_simulator::groupage_policy::GroupagePolicy;
use groupage_simulator::metrics::CallFilter;
use groupage_simulator::scenario::{PolicyOverrides, Scenario};

use super::{CaseReport, goodput, named, verdict};
use crate::criteria::{Comparison, Metric};

/// Rows in which not all calls can be in time, so goodput is judged.
const ROWS: [&str; 6] = ["overload 1.5x", "bursty MMPP", "on-off", "ramp", "tight SLO", "padded over"];
/// Minimum goodput with `late: Serve`, relative to the goodput with `late: Refuse`.
const GOODPUT_KEPT_MIN: f64 = 0.95;

/// Returns the names of the rows.
pub(super) fn rows() -> impl Iterator<Item = &'static str> {
    ROWS.into_iter()
}

/// Runs a row with both settings, and without a proxy.
pub(super) fn run(name: &'static str, seeds: u64) -> CaseReport {
    let row = named(name);
    let figures = |late| {
        let row = Scenario { tuning: PolicyOverrides { late: Some(late), ..row.tuning }, ..row.clone() };
        PolicyRuns::run_seeds(&row, seeds, |seed| Box::new(GroupagePolicy::for_scenario(&row, seed)))
            .figures(&CallFilter::default())
    };
    let (refuse, serve) = (figures(LateTreatment::Refuse), figures(LateTreatment::Serve));
    let direct = PolicyRuns::run_seeds(&row, seeds, |_| Baseline::Direct.build()).figures(&CallFilter::default());
    let mut case = CaseReport::new(format!("late calls served, {name}"));
    case.push_entry("ours, late: Refuse", refuse);
    case.push_entry("ours, late: Serve", serve);
    case.push_entry("direct", direct);
    let of = format!("{GOODPUT_KEPT_MIN} × {:.3} with late: Refuse", refuse.goodput);
    case.verdicts.push(goodput(serve.goodput, GOODPUT_KEPT_MIN * refuse.goodput, of));
    let answered = |figures: &AverageFigures| 1.0 - figures.expired - figures.refused - figures.unanswered;
    let of = "direct".to_owned();
    case.verdicts.push(verdict(Metric::Answered, answered(&serve), Comparison::AtLeast, answered(&direct), of));
    case
}
