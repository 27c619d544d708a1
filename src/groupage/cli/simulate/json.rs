//! Formatting of reports as JSON. Times are in milliseconds; a value that is not finite is null.

use serde_json::{Value, json};

use super::traffic::RecordedOutcome;
use crate::simulator::compare::{PolicyFigures, ScenarioReport};

pub(super) fn format_reports(reports: &[ScenarioReport], recorded: Option<&RecordedOutcome>) -> Value {
    json!({
        "rows": reports.iter().map(row).collect::<Vec<_>>(),
        "recorded": recorded.map(|recorded| json!({
            "items": recorded.items,
            "goodput": recorded.goodput,
            "meanMs": recorded.mean_ms,
            "p99Ms": recorded.p99_ms,
        })),
    })
}

fn row(report: &ScenarioReport) -> Value {
    json!({
        "scenario": report.scenario.name,
        "seconds": report.scenario.horizon.as_secs_f64(),
        "sloMs": report.scenario.slo.as_secs_f64() * 1e3,
        "cap": report.scenario.cap,
        "policies": report.entries.iter().map(entry).collect::<Vec<_>>(),
    })
}

fn entry(entry: &PolicyFigures) -> Value {
    let figures = &entry.figures;
    json!({
        "policy": entry.name,
        "items": figures.items,
        "goodput": figures.goodput,
        "meanMs": figures.mean,
        "p50Ms": figures.p50,
        "p99Ms": figures.p99,
        "itemsPerBatch": figures.items_per_batch,
        "busy": figures.busy,
        "expired": figures.expired,
        "refused": figures.refused,
        "unanswered": figures.unanswered,
    })
}
