//! Rows of the benchmark: upstreams and arrivals, for sockets and for the simulator.
//!
//! Every curve, SLO, think time and window is four times that of the simulator's own scenarios and
//! every rate is a quarter, so that timers and the work of the clients are negligible. There is no
//! noise, so that a difference between sockets and simulator is caused by one of the two.

use std::sync::Arc;
use std::time::Duration;

use groupage::batching::Tick;
use groupage::simulator::baseline::Baseline;
use groupage::simulator::curve::CostCurve;
use groupage::simulator::groupage_policy::GroupagePolicy;
use groupage::simulator::metrics::CallFilter;
use groupage::simulator::scenario::Scenario;
use groupage::simulator::upstream::{BatchingServer, ServerLimits, SlotServer, UpstreamKind};
use groupage::simulator::workload::{ArrivalProcess, ThinkTime, Workload};
use groupage::simulator::{Arrival, SimPolicy, run};
use groupage::testkit::server::{CurveShape, InternalBatching, ServerConfig, TooLargeResponse};

/// Factor of all times over those of the simulator's own scenarios.
const SCALE: f64 = 4.0;
/// Range of the think time of clients in closed loops.
pub(crate) const THINK: (Duration, Duration) = (Duration::from_micros(400), Duration::from_micros(1200));
/// Queue capacity of the mock server, sufficient for all calls of a contestant.
const QUEUE_MAX: usize = 4096;
/// Time from which calls count: four times the 2 s of the simulator's own rows. The cost of the
/// first seconds is judged there, from a cold start and in long runs.
pub(crate) const SETTLED: Duration = Duration::from_secs(8);
/// Number of seeds for the random decisions of a policy in the simulator. A single run is as little
/// evidence as one on sockets.
const SEEDS: u32 = 5;

/// Kind of upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ServerKind {
    Affine,
    Pow2,
    Thrash,
    FourSlots,
    Engine,
}

#[derive(Debug, Clone)]
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) server_kind: ServerKind,
    pub(crate) arrivals: ArrivalProcess,
    pub(crate) slo: Duration,
    pub(crate) cap: u32,
}

/// Result of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Outcome {
    pub(crate) goodput: f64,
    /// Mean latency of the answered calls in milliseconds.
    pub(crate) mean: f64,
}

/// A row with generated arrivals, which are the same for every contestant, on sockets and in the
/// simulator.
#[derive(Debug, Clone)]
pub(crate) struct GeneratedRow {
    pub(crate) row: Row,
    pub(crate) horizon: Duration,
    /// Time from which calls count.
    pub(crate) from: Duration,
    /// Times of arrival, or `None` in a closed loop.
    pub(crate) times: Option<Arc<[Duration]>>,
    recorded: Vec<Arrival>,
}

/// Returns all rows.
pub(crate) fn rows() -> Vec<Row> {
    let ms = Duration::from_millis;
    let row = |name, server_kind, arrivals| Row { name, server_kind, arrivals, slo: ms(200), cap: 64 };
    let poisson = |name, server_kind, rate: f64| row(name, server_kind, ArrivalProcess::Poisson { rate: rate / SCALE });
    let closed = |name, clients, slo| {
        let think = ThinkTime::Uniform(THINK.0, THINK.1);
        Row { slo, ..row(name, ServerKind::Affine, ArrivalProcess::Closed { clients, think }) }
    };
    let bursts = ArrivalProcess::Mmpp { rates: [600.0 / SCALE, 4800.0 / SCALE], stays: [ms(1600), ms(800)] };
    vec![
        poisson("affine, Poisson", ServerKind::Affine, 1000.0),
        poisson("pow2, Poisson", ServerKind::Pow2, 1600.0),
        poisson("thrash, Poisson", ServerKind::Thrash, 2300.0),
        poisson("4 slots, Poisson", ServerKind::FourSlots, 5000.0),
        poisson("batches itself, Poisson", ServerKind::Engine, 2000.0),
        row("affine, bursts", ServerKind::Affine, bursts),
        closed("affine, closed 8", 8, ms(200)),
        closed("affine, closed 32", 32, ms(200)),
        // 256 clients fill four batches, which wait for each other: an SLO of 200 ms would shed
        // most calls.
        closed("affine, closed 256", 256, ms(1000)),
    ]
}

// === impl Row ===

impl Row {
    pub(crate) fn generate(&self, horizon: Duration, seed: u64) -> GeneratedRow {
        let from = SETTLED.min(horizon / 2);
        let mut generated = GeneratedRow { row: self.clone(), horizon, from, times: None, recorded: Vec::new() };
        if self.clients().is_none() {
            let scenario = generated.scenario(Duration::ZERO);
            let calls = run(&scenario, &mut GroupagePolicy::with_cap_only(self.cap, seed), seed).calls;
            generated.recorded = calls.into_iter().map(|ended| ended.arrival).collect();
            let times = generated.recorded.iter().map(|arrival| Duration::from_nanos(arrival.at.0));
            generated.times = Some(times.collect());
        }
        generated
    }

