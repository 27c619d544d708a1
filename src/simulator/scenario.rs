//! The named scenarios: an upstream, a workload and an SLO each.
//!
//! `base` holds the base rows: arrival patterns, curves and servers, one at a time. `extended` adds
//! keys, tenants, classes, calls of several items, and changes during a run. `curves` holds the
//! grid of curves and loads, and the upstreams for the measurement of capacities. All are data; a
//! run is deterministic for a seed.

mod curves;
mod base;
mod extended;

use std::time::Duration;

use crate::batching::{Feature, LateTreatment, Tick};

use super::call::Arrival;
use super::curve::CostCurve;
use super::random::saturating_u32;
use super::upstream::{SlotServer, UpstreamKind};
use super::workload::{ArrivalProcess, Workload};

pub use base::base_rows;
pub use curves::{CURVES, LOADS, NamedCurve, capacity, curve_loads};
pub use extended::extended_rows;

/// Virtual duration of a named scenario.
pub const HORIZON: Duration = Duration::from_secs(20);

/// `4 + 0.25 n` ms: 235 items per second one by one, 3200 in batches of 64.
pub const AFFINE: CostCurve = CostCurve::Affine { a: 4.0, b: 0.25 };
/// `2 + 3 n` ms: a processor, which gains little by batching.
pub const CPU: CostCurve = CostCurve::Affine { a: 2.0, b: 3.0 };
/// `3 + 0.4 · pow2(n)` ms.
pub const POW2: CostCurve = CostCurve::Pow2 { a: 3.0, b: 0.4 };
/// `2 + 4 · ⌈n / 8⌉` ms.
pub const TILE8: CostCurve = CostCurve::Tile { a: 2.0, b: 0.5, width: 8 };
/// `5 + 0.02 n` ms, and 0.6 ms for each item beyond 16.
pub const THRASH: CostCurve = CostCurve::Knee { a: 5.0, b: 0.02, knee: 16, beyond: 0.6 };
/// `4 + 0.05 n + 0.002 n · max w` ms.
pub const PADDED: CostCurve = CostCurve::Padded { a: 4.0, b: 0.05, c: 0.002 };

/// A named scenario.
#[derive(Debug, Clone, PartialEq)]
pub struct Scenario {
    /// Name in tables and on the command line.
    pub name: String,
    /// Upstream.
    pub upstream: UpstreamKind,
    /// Workload.
    pub workload: Workload,
    /// Time within which an answer is due.
    pub slo: Duration,
    /// Maximum number of items that a policy may put into a batch.
    pub cap: u32,
    /// Time during which calls arrive.
    pub horizon: Duration,
    /// Exact cost of a batch by its number of items, for policies and oracles that use it.
    pub curve: Option<CostCurve>,
    /// Deviations of the Groupage policy from its defaults.
    pub tuning: PolicyOverrides,
}

/// Deviations of the Groupage policy from its defaults: limits for a what-if, a preset, or a
/// disabled feature.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PolicyOverrides {
    /// Share of an SLO that a call may be held beside an idle upstream for a larger batch, in
    /// thousandths: the preset.
    pub hold_permille: u32,
    /// Maximum number of batches in flight.
    pub slots_max: Option<u32>,
    /// Maximum deliberate wait beside a free slot.
    pub queue_delay_max: Option<Duration>,
    /// Maximum number of queued items.
    pub queue_items_max: Option<u32>,
    /// Treatment of late calls. They are refused unless it is set.
    pub late: Option<LateTreatment>,
    /// Feature to disable.
    pub disabled_feature: Option<Feature>,
}

/// Returns every named scenario, in the order of the tables.
#[must_use]
pub fn all() -> Vec<Scenario> {
    let mut all = base_rows(HORIZON);
    all.extend(extended_rows(HORIZON));
    all
}

/// Returns the scenario of this name. The rows of the grid of curves and loads are named
/// `curve load%`.
#[must_use]
pub fn find(name: &str) -> Option<Scenario> {
    all().into_iter().chain(curve_loads()).find(|scenario| scenario.name == name)
}

// === impl Scenario ===

impl Scenario {
    /// Creates the default row: plain calls to one slot of the affine curve, SLO 50 ms, cap 64.
    #[must_use]
    pub fn new(name: impl Into<String>, arrivals: ArrivalProcess) -> Self {
        Self {
            name: name.into(),
            upstream: UpstreamKind::Server(SlotServer::new(AFFINE)),
            workload: Workload::plain(arrivals),
            slo: Duration::from_millis(50),
            cap: 64,
            horizon: HORIZON,
            curve: None,
            tuning: PolicyOverrides::default(),
        }
    }

