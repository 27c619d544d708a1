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

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ObservedStep {
    pub(super) from: TunedSettings,
    pub(super) parameter: Parameter,
    pub(super) direction: Direction,
    /// Measurements before the step.
    pub(super) before: SampleWindow,
}

/// Consecutive tightening steps of one setting since the SLO was first missed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StepSeries {
    pub(super) parameter: Parameter,
    /// Settings before each step.
    pub(super) from: Vec<TunedSettings>,
    /// Measurements before the first step.
    pub(super) before: SampleWindow,
    /// `true` once the steps proved to have no effect and are being reverted one by one.
    pub(super) is_reverting: bool,
}

/// A direction that failed and is not tried again for some time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct DirectionBlock {
    parameter: Parameter,
    direction: Direction,
    until: Tick,
    /// Number of times that the direction has failed since it last succeeded.
    times: u32,
}

/// State of a group.
///
/// # Bounds
/// At most four blocks, one for each parameter and direction, and a handful of histograms: about
/// 10 KB.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TuningState {
    /// Settings to be in force.
    pub(super) settings: TunedSettings,
    /// Last recommendation under `TuningMode::Recommend`, which is not applied.
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
    /// The last step, until a full window after it has been evaluated.
    pub(super) step: Option<ObservedStep>,
    /// The tightening steps that may still be reverted.
    pub(super) series: Option<StepSeries>,
    /// The last [`super::GroupReport::changes`].
    pub(super) upstream: Option<u64>,
    blocks: Vec<DirectionBlock>,
}

// === impl TuningState ===

impl TuningState {
    /// Creates a state without measurements from the settings in force.
    #[must_use]
    pub fn resume(settings: TunedSettings) -> Self {
        Self { settings, ..Self::default() }
    }

    /// Returns the settings to be in force.
    #[must_use]
    pub const fn settings(&self) -> TunedSettings {
        self.settings
    }

    /// Changes the settings, and discards measurements under the previous ones.
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
    pub(super) fn blocked_until(&self, now: Tick, parameter: Parameter, direction: Direction) -> Option<Tick> {
        let is_of = |block: &&DirectionBlock| (block.parameter, block.direction) == (parameter, direction);
        self.blocks.iter().find(is_of).map(|block| block.until).filter(|until| now < *until)
    }

    /// Blocks a direction that failed. Returns for how long.
    pub(super) fn block(&mut self, now: Tick, parameter: Parameter, direction: Direction) -> Duration {
        let at = self.blocks.iter().position(|block| (block.parameter, block.direction) == (parameter, direction));
        let times = at.map_or(0, |at| self.blocks.swap_remove(at).times);
        let duration = BLOCK_FIRST.saturating_mul(1 << times.min(16)).min(BLOCK_MAX);
        self.blocks.push(DirectionBlock { parameter, direction, until: now.after(duration), times: times + 1 });
        duration
    }

    /// Lifts the block of a direction that succeeded.
    pub(super) fn unblock(&mut self, parameter: Parameter, direction: Direction) {
        self.blocks.retain(|block| (block.parameter, block.direction) != (parameter, direction));
    }
}
