//! Formatting of results as text.

use std::fmt::Write as _;

use groupage_simulator::compare::PolicyFigures;
use groupage_simulator::scenario::Scenario;

use crate::capacity::CapacityReport;
use crate::case::CaseReport;
use crate::criteria::CriterionResult;
use crate::no_harm::{HarmTotals, NoHarmReport};
use crate::optimality_gap::OptimalityGap;
use crate::row::RowReport;
use crate::table::JobResult;

pub(crate) fn format_result(result: &JobResult, seeds: u64) -> String {
    match result {
        JobResult::Row(of) => row(of, seeds),
        JobResult::Gap(of) => gap(of),
        JobResult::Capacity(of) => capacity(of),
        JobResult::Case(of) => case(of, seeds),
        JobResult::Harm(of) => harm(of),
    }
}

/// Formats the totals of all rows that are compared with forwarding at once.
pub(crate) fn format_totals(totals: &HarmTotals) -> String {
    let mut text = String::new();
    let HarmTotals { rows, below, far_below, mean, p99 } = totals;
    for (name, rate) in below {
        line(&mut text, format_args!("below 0.97 of direct's rate in a window, {name}: {rate:.3}"));
    }
    line(
        &mut text,
        format_args!(
            "{rows} rows: rate below 0.97 in {}, below 0.9 in {far_below}; mean above 1.05 in {}, above 1.2 in {}; p99 above 1.05 in {}, above 1.2 in {}",
            below.len(),
            mean.0,
            mean.1,
            p99.0,
            p99.1
        ),
    );
    text
}

/// Lists each missed criterion by name, and counts them.
pub(crate) fn format_criteria(met: usize, missed: &[(&str, &CriterionResult)]) -> String {
    let mut text = String::new();
    for (name, verdict) in missed {
        line(&mut text, format_args!("{name}: {verdict}"));
    }
    line(&mut text, format_args!("{met} met, {} missed", missed.len()));
    text
}

fn case(case: &CaseReport, seeds: u64) -> String {
    let mut text = String::new();
    line(&mut text, format_args!("{}   ({seeds} seeds)", case.name));
    line(&mut text, format_args!("  {}", PolicyFigures::HEADING));
    for entry in &case.entries {
        line(&mut text, format_args!("  {entry}"));
    }
    for verdict in &case.verdicts {
        line(&mut text, format_args!("  {verdict}"));
    }
    text.push('\n');
    text
}

fn row(row: &RowReport, seeds: u64) -> String {
    let mut text = String::new();
    let Scenario { name, slo, cap, horizon, .. } = &row.scenario;
    line(&mut text, format_args!("{name}   ({seeds} × {horizon:?}, SLO {slo:?}, cap {cap})"));
    line(&mut text, format_args!("  {}", PolicyFigures::HEADING));
    for entry in &row.entries {
        line(&mut text, format_args!("  {entry}"));
    }
    if let Some(bound) = &row.bound {
        line(
            &mut text,
            format_args!(
                "  {:<38} {:>8.3}   in the first {:?}; ours {:.3}, {:.1} % of it",
                "clairvoyant",
                bound.goodput,
                bound.window,
                bound.ours,
                100.0 * bound.ours / bound.goodput
            ),
        );
    }
    for verdict in &row.verdicts {
        line(&mut text, format_args!("  {verdict}"));
    }
    text.push('\n');
    text
}

/// Formats the ratios of our policy to direct forwarding: the worst window, then the rate of each,
/// with an asterisk where a criterion was tested.
fn harm(harm: &NoHarmReport) -> String {
    let (rate, mean, p99) = harm.worst();
    let mut text = format!("{:<26} rate {rate:6.3}  mean {mean:6.3}  p99 {p99:6.3}  |", harm.name);
    for ratio in &harm.windows {
        let mark = if ratio.tested { '*' } else { ' ' };
        write!(text, " {:.2}{mark}", ratio.rate).expect("writing to a String cannot fail");
    }
    text.push('\n');
    text
}

fn gap(gap: &OptimalityGap) -> String {
    let over = |ratio: f64| if ratio < 4.0 { format!("{:+.1} %", 100.0 * (ratio - 1.0)) } else { "> 300 %".to_owned() };
    format!(
        "{:<20} optimum {:>8.2} ms   greedy {:>8}   ours {:>8}   from 6 s on {:>8}\n  {}\n",
        gap.name,
        gap.optimum_ms,
        over(gap.greedy),
        over(gap.cold),
        over(gap.learned),
        gap.verdict
    )
}

fn capacity(capacity: &CapacityReport) -> String {
    let mut text = format!("{}\n", capacity.name);
    for (name, rate) in &capacity.rates {
        line(&mut text, format_args!("  {name:<38} {rate:>8.0} items/s"));
    }
    line(&mut text, format_args!("  {}", capacity.verdict));
    text
}

fn line(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    writeln!(text, "{arguments}").expect("writing to a String cannot fail");
}
