//! Schedule of the limiter's tests.
//!
//! A test delays calls or adds load to the server. After one that found nothing, the next of its
//! kind therefore follows after a longer rest.

use super::super::tick::Tick;
use super::after_nanos;

/// Minimum and maximum rest after a search for room that found none, in nanoseconds.
pub(super) const ROOM_REST: (f64, f64) = (5e9, 300e9);

/// Instants of the next tests, and lengths of the next rests in nanoseconds.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Schedule {
    pub(super) trial: Tick,
    pub(super) trial_gap: f64,
    pub(super) jump: Tick,
    pub(super) jump_gap: f64,
    /// Instant since which the evidence for a jump has held.
    pub(super) evident: Option<Tick>,
    /// Instant of the last change of state. Executions from before do not count for trials.
    pub(super) since: Tick,
    /// `true` if the next trial raises the limit.
    pub(super) upward: bool,
    /// `true` if the last trial that was kept gained nearly in proportion.
    pub(super) steep: bool,
    /// Limit before the limiter opened for room, and the instant of opening. If no room is found,
    /// the rest before the next search doubles.
    pub(super) room: Option<(f64, Tick)>,
    pub(super) room_gap: f64,
    pub(super) room_from: Tick,
}

// === impl Schedule ===

impl Schedule {
    /// Makes an upward trial due now. If it finds no room, the next search follows after a longer
    /// rest.
    pub(super) fn schedule_upward_trial(&mut self, now: Tick) {
        (self.upward, self.trial) = (true, now);
        self.room_gap = (self.room_gap * 2.0).clamp(ROOM_REST.0, ROOM_REST.1);
        self.room_from = after_nanos(now, self.room_gap);
    }
}
