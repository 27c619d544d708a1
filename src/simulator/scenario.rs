//! The named scenarios. Each consists of an upstream, a workload and an SLO, and is a row of the
//! tables that compare policies.
//!
//! `base` has the base rows, each of which varies the arrival pattern, the cost curve or the
//! server. `extended` adds several merge keys, tenants and priority classes, calls of several
//! items, and changes during a run. `curves` has the combinations of cost curves and loads, and the
//! upstreams for the measurement of capacities. A scenario is plain data, and equal seeds give
//! equal runs.

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

/// `4 + 0.25 n` ms for a batch of n items: 235 items per second in single calls, and 3200 in
/// batches of 64.
pub const AFFINE: CostCurve = CostCurve::Affine { a: 4.0, b: 0.25 };
/// `2 + 3 n` ms: a model on a CPU, for which batching increases the throughput little.
pub const CPU: CostCurve = CostCurve::Affine { a: 2.0, b: 3.0 };
/// `3 + 0.4 · p` ms, where p is the next power of two of n: a model compiled for such batch sizes.
pub const POW2: CostCurve = CostCurve::Pow2 { a: 3.0, b: 0.4 };
/// `2 + 4 · ⌈n / 8⌉` ms: a model that computes tiles of 8 items.
pub const TILE8: CostCurve = CostCurve::Tile { a: 2.0, b: 0.5, width: 8 };
/// `5 + 0.02 n` ms up to 16 items, and 0.6 ms for each further one: a batch that is too large costs
/// more per item than a smaller one.
pub const THRASH: CostCurve = CostCurve::Knee { a: 5.0, b: 0.02, knee: 16, beyond: 0.6 };
/// `4 + 0.05 n + 0.002 n · w` ms, where w is the largest weight of the batch, to which all items
/// are padded.
pub const PADDED: CostCurve = CostCurve::Padded { a: 4.0, b: 0.05, c: 0.002 };

/// A named scenario.
#[derive(Debug, Clone, PartialEq)]
pub struct Scenario {
    /// Name in tables and on the command line.
    pub name: String,
    /// The simulated model server.
    pub upstream: UpstreamKind,
    /// The calls, with their arrival times and properties.
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

/// Deviations of the Groupage policy from its defaults: limits, a preset, or a
/// disabled feature.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PolicyOverrides {
    /// The preset: share of an SLO for which a call may be held for a larger batch while the
    /// upstream is idle, in thousandths.
    pub hold_permille: u32,
    /// Maximum number of batches in flight.
    pub slots_max: Option<u32>,
    /// Maximum time for which a call is held while a slot is free.
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

/// Returns the scenario of this name. A combination of a cost curve and a load has the name
/// `curve load%`.
#[must_use]
pub fn find(name: &str) -> Option<Scenario> {
    all().into_iter().chain(curve_loads()).find(|scenario| scenario.name == name)
}

// === impl Scenario ===

impl Scenario {
    /// Creates the default scenario: calls of one item to a server with one slot and the curve
    /// [`AFFINE`], an SLO of 50 ms, and batches of at most 64 items.
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

    /// Creates a scenario that replays recorded calls, such as those of an access log, on this
    /// upstream. Calls that arrive after `horizon` are left out.
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

    /// Changes the duration. Changes during the run, such as a step of the rate, keep their
    /// instants.
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
            // Markov-modulated: the mean of the rates of both states, weighted by their durations.
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

    /// Multiplies the rate of calls by a factor, and the number of clients of closed loops. The
    /// arrival times of recorded calls are divided by the factor, and so is the duration of the
    /// scenario. The times from the arrival of a recorded call to its deadline and to its
    /// cancellation do not change.
    #[must_use]
    pub fn scale_rate(mut self, factor: f64) -> Self {
        if !self.workload.recorded.is_empty() {
            self.horizon = self.horizon.div_f64(factor);
        }
        for arrival in &mut self.workload.recorded {
            let before = arrival.at.since(Tick::default());
            let scaled = before.div_f64(factor);
            // One of them is zero: a call arrives earlier if the factor is above 1, otherwise
            // later.
            let (earlier_by, later_by) = (before.saturating_sub(scaled), scaled.saturating_sub(before));
            let moved = |at: Tick| at.before(earlier_by).after(later_by);
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
    fn the_tables_have_all_rows() {
        assert_eq!(base_rows(HORIZON).len(), 24);
        assert_eq!(curve_loads().len(), CURVES.len() * LOADS.len());
    }
}
