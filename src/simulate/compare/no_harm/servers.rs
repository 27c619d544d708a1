//! The servers, by name: their concurrency and the cost of a batch.

use std::time::Duration;

use super::super::super::curve::Curve;
use super::super::super::upstream::{Engine, Kind, Server, Shared, Slowdown};

/// Standard deviation of the logarithm of an execution's time.
const SIGMA: f64 = 0.07;
/// Number of callers by which the capacity of a server without a limit is computed.
const CALLERS: u32 = 48;
/// Maximum number of items that a server which batches its queue takes at once.
const INNER_ITEMS: u32 = 32;
/// Share of the cost of a one-item step of continuous batching that belongs to the item.
const STEP_ITEM: f64 = 0.1;

/// The execution model of a server.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Place {
    /// This number of workers, first come first served.
    Workers(u32),
    /// Processor sharing on this number of cores.
    Cores(u32),
    /// Continuous batching.
    Steps,
    /// One worker that takes everything queued as one batch.
    Inner,
}

/// The cost of a batch of n, in unbatched calls.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Cost {
    /// `1 − part + part × n`.
    Affine(f64),
    /// The same with the next power of two of n.
    Pow2(f64),
}

/// A named server.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct NamedServer {
    pub(super) name: &'static str,
    place: Place,
    cost: Cost,
}

/// All servers. A name begins with the number of concurrent calls and ends with the cost of a
/// batch.
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

/// Creates a server with this number of workers. A batch costs little more than an unbatched call,
/// which takes `t1` milliseconds.
pub(super) fn workers(count: u32, t1: f64) -> Server {
    server(count, Cost::Affine(0.06).curve(t1))
}

fn server(count: u32, curve: Curve) -> Server {
    Server { slots: count, round_trip: Duration::ZERO, sigma: SIGMA, ..Server::new(curve) }
}

// === impl NamedServer ===

impl NamedServer {
    /// Creates the upstream, with `t1` milliseconds for an unbatched call.
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

    /// Returns the maximum throughput of direct callers, in calls per millisecond.
    pub(super) fn capacity(&self, t1: f64) -> f64 {
        let callers = f64::from(CALLERS);
        match self.place {
            Place::Workers(count) => f64::from(count.min(CALLERS)) / t1,
            Place::Cores(count) => f64::from(count) / t1,
            Place::Steps => callers / (t1 * (1.0 - STEP_ITEM + STEP_ITEM * callers)),
            Place::Inner => f64::from(INNER_ITEMS) / self.cost.curve(t1).millis_of(INNER_ITEMS),
        }
    }

    /// Returns the cost of a batch of two, in unbatched calls.
    pub(super) fn pair(&self) -> f64 {
        self.cost.curve(1.0).millis_of(2)
    }

    /// Returns `true` if the server executes more calls at once than `CALLERS`.
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
