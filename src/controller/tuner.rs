//! The slow control loop: adjusts a pod's settings within seconds, from the reports of its sidecar.
//!
//! A sidecar decides on its own about every batch, within the bounds of its policy. Some problems
//! only show over many calls: answers are late although every prediction was met, or a server slows
//! down under as many concurrent batches as its policy allows. [`evaluate()`] inspects a window of
//! reports, moves one setting by one bounded step, records the reason in a sentence, observes the
//! effect, and reverts the step if the SLO was met less often after it. It is pure: reports,
//! bounds, history and the time go in, a [`Proposal`] and the next history come out.
//!
//! It never steers the batch cap by latency, never leaves the bounds, and never moves on few calls.
//! Steering the cap by latency collapses: a smaller cap means less throughput, hence longer queues,
//! hence later answers and an even smaller cap. Serving does not depend on this loop: a sidecar
//! without a controller keeps the settings that were pushed last.
//!
//! [`Tuner`] runs the loop for many pods at once, pooled as the policy requires. [`learned`] holds
//! the initial state of new pods, [`status_list`] selects the pods of a status. Collecting the
//! reports and pushing the settings is left to `control`.

mod bounds;
mod evaluate;
mod group;
mod history;
pub mod learned;
pub mod status_list;
mod window;
mod format;

use std::time::Duration;

use strum::IntoStaticStr;

use crate::api::v1alpha1::{TuningGranularity, TuningMode};
use crate::control::histogram::Histogram;

pub use self::bounds::TuningBounds;
pub use self::evaluate::evaluate;
pub use self::format::{format_rounded, format_share};
pub use self::group::{GroupKey, PodProposal, Tuner};
pub use self::history::{Direction, Parameter, TuningState};
pub use self::window::SampleWindow;

/// Interval between two evaluations of a group.
pub const INTERVAL: Duration = Duration::from_secs(10);

/// Values that the slow loop sets for a pod. An absent value leaves the policy's own in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct TunedSettings {
    /// Minimum deadline shift, in thousandths of the SLO: deadlines derived from an SLO are moved
    /// forward by at least this much. The sidecar's own shift may be larger.
    pub shift_permille: u32,
    /// Maximum number of batches in flight.
    pub slots_max: Option<u32>,
    /// Maximum weight of a batch.
    pub batch_weight_max: Option<u64>,
}

/// Measurements that a pod's sidecar reported since the last evaluation.
///
/// # Units
/// Counts are of calls, not of items. Times in the sketch are whole microseconds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GroupReport {
    /// UID of the pod.
    pub pod: String,
    /// Accelerator or instance type of its node; empty if neither is known.
    pub node_class: String,
    /// Name of the profile in force.
    pub profile: String,
    /// `true` if the pod belongs to the control arm of a rollout: its settings must not change
    /// while other arms are compared with it.
    pub frozen: bool,
    /// Duration that the counts cover.
    pub over: Duration,
    /// Latency, from arrival to answer, of the answered calls that have an SLO.
    pub latency: Histogram,
    /// Number of answered calls that exceeded their SLO.
    pub late: u64,
    /// Calls with an SLO that received no answer: refused, expired in the queue, or failed.
    pub lost: u64,
    /// The [`TunedSettings`] that the sidecar has in force; `None` if it has not reported them.
    pub in_force: Option<TunedSettings>,
    /// Effective deadline shift in thousandths of the SLO: the larger of the shift that the sidecar
    /// measured itself and the shift that was pushed.
    pub shift_permille: u32,
    /// Number of batches that the server was measured to execute concurrently.
    pub slots: u32,
    /// 98th percentile of the latency of a call with nothing else in flight; `None` while it is
    /// unknown.
    pub lone_late: Option<Duration>,
    /// Smallest weight ceiling that the sidecar learned from refusals or failures.
    pub weight_ceiling: Option<u64>,
    /// Number of times that the upstream was found to have been replaced, since the sidecar
    /// started.
    pub changes: u64,
    /// `true` while the concurrency of the server is still being learned, or another limit is on
    /// trial.
    pub learning: bool,
}

/// Settings proposed for a group, and the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proposal {
    /// Settings found to be right. Under [`TuningMode::Recommend`] they are only published.
    pub settings: TunedSettings,
    /// Settings to push to the sidecars: the same under [`TuningMode::Auto`], else the default.
    pub pushed: TunedSettings,
    /// Reason for the settings.
    pub reason: TuningReason,
}

/// Reason for moving a setting, or for leaving it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TuningReason {
    /// Category, for Events and metrics.
    pub code: ReasonCode,
    /// One-sentence explanation, for a status.
    pub text: String,
}

/// Category of a [`TuningReason`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, IntoStaticStr)]
pub enum ReasonCode {
    /// The deadline shift was raised.
    ShiftRaised,
    /// The deadline shift was lowered.
    ShiftLowered,
    /// The limit of batches in flight was lowered.
    SlotsLowered,
    /// The limit of batches in flight was raised.
    SlotsRaised,
    /// The limit of the batch weight was lowered.
    WeightLowered,
    /// The limit of the batch weight was raised.
    WeightRaised,
    /// The last step is reverted: the SLO was met less often after it.
    RolledBack,
    /// A series of steps without effect is reverted.
    NoEffect,
    /// The bounds or limits of the policy changed, and the settings were clamped to them.
    Bounded,
    /// Nothing changes: the SLO is met, or not missed for long enough.
    Held,
    /// The SLO is missed, and no permitted adjustment is left that would help.
    Exhausted,
    /// A step was just made, or the server was just replaced.
    Settling,
    /// The concurrency of the server is still being learned, or another limit is on trial.
    Learning,
    /// Too few calls were answered.
    FewSamples,
    /// No setting can meet the SLO: a call alone takes longer.
    Infeasible,
    /// The policy has no SLO.
    NoSlo,
    /// The pod belongs to the control arm of a rollout.
    Frozen,
    /// The policy disables automatic tuning.
    Manual,
}

// === impl ReasonCode ===

impl ReasonCode {
    /// Returns the name used in Events.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// Returns `true` if a setting changes for this reason, which is worth an Event.
    #[must_use]
    pub const fn is_change(self) -> bool {
        matches!(
            self,
            Self::ShiftRaised
                | Self::ShiftLowered
                | Self::SlotsLowered
                | Self::SlotsRaised
                | Self::WeightLowered
                | Self::WeightRaised
                | Self::RolledBack
                | Self::NoEffect
                | Self::Bounded
        )
    }
}

/// Returns `true` if a number changed by at least a tenth, from which on it is worth a write of a
/// status.
#[must_use]
pub fn has_moved(old: u64, new: u64) -> bool {
    u128::from(old.abs_diff(new)) * 10 >= u128::from(old.max(1))
}

#[cfg(test)]
mod tests;
