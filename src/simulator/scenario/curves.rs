//! The grid of curves and loads, and the upstreams for the measurement of capacities.

use std::time::Duration;

use super::super::curve::CostCurve;
use super::super::upstream::SlotServer;
use super::super::workload::ArrivalProcess;
use super::{AFFINE, CPU, POW2, Scenario, THRASH, TILE8};

/// A curve with the batch cap of its runs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NamedCurve {
    /// Name in tables.
    pub name: &'static str,
    /// The curve.
    pub curve: CostCurve,
    /// Maximum number of items in a batch.
    pub cap: u32,
}

/// The curves of the grid.
pub const CURVES: [NamedCurve; 7] = [
    NamedCurve { name: "affine 4+.25n", curve: AFFINE, cap: 64 },
    NamedCurve { name: "affine 2+3n", curve: CPU, cap: 32 },
    NamedCurve { name: "pow2 3+.4n", curve: POW2, cap: 64 },
    NamedCurve { name: "tile8 2+.5n", curve: TILE8, cap: 64 },
    NamedCurve { name: "tile32 2+.2n", curve: CostCurve::Tile { a: 2.0, b: 0.2, width: 32 }, cap: 64 },
    NamedCurve { name: "thrash >16", curve: THRASH, cap: 64 },
    NamedCurve { name: "roofline 16", curve: CostCurve::Knee { a: 5.0, b: 0.02, knee: 16, beyond: 0.33 }, cap: 64 },
];

/// The loads of the grid, in percent of the maximum throughput, the largest `n / t(n)`.
pub const LOADS: [u32; 4] = [30, 60, 80, 90];

/// Duration of each run, and an SLO that is never missed, since the mean is compared.
const HORIZON: Duration = Duration::from_secs(30);
const SLO_MS: u64 = 1000;

/// Returns every curve at every load. The round trip is zero, so that the result is comparable with
/// the optimum of an exact model.
#[must_use]
pub fn curve_loads() -> Vec<Scenario> {
    let at = |named: NamedCurve, load: u32| {
        let rate = named.curve.rate_max(named.cap) * f64::from(load) / 100.0;
        let server = SlotServer { round_trip: Duration::ZERO, ..SlotServer::new(named.curve) };
        let row = Scenario::new(format!("{} {load}%", named.name), ArrivalProcess::Poisson { rate });
        row.with_curve(named.curve).with_server(server).with_cap(named.cap).with_slo(SLO_MS).with_horizon(HORIZON)
    };
    CURVES.into_iter().flat_map(|named| LOADS.into_iter().map(move |load| at(named, load))).collect()
}

/// Returns the upstreams for the measurement of capacities, each under Poisson arrivals of this
/// rate for 12 s. The capacity is the largest rate at which 99 % of the items that arrive from 2 s
/// on are answered in time.
#[must_use]
pub fn capacity(rate: f64) -> Vec<Scenario> {
    let horizon = Duration::from_secs(12);
    let server = SlotServer::new(AFFINE);
    let row = |name: &str| Scenario::new(name, ArrivalProcess::Poisson { rate }).with_horizon(horizon);
    let host = Duration::from_micros(1500);
    vec![
        row("affine").with_curve(AFFINE),
        row("pow2").with_curve(POW2),
        row("tile 8").with_curve(TILE8),
        row("thrash").with_curve(THRASH),
        row("host 3 ms").with_server(SlotServer { host_before: host, host_after: host, ..server.clone() }),
        row("4 slots").with_server(SlotServer { slots: 4, ..server }),
    ]
}
