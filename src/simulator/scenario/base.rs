//! The base rows: arrival patterns on one slot, other curves, and other servers.

use std::time::Duration;

use crate::batching::Tick;

use super::super::upstream::{BatchingServer, ServerLimits, SlotServer, StallModel, UpstreamKind};
use super::super::workload::{ArrivalProcess, CallMix, ThinkTime, WeightDistribution, Workload};
use super::{AFFINE, CPU, PADDED, POW2, Scenario, THRASH, TILE8};

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn poisson(name: &str, rate: f64) -> Scenario {
    Scenario::new(name, ArrivalProcess::Poisson { rate })
}

fn with_text_lengths(scenario: Scenario, rate: f64) -> Scenario {
    let mix = CallMix { weights: WeightDistribution::TEXTS, ..CallMix::default() };
    scenario.with_workload(Workload::single_stream(ArrivalProcess::Poisson { rate }, mix))
}

/// Returns the 24 rows with this duration. A server that changes does so at half of it.
#[must_use]
pub fn base_rows(horizon: Duration) -> Vec<Scenario> {
    let server = SlotServer::new(AFFINE);
    let mut rows = arrivals_on_one_slot();
    rows.extend(other_curves());
    rows.extend([
        poisson("k=4 slots", 5000.0).with_server(SlotServer { slots: 4, ..server.clone() }),
        poisson("host 3ms", 2000.0).with_server(SlotServer {
            host_before: Duration::from_micros(1500),
            host_after: Duration::from_micros(1500),
            ..server.clone()
        }),
        Scenario { upstream: UpstreamKind::Engine(BatchingServer::new(AFFINE)), ..poisson("engine", 2000.0) },
        poisson("reject >16", 1200.0).with_server(SlotServer {
            ceilings: ServerLimits { items_max: Some(16), ..ServerLimits::default() },
            ..server.clone()
        }),
        poisson("stalls 1%", 1500.0)
            .with_server(SlotServer { stalls: Some(StallModel { share: 0.01, mean: ms(40) }), ..server.clone() }),
        poisson("slows x2", 1000.0)
            .with_server(SlotServer { shift: Some((Tick::default().after(horizon / 2), 2.0)), ..server.clone() }),
        poisson("cold model", 600.0).with_server(SlotServer { cold: Some((6, 25.0)), ..server }),
    ]);
    rows.into_iter().map(|row| row.with_horizon(horizon)).collect()
}

fn arrivals_on_one_slot() -> Vec<Scenario> {
    let closed = |name, clients, think| Scenario::new(name, ArrivalProcess::Closed { clients, think });
    let soon = ThinkTime::Uniform(Duration::from_micros(100), Duration::from_micros(300));
    let open = |name, arrivals| Scenario::new(name, arrivals).with_curve(AFFINE);
    vec![
        poisson("low", 100.0).with_curve(AFFINE),
        poisson("mid", 1000.0).with_curve(AFFINE),
        poisson("high", 2500.0).with_curve(AFFINE),
        poisson("overload 1.5x", 4800.0).with_curve(AFFINE),
        open("bursty MMPP", ArrivalProcess::Mmpp { rates: [600.0, 4800.0], stays: [ms(400), ms(200)] }),
        open("on-off", ArrivalProcess::Mmpp { rates: [5000.0, 0.0], stays: [ms(100), ms(200)] }),
        open("ramp", ArrivalProcess::Ramp { low: 50.0, high: 3600.0, period: ms(8000) }),
        poisson("tight SLO", 1500.0).with_curve(AFFINE).with_slo(18),
        closed("closed 32", 32, soon),
        closed("closed 8 think", 8, ThinkTime::Exponential(ms(4))),
        open("fan-out 32", ArrivalProcess::Fanout { rate: 1000.0, size: 32, spread: Duration::from_micros(600) }),
    ]
}

fn other_curves() -> Vec<Scenario> {
    let padded =
        |name, rate| with_text_lengths(poisson(name, rate).with_server(SlotServer::new(PADDED)).with_slo(80), rate);
    vec![
        poisson("cpu", 230.0).with_curve(CPU).with_slo(100).with_cap(32),
        poisson("pow2 shapes", 1600.0).with_curve(POW2),
        poisson("tile 8", 1300.0).with_curve(TILE8),
        poisson("thrash", 2300.0).with_curve(THRASH),
        padded("padded lens", 900.0),
        padded("padded over", 2600.0),
    ]
}
