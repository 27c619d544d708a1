//! Rows for programs. Times are in milliseconds; what has no finite value is null.

use serde_json::{Value, json};

use crate::simulate::compare::{Capacity, Entry, Gap, Quantity, Row, Sense, Verdict};

pub(super) fn report(rows: &[Value], met: usize, missed: usize) -> Value {
    json!({ "rows": rows, "met": met, "missed": missed })
}

pub(super) fn row(row: &Row) -> Value {
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

pub(super) fn gap(gap: &Gap) -> Value {
    json!({
        "curve": gap.name,
        "optimumMs": gap.optimum_ms,
        "greedyRatio": gap.greedy,
        "oursRatio": gap.cold,
        "oursLearnedRatio": gap.learned,
        "bars": verdicts(std::slice::from_ref(&gap.verdict)),
    })
}

pub(super) fn capacity(capacity: &Capacity) -> Value {
    let rate = |(policy, rate): &(String, f64)| json!({ "policy": policy, "itemsPerSecond": rate });
    json!({
        "upstream": capacity.name,
        "capacities": capacity.rates.iter().map(rate).collect::<Vec<_>>(),
        "bars": verdicts(std::slice::from_ref(&capacity.verdict)),
    })
}

fn entry(entry: &Entry) -> Value {
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

fn verdicts(verdicts: &[Verdict]) -> Vec<Value> {
    let one = |verdict: &Verdict| {
        json!({
            "bar": verdict.bar,
            "quantity": match verdict.quantity {
                Quantity::Goodput => "goodput",
                Quantity::Mean => "meanMs",
                Quantity::P99 => "p99Ms",
                Quantity::Rate => "itemsPerSecond",
            },
            "found": verdict.found,
            "sense": match verdict.sense {
                Sense::AtLeast => "atLeast",
                Sense::AtMost => "atMost",
            },
            "limit": verdict.limit,
            "of": verdict.of,
            "met": verdict.is_met(),
        })
    };
    verdicts.iter().map(one).collect()
}
