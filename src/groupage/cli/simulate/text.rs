//! Formatting of rows as text.

use std::fmt::Write as _;
use std::time::Duration;

use super::traffic::RecordedOutcome;
use crate::simulator::compare::{
    CapacityReport, CaseReport, CriterionResult, HarmTotals, JobResult, NoHarmReport, OptimalityGap, PolicyFigures,
    RowReport,
};
use crate::simulator::scenario::Scenario;

const HEAD: &str = "  policy                                  goodput       mean        p50        p99  items/batch   busy  expired  refused   left";

/// Lists the scenarios, one per line: the reference scenarios, then those that extend them.
pub(super) fn list(design: &[Scenario], wider: &[Scenario]) -> String {
    let mut text = String::new();
    for (title, rows) in [("reference scenarios", design), ("further scenarios", wider)] {
        line(&mut text, format_args!("{title}"));
        for row in rows {
            line(&mut text, format_args!("  {:<38} SLO {:?}, cap {}", row.name, row.slo, row.cap));
        }
    }
    text
}

pub(super) fn format_result(told: &JobResult, seeds: u64) -> String {
    match told {
        JobResult::Row(of) => row(of, seeds),
        JobResult::Gap(of) => gap(of),
        JobResult::Capacity(of) => capacity(of),
        JobResult::Case(of) => case(of, seeds),
        JobResult::Harm(of) => harm(of),
    }
}

/// Formats the outcomes that an access log recorded.
pub(super) fn recorded(recorded: &RecordedOutcome) -> String {
    let RecordedOutcome { items, goodput, mean_ms, p99_ms } = recorded;
    format!("recorded in the log: {items} items, goodput {goodput:.3}, mean {mean_ms:.2} ms, p99 {p99_ms:.1} ms\n\n")
}

/// Formats the totals of all rows that are compared with forwarding at once.
pub(super) fn totals(totals: &HarmTotals) -> String {
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
pub(super) fn format_criteria(met: usize, missed: &[(&str, &CriterionResult)]) -> String {
    let mut text = String::new();
    for (name, verdict) in missed {
        line(&mut text, format_args!("{name}: {verdict}"));
    }
    line(&mut text, format_args!("{met} met, {} missed", missed.len()));
    text
}

/// Formats the virtual time of our policy's runs and the elapsed time. The elapsed time also
/// includes the runs of the baselines.
pub(super) fn format_elapsed(all: &[JobResult], seeds: u64, took: Duration) -> String {
    let rows: Duration =
        all.iter().map(|told| if let JobResult::Row(row) = told { row.scenario.horizon } else { Duration::ZERO }).sum();
    let virtual_seconds = rows.as_secs_f64() * seeds as f64;
    if virtual_seconds > 0.0 {
        format!("{virtual_seconds:.0} s of traffic in {:.1} s", took.as_secs_f64())
    } else {
        format!("{:.1} s", took.as_secs_f64())
    }
}

fn case(case: &CaseReport, seeds: u64) -> String {
    let mut text = String::new();
    line(&mut text, format_args!("{}   ({seeds} seeds)", case.name));
    line(&mut text, format_args!("{HEAD}"));
    for entry in &case.entries {
        line(&mut text, format_args!("{}", policy(entry)));
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
    line(&mut text, format_args!("{HEAD}"));
    for entry in &row.entries {
        line(&mut text, format_args!("{}", policy(entry)));
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

fn policy(entry: &PolicyFigures) -> String {
    let PolicyFigures { name, figures } = entry;
    format!(
        "  {name:<38} {:>8.3} {:>10} {:>10} {:>10} {:>12.1} {:>6.2} {:>8.3} {:>8.3} {:>6.3}",
        figures.goodput,
        millis(figures.mean, 2),
        millis(figures.p50, 1),
        millis(figures.p99, 1),
        figures.items_per_batch,
        figures.busy,
        figures.expired,
        figures.refused,
        figures.unanswered
    )
}

fn millis(millis: f64, digits: usize) -> String {
    if millis.is_finite() { format!("{millis:.digits$}") } else { "-".to_owned() }
}

fn line(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    writeln!(text, "{arguments}").expect("writing to a String cannot fail");
}
