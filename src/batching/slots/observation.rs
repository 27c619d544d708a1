//! Measurements on a batch that returns, relative to the other batches in flight. The conclusions
//! are drawn in `slots`.

use super::super::math::to_f64;
use super::super::tick::Tick;

/// A batch that took this many times its lone time, in addition to its wait, stalled: it moves no
/// lead and is no sample. It still counts as having waited; otherwise several slots that vanish at
/// once would make every batch look stalled, and nothing would be learned any more.
const STALL_TIMES: f64 = 3.0;
/// Maximum part of the possible wait that one batch counts as having waited. The same bound holds
/// below zero, or noise would add up.
pub(super) const WAITED_MAX: f64 = 1.5;

/// Extra time above this part of an execution is not noise: the tail ratio is at most 1.6.
const LATE_EXTRA: f64 = 0.5;

/// Number of returns of other batches that are recorded: enough to detect a fall from five slots to
/// one at once. A larger fall is detected in two steps.
pub(super) const RETURNS: usize = 4;
/// Tolerance for the start of a batch that waited, as a part of an execution: it started with the
/// last return up to this long after its wait, because the way back takes time too.
const STARTED: f64 = 0.2;

/// Record of a batch in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) struct SlotFlight {
    pub(super) sent: Tick,
    /// Number of other batches in flight at its dispatch.
    pub(super) others: u32,
    /// `true` if it was sent earlier than the lead allows, to learn.
    pub(super) explores: bool,
    /// Instants at which the first other batches returned since this one left, in order.
    pub(super) returns: [Option<Tick>; RETURNS],
}

/// Use of a returned batch's execution time as a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum SampleUse {
    /// The batch ran alone: a sample for the cost curve and for T.
    Alone,
    /// The batch ran on a slot of its own beside others: a sample for the cost curve.
    Beside,
    /// The batch may have waited upstream, as on a slot in doubt, or stalled beside others: no
    /// sample.
    No,
}

/// A returned batch as the rules evaluate it. All times are in nanoseconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Observation {
    /// Expected time of such a batch alone.
    pub(super) expected: f64,
    /// Time that it took beyond that.
    pub(super) extra: f64,
    /// Time until the first of the others returned: its wait if every slot was taken.
    pub(super) wait: f64,
    /// Mean time between returns with this many others in flight. No wait is much longer. With one
    /// other it is the execution time itself, and the rules scale with it; if they used the
    /// execution time alone, no more than about five slots would ever be found, because every wait
    /// is short.
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
    pub(in super::super) const fn is_alone(&self) -> bool {
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

// === impl Observation ===

impl Observation {
    pub(super) fn new(now: Tick, flight: &SlotFlight, expected: u64) -> Self {
        let took = to_f64(now.0.saturating_sub(flight.sent.0));
        let expected = to_f64(expected.max(1));
        let since_dispatch = |at: Tick| to_f64(at.0.saturating_sub(flight.sent.0));
        let (extra, wait) = (took - expected, since_dispatch(flight.first_return().unwrap_or(now)));
        // The batch started after it had waited for `extra`. The others that had returned by then
        // made room for it, and those that had not ran beside it.
        let is_before_start = |at: &&Tick| since_dispatch(**at) <= extra + STARTED * expected;
        let returns = flight.returns.iter().flatten().take_while(is_before_start).map(|_| 1.0).sum::<f64>();
        let concurrency = (f64::from(flight.others) + 1.0 - returns).max(1.0);
        Self { expected, extra, wait, mean_interval: expected / f64::from(flight.others.max(1)), concurrency }
    }

    pub(super) fn is_stalled(self) -> bool {
        self.expected + self.extra > STALL_TIMES * self.expected + self.wait
    }

    /// Returns `true` if the batch took long enough to show that it waited upstream or stalled. It
    /// is no sample then, because the curve would learn the wait for a slot that has vanished.
    pub(super) fn is_late(self) -> bool {
        self.is_stalled() || self.extra > LATE_EXTRA * self.expected
    }

    /// Returns the extra time as a part of the possible wait, clamped because a single batch proves
    /// no more.
    pub(super) fn waited_fraction(self, min: f64) -> f64 {
        (self.extra / self.wait).clamp(min, WAITED_MAX)
    }
}
