//! The servers, by name: how many calls at once, and what a batch costs.

use std::time::Duration;

use super::super::super::curve::Curve;
use super::super::super::upstream::{Engine, Kind, Server, Shared, Slowdown};

/// Deviation of the logarithm of an execution's time.
const SIGMA: f64 = 0.07;
/// Callers that the load of a server without a limit is counted by.
const CALLERS: u32 = 48;
/// Items that a server which batches its queue takes at once.
const INNER_ITEMS: u32 = 32;
/// Of a step of continuous batching, the part that belongs to an item.
const STEP_ITEM: f64 = 0.1;

/// What computes, and how many at once.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Place {
    /// First come, first served, by this many workers.
    Workers(u32),
    /// Processor sharing.
    Cores(u32),
    /// Continuous batching.
    Steps,
    /// One worker, which takes what is queued as one batch.
    Inner,
}

/// A batch of n, in lone calls.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Cost {
    /// `1 − part + part × n`.
    Affine(f64),
    /// The same with the next power of two.
    Pow2(f64),
}

/// One of them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct NamedServer {
    pub(super) name: &'static str,
    place: Place,
    cost: Cost,
}

/// All servers: a name begins with the calls computed at once and ends with what a batch costs.
pub(super) const ALL: [NamedServer; 16] = [
    NamedServer { name: "k1", place: Place::Workers(1), cost: Cost::Affine(0.06) },
    NamedServer { name: "k1half", place: Place::Workers(1), cost: Cost::Affine(0.5) },
    NamedServer { name: "k1lin", place: Place::Workers(1), cost: Cost::Affine(1.0) },
    NamedServer { name: "k1pow2", place: Place::Workers(1), cost: Cost::Pow2(0.1) },
    NamedServer { name: "k4", place: Place::Workers(4), cost: Cost::Affine(0.06) },
    NamedServer { name: "k8", place: Place::Workers(8), cost: Cost::Affine(0.17) },
    NamedServer { name: "k8lin", place: Place::Workers(8), cost: Cost::Affine(1.0) },
    NamedServer { name: "k64", place: Place::Workers(64), cost: Cost::Affine(0.06) },
    NamedServer { name: "k64lin", place: Place::Workers(64), cost: Cost::Affine(0.5) },
    NamedServer { name: "inf", place: Place::Workers(u32::MAX), cost: Cost::Affine(0.06) },
    NamedServer { name: "inflin", place: Place::Workers(u32::MAX), cost: Cost::Affine(1.0) },
    NamedServer { name: "ps1", place: Place::Cores(1), cost: Cost::Affine(0.06) },
    NamedServer { name: "ps8", place: Place::Cores(8), cost: Cost::Affine(0.17) },
    NamedServer { name: "ps8lin", place: Place::Cores(8), cost: Cost::Affine(1.0) },
    NamedServer { name: "cont", place: Place::Steps, cost: Cost::Affine(0.0) },
    NamedServer { name: "inner", place: Place::Inner, cost: Cost::Affine(0.06) },
];

/// A server of this many workers whose batches cost little more than a lone call, which takes `t1`
/// milliseconds.
pub(super) fn workers(count: u32, t1: f64) -> Server {
    server(count, Cost::Affine(0.06).curve(t1))
}

fn server(count: u32, curve: Curve) -> Server {
    Server { slots: count, round_trip: Duration::ZERO, sigma: SIGMA, ..Server::new(curve) }
}

// === impl NamedServer ===

impl NamedServer {
    /// The server, with `t1` milliseconds for a lone call.
    pub(super) fn upstream(&self, t1: f64) -> Kind {
        let curve = self.cost.curve(t1);
        let shared = |slowdown| Kind::Shared(Shared { curve, slowdown, sigma: SIGMA });
        match self.place {
            Place::Workers(count) => Kind::Server(server(count, curve)),
            Place::Cores(count) => shared(Slowdown::Cores(count)),
            Place::Steps => shared(Slowdown::Step { item: STEP_ITEM }),
            Place::Inner => Kind::Engine(Engine {
                front: Duration::ZERO,
                front_item: Duration::ZERO,
                round_trip: Duration::ZERO,
                items_max: INNER_ITEMS,
                weight_max: u64::MAX,
                sigma: SIGMA,
                batch_items_max: u32::MAX,
                inside_max: u32::MAX,
                ..Engine::new(curve)
            }),
        }
    }

    /// The calls a millisecond that direct callers can get.
    pub(super) fn capacity(&self, t1: f64) -> f64 {
        let callers = f64::from(CALLERS);
        match self.place {
            Place::Workers(count) => f64::from(count.min(CALLERS)) / t1,
            Place::Cores(count) => f64::from(count) / t1,
            Place::Steps => callers / (t1 * (1.0 - STEP_ITEM + STEP_ITEM * callers)),
            Place::Inner => f64::from(INNER_ITEMS) / self.cost.curve(t1).millis_of(INNER_ITEMS),
        }
    }

    /// What a batch of two costs, in lone calls.
    pub(super) fn pair(&self) -> f64 {
        self.cost.curve(1.0).millis_of(2)
    }

    /// Whether the queue of callers is no longer than what it computes at once.
    pub(super) fn is_unlimited(&self) -> bool {
        matches!(self.place, Place::Workers(count) if count > CALLERS)
    }
}

// === impl Cost ===

impl Cost {
    fn curve(self, t1: f64) -> Curve {
        match self {
            Self::Affine(part) => Curve::Affine { a: t1 * (1.0 - part), b: t1 * part },
            Self::Pow2(part) => Curve::Pow2 { a: t1 * (1.0 - part), b: t1 * part },
        }
    }
}
