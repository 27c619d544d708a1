//! The batching core: a deterministic, sans-IO state machine that decides which queued calls form a
//! batch, when the batch is dispatched, and which calls expire.
//!
//! The core receives the current time, ids and numbers, and returns decisions. It has no access to
//! payloads, clocks, tasks or logs. The same events therefore lead to the same decisions, hours of
//! traffic are simulated in a second, and a run is reproduced from its seed. [`Batcher`] is the
//! state machine; the other modules are its parts.
//!
//! The caller supplies time and executes decisions:
//!
//! ```
//! use groupage_batching::{BatchId, BatchOutcome, Batcher, Call, CallId, Decision, KeyId, Limits};
//! use groupage_batching::{Observation, Tick};
//! use std::time::Duration;
//!
//! // Time and merge key of each arrival. The server has one slot, and each execution takes 10 ms.
//! let arrivals = [(0, 1), (2, 1), (3, 2), (5, 1)];
//! let mut batcher = Batcher::new(Limits { slots: 1, ..Limits::default() }, 7);
//! let mut running: Option<(BatchId, Tick)> = None;
//! let mut batches: Vec<(u64, Vec<u64>)> = Vec::new();
//! for millis in 0..50 {
//!     let now = Tick::from_millis(millis);
//!     for (id, (_, key)) in (1..).zip(arrivals).filter(|(_, (at, _))| *at == millis) {
//!         let call = Call { key: KeyId(key), ..Call::new(CallId(id)) };
//!         batcher.enqueue(now, call).expect("the queue has room");
//!     }
//!     let duration = Duration::from_millis(10);
//!     if let Some((batch, _)) = running.take_if(|(_, started)| now.since(*started) == duration) {
//!         let outcome = BatchOutcome::Ok;
//!         batcher.complete(now, batch, Observation { duration, first_byte: None, outcome });
//!     }
//!     // No call has a deadline or is cancelled, so every decision is a dispatch.
//!     while let Some(Decision::Dispatch(batch)) = batcher.poll(now) {
//!         running = Some((batch.id, now));
//!         batches.push((millis, batch.members.iter().map(|member| member.id.0).collect()));
//!     }
//! }
//! // A free slot is used at once. The calls that accumulate meanwhile share a batch per merge key.
//! assert_eq!(batches, [(0, vec![1]), (10, vec![2, 4]), (20, vec![3])]);
//! ```
//!
//! `examples/by_hand.rs` is the same loop with deadlines, in which time jumps from event to event.
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
mod limiter;
mod invariant;
mod isolation;
mod limits;
mod math;
mod order;
mod plan;
mod priority;
mod queue;
pub mod rng;
mod shadow;
mod deadline_shift;
mod ablation;
mod sorted_deque;
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
    Batcher, BatcherReport, CeilingInForce, ClassDecisionStats, ClassSnapshot, DecisionStats, DivisionLimits,
    InfeasibleSlo, PartLimits, PauseStats, QueueGauges,
};
pub use budget::ReplayBudget;
pub use call::{
    Call, CallId, CallOrigin, CostClassId, Deadline, DeadlineSource, KeyId, PriorityId, Rejection, RejectionReason,
    ScopeId, TenantId, Weight,
};
pub use ceiling::{CeilingReport, CeilingSnapshot, LimitSource, SizeMeasure};
pub use class::merging::{MergingChange, Suspension};
pub use class::{MergingRestriction, QuarantineReport, RestrictedClass};
pub use cost::{CostMeasure, CostReport, CostSample, CostSnapshot, CurvePoint};
pub use deadline_shift::DeadlineShift;
pub use invariant::InvariantId;
pub use isolation::{IsolationPlan, MemberRange, PartOutcome};
pub use limiter::{FlowMode, FlowReport, FlowSnapshot, LoadPoint, OpenReason};
pub use limits::{CallOrder, DispatchPolicy, LateTreatment, Limits, ScopeLimits};
pub use math::{round_to_u64, to_f64};
pub use plan::{Plan, PlanInput, solve};
pub use priority::PriorityClass;
pub use shadow::{PublishedMax, Shadow, ShadowArrival, ShadowEnd, ShadowKnowledge, ShadowOutcome};
pub use slots::UpstreamSnapshot;
pub use stats::{ClassStats, DispatchTotals, HoldReason};
pub use tick::Tick;
