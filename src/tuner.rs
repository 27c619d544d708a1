//! The slow loop: what of a pod's settings moves, in seconds, from what its sidecar reports.
//!
//! A sidecar decides by itself for every batch, within walls. Some things show only over many calls: that answers are late though every prediction was kept,
//! that a server copes worse with as many batches at once as its policy allows. [`propose`] looks at a window of reports and moves one setting by one bounded
//! step, says why in a sentence, watches what came of it, and takes the step back if the SLO was met less often after it. It is pure: reports, bounds,
//! history and the time go in, a [`Proposal`] and the next history come out.
//!
//! What it never does: steer the batch cap by latency (that collapses: a smaller cap means less throughput, so longer queues, so a smaller cap;
//! `scheduling.md` §0.9), leave the bounds, or move on few calls. Serving does not depend on it: a sidecar without a controller keeps what it was told last.
//!
//! [`Tuner`] does this for many pods at once, pooled as the policy says; [`learned`] is what new pods begin with, [`shown`] what stands in a status.
//! It leaves out where reports come from and how settings get to a sidecar (`control`).

mod bounds;
mod decide;
mod group;
mod history;
pub mod learned;
pub mod shown;
mod window;
mod words;

use std::time::Duration;

use crate::control::sketch::Sketch;

pub use self::bounds::{Bounds, Granularity, Mode};
pub use self::decide::propose;
pub use self::group::{GroupKey, PodProposal, Tuner};
pub use self::history::{History, Knob, Way};
pub use self::window::Window;
pub use self::words::{millis, share};

/// How often the slow loop looks (README R26).
pub const INTERVAL: Duration = Duration::from_secs(10);

/// What the slow loop sets for a pod. A value that is absent is the policy's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct Settings {
    /// By how much deadlines that come from an SLO count earlier at least, in thousandths of that SLO. The sidecar's own shift may be larger.
    pub shift_permille: u32,
    /// At most so many batches in flight.
    pub slots_max: Option<u32>,
    /// Most weight in a batch.
    pub batch_weight_max: Option<u64>,
}

/// What a pod's sidecar reported since the last look.
///
/// # Units
/// Calls, not items; times in the sketch are whole microseconds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Observation {
    /// The pod's UID.
    pub pod: String,
    /// Its accelerator, or its instance type, or nothing where neither is known.
    pub node_class: String,
    /// The name of the profile in force.
    pub profile: String,
    /// It serves as somebody's yardstick: an arm of an experiment that must not move.
    pub frozen: bool,
    /// The time that the counts cover.
    pub over: Duration,
    /// Arrival to answer of the calls that were answered and have an SLO.
    pub latency: Sketch,
    /// Of these, the ones that were answered later than their SLO.
    pub late: u64,
    /// Calls with an SLO that got no answer: refused, given up in the queue, failed.
    pub lost: u64,
    /// What of [`Settings`] the sidecar has in force; `None` where it has not said.
    pub in_force: Option<Settings>,
    /// By how much deadlines count earlier in effect, in thousandths of their SLO: what the sidecar found itself, or what it was told, the larger.
    pub shift_permille: u32,
    /// Batches that the server was found to run side by side.
    pub slots: u32,
    /// What a call takes but once in fifty times with nothing else in flight; `None` while that is
    /// not known.
    pub lone_late: Option<Duration>,
    /// The least weight ceiling that the sidecar learned from refusals or failures.
    pub weight_ceiling: Option<u64>,
    /// How often the upstream was found to be another one, since its sidecar started.
    pub changes: u64,
    /// The concurrency of its server is still being learned, or another limit tried.
    pub learning: bool,
}

/// What is to be, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proposal {
    /// What is right; under [`Mode::Recommend`] it is only published.
    pub settings: Settings,
    /// What the sidecars are told: the same, or nothing unless the mode is [`Mode::Auto`].
    pub told: Settings,
    /// Why.
    pub reason: Reason,
}

/// Why something moves, or does not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reason {
    /// In one word, for Events and metrics.
    pub word: Word,
    /// In a sentence, for a status and people.
    pub text: String,
}

/// Every reason in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Word {
    /// Deadlines count earlier than before.
    ShiftRaised,
    /// Deadlines count less early than before.
    ShiftLowered,
    /// Fewer batches in flight.
    SlotsLowered,
    /// More batches in flight.
    SlotsRaised,
    /// Less weight in a batch.
    WeightLowered,
    /// More weight in a batch.
    WeightRaised,
    /// The last step is taken back: the SLO was met less often after it.
    RolledBack,
    /// Steps are taken back that made no difference.
    NoEffect,
    /// The bounds or limits of the policy moved, and the settings into them.
    Bounded,
    /// The SLO is met, or near enough.
    Held,
    /// The SLO is not met, and nothing that may be moved would help.
    Exhausted,
    /// A step was just taken, or the server has just changed.
    Settling,
    /// The concurrency of the server is still being learned, or another limit tried.
    Learning,
    /// Not enough calls came.
    FewSamples,
    /// No execution can meet the SLO.
    Infeasible,
    /// There is no SLO.
    NoSlo,
    /// An arm of an experiment that serves as the yardstick.
    Frozen,
    /// The policy tunes by hand.
    Manual,
}

// === impl Word ===

impl Word {
    /// Every reason.
    pub const ALL: [Self; 18] = [
        Self::ShiftRaised,
        Self::ShiftLowered,
        Self::SlotsLowered,
        Self::SlotsRaised,
        Self::WeightLowered,
        Self::WeightRaised,
        Self::RolledBack,
        Self::NoEffect,
        Self::Bounded,
        Self::Held,
        Self::Exhausted,
        Self::Settling,
        Self::Learning,
        Self::FewSamples,
        Self::Infeasible,
        Self::NoSlo,
        Self::Frozen,
        Self::Manual,
    ];

    /// As an Event has it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ShiftRaised => "ShiftRaised",
            Self::ShiftLowered => "ShiftLowered",
            Self::SlotsLowered => "SlotsLowered",
            Self::SlotsRaised => "SlotsRaised",
            Self::WeightLowered => "WeightLowered",
            Self::WeightRaised => "WeightRaised",
            Self::RolledBack => "RolledBack",
            Self::NoEffect => "NoEffect",
            Self::Bounded => "Bounded",
            Self::Held => "Held",
            Self::Exhausted => "Exhausted",
            Self::Settling => "Settling",
            Self::Learning => "Learning",
            Self::FewSamples => "FewSamples",
            Self::Infeasible => "Infeasible",
            Self::NoSlo => "NoSlo",
            Self::Frozen => "Frozen",
            Self::Manual => "Manual",
        }
    }

    /// Whether something moves for this reason: worth an Event.
    #[must_use]
    pub const fn moves(self) -> bool {
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

#[cfg(test)]
mod tests;
