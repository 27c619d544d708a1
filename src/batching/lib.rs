//! The batching core: a deterministic, sans-IO state machine that decides which queued calls form a
//! batch, when the batch is dispatched, and which calls expire.
//!
//! The core receives the current time, ids and numbers, and returns decisions. It has no access to
//! payloads, clocks, tasks or logs. The same events therefore lead to the same decisions, hours of
//! traffic are simulated in a second, and a run is reproduced from its seed. [`Batcher`] is the
//! state machine; the other modules are its parts.
//!
//! ```
//! use groupage_batching::{Batcher, Call, CallId, Decision, Limits, Tick};
//!
//! let mut batcher = Batcher::new(Limits::default(), 7);
//! let now = Tick::from_millis(1);
//! batcher.offer(now, Call::new(CallId(1))).expect("an empty queue has room");
//! assert!(matches!(batcher.poll(now), Some(Decision::Dispatch(_))), "an idle slot never waits");
//! ```
//!
//! Plans are not solved here: [`solve`] belongs on a thread that may block.

mod adaptive;
mod admission;
mod arrivals;
mod batch;
mod batcher;
mod budget;
mod call;
mod ceiling;
mod class;
mod cost;
mod select;
mod splitmix64;
mod limiter;
mod invariant;
mod isolation;
mod limits;
mod math;
mod plan;
mod priority;
mod queue;
mod shadow;
mod deadline_shift;
mod ablation;
mod call_map;
mod slots;
mod stats;
mod tick;

pub use ablation::Feature;
pub use adaptive::{LearnedGauges, OperatingPoint, PlanAge};
pub use batch::{
    Batch, BatchId, BatchOutcome, BatchRefusal, Decision, DispatchCause, ExpiryReason, Member, Observation,
    UnbatchedReason,
};
pub use batcher::{
    Batcher, BatcherReport, CeilingInForce, ClassDecisionStats, ClassSnapshot, DecisionStats, InfeasibleSlo,
    PauseStats, QueueGauges,
};
pub use budget::ReplayBudget;
pub use call::{
    Call, CallId, CostClassId, Deadline, DeadlineSource, KeyId, PriorityId, Rejection, RejectionReason, ScopeId,
    TenantId, Weight,
};
pub use ceiling::{CeilingReport, CeilingSnapshot, LimitSource, SizeMeasure};
pub use class::merging::{MergingChange, Suspension};
pub use cost::{CostMeasure, CostReport, CostSample, CostSnapshot, CurvePoint};
pub use deadline_shift::DeadlineShift;
pub use invariant::InvariantId;
pub use isolation::{IsolationPlan, MemberRange, PartOutcome};
pub use limiter::{FlowMode, FlowReport, FlowSnapshot, LoadPoint, OpenReason};
pub use limits::{DispatchPolicy, LateTreatment, Limits, ScopeLimits};
pub use plan::{Plan, PlanInput, solve};
pub use priority::PriorityClass;
pub use shadow::{Shadow, ShadowEnd, ShadowKnowledge as ShadowKnown, ShadowOutcome};
pub use slots::UpstreamSnapshot;
pub use stats::{ClassStats, DispatchTotals, HoldReason};
pub use tick::Tick;
