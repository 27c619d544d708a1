//! The servers, by name: their concurrency and the cost of a batch.

use std::time::Duration;

use groupage_simulator::curve::CostCurve;
use groupage_simulator::upstream::{BatchingServer, SharedServer, SlotServer, Slowdown, UpstreamKind};

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
enum ExecutionModel {
    /// This number of workers, first come first served.
    Workers(u32),
    /// Processor sharing on this number of cores.
    Cores(u32),
    /// Continuous batching.
    Steps,
    /// One worker that takes everything queued as one batch.
    InnerBatching,
}

/// The cost of a batch of n, in unbatched calls.
#[derive(Debug, Clone, Copy, PartialEq)]
enum BatchCost {
    /// `1 − part + part × n`.
    Affine(f64),
    /// The same with the next power of two of n.
    Pow2(f64),
}

/// A named server.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct NamedServer {
    pub(super) name: &'static str,
    place: ExecutionModel,
    cost: BatchCost,
}

/// All servers. A name begins with the number of concurrent calls and ends with the cost of a
/// batch.
pub(super) const ALL: [NamedServer; 16] = [
    NamedServer { name: "k1", place: ExecutionModel::Workers(1), cost: BatchCost::Affine(0.06) },
    NamedServer { name: "k1half", place: ExecutionModel::Workers(1), cost: BatchCost::Affine(0.5) },
    NamedServer { name: "k1lin", place: ExecutionModel::Workers(1), cost: BatchCost::Affine(1.0) },
    NamedServer { name: "k1pow2", place: ExecutionModel::Workers(1), cost: BatchCost::Pow2(0.1) },
    NamedServer { name: "k4", place: ExecutionModel::Workers(4), cost: BatchCost::Affine(0.06) },
    NamedServer { name: "k8", place: ExecutionModel::Workers(8), cost: BatchCost::Affine(0.17) },
    NamedServer { name: "k8lin", place: ExecutionModel::Workers(8), cost: BatchCost::Affine(1.0) },
    NamedServer { name: "k64", place: ExecutionModel::Workers(64), cost: BatchCost::Affine(0.06) },
    NamedServer { name: "k64lin", place: ExecutionModel::Workers(64), cost: BatchCost::Affine(0.5) },
    NamedServer { name: "inf", place: ExecutionModel::Workers(u32::MAX), cost: BatchCost::Affine(0.06) },
    NamedServer { name: "inflin", place: ExecutionModel::Workers(u32::MAX), cost: BatchCost::Affine(1.0) },
    NamedServer { name: "ps1", place: ExecutionModel::Cores(1), cost: BatchCost::Affine(0.06) },
    NamedServer { name: "ps8", place: ExecutionModel::Cores(8), cost: BatchCost::Affine(0.17) },
    NamedServer { name: "ps8lin", place: ExecutionModel::Cores(8), cost: BatchCost::Affine(1.0) },
    NamedServer { name: "cont", place: ExecutionModel::Steps, cost: BatchCost::Affine(0.0) },
    NamedServer { name: "inner", place: ExecutionModel::InnerBatching, cost: BatchCost::Affine(0.06) },
];

/// Creates a server with this number of workers. A batch costs little more than an unbatched call,
/// which takes `t1` milliseconds.
pub(super) fn workers(count: u32, t1: f64) -> SlotServer {
    server(count, BatchCost::Affine(0.06).curve(t1))
}

fn server(count: u32, curve: CostCurve) -> SlotServer {
    SlotServer { slots: count, round_trip: Duration::ZERO, sigma: SIGMA, ..SlotServer::new(curve) }
}

// === impl NamedServer ===

impl NamedServer {
    /// Creates the upstream, with `t1` milliseconds for an unbatched call.
    pub(super) fn upstream(&self, t1: f64) -> UpstreamKind {
        let curve = self.cost.curve(t1);
        let shared = |slowdown| UpstreamKind::Shared(SharedServer { curve, slowdown, sigma: SIGMA });
        match self.place {
            ExecutionModel::Workers(count) => UpstreamKind::Server(server(count, curve)),
            ExecutionModel::Cores(count) => shared(Slowdown::Cores(count)),
            ExecutionModel::Steps => shared(Slowdown::Step { item: STEP_ITEM }),
            ExecutionModel::InnerBatching => UpstreamKind::Engine(BatchingServer {
                front: Duration::ZERO,
                front_item: Duration::ZERO,
                round_trip: Duration::ZERO,
                items_max: INNER_ITEMS,
                weight_max: u64::MAX,
                sigma: SIGMA,
                batch_items_max: u32::MAX,
                items_inside_max: u32::MAX,
                ..BatchingServer::new(curve)
            }),
        }
    }

    /// Returns the maximum throughput of direct callers, in calls per millisecond.
    pub(super) fn capacity(&self, t1: f64) -> f64 {
        let callers = f64::from(CALLERS);
        match self.place {
            ExecutionModel::Workers(count) => f64::from(count.min(CALLERS)) / t1,
            ExecutionModel::Cores(count) => f64::from(count) / t1,
            ExecutionModel::Steps => callers / (t1 * (1.0 - STEP_ITEM + STEP_ITEM * callers)),
            ExecutionModel::InnerBatching => f64::from(INNER_ITEMS) / self.cost.curve(t1).millis_of(INNER_ITEMS),
        }
    }

    /// Returns the cost of a batch of two, in unbatched calls.
    pub(super) fn pair_cost(&self) -> f64 {
        self.cost.curve(1.0).millis_of(2)
    }

    /// Returns `true` if the server executes more calls at once than `CALLERS`.
    pub(super) fn is_unlimited(&self) -> bool {
        matches!(self.place, ExecutionModel::Workers(count) if count > CALLERS)
    }
}

// === impl BatchCost ===

impl BatchCost {
    fn curve(self, t1: f64) -> CostCurve {
        match self {
            Self::Affine(part) => CostCurve::Affine { a: t1 * (1.0 - part), b: t1 * part },
            Self::Pow2(part) => CostCurve::Pow2 { a: t1 * (1.0 - part), b: t1 * part },
        }
    }
}
