//! Formatting of rows as JSON. Times are in milliseconds; a value that is not finite is null.

use serde_json::{Value, json};

use super::traffic::RecordedOutcome;
use crate::simulator::compare::{
    CapacityReport, CaseReport, Comparison, CriterionResult, JobResult, Metric, NoHarmReport, OptimalityGap,
    PolicyFigures, RowReport, WindowRatio,
};

pub(super) fn report(
    all: &[JobResult],
    recorded: Option<&RecordedOutcome>,
    met: usize,
    missed: &[(&str, &CriterionResult)],
) -> Value {
    let of = |told: &JobResult| match told {
        JobResult::Row(of) => row(of),
        JobResult::Gap(of) => gap(of),
        JobResult::Capacity(of) => capacity(of),
        JobResult::Case(of) => case(of),
        JobResult::Harm(of) => harm(of),
    };
    let named = |(name, of): &(&str, &CriterionResult)| {
        let mut bar = verdict(of);
        bar["name"] = json!(name);
        bar
    };
    json!({
        "rows": all.iter().map(of).collect::<Vec<_>>(),
        "recorded": recorded.map(|recorded| json!({
            "items": recorded.items,
            "goodput": recorded.goodput,
            "meanMs": recorded.mean_ms,
            "p99Ms": recorded.p99_ms,
        })),
        "met": met,
        "missed": missed.len(),
        "missedBars": missed.iter().map(named).collect::<Vec<_>>(),
    })
}

fn case(case: &CaseReport) -> Value {
    json!({
        "case": case.name,
        "policies": case.entries.iter().map(entry).collect::<Vec<_>>(),
        "bars": verdicts(&case.verdicts),
    })
}

fn row(row: &RowReport) -> Value {
    json!({
        "scenario": row.scenario.name,
        "seconds": row.scenario.horizon.as_secs_f64(),
        "sloMs": row.scenario.slo.as_secs_f64() * 1e3,
        "cap": row.scenario.cap,
        "policies": row.entries.iter().map(entry).collect::<Vec<_>>(),
        "clairvoyant": row.bound.map(|bound| json!({
            "seconds": bound.window.as_secs_f64(),
            "goodput": bound.goodput,
            "ours": bound.ours,
        })),
        "bars": verdicts(&row.verdicts),
    })
}

fn harm(harm: &NoHarmReport) -> Value {
    let window = |ratio: &WindowRatio| {
        json!({
            "directAnswers": ratio.direct,
            "rate": ratio.rate,
            "mean": ratio.mean,
            "p99": ratio.p99,
            "tested": ratio.tested,
        })
    };
    json!({
        "noHarm": harm.name,
        "windows": harm.windows.iter().map(window).collect::<Vec<_>>(),
        "bars": verdicts(&harm.verdicts),
    })
}

fn gap(gap: &OptimalityGap) -> Value {
    json!({
        "curve": gap.name,
        "optimumMs": gap.optimum_ms,
        "greedyRatio": gap.greedy,
        "oursRatio": gap.cold,
        "oursLearnedRatio": gap.learned,
        "bars": verdicts(std::slice::from_ref(&gap.verdict)),
    })
}

fn capacity(capacity: &CapacityReport) -> Value {
    let rate = |(policy, rate): &(String, f64)| json!({ "policy": policy, "itemsPerSecond": rate });
    json!({
        "upstream": capacity.name,
        "capacities": capacity.rates.iter().map(rate).collect::<Vec<_>>(),
        "bars": verdicts(std::slice::from_ref(&capacity.verdict)),
    })
}

fn entry(entry: &PolicyFigures) -> Value {
    let figures = &entry.figures;
    json!({
        "policy": entry.name,
        "items": figures.came,
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

fn verdicts(verdicts: &[CriterionResult]) -> Vec<Value> {
    verdicts.iter().map(verdict).collect()
}

fn verdict(verdict: &CriterionResult) -> Value {
    json!({
        "bar": verdict.bar,
        "quantity": match verdict.quantity {
            Metric::Goodput => "goodput",
            Metric::Mean => "meanMs",
            Metric::P99 => "p99Ms",
            Metric::Rate => "itemsPerSecond",
            Metric::Busy => "busy",
            Metric::Answered => "answered",
            Metric::Shift => "shiftErrorMs",
            Metric::Seeds => "equalSeeds",
            Metric::RateRatio => "rateOfDirect",
            Metric::MeanRatio => "meanOfDirect",
            Metric::P99Ratio => "p99OfDirect",
            Metric::Rows => "rows",
        },
        "found": verdict.found,
        "sense": match verdict.sense {
            Comparison::AtLeast => "atLeast",
            Comparison::AtMost => "atMost",
        },
        "limit": verdict.limit,
        "of": verdict.of,
        "met": verdict.is_met(),
    })
}