    pub(crate) fn clients(&self) -> Option<usize> {
        match self.arrivals {
            ArrivalProcess::Closed { clients, .. } => usize::try_from(clients).ok(),
            _ => None,
        }
    }

    /// Returns the mock server of this row.
    pub(crate) fn server(&self) -> ServerConfig {
        let us = Duration::from_micros;
        let (base, per_item, shape) = match self.server_kind {
            ServerKind::Affine | ServerKind::FourSlots | ServerKind::Engine => {
                (us(16_000), us(1000), CurveShape::Linear)
            }
            ServerKind::Pow2 => (us(12_000), us(1600), CurveShape::NextPow2),
            ServerKind::Thrash => (us(20_000), us(80), CurveShape::Knee { items: 16, beyond: us(2400) }),
        };
        let inner = InternalBatching { front: us(1200), front_item: us(80), items_max: 256, admitted_items_max: 512 };
        let engine = self.server_kind == ServerKind::Engine;
        ServerConfig {
            base,
            per_item,
            shape,
            slots: if self.server_kind == ServerKind::FourSlots { 4 } else { 1 },
            queue_max: QUEUE_MAX,
            items_max: engine.then_some(32),
            too_large: TooLargeResponse::StatusOnly,
            inner: engine.then_some(inner),
            ..ServerConfig::default()
        }
    }

    /// Returns the same upstream for the simulator. `lag` is the time of a batch beyond its
    /// execution.
    fn upstream(&self, lag: Duration) -> UpstreamKind {
        let server = |curve, slots| {
            UpstreamKind::Server(SlotServer {
                slots,
                round_trip: lag,
                sigma: 0.0,
                ceilings: ServerLimits::default(),
                ..SlotServer::new(curve)
            })
        };
        let affine = CostCurve::Affine { a: 16.0, b: 1.0 };
        match self.server_kind {
            ServerKind::Affine => server(affine, 1),
            ServerKind::FourSlots => server(affine, 4),
            ServerKind::Pow2 => server(CostCurve::Pow2 { a: 12.0, b: 1.6 }, 1),
            ServerKind::Thrash => server(CostCurve::Knee { a: 20.0, b: 0.08, knee: 16, beyond: 2.4 }, 1),
            ServerKind::Engine => {
                let (front, front_item) = (Duration::from_micros(1200), Duration::from_micros(80));
                UpstreamKind::Engine(BatchingServer {
                    front,
                    front_item,
                    round_trip: lag,
                    sigma: 0.0,
                    ..BatchingServer::new(affine)
                })
            }
        }
    }
}

// === impl GeneratedRow ===

impl GeneratedRow {
    /// Simulates the row and returns the mean over several seeds of the policy.
    pub(crate) fn simulated(&self, lag: Duration, policy: impl Fn(u64) -> Box<dyn SimPolicy>) -> Outcome {
        self.mean_of(SEEDS, lag, policy)
    }

    fn mean_of(&self, seeds: u32, lag: Duration, policy: impl Fn(u64) -> Box<dyn SimPolicy>) -> Outcome {
        let scenario = self.scenario(lag);
        let mut sum = Outcome { goodput: 0.0, mean: 0.0 };
        let scope = CallFilter { from: Tick::default().after(self.from), ..CallFilter::default() };
        for seed in 0..u64::from(seeds) {
            let summary = run(&scenario, policy(seed).as_mut(), seed).summary_of(&scope);
            sum.goodput += summary.goodput / f64::from(seeds);
            sum.mean += summary.mean_ms / f64::from(seeds);
        }
        sum
    }

    /// Returns the window of the grid that is best for these arrivals in the simulator: the lowest
    /// mean latency among those within 0.002 of the best goodput.
    pub(crate) fn tuned_window(&self, lag: Duration) -> (u32, Duration) {
        let (sizes, millis) = Baseline::WINDOWS;
        let mut tried = Vec::new();
        for items in sizes {
            for millis in millis {
                let delay = Duration::from_millis(millis).mul_f64(SCALE);
                let rule = Baseline::Window { items, delay };
                // A window makes no random decisions, so one seed is sufficient.
                tried.push((self.mean_of(1, lag, |_| rule.build()), (items, delay)));
            }
        }
        let best = tried.iter().map(|(outcome, _)| outcome.goodput).fold(0.0, f64::max);
        let good = tried.into_iter().filter(|(outcome, _)| outcome.goodput >= best - 0.002);
        good.min_by(|one, other| one.0.mean.total_cmp(&other.0.mean)).map_or((32, Duration::ZERO), |(_, window)| window)
    }

    fn scenario(&self, lag: Duration) -> Scenario {
        let row = &self.row;
        let scenario = Scenario::new(row.name, row.arrivals.clone()).with_horizon(self.horizon);
        let mut workload = Workload::plain(row.arrivals.clone());
        if !self.recorded.is_empty() {
            workload = Workload { streams: Vec::new(), recorded: self.recorded.clone() };
        }
        Scenario { upstream: row.upstream(lag), workload, slo: row.slo, cap: row.cap, ..scenario }
    }
}
