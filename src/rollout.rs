//! How a change of limits or scheduling reaches the pods, and whether it may stay.
//!
//! Limits and scheduling are kept as profiles that never change, each named by the hash of what it says ([`profile`]). A change is another profile: it is given
//! to all pods at once, to more and more of them while others serve as the yardstick (a canary), or to arms that are compared (an experiment). Pods are given
//! to arms by a hash of their UID ([`assign`]), so a pod stays where it is while a canary grows, and another controller gives the same answer. What the arms
//! report is judged at every look by a test that stays valid however often one looks ([`judge`]), and `step` goes on, back, or stops.
//!
//! All of it is pure: what is there, what is wanted, what was seen and the time go in; where each pod belongs, what to tell and the next [`State`] come out.
//! The state fits into `BatchPolicy.status` ([`status`]), so a controller that takes over carries on.
//!
//! What it leaves out: reading and writing objects, and telling sidecars.

pub mod assign;
mod evidence;
pub mod judge;
pub mod pin;
mod plan;
pub mod profile;
pub mod status;
mod step;

use crate::control::sketch::Sketch;

pub use self::plan::{Analysis, ArmPlan, Canary, Experiment, OnFailure, Plan, Strategy};
pub use self::step::{ArmState, Next, Outcome, Phase, PodSeen, State, Told, VerdictTold, step};

/// Seconds since 1970: what a status can hold, and every controller's clock agrees on well enough.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Epoch(pub u64);

/// What a pod served in some stretch of time.
///
/// # Units
/// Calls; times in the sketch are whole microseconds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Counts {
    /// Arrival to answer of the calls that were answered well.
    pub latency: Sketch,
    /// Calls that were not: refused, given up in the queue, failed, or answered 5xx by the server.
    pub errors: u64,
    /// Batches that they were sent in; 0 where that is not known.
    pub batches: u64,
}

// === impl Epoch ===

impl Epoch {
    /// Seconds since an earlier instant; none if it is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

// === impl Counts ===

impl Counts {
    /// Adds those of another pod, or of later.
    pub fn add(&mut self, other: &Self) {
        self.latency.merge(&other.latency);
        self.errors = self.errors.saturating_add(other.errors);
        self.batches = self.batches.saturating_add(other.batches);
    }

    /// Calls that came to an end.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.latency.count().saturating_add(self.errors)
    }
}
