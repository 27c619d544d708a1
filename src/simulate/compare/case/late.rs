//! The cost of serving late calls for those that can be in time: rows in which calls are late, with
//! `late: Refuse` and with `late: Serve`.

use crate::batching::Late;

use super::super::super::baseline::Baseline;
use super::super::super::metrics::Scope;
use super::super::super::ours::{Ours, Tuning};
use super::super::super::scenario::Scenario;
use super::super::bars::{Quantity, Sense};
use super::super::{Figures, Runs};
use super::cases::{goodput, verdict};
use super::{Case, named};

/// Rows in which not all calls can be in time, so goodput is judged.
const ROWS: [&str; 6] = ["overload 1.5x", "bursty MMPP", "on-off", "ramp", "tight SLO", "padded over"];
/// Minimum goodput with `late: Serve`, relative to the goodput with `late: Refuse`.
const KEPT: f64 = 0.95;

/// Returns the names of the rows.
pub(super) fn rows() -> impl Iterator<Item = &'static str> {
    ROWS.into_iter()
}

/// Runs a row with both settings, and without a proxy.
pub(super) fn run(name: &'static str, seeds: u64) -> Case {
    let row = named(name);
    let figures = |late| {
        let row = Scenario { tuning: Tuning { late: Some(late), ..row.tuning }, ..row.clone() };
        Runs::of(&row, seeds, |seed| Box::new(Ours::of(&row, seed))).figures(&Scope::default())
    };
    let (refuse, serve) = (figures(Late::Refuse), figures(Late::Serve));
    let direct = Runs::of(&row, seeds, |_| Baseline::Direct.build()).figures(&Scope::default());
    let mut case = Case::new(format!("late calls served, {name}"));
    case.line("ours, late: Refuse", refuse);
    case.line("ours, late: Serve", serve);
    case.line("direct", direct);
    let of = format!("{KEPT} × {:.3} with late: Refuse", refuse.goodput);
    case.verdicts.push(goodput(serve.goodput, KEPT * refuse.goodput, of));
    let answered = |figures: &Figures| 1.0 - figures.expired - figures.refused - figures.unanswered;
    let of = "direct".to_owned();
    case.verdicts.push(verdict(Quantity::Answered, answered(&serve), Sense::AtLeast, answered(&direct), of));
    case
}
