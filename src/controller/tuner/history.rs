//! State of the slow loop for a group of pods: current settings, the step under observation, and
//! directions that failed.
//!
//! The state is lost when the process ends. The next process starts from the settings that the
//! sidecars report as in force ([`TuningState::resume`]).

use std::time::Duration;

use super::window::VerdictRun;
use super::{SampleWindow, TunedSettings};
use crate::batching::Tick;

/// Time for which a direction is blocked after it failed. It doubles with each failure (exponential
/// backoff)...
const BLOCK_FIRST: Duration = Duration::from_secs(300);
/// ...up to this.
const BLOCK_MAX: Duration = Duration::from_secs(24 * 3600);

/// Setting that the slow loop moves step by step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Parameter {
    /// Deadline shift.
    Shift,
    /// Maximum number of batches in flight.
    Slots,
}

/// Direction of an adjustment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    /// Towards the SLO: earlier deadlines, fewer slots.
    Tighter,
    /// Back towards the policy's own values.
    Looser,
}

/// A step under observation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ObservedStep {
    pub(super) from: TunedSettings,
    pub(super) parameter: Parameter,
    pub(super) way: Direction,
    /// Measurements before the step.
    pub(super) before: SampleWindow,
}

/// Consecutive steps towards the SLO since it was first missed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StepSeries {
    pub(super) parameter: Parameter,
    /// Settings before each step.
    pub(super) from: Vec<TunedSettings>,
    /// Measurements before the first step.
    pub(super) before: SampleWindow,
    /// `true` once the steps proved to have no effect and are being reverted one by one.
    pub(super) retreat: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct DirectionBlock {
    parameter: Parameter,
    way: Direction,
    until: Tick,
    times: u32,
}

/// State of a group.
///
/// # Bounds
/// At most four blocks, one for each parameter and direction, and a handful of sketches: about 10
/// KB.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TuningState {
    /// Settings to be in force.
    pub(super) settings: TunedSettings,
    /// Last recommendation under `TunerMode::Recommend`, which is not applied.
    pub(super) recommended: Option<TunedSettings>,
    /// Time of the last change of `settings`.
    pub(super) changed: Option<Tick>,
    /// Window that is being collected.
    pub(super) window: SampleWindow,
    /// Consecutive windows in which the SLO was missed.
    pub(super) late: VerdictRun,
    /// Duration for which the SLO has been met since it was last missed.
    pub(super) met: Duration,
    /// Consecutive windows with time to spare.
    pub(super) calm: VerdictRun,
    pub(super) step: Option<ObservedStep>,
    pub(super) climb: Option<StepSeries>,
    /// The last [`super::GroupReport::changes`].
    pub(super) upstream: Option<u64>,
    blocks: Vec<DirectionBlock>,
}

// === impl TuningState ===

impl TuningState {
    /// Creates a history without measurements, given the settings in force.
    #[must_use]
    pub fn resume(settings: TunedSettings) -> Self {
        Self { settings, ..Self::default() }
    }

    /// Returns the settings to be in force.
    #[must_use]
    pub const fn settings(&self) -> TunedSettings {
        self.settings
    }

    pub(super) fn set_settings(&mut self, now: Tick, settings: TunedSettings) {
        self.settings = settings;
        self.changed = Some(now);
        self.window = SampleWindow::default();
        self.late = VerdictRun::default();
        self.calm = VerdictRun::default();
    }

    /// Discards everything but the settings, since the measurements belong to a server that was
    /// replaced.
    pub(super) fn reset(&mut self, now: Tick) {
        *self = Self { changed: Some(now), upstream: self.upstream, ..Self::resume(self.settings) };
    }

    /// Returns the instant until which this direction is blocked, or `None` if it is not.
    pub(super) fn blocked_until(&self, now: Tick, parameter: Parameter, way: Direction) -> Option<Tick> {
        let of = |block: &&DirectionBlock| (block.parameter, block.way) == (parameter, way);
        self.blocks.iter().find(of).map(|block| block.until).filter(|until| now < *until)
    }

    /// Blocks a direction that failed. Returns for how long.
    pub(super) fn block(&mut self, now: Tick, parameter: Parameter, way: Direction) -> Duration {
        let at = self.blocks.iter().position(|block| (block.parameter, block.way) == (parameter, way));
        let times = at.map_or(0, |at| self.blocks.swap_remove(at).times);
        let long = BLOCK_FIRST.saturating_mul(1 << times.min(16)).min(BLOCK_MAX);
        self.blocks.push(DirectionBlock { parameter, way, until: now.after(long), times: times + 1 });
        long
    }

    /// Lifts the block of a direction that succeeded.
    pub(super) fn unblock(&mut self, parameter: Parameter, way: Direction) {
        self.blocks.retain(|block| (block.parameter, block.way) != (parameter, way));
    }
}
