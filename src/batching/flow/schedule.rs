//! The schedule of the limiter's tests.

use super::super::tick::Tick;
use super::after;

/// The rest after room that was looked for was not found, in nanoseconds: at first, and at most.
pub(super) const ROOM_REST: (f64, f64) = (5e9, 300e9);

/// Times of the next tests, and the lengths of the next rests, in nanoseconds.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Schedule {
    pub(super) trial: Tick,
    pub(super) trial_gap: f64,
    pub(super) jump: Tick,
    pub(super) jump_gap: f64,
    /// Since when the evidence for a jump has held.
    pub(super) evident: Option<Tick>,
    /// The last change of state: what was answered before does not count for trials.
    pub(super) since: Tick,
    /// The next trial raises the limit.
    pub(super) upward: bool,
    /// The last trial that was kept gained nearly in proportion.
    pub(super) steep: bool,
    /// The limit before it opened for room, and since when; room that was not there is looked for
    /// later each time.
    pub(super) room: Option<(f64, Tick)>,
    pub(super) room_gap: f64,
    pub(super) room_from: Tick,
}

// === impl Schedule ===

impl Schedule {
    /// The next trial raises the limit, and is due. If nothing comes of it, it is looked for later
    /// each time.
    pub(super) fn look_for_room(&mut self, now: Tick) {
        (self.upward, self.trial) = (true, now);
        self.room_gap = (self.room_gap * 2.0).clamp(ROOM_REST.0, ROOM_REST.1);
        self.room_from = after(now, self.room_gap);
    }
}
