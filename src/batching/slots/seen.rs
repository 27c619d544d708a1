//! What a batch that comes back says about the others that were in flight.
//!
//! Measuring only: what follows from it is decided by `slots`.

use super::super::math::float;
use super::super::tick::Tick;

/// A batch this many times slower than alone, after its wait, stalled: it moves no lead and is no sample. It still counts as one that waited, or slots that
/// vanish several at once would make every batch look stalled, and nothing would ever be learned again.
const STALL_TIMES: f64 = 3.0;
/// One batch counts as having waited at most this much of what it could have; as much less than nothing, or noise would add up.
pub(super) const WAITED_MAX: f64 = 1.5;

/// More extra time than this part of an execution is no noise (the tail ratio is at most 1.6, `scheduling.md` §3).
const LATE_EXTRA: f64 = 0.5;

/// Returns of others that are remembered: enough to see a fall from five slots to one at once, and more fall twice.
pub(super) const RETURNS: usize = 4;
/// A batch that waited started with the last return up to this part of an execution after its wait: the way back takes some time too.
const STARTED: f64 = 0.2;

/// What is kept of a batch in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) struct Flight {
    pub(super) sent: Tick,
    pub(super) others: u32,
    pub(super) explores: bool,
    /// When the first others came back since it left, in order.
    pub(super) returns: [Option<Tick>; RETURNS],
}

/// What the time of a batch that came back is good for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Sample {
    /// It ran alone: a sample for the curve and for T.
    Alone,
    /// It ran on a slot of its own beside others: a sample for the curve.
    Beside,
    /// It may have waited upstream, as on a slot that is in doubt, or stalled beside others: no sample.
    No,
}

/// A batch that came back, as the rules see it; nanoseconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seen {
    /// How long one like it takes alone.
    pub(super) alone: f64,
    /// How long it took beyond that.
    pub(super) extra: f64,
    /// Until the first of the others came back: its wait, had every slot been taken.
    pub(super) wait: f64,
    /// The mean time between returns with so many others out: no wait is much longer. With one it is the execution itself, and with more the rules scale
    /// with it; by the execution alone, more than some five slots would never be found, since every wait is short.
    pub(super) turn: f64,
    /// Slots that ran side by side, by the number of others that had to come back before this one began.
    pub(super) beside: f64,
}

// === impl Flight ===

impl Flight {
    /// When it left.
    pub(in super::super) const fn sent_at(&self) -> Tick {
        self.sent
    }

    /// Nothing else was in flight when it left.
    pub(in super::super) const fn is_alone(&self) -> bool {
        self.others == 0
    }

    /// Another batch came back, well or not, while this one is in flight.
    pub(in super::super) fn saw_return(&mut self, now: Tick) {
        if let Some(free) = self.returns.iter_mut().find(|at| at.is_none()) {
            *free = Some(now);
        }
    }

    /// When the first of the others came back.
    pub(super) fn first_return(&self) -> Option<Tick> {
        self.returns[0]
    }
}

// === impl Seen ===

impl Seen {
    pub(super) fn new(now: Tick, flight: &Flight, alone: u64) -> Self {
        let took = float(now.0.saturating_sub(flight.sent.0));
        let alone = float(alone.max(1));
        let after = |at: Tick| float(at.0.saturating_sub(flight.sent.0));
        let (extra, wait) = (took - alone, after(flight.first_return().unwrap_or(now)));
        let before = |at: &&Tick| after(**at) <= extra + STARTED * alone;
        let returns = flight.returns.iter().flatten().take_while(before).map(|_| 1.0).sum::<f64>();
        let beside = (f64::from(flight.others) + 1.0 - returns).max(1.0);
        Self { alone, extra, wait, turn: alone / f64::from(flight.others.max(1)), beside }
    }

    pub(super) fn stalled(self) -> bool {
        self.alone + self.extra > STALL_TIMES * self.alone + self.wait
    }

    /// Whether it took so much longer that it waited upstream or stalled: no sample, or the curve would learn the wait for a slot that has vanished.
    pub(super) fn late(self) -> bool {
        self.stalled() || self.extra > LATE_EXTRA * self.alone
    }

    /// The extra time as a part of the possible wait, between these bounds: one batch proves no more.
    pub(super) fn waited(self, min: f64) -> f64 {
        (self.extra / self.wait).clamp(min, WAITED_MAX)
    }
}
