//! The named scenarios: an upstream, a workload, an SLO.
//!
//! `design` holds the rows of `scheduling.md` §5.1, `wider` those that §6 adds and the cases of §5.5, `curves` the grid of curves and loads of
//! §5.3 and the upstreams of §5.4. All are data: what is run is equal for a seed.

mod curves;
mod design;
mod wider;

use std::time::Duration;

use crate::batching::Tick;

use super::call::Arrival;
use super::curve::Curve;
use super::ours::Tuning;
use super::upstream::{Kind, Server};
use super::workload::{Arrivals, Workload};

pub use curves::{CURVES, LOADS, NamedCurve, capacity, curve_loads};
pub use design::design;
pub use wider::wider;

/// How long a named scenario runs, in virtual time (`scheduling.md` §5.1).
pub const HORIZON: Duration = Duration::from_secs(20);

/// `4 + 0.25 n` ms: 235 items a second one by one, 3200 in batches of 64.
pub const AFFINE: Curve = Curve::Affine { a: 4.0, b: 0.25 };
/// `2 + 3 n` ms: a processor, which gains little by batching.
pub const CPU: Curve = Curve::Affine { a: 2.0, b: 3.0 };
/// `3 + 0.4 · pow2(n)` ms.
pub const POW2: Curve = Curve::Pow2 { a: 3.0, b: 0.4 };
/// `2 + 4 · ⌈n / 8⌉` ms.
pub const TILE8: Curve = Curve::Tile { a: 2.0, b: 0.5, width: 8 };
/// `5 + 0.02 n` ms, and 0.6 ms for each item past 16.
pub const THRASH: Curve = Curve::Knee { a: 5.0, b: 0.02, knee: 16, beyond: 0.6 };
/// `4 + 0.05 n + 0.002 n · max w` ms.
pub const PADDED: Curve = Curve::Padded { a: 4.0, b: 0.05, c: 0.002 };

/// A named scenario.
#[derive(Debug, Clone, PartialEq)]
pub struct Scenario {
    /// What it is called.
    pub name: String,
    /// What stands upstream.
    pub upstream: Kind,
    /// What comes.
    pub workload: Workload,
    /// By when an answer is wanted.
    pub slo: Duration,
    /// Most items that a policy may batch.
    pub cap: u32,
    /// For how long calls come.
    pub horizon: Duration,
    /// The exact cost of a batch of n items, where an oracle can use it.
    pub curve: Option<Curve>,
    /// What is different about ours.
    pub tuning: Tuning,
}

/// Every named scenario, in the order of the tables.
#[must_use]
pub fn all() -> Vec<Scenario> {
    let mut all = design(HORIZON);
    all.extend(wider(HORIZON));
    all
}

/// The scenario of this name; those of the grid of curves and loads are named `curve load%`.
#[must_use]
pub fn named(name: &str) -> Option<Scenario> {
    all().into_iter().chain(curve_loads()).find(|scenario| scenario.name == name)
}

// === impl Scenario ===

impl Scenario {
    /// Plain calls to one slot of the affine curve, SLO 50 ms, cap 64: what a row is unless it says otherwise.
    #[must_use]
    pub fn new(name: impl Into<String>, arrivals: Arrivals) -> Self {
        Self {
            name: name.into(),
            upstream: Kind::Server(Server::new(AFFINE)),
            workload: Workload::plain(arrivals),
            slo: Duration::from_millis(50),
            cap: 64,
            horizon: HORIZON,
            curve: None,
            tuning: Tuning::default(),
        }
    }

    /// What an access log says came, to this upstream. Calls that come later than `horizon` are left out.
    #[must_use]
    pub fn recorded(name: impl Into<String>, mut calls: Vec<Arrival>, upstream: Kind, horizon: Duration) -> Self {
        calls.retain(|arrival| arrival.at <= Tick::default().after(horizon));
        let workload = Workload { streams: Vec::new(), recorded: calls };
        Self { upstream, workload, horizon, ..Self::new(name, Arrivals::Poisson { rate: 0.0 }) }
    }

    /// Another upstream.
    #[must_use]
    pub fn server(self, server: Server) -> Self {
        Self { upstream: Kind::Server(server), ..self }
    }

    /// One slot of another curve, which oracles may use.
    #[must_use]
    pub fn curve(self, curve: Curve) -> Self {
        Self { curve: Some(curve), ..self.server(Server::new(curve)) }
    }

    /// The same for a shorter or longer time; instants within it stay where they are.
    #[must_use]
    pub fn lasting(self, horizon: Duration) -> Self {
        Self { horizon, ..self }
    }

    fn slo(self, millis: u64) -> Self {
        Self { slo: Duration::from_millis(millis), ..self }
    }

    fn cap(self, cap: u32) -> Self {
        Self { cap, ..self }
    }

    fn workload(self, workload: Workload) -> Self {
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
            assert_eq!(&named(name).unwrap().name, name);
        }
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn every_row_of_the_design_is_there() {
        assert_eq!(design(HORIZON).len(), 24);
        assert_eq!(curve_loads().len(), CURVES.len() * LOADS.len());
    }
}
