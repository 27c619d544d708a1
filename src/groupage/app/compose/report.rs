//! The JSON of `/api/scheduler`: what the scheduler has learned.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use crate::batching::{
    BatcherReport, CeilingInForce, CostClassId, CostMeasure, CostReport, FlowMode, FlowReport, InfeasibleSlo,
    LoadPoint, OpenReason, PauseStats,
};
use crate::protocol::decode_cost_class;
use crate::scheduler::{RecentCounts, ShadowReport};

/// Returns the whole report. Times are in microseconds unless their name contains another unit.
pub(super) fn scheduler_json(report: &BatcherReport) -> Value {
    json!({
        "slots": report.slots,
        "lead_us": micros(report.lead_nanos),
        "mean_execution_us": micros(report.mean_nanos),
        "concurrency": report.flows.iter().map(concurrency).collect::<Vec<_>>(),
        "cost_classes": report.classes.iter().map(|(id, cost)| class(id.0, cost)).collect::<Vec<_>>(),
        "limits": report.ceilings.iter().map(ceiling).collect::<Vec<_>>(),
        "paused": report.paused.iter().map(|(id, until)| json!({"class": id.0, "until_seconds": seconds(until.0)})).collect::<Vec<_>>(),
        "pauses": report.pauses.iter().map(pauses).collect::<Vec<_>>(),
        "infeasible": report.infeasible.iter().map(infeasible).collect::<Vec<_>>(),
        "exploration_us": micros(report.exploration_nanos),
    })
}

/// Returns the outcome that batching would have had for the calls forwarded in mode `Observe`,
/// since the start of the process.
pub(super) fn predicted(report: &ShadowReport) -> Value {
    let mean = |all: Duration, of: u64| micros(u64::try_from(all.as_nanos()).unwrap_or(u64::MAX) / of.max(1));
    let class = |(name, lone, items): &(Box<[u8]>, Duration, u32)| {
        let name = decode_cost_class(name);
        json!({
            "path": name.as_ref().map(|name| &name.path),
            "model": name.as_ref().map(|name| &name.model),
            "lone_call_us": mean(*lone, 1),
            "measured_items": items,
        })
    };
    json!({
        "calls": report.calls,
        "unpredicted": report.left_out.iter().map(|(why, calls)| (why.as_str(), *calls)).collect::<BTreeMap<_, _>>(),
        "upstream_calls": report.executions,
        "carried": {"calls": report.carried.0, "items": report.carried.1},
        "answered": report.answered,
        "rejected": report.rejected,
        "expired": report.expired,
        "mean_latency_us": mean(report.latency, report.answered),
        "passed": {"calls": report.passed.0, "mean_latency_us": mean(report.passed.1, report.passed.0)},
        "recent": recent(&report.recent),
        "benefit": report.recent.benefit().as_str(),
        "side_by_side": report.side_by_side,
        "steady_load": report.steady_load,
        "measured_items": report.measured_items(),
        "cost_classes": report.classes.iter().map(class).collect::<Vec<_>>(),
    })
}

/// Returns the same figures for the last one to two minutes.
fn recent(recent: &RecentCounts) -> Value {
    json!({
        "over_us": whole_micros(recent.over),
        "calls": recent.calls,
        "upstream_calls": recent.executions,
        "carried": {"calls": recent.carried.0, "items": recent.carried.1},
        "unserved": recent.unserved,
        "mean_latency_us": whole_micros(recent.latency) / recent.answered.max(1),
        "passed_mean_latency_us": whole_micros(recent.passed.1) / recent.passed.0.max(1),
    })
}

/// Returns a limit on batches and its source. Instants are in seconds since the start of the
/// process.
fn ceiling(CeilingInForce { class, scope, ceiling }: &CeilingInForce) -> Value {
    json!({
        "class": class.0,
        "route": scope.0,
        "limit": ceiling.bounded.as_str(),
        "max": ceiling.max,
        "source": ceiling.source.as_str(),
        "since_seconds": seconds(ceiling.since.0),
        "retest_seconds": ceiling.retest.map(|at| seconds(at.0)),
    })
}

/// Returns the number of times that the upstream answered calls of a class with `Retry-After`, with
/// the requested and the applied pause.
fn pauses(pauses: &PauseStats) -> Value {
    json!({
        "class": pauses.class.0,
        "count": pauses.count,
        "last_at_seconds": seconds(pauses.last.0),
        "requested_us": whole_micros(pauses.requested),
        "held_us": whole_micros(pauses.applied),
    })
}

fn infeasible(found: &InfeasibleSlo) -> Value {
    json!({
        "class": found.class.0,
        "route": found.scope.0,
        "slo_us": micros(found.slo_nanos),
        "lone_call_us": micros(found.lone_nanos),
    })
}

fn class(id: u32, cost: &CostReport) -> Value {
    let base = match cost.base {
        CostMeasure::Padded => "padded",
        CostMeasure::Ragged => "ragged",
        CostMeasure::SizeOnly => "size_only",
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

/// Returns the state of a cost class's concurrency limiter, and the load curve that it uses.
fn concurrency((id, flow): &(CostClassId, FlowReport)) -> Value {
    let (mode, limit, reason) = match flow.mode {
        FlowMode::Open(reason) => ("open", None, Some(reason)),
        FlowMode::Limited(limit) => ("limited", Some(limit), None),
    };
    let item_permille = match reason {
        Some(OpenReason::NoGain { permille }) => Some(permille),
        _ => None,
    };
    let point = |point: &LoadPoint| {
        json!({
            "in_flight_milli": point.beside_milli,
            "us": micros(point.latency_nanos),
            "per_second_milli": per_second_milli(point.beside_milli, point.latency_nanos),
            "samples": point.samples,
        })
    };
    json!({
        "class": id.0,
        "mode": mode,
        "limit": limit,
        "reason": reason.map(OpenReason::as_str),
        "batch_item_permille": item_permille,
        "learning": flow.learning,
        "trying": flow.trying,
        "in_flight": flow.flights,
        "knee_milli": flow.knee_milli,
        "knee_per_second_milli": per_second_milli(flow.knee_milli, flow.base_nanos),
        "lone_call_us": micros(flow.base_nanos),
        "batch_items_milli": flow.batch_milli,
        "batch_us": micros(flow.batch_nanos),
        "curve": flow.curve.iter().map(point).collect::<Vec<_>>(),
    })
}

/// Returns the throughput in thousandths of a call per second by Little's law: calls in flight over
/// latency.
fn per_second_milli(in_flight_milli: u64, latency_nanos: u64) -> u64 {
    let rate = u128::from(in_flight_milli) * 1_000_000_000 / u128::from(latency_nanos.max(1));
    if latency_nanos == 0 { 0 } else { u64::try_from(rate).unwrap_or(u64::MAX) }
}

pub(super) const fn micros(nanos: u64) -> u64 {
    nanos / 1000
}

/// Returns a duration in whole microseconds.
pub(super) fn whole_micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

const fn seconds(nanos: u64) -> u64 {
    nanos / 1_000_000_000
}
