//! The batching core: a deterministic, sans-IO state machine that decides which queued calls form a
//! batch, when the batch is dispatched, and which calls expire.
//!
//! The core receives the current time, ids and numbers, and returns decisions. It has no access to
//! payloads, clocks, tasks or logs. The same events therefore lead to the same decisions, hours of
//! traffic are simulated in a second, and a run is reproduced from its seed. [`Batcher`] is the
//! state machine; the other modules are its parts.
//!
//! ```
//! use groupage::batching::{Batcher, Call, CallId, Decision, Limits, Tick};
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
mod decide;
mod draw;
mod flow;
mod invariant;
mod isolate;
mod limits;
mod math;
mod plan;
mod priority;
mod queue;
mod shadow;
mod shift;
mod skill;
mod shelf;
mod slots;
mod tally;
mod tick;

pub use adaptive::{Learned, OperatingPoint, PlanAge};
pub use batch::{Batch, BatchId, Cause, Decision, Expiry, Lone, Member, Observed, ObservedOutcome, Refusal};
pub use batcher::{Batcher, CeilingInForce, ClassSnapshot, ClassWhy, Counts, Infeasible, Pauses, Report, Why};
pub use budget::ReplayBudget;
pub use call::{
    Call, CallId, CostClassId, Deadline, DeadlineSource, KeyId, PriorityId, Rejection, RejectionReason, ScopeId,
    TenantId, Weight,
};
pub use ceiling::{Bounded, CeilingReport, CeilingSnapshot, LimitSource};
pub use class::merging::{MergingChange, Suspension};
pub use cost::{Base, Point, Report as CostReport, Sample, Snapshot};
pub use flow::{FlowMode, FlowReport, FlowSnapshot, LoadPoint, OpenReason};
pub use invariant::InvariantId;
pub use isolate::{Isolation, Part, Verdict};
pub use limits::{Late, Limits, Policy, ScopeLimits};
pub use plan::{Plan, PlanInput, solve};
pub use priority::Priority;
pub use shadow::{End as ShadowEnd, Known as ShadowKnown, Shadow, Would};
pub use shift::DeadlineShift;
pub use skill::Skill;
pub use slots::UpstreamSnapshot;
pub use tally::{Hold, Tally, Totals};
pub use tick::Tick;
