//! Formatting of reports as text.

use std::fmt::Write as _;
use std::time::Duration;

use super::description::describe_scenario;
use super::traffic::RecordedOutcome;
use crate::simulator::compare::{PolicyFigures, ScenarioReport};
use crate::simulator::scenario::Scenario;

/// Lists the scenarios, one per line with its limits and a description: the reference scenarios,
/// then those that extend them.
pub(super) fn list(design: &[Scenario], wider: &[Scenario]) -> String {
    let mut text = String::new();
    for (title, rows) in [("reference scenarios", design), ("further scenarios", wider)] {
        line(&mut text, format_args!("{title}"));
        for row in rows {
            let limits = format!("SLO {:?}, batchItemsMax {}", row.slo, row.cap);
            let description = describe_scenario(&row.name).unwrap_or_default();
            line(&mut text, format_args!("  {:<26} {limits:<28} {description}", row.name));
        }
    }
    text
}

/// Formats the outcomes that an access log recorded.
pub(super) fn recorded(recorded: &RecordedOutcome) -> String {
    let RecordedOutcome { items, goodput, mean_ms, p99_ms } = recorded;
    format!("recorded in the log: {items} items, goodput {goodput:.3}, mean {mean_ms:.2} ms, p99 {p99_ms:.1} ms\n\n")
}

/// Formats the figures of a scenario.
pub(super) fn format_report(report: &ScenarioReport, seeds: u64) -> String {
    let mut text = String::new();
    let Scenario { name, slo, cap, horizon, .. } = &report.scenario;
    line(&mut text, format_args!("{name}   ({seeds} × {horizon:?}, SLO {slo:?}, batchItemsMax {cap})"));
    line(&mut text, format_args!("  {}", PolicyFigures::HEADING));
    for entry in &report.entries {
        line(&mut text, format_args!("  {entry}"));
    }
    text.push('\n');
    text
}

/// Formats the virtual time of our policy's runs and the elapsed time. The elapsed time also
/// includes the runs of the baselines.
pub(super) fn format_elapsed(reports: &[ScenarioReport], seeds: u64, took: Duration) -> String {
    let rows: Duration = reports.iter().map(|report| report.scenario.horizon).sum();
    format!("{:.0} s of traffic in {:.1} s", rows.as_secs_f64() * seeds as f64, took.as_secs_f64())
}

fn line(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    writeln!(text, "{arguments}").expect("writing to a String cannot fail");
}

#[cfg(test)]
mod tests {
    use super::super::args::extended_scenarios;
    use super::*;
    use crate::simulator::scenario;

    #[test]
    fn every_named_scenario_is_described_in_the_list() {
        let (reference, further) = (scenario::base_rows(scenario::HORIZON), extended_scenarios());
        let list = list(&reference, &further);
        for row in reference.iter().chain(&further) {
            let description = describe_scenario(&row.name).unwrap_or_else(|| panic!("{} is not described", row.name));
            let is_listed = list.lines().any(|line| line.contains(&row.name) && line.ends_with(description));
            assert!(is_listed, "{}: {list}", row.name);
        }
    }
}
