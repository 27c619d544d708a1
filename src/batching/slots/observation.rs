//! Measurements on a batch that returns, relative to the other batches in flight. The conclusions
//! are drawn in `slots`.

use super::super::math::to_f64;
use super::super::tick::Tick;

/// A batch that took more than this many times its expected time, in addition to its wait, stalled.
/// It moves no lead and is no sample, because the stall has another cause than the slots. It still
/// counts as having waited: otherwise nothing would be learned from several slots that vanish at
/// once, which make every batch look stalled.
const STALL_FACTOR: f64 = 3.0;
/// Maximum share of the possible wait that one batch counts as having waited. As evidence about a
/// slot, the share is bounded by the same value below zero, so that noise cancels out.
pub(super) const WAITED_MAX: f64 = 1.5;

/// Share of the expected time above which extra time is attributed to a wait, not to noise. It is
/// near the most noise that the cost curve assumes, a tail ratio of 1.6.
const LATE_EXTRA: f64 = 0.5;

/// Maximum number of returns of other batches that are recorded: enough to detect a fall from five
/// slots to one at once. A larger fall is detected in two steps.
pub(super) const RETURNS_MAX: usize = 4;
/// Tolerance for the start of a batch that waited, as a share of its expected time. A return up to
/// this long after the start is taken for the one that made room, because responses take time to
/// arrive.
const START_TOLERANCE: f64 = 0.2;

/// Record of a batch in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) struct SlotFlight {
    pub(super) sent: Tick,
    /// Number of other batches in flight at its dispatch.
    pub(super) others: u32,
    /// `true` if it was sent earlier than the lead allows, to learn.
    pub(super) explores: bool,
    /// Instants at which the first other batches returned since this one left, in order.
    pub(super) returns: [Option<Tick>; RETURNS_MAX],
}

/// Use of a returned batch's execution time as a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum SampleUse {
    /// The batch ran alone: a sample for the cost curve and for T.
    Lone,
    /// The batch ran on a slot of its own beside others: a sample for the cost curve.
    Beside,
    /// The batch may have waited upstream, as on a doubtful slot, or stalled beside others: no
    /// sample.
    No,
}

/// A returned batch as the rules evaluate it. All times are in nanoseconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct SlotObservation {
    /// Expected time of such a batch alone.
    pub(super) expected: f64,
    /// Time that it took beyond that.
    pub(super) extra: f64,
    /// Time until the first of the others returned: its wait if every slot was taken.
    pub(super) wait: f64,
    /// A turn (`slots`): the mean time between returns with this many others in flight. With one
    /// other it is the execution time itself. No wait is much longer than a turn, so thresholds are
    /// relative to it. Relative to the execution time, the waits beside more than about five slots
    /// would all be too short, and no further slot would be found.
    pub(super) mean_interval: f64,
    /// Number of slots that ran side by side, from the number of others that had to return before
    /// this batch began.
    pub(super) concurrency: f64,
}

// === impl SlotFlight ===

impl SlotFlight {
    pub(in super::super) const fn sent_at(&self) -> Tick {
        self.sent
    }

    /// Returns `true` if nothing else was in flight at dispatch.
    pub(in super::super) const fn is_lone(&self) -> bool {
        self.others == 0
    }

    /// Records the return of another batch, successful or not, while this one is in flight.
    pub(in super::super) fn on_other_return(&mut self, now: Tick) {
        if let Some(free) = self.returns.iter_mut().find(|at| at.is_none()) {
            *free = Some(now);
        }
    }

    /// Returns the instant at which the first of the others returned.
    pub(super) fn first_return(&self) -> Option<Tick> {
        self.returns[0]
    }
}

// === impl SlotObservation ===

impl SlotObservation {
    pub(super) fn new(now: Tick, flight: &SlotFlight, expected: u64) -> Self {
        let took = to_f64(now.0.saturating_sub(flight.sent.0));
        let expected = to_f64(expected.max(1));
        let since_dispatch = |at: Tick| to_f64(at.0.saturating_sub(flight.sent.0));
        let (extra, wait) = (took - expected, since_dispatch(flight.first_return().unwrap_or(now)));
        // The batch started after it had waited for `extra`. The others that had returned by then
        // made room for it, and those that had not ran beside it.
        let is_before_start = |at: &&Tick| since_dispatch(**at) <= extra + START_TOLERANCE * expected;
        let returns = flight.returns.iter().flatten().take_while(is_before_start).map(|_| 1.0).sum::<f64>();
        let concurrency = (f64::from(flight.others) + 1.0 - returns).max(1.0);
        Self { expected, extra, wait, mean_interval: expected / f64::from(flight.others.max(1)), concurrency }
    }

    pub(super) fn is_stalled(self) -> bool {
        self.expected + self.extra > STALL_FACTOR * self.expected + self.wait
    }

    /// Returns `true` if the batch took long enough to show that it waited upstream or stalled. It
    /// is no sample then, because the curve would learn the wait for a slot that has vanished.
    pub(super) fn is_late(self) -> bool {
        self.is_stalled() || self.extra > LATE_EXTRA * self.expected
    }

    /// Returns the extra time as a share of the possible wait, clamped because a single batch
    /// proves no more.
    pub(super) fn waited_fraction(self, min: f64) -> f64 {
        (self.extra / self.wait).clamp(min, WAITED_MAX)
    }
}
