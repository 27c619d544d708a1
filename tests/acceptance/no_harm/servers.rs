//! The simulated servers of the no-harm table: how many calls each executes at once, and the cost
//! of a batch. `t1` is the time of an unbatched call of one item, in milliseconds.

use std::time::Duration;

use groupage_simulator::curve::CostCurve;
use groupage_simulator::upstream::{BatchingServer, SharedServer, SlotServer, Slowdown, UpstreamKind};

/// Standard deviation of the natural logarithm of the execution time.
const SIGMA: f64 = 0.07;
/// Number of concurrent callers for which the capacity of a server that executes all calls at once
/// is computed.
const CALLERS: u32 = 48;
/// Maximum number of items of an internal batch.
const INNER_ITEMS: u32 = 32;
/// Share of the item in the cost of a step of continuous batching with one item; the rest is fixed.
const STEP_ITEM: f64 = 0.1;

/// The execution model of a server.
#[derive(Debug, Clone, Copy, PartialEq)]
enum ExecutionModel {
    /// A queue in the order of arrival, with this number of workers.
    Workers(u32),
    /// Processor sharing on this number of cores.
    Cores(u32),
    /// Continuous batching: all calls are in progress, and each slows down the steps of all others.
    Steps,
    /// Internal batching: one worker that executes up to `INNER_ITEMS` queued items as one batch.
    InnerBatching,
}

/// The cost of a batch of n items as a multiple of the cost of an unbatched call. `part` is the
/// share of an unbatched call that each item costs; the rest is the fixed cost of an execution.
#[derive(Debug, Clone, Copy, PartialEq)]
enum BatchCost {
    /// `1 − part + part × n`.
    Affine(f64),
    /// The same, with n rounded up to the next power of two.
    Pow2(f64),
}

/// A named server.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct NamedServer {
    pub(super) name: &'static str,
    execution: ExecutionModel,
    cost: BatchCost,
}

/// All servers. A name begins with the concurrency: `k` and the number of workers, `inf` for any
/// number of them, `ps` and the number of cores for processor sharing. It ends with the cost of a
/// batch: `half` if an item costs half of an unbatched call, `lin` if it costs all of it (half for
/// `k64lin`), `pow2` if sizes are rounded up to powers of two, and nothing if an item costs little.
pub(super) const ALL: [NamedServer; 16] = [
    NamedServer { name: "k1", execution: ExecutionModel::Workers(1), cost: BatchCost::Affine(0.06) },
    NamedServer { name: "k1half", execution: ExecutionModel::Workers(1), cost: BatchCost::Affine(0.5) },
    NamedServer { name: "k1lin", execution: ExecutionModel::Workers(1), cost: BatchCost::Affine(1.0) },
    NamedServer { name: "k1pow2", execution: ExecutionModel::Workers(1), cost: BatchCost::Pow2(0.1) },
    NamedServer { name: "k4", execution: ExecutionModel::Workers(4), cost: BatchCost::Affine(0.06) },
    NamedServer { name: "k8", execution: ExecutionModel::Workers(8), cost: BatchCost::Affine(0.17) },
    NamedServer { name: "k8lin", execution: ExecutionModel::Workers(8), cost: BatchCost::Affine(1.0) },
    NamedServer { name: "k64", execution: ExecutionModel::Workers(64), cost: BatchCost::Affine(0.06) },
    NamedServer { name: "k64lin", execution: ExecutionModel::Workers(64), cost: BatchCost::Affine(0.5) },
    NamedServer { name: "inf", execution: ExecutionModel::Workers(u32::MAX), cost: BatchCost::Affine(0.06) },
    NamedServer { name: "inflin", execution: ExecutionModel::Workers(u32::MAX), cost: BatchCost::Affine(1.0) },
    NamedServer { name: "ps1", execution: ExecutionModel::Cores(1), cost: BatchCost::Affine(0.06) },
    NamedServer { name: "ps8", execution: ExecutionModel::Cores(8), cost: BatchCost::Affine(0.17) },
    NamedServer { name: "ps8lin", execution: ExecutionModel::Cores(8), cost: BatchCost::Affine(1.0) },
    NamedServer { name: "cont", execution: ExecutionModel::Steps, cost: BatchCost::Affine(0.0) },
    NamedServer { name: "inner", execution: ExecutionModel::InnerBatching, cost: BatchCost::Affine(0.06) },
];

/// Creates a server with this number of workers, on which an additional item of a batch costs 6 %
/// of an unbatched call.
pub(super) fn workers(count: u32, t1: f64) -> SlotServer {
    server(count, BatchCost::Affine(0.06).curve(t1))
}

fn server(count: u32, curve: CostCurve) -> SlotServer {
    SlotServer { slots: count, round_trip: Duration::ZERO, sigma: SIGMA, ..SlotServer::new(curve) }
}

// === impl NamedServer ===

impl NamedServer {
    /// Creates the upstream of this server.
    pub(super) fn upstream(&self, t1: f64) -> UpstreamKind {
        let curve = self.cost.curve(t1);
        let shared = |slowdown| UpstreamKind::Shared(SharedServer { curve, slowdown, sigma: SIGMA });
        match self.execution {
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

    /// Returns the maximum throughput of calls that are sent directly, in calls per millisecond.
    pub(super) fn capacity(&self, t1: f64) -> f64 {
        let callers = f64::from(CALLERS);
        match self.execution {
            ExecutionModel::Workers(count) => f64::from(count.min(CALLERS)) / t1,
            ExecutionModel::Cores(count) => f64::from(count) / t1,
            ExecutionModel::Steps => callers / (t1 * (1.0 - STEP_ITEM + STEP_ITEM * callers)),
            ExecutionModel::InnerBatching => f64::from(INNER_ITEMS) / self.cost.curve(t1).millis_of(INNER_ITEMS),
        }
    }

    /// Returns the cost of a batch of two items as a multiple of the cost of an unbatched call.
    pub(super) fn pair_cost(&self) -> f64 {
        self.cost.curve(1.0).millis_of(2)
    }

    /// Returns `true` if the server has more workers than there are callers, so that no call waits.
    pub(super) fn is_unlimited(&self) -> bool {
        matches!(self.execution, ExecutionModel::Workers(count) if count > CALLERS)
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
