//! Rollouts: the gradual delivery of a change of limits or scheduling to pods, and the decision to
//! keep or to revert it.
//!
//! Limits and scheduling are kept as immutable profiles, each named by a hash of its content
//! ([`profile`]). A change creates another profile. It is given to all pods at once, to a growing
//! share of them while the others form the control arm (a canary), or to arms that are compared
//! with each other (an experiment). Pods are assigned to arms by a hash of their UID ([`assign`]),
//! so a pod keeps its arm while a canary grows, and another controller computes the same
//! assignment. The reports of the arms are compared at every evaluation by a test that stays valid
//! under repeated evaluation ([`comparison`]), and `step` then advances, reverts, or pauses the
//! rollout.
//!
//! All of it is pure: the objects, the plan, the measurements and the time go in; the profile of
//! each pod, the events and the next [`RolloutState`] come out. The state fits into
//! `BatchPolicy.status` ([`status`]), so that another controller can take over. Reading and writing
//! objects and pushing configuration to sidecars are left to the controller.

pub mod assign;
mod evidence;
pub mod comparison;
pub mod pin;
mod plan;
pub mod profile;
pub mod status;
mod step;

use crate::control::histogram::Histogram;

pub use self::plan::{ArmPlan, CanaryStep, ExperimentPlan, RegressionThresholds, RolloutPlan, RolloutStrategy};
pub use self::step::{ArmState, PodReport, ProfileVerdict, RolloutDecision, RolloutEvent, RolloutState, evaluate};

/// An instant in seconds since the Unix epoch: the resolution of a status, and precise enough for
/// clocks of different controllers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct UnixSeconds(pub u64);

/// Calls that a pod served in a period of time.
///
/// # Units
/// Counts are of calls. Times in the sketch are whole microseconds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ArmCounts {
    /// Latency, from arrival to answer, of the calls that were answered successfully.
    pub latency: Histogram,
    /// Calls that were not: refused, expired in the queue, failed, or answered with 429 or 5xx by
    /// the server.
    pub errors: u64,
    /// Number of batches that the calls were sent in; 0 if unknown.
    pub batches: u64,
}

// === impl UnixSeconds ===

impl UnixSeconds {
    /// Returns the seconds since an earlier instant, or 0 if it is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

// === impl ArmCounts ===

impl ArmCounts {
    /// Adds the counts of another pod or of a later period.
    pub fn add(&mut self, other: &Self) {
        self.latency.merge(&other.latency);
        self.errors = self.errors.saturating_add(other.errors);
        self.batches = self.batches.saturating_add(other.batches);
    }

    /// Returns the number of completed calls.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.latency.count().saturating_add(self.errors)
    }
}