    /// Creates a scenario that replays the calls of an access log on this upstream. Calls that
    /// arrive after `horizon` are left out.
    #[must_use]
    pub fn recorded(
        name: impl Into<String>,
        mut calls: Vec<Arrival>,
        upstream: UpstreamKind,
        horizon: Duration,
    ) -> Self {
        calls.retain(|arrival| arrival.at <= Tick::default().after(horizon));
        let workload = Workload { streams: Vec::new(), recorded: calls };
        Self { upstream, workload, horizon, ..Self::new(name, ArrivalProcess::Poisson { rate: 0.0 }) }
    }

    /// Replaces the upstream by a server.
    #[must_use]
    pub fn with_server(self, server: SlotServer) -> Self {
        Self { upstream: UpstreamKind::Server(server), ..self }
    }

    /// Replaces the upstream by a server with one slot and this exact curve.
    #[must_use]
    pub fn with_curve(self, curve: CostCurve) -> Self {
        Self { curve: Some(curve), ..self.with_server(SlotServer::new(curve)) }
    }

    /// Changes the duration. Instants within the scenario do not move.
    #[must_use]
    pub fn with_horizon(self, horizon: Duration) -> Self {
        Self { horizon, ..self }
    }

    /// Returns the mean number of calls per second, or `None` if it depends on the answers, as in a
    /// closed loop, or is zero.
    #[must_use]
    pub fn mean_rate(&self) -> Option<f64> {
        let seconds = self.horizon.as_secs_f64();
        let recorded = self.workload.recorded.len() as f64 / seconds;
        let drawn = self.workload.streams.iter().map(|stream| match &stream.arrivals {
            ArrivalProcess::Poisson { rate } | ArrivalProcess::Fanout { rate, .. } => Some(*rate),
            ArrivalProcess::Mmpp { rates, stays } => {
                let [one, other] = stays.map(|stay| stay.as_secs_f64());
                Some((rates[0] * one + rates[1] * other) / (one + other).max(1e-9))
            }
            ArrivalProcess::Ramp { low, high, .. } => Some((low + high) / 2.0),
            ArrivalProcess::Step { rate, then, from, until } => {
                let from = from.as_secs_f64().min(seconds);
                let until = until.map_or(seconds, |until| until.as_secs_f64().clamp(from, seconds));
                Some((rate * (seconds - (until - from)) + then * (until - from)) / seconds)
            }
            ArrivalProcess::Closed { .. } => None,
        });
        drawn.sum::<Option<f64>>().map(|drawn| drawn + recorded).filter(|rate| *rate > 0.0)
    }

    /// Multiplies the rate of calls by a factor; closed loops have this many times the clients.
    /// Recorded calls arrive at shorter intervals, so the recording is shorter; each keeps its time
    /// until the deadline and the cancellation.
    #[must_use]
    pub fn scale_rate(mut self, factor: f64) -> Self {
        if !self.workload.recorded.is_empty() {
            self.horizon = self.horizon.div_f64(factor);
        }
        for arrival in &mut self.workload.recorded {
            let sooner = arrival.at.since(Tick::default()).div_f64(factor);
            let by = arrival.at.since(Tick::default()).saturating_sub(sooner);
            let later = sooner.saturating_sub(arrival.at.since(Tick::default()));
            let moved = |at: Tick| at.before(by).after(later);
            arrival.at = moved(arrival.at);
            arrival.cancel_at = arrival.cancel_at.map(moved);
            if let Some(deadline) = &mut arrival.call.deadline {
                deadline.at = moved(deadline.at);
            }
        }
        for stream in &mut self.workload.streams {
            match &mut stream.arrivals {
                ArrivalProcess::Poisson { rate } | ArrivalProcess::Fanout { rate, .. } => *rate *= factor,
                ArrivalProcess::Mmpp { rates, .. } => rates.iter_mut().for_each(|rate| *rate *= factor),
                ArrivalProcess::Ramp { low, high, .. } => {
                    *low *= factor;
                    *high *= factor;
                }
                ArrivalProcess::Step { rate, then, .. } => {
                    *rate *= factor;
                    *then *= factor;
                }
                ArrivalProcess::Closed { clients, .. } => {
                    *clients = saturating_u32((f64::from(*clients) * factor).round()).max(1);
                }
            }
        }
        self
    }

    fn with_slo(self, millis: u64) -> Self {
        Self { slo: Duration::from_millis(millis), ..self }
    }

    fn with_cap(self, cap: u32) -> Self {
        Self { cap, ..self }
    }

    fn with_workload(self, workload: Workload) -> Self {
        Self { workload, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_find_their_scenario() {
        let mut names: Vec<String> = all().into_iter().chain(curve_loads()).map(|scenario| scenario.name).collect();
        for name in &names {
            assert_eq!(&find(name).unwrap().name, name);
        }
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn all_base_rows_exist() {
        assert_eq!(base_rows(HORIZON).len(), 24);
        assert_eq!(curve_loads().len(), CURVES.len() * LOADS.len());
    }
}
