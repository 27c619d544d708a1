//! What the scheduler learned, as the JSON of `/api/scheduler`.

use serde_json::{Value, json};

use crate::batching::{AsideReport, Base, CostReport, Mode, Report, TrialReport};

/// The whole of it. Times are in microseconds unless their name says otherwise.
pub(super) fn json(report: &Report) -> Value {
    json!({
        "slots": report.slots,
        "lead_us": micros(report.lead_nanos),
        "mean_execution_us": micros(report.mean_nanos),
        "standing_aside": aside(&report.aside),
        "cost_classes": report.classes.iter().map(|(id, cost)| class(id.0, cost)).collect::<Vec<_>>(),
    })
}

fn class(id: u32, cost: &CostReport) -> Value {
    let base = match cost.base {
        Base::Padded => "padded",
        Base::Ragged => "ragged",
        Base::SizeOnly => "size_only",
    };
    let points: Vec<Value> = cost
        .points
        .iter()
        .map(|point| json!({"items": point.items, "us": micros(point.nanos), "batches": point.count}))
        .collect();
    json!({
        "id": id,
        "base": base,
        "batch_us": micros(cost.batch_nanos),
        "item_us": micros(cost.item_nanos),
        "weight_picos": cost.weight_picos,
        "shaped": cost.shaped,
        "weights_matter": cost.weights_matter,
        "samples": cost.samples,
        "error_permille": cost.error_permille,
        "tail_permille": cost.tail_permille,
        "points": points,
    })
}

fn aside(aside: &AsideReport) -> Value {
    json!({
        "mode": mode(aside.mode),
        "trying": aside.trying,
        "pass_max": aside.pass_max,
        "batches": aside.batches,
        "passed": aside.passed,
        "last": aside.last.as_ref().map(trial),
    })
}

fn trial(trial: &TrialReport) -> Value {
    json!({
        "at_seconds": trial.at.0 / 1_000_000_000,
        "before": mode(trial.before),
        "verdict": mode(trial.verdict),
        "batch_mean_us": u64::try_from(trial.batch_mean.as_micros()).unwrap_or(u64::MAX),
        "pass_mean_us": u64::try_from(trial.pass_mean.as_micros()).unwrap_or(u64::MAX),
        "epochs": {"batch": trial.epochs.0, "pass": trial.epochs.1},
        "t_permille": trial.t_permille,
    })
}

const fn mode(mode: Mode) -> &'static str {
    match mode {
        Mode::Batch => "batch",
        Mode::Pass => "pass",
    }
}

pub(super) const fn micros(nanos: u64) -> u64 {
    nanos / 1000
}
