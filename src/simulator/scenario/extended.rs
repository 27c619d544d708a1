//! Rows beyond the base ones: sharing between keys, tenants and classes, calls of several items,
//! and changes during a run.

use std::time::Duration;

use crate::batching::Tick;

use super::super::curve::CostCurve;
use super::super::upstream::{ServerLimits, SlotServer};
use super::super::workload::{
    ArrivalProcess, CallMix, CallStream, DeadlineRule, ItemCount, KeyDistribution, ThinkTime, WeightDistribution,
    Workload,
};
use super::{AFFINE, PADDED, Scenario};

/// Maximum throughput of the affine curve at a cap of 64, in items per second: `n / t(n)` at 64.
const CAPACITY: f64 = 3200.0;

fn poisson(rate: f64, mix: CallMix) -> CallStream {
    CallStream { arrivals: ArrivalProcess::Poisson { rate }, mix }
}

fn row(name: &str, streams: Vec<CallStream>) -> Scenario {
    let workload = Workload { streams, recorded: Vec::new() };
    Scenario::new(name, ArrivalProcess::Poisson { rate: 0.0 }).with_workload(workload)
}

fn plain(name: &str, rate: f64) -> Scenario {
    row(name, vec![poisson(rate, CallMix::default())])
}

/// Returns the rows with this duration. Changes happen at a fraction of it.
#[must_use]
pub fn extended_rows(horizon: Duration) -> Vec<Scenario> {
    let mut rows = sharing_rows();
    rows.extend(call_shape_rows());
    rows.extend(change_rows(horizon));
    rows.into_iter().map(|row| row.with_horizon(horizon)).collect()
}

/// Returns the rows with several keys, tenants or classes on one slot.
fn sharing_rows() -> Vec<Scenario> {
    let tenants = |tenants| CallMix { tenants, ..CallMix::default() };
    let class = |class, tenant| CallMix { class, tenants: KeyDistribution::Constant(tenant), ..CallMix::default() };
    vec![
        // A batch holds only one key, so eight keys have less capacity than one.
        row(
            "8 keys, one hot",
            vec![poisson(
                1200.0,
                CallMix { keys: KeyDistribution::Hot { count: 8, share: 0.5 }, ..CallMix::default() },
            )],
        ),
        row(
            "64 tenants, one flooding",
            vec![
                poisson(1000.0, tenants(KeyDistribution::Zipf { count: 64, exponent: 1.0 })),
                poisson(4000.0, tenants(KeyDistribution::Constant(64))),
            ],
        ),
        // Tenant 0 floods, and tenant 1 is light.
        row(
            "flood beside light",
            vec![
                poisson(4000.0, tenants(KeyDistribution::Constant(0))),
                poisson(300.0, tenants(KeyDistribution::Constant(1))),
            ],
        ),
        // Interactive (class 0) requests half of the capacity, bulk (class 1) the rest and 0.3 of
        // the capacity more.
        row("classes 8:1 at 1.3x", vec![poisson(0.5 * CAPACITY, class(0, 0)), poisson(0.8 * CAPACITY, class(1, 1))]),
    ]
}

/// Returns the rows with different kinds of calls and clients.
fn call_shape_rows() -> Vec<Scenario> {
    let think = ThinkTime::Exponential(Duration::from_millis(2));
    let deadline = DeadlineRule::Caller { min: Duration::from_millis(20), max: Duration::from_millis(500) };
    vec![
        // 22 items per call on average: 1800 items per second.
        row(
            "calls of 1-100 items",
            vec![poisson(80.0, CallMix { items: ItemCount::UpTo { max: 100 }, ..CallMix::default() })],
        )
        .with_slo(100),
        row("deadlines 20-500 ms", vec![poisson(0.9 * CAPACITY, CallMix { deadline, ..CallMix::default() })]),
        row("deadlines 20-500 ms over", vec![poisson(1.3 * CAPACITY, CallMix { deadline, ..CallMix::default() })]),
        row("3% cancels", vec![poisson(2000.0, CallMix { cancel_share: 0.03, ..CallMix::default() })]),
        // Clients that return after a think time, in front of a server that takes as long for one
        // call as for all. A policy that does not wait for the last clients splits them into
        // alternating cohorts.
        Scenario { cap: 32, ..Scenario::new("closed 32 think", ArrivalProcess::Closed { clients: 32, think }) }
            .with_slo(100)
            .with_curve(CostCurve::Affine { a: 20.0, b: 0.0 }),
    ]
}

/// Returns the rows with changes and failures during the run.
fn change_rows(horizon: Duration) -> Vec<Scenario> {
    let at = |share: f64| Tick::default().after(horizon.mul_f64(share));
    let server = SlotServer::new(AFFINE);
    let ceilings = |items_max| ServerLimits { items_max: Some(items_max), ..ServerLimits::default() };
    let texts = CallMix { weights: WeightDistribution::TEXTS, ..CallMix::default() };
    let step = |rate, then, from, until: Option<f64>| ArrivalProcess::Step {
        rate,
        then,
        from: horizon.mul_f64(from),
        until: until.map(|until| horizon.mul_f64(until)),
    };
    vec![
        row("out of memory", vec![poisson(900.0, texts.clone())]).with_slo(80).with_server(SlotServer {
            ceilings: ServerLimits { memory_max: Some(4096), ..ServerLimits::default() },
            ..SlotServer::new(PADDED)
        }),
        plain("ceiling lifted", 2000.0).with_server(SlotServer {
            ceilings: ServerLimits { lifted_at: Some(at(0.25)), ..ceilings(16) },
            ..server.clone()
        }),
        Scenario::new("rate x10", step(250.0, 2500.0, 0.5, None)),
        // 30 % more than the capacity for a fifth of the time, then a load below the capacity: the
        // overload must leave no trace.
        Scenario::new("overload, then mid", step(2000.0, 4160.0, 0.0, Some(0.2))),
        plain("slots 4-1-4", 2800.0).with_server(SlotServer {
            slots: 4,
            slot_changes: vec![(at(0.3), 1), (at(0.6), 4)],
            ..server.clone()
        }),
        row("weight ceiling", vec![poisson(1200.0, texts)]).with_slo(80).with_server(SlotServer {
            ceilings: ServerLimits { weight_max: Some(1024), ..ServerLimits::default() },
            ..server
        }),
    ]
}
