//! The adaptive policy: learns the cost of each batch size, the upstream's concurrency and the
//! arrival process, and decides dispatches from them.
//!
//! [`Adaptive`] owns everything that is learned and is notified of every event. `pipeline` decides:
//! it runs the steps of a decision, in `slot_permit`, `hold_steps` and `member_steps`, in a fixed
//! order; `learned_steps` is the table of those that use a learned part. Each step uses one module:
//! `lost_requests` detects requests that occupy no slot, `hold` decides whether holding for
//! expected arrivals pays, `required_merge` merges key queues as their policy requires, `cohort`
//! merges closed-loop cohorts that take turns, `batch_size` selects the batch size, `deadline`
//! reduces a batch to what deadlines allow, and `weight_group` and `fair_queueing` select the
//! members. `service_order` orders the key queues, `events` updates the state, and `learned_state`
//! and `report` expose it. The behaviour is described in `docs/scheduling.md`.
//!
//! Modules import types from the modules that define them: `decision` and `queue_view` (inputs and
//! results of a decision), `models` (what is learned) and `state` (all of it).
//!
//! Left out: hard limits and the members that fit together (`select`), ceilings (`class`), and
//! solving plans, which belongs on a thread that may block.

mod batch_draft;
mod batch_size;
mod class_mix;
mod cohort;
mod cohort_merge;
mod deadline;
mod decision;
mod events;
mod exploration;
mod fair_queueing;
mod hold;
mod hold_steps;
mod late_calls;
mod learned_state;
mod learned_steps;
mod lost_requests;
mod member_steps;
mod models;
mod pipeline;
mod queue_view;
mod report;
mod required_merge;
mod service_order;
mod slot_permit;
mod state;
mod unloaded_time;
mod weight_group;

pub(super) use decision::{Action, DecisionContext, DispatchKind};
pub(super) use exploration::DeadlineSpread;
pub(super) use fair_queueing::BatchWork;
pub(super) use learned_steps::LearnedSteps;
pub(super) use models::Dispatch;
pub(super) use queue_view::{slack_of, slo_of};
pub(super) use report::AdaptiveReport;
pub use report::{LearnedGauges, OperatingPoint, PlanAge};
pub(super) use state::Adaptive;
