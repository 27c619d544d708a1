//! What the slow loop remembers of a group of pods: what it set, what it watches, and which ways it has found to be wrong.
//!
//! It is lost with the process that holds it, and nothing breaks: the next one begins with what the sidecars say is in force ([`History::resume`]).

use std::time::Duration;

use super::window::Run;
use super::{Settings, Window};
use crate::batching::Tick;

/// A way that proved wrong is not tried again for this long, twice as long the next time...
const BLOCK_FIRST: Duration = Duration::from_secs(300);
/// ...up to this.
const BLOCK_MAX: Duration = Duration::from_secs(24 * 3600);

/// What is moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Knob {
    /// How much earlier deadlines count.
    Shift,
    /// How many batches may be in flight.
    Slots,
}

/// Whither.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Way {
    /// To meet the SLO: deadlines earlier, fewer slots.
    Tighter,
    /// Back to what the policy says.
    Looser,
}

/// A step whose outcome is being watched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) from: Settings,
    pub(super) knob: Knob,
    pub(super) way: Way,
    /// What was seen before it.
    pub(super) before: Window,
}

/// Steps towards the SLO since it was broken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Climb {
    pub(super) knob: Knob,
    /// What was in force before each.
    pub(super) from: Vec<Settings>,
    /// What was seen before the first.
    pub(super) before: Window,
    /// They made no difference and are taken back one by one.
    pub(super) retreat: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Block {
    knob: Knob,
    way: Way,
    until: Tick,
    times: u32,
}

/// What is remembered of a group.
///
/// # Bounds
/// Four blocks, a handful of sketches: some 10 KB.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct History {
    /// What is to be in force.
    pub(super) settings: Settings,
    /// What was recommended last, where nothing is applied.
    pub(super) recommended: Option<Settings>,
    /// When that was last changed.
    pub(super) changed: Option<Tick>,
    /// Being collected.
    pub(super) window: Window,
    /// Windows in a row in which the SLO was not met, together.
    pub(super) late: Run,
    /// For how long it was met since it was not.
    pub(super) met: Duration,
    /// Windows in a row with time to spare, together.
    pub(super) calm: Run,
    pub(super) step: Option<Step>,
    pub(super) climb: Option<Climb>,
    /// As [`super::Observation::changes`] was last.
    pub(super) upstream: Option<u64>,
    blocks: Vec<Block>,
}

// === impl History ===

impl History {
    /// Nothing seen yet, with these settings in force.
    #[must_use]
    pub fn resume(settings: Settings) -> Self {
        Self { settings, ..Self::default() }
    }

    /// What is to be in force.
    #[must_use]
    pub const fn settings(&self) -> Settings {
        self.settings
    }

    pub(super) fn set(&mut self, now: Tick, settings: Settings) {
        self.settings = settings;
        self.changed = Some(now);
        self.window = Window::default();
        self.late = Run::default();
        self.calm = Run::default();
    }

    /// What was found is about another server: only the settings stay.
    pub(super) fn forget(&mut self, now: Tick) {
        *self = Self { changed: Some(now), upstream: self.upstream, ..Self::resume(self.settings) };
    }

    /// Until when this way is not tried.
    pub(super) fn blocked(&self, now: Tick, knob: Knob, way: Way) -> Option<Tick> {
        let of = |block: &&Block| (block.knob, block.way) == (knob, way);
        self.blocks.iter().find(of).map(|block| block.until).filter(|until| now < *until)
    }

    /// This way proved wrong.
    pub(super) fn block(&mut self, now: Tick, knob: Knob, way: Way) -> Duration {
        let at = self.blocks.iter().position(|block| (block.knob, block.way) == (knob, way));
        let times = at.map_or(0, |at| self.blocks.swap_remove(at).times);
        let long = BLOCK_FIRST.saturating_mul(1 << times.min(16)).min(BLOCK_MAX);
        self.blocks.push(Block { knob, way, until: now.after(long), times: times + 1 });
        long
    }

    /// This way proved right.
    pub(super) fn unblock(&mut self, knob: Knob, way: Way) {
        self.blocks.retain(|block| (block.knob, block.way) != (knob, way));
    }
}
