//! Pairs while open: two calls in four hundred are sent together, to measure the cost of a batch.
//!
//! A batch has a connection of its own, which a busy server may take long to accept: an event loop
//! with a queue accepts it in one round and reads it in the next, so that it takes twice the time
//! of a call over a connection that is open. A control, one call with such a connection, shows how
//! much of the latency of a pair that is.

use super::super::tick::Tick;
use super::permit::{Permit, PermitRequest};
use super::{ConcurrencyLimiter, after_nanos};

/// Minimum number of executions in flight with mergeable calls for pairs and trials while open.
/// With fewer, a partner takes too long to arrive.
pub(super) const OPEN_MIN: u32 = 12;
/// Number of calls before the first pair, between pairs, and after a pair that found no partner. At
/// most three calls in four hundred are affected, so the 99th percentile is not.
pub(super) const PAIR_FIRST: u64 = 200;
const PAIR_EVERY: u64 = 400;
const PAIR_AGAIN: u64 = 20;
/// Maximum hold of a call, as a part of an unbatched call's latency: for a partner, and by a trial
/// that lowers an open limit. Twice as much costs twice as much where nothing is found, and finds
/// no more.
pub(super) const HOLD: f64 = 1.0 / 32.0;
/// Cost of a pair, in unbatched calls, from which trials and jumps rest for a while: merging would
/// gain too little.
pub(super) const PAIR_COST_MAX: f64 = 1.3;
/// Cost of a pair, in unbatched calls, from which it is too expensive without a second sample.
const PAIR_COST_CLEAR: f64 = 1.6;
/// Largest part of the latency of a pair that is attributed to its connection, in unbatched calls:
/// two rounds of an event loop, and noise. A connection that waits longer, because idle ones occupy
/// the threads of the server, would delay every batch, and counts as the cost of the pair.
const CONTROL_MAX: f64 = 3.0;
/// Minimum and maximum rest of trials after a pair that gained too little, in nanoseconds.
const PAIR_REST: (f64, f64) = (10e9, 300e9);

/// Pairs that were sent while open, to measure the cost of a batch of two.
#[derive(Debug, Clone, Copy)]
pub(super) struct PairTest {
    /// Number of pairs in `cost`, at most two.
    pub(super) count: u32,
    /// Cost of a pair ÷ cost of an unbatched call sent in the same way under the same load.
    pub(super) cost: f64,
    pub(super) control: PairControl,
    /// `true` if the last pairs were cheap enough to look for a limit; `None` before the first
    /// result.
    pub(super) cheap: Option<bool>,
    /// Value of `ConcurrencyLimiter::answered_mergeable` from which the next pair is due.
    pub(super) next: u64,
    /// Instant until which a call is held for a partner.
    pub(super) hold_until: Option<Tick>,
}

/// The call with which the next pair is compared.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum PairControl {
    /// It was not sent.
    Due,
    /// It is in flight.
    Sent,
    /// Its latency ÷ that of other unbatched calls, from 1 to [`CONTROL_MAX`].
    Measured(f64),
}

// === impl PairTest ===

impl Default for PairTest {
    fn default() -> Self {
        Self { count: 0, cost: 1.0, control: PairControl::Due, cheap: None, next: PAIR_FIRST, hold_until: None }
    }
}

// === impl ConcurrencyLimiter ===

impl ConcurrencyLimiter {
    /// Returns the permit of a call while open. If a pair is due, a control is sent first. Then the
    /// next call is held for a short time, until a partner is queued.
    pub(super) fn permit_open(&mut self, request: &PermitRequest) -> Permit {
        let is_due = !self.pinned
            && self.answered_mergeable >= self.pairs.next
            && self.pairs.count < 2
            && self.merged_flights >= OPEN_MIN
            && request.now >= self.schedule.trial;
        if !is_due || request.unmergeable {
            return Permit::Forward;
        }
        match self.pairs.control {
            PairControl::Due => return Permit::Control,
            PairControl::Sent => return Permit::Forward,
            PairControl::Measured(_) => {}
        }
        if request.has_second {
            self.pairs.hold_until = None;
            self.pairs.next = self.answered_mergeable + PAIR_EVERY;
            return Permit::Pair;
        }
        let until =
            *self.pairs.hold_until.get_or_insert_with(|| after_nanos(request.now, self.level.recent_unbatched * HOLD));
        if request.now < until {
            return Permit::Hold(until);
        }
        self.pairs.hold_until = None;
        self.pairs.next = self.answered_mergeable + PAIR_AGAIN;
        Permit::Forward
    }

    /// Records the end of a control. Another one is due if it was not answered.
    pub(super) fn observe_control(&mut self, latency: Option<f64>) {
        self.pairs.control = latency.map_or(PairControl::Due, |latency| {
            PairControl::Measured((latency / self.unbatched_latency()).clamp(1.0, CONTROL_MAX))
        });
    }

    /// Returns the recent latency of unbatched calls, in nanoseconds.
    fn unbatched_latency(&self) -> f64 {
        self.level.recent_unbatched.max(self.level.near_unbatched).max(1.0)
    }

    /// Records the latency of a pair, in nanoseconds.
    pub(super) fn observe_pair(&mut self, now: Tick, latency: f64) {
        let connection_factor = match std::mem::replace(&mut self.pairs.control, PairControl::Due) {
            PairControl::Measured(factor) => factor,
            PairControl::Due | PairControl::Sent => 1.0,
        };
        let cost = latency / self.unbatched_latency() / connection_factor;
        self.pairs.cost = if self.pairs.count == 0 { cost } else { (self.pairs.cost + cost) / 2.0 };
        self.pairs.count += 1;
        let cheap = self.pairs.cost < PAIR_COST_MAX;
        // The noise of a single pair is not enough for a rest.
        if !cheap && self.pairs.cost < PAIR_COST_CLEAR && self.pairs.count < 2 {
            return;
        }
        self.pairs.cheap = Some(cheap);
        if !cheap {
            self.schedule.trial_gap = (self.schedule.trial_gap * 2.0).clamp(PAIR_REST.0, PAIR_REST.1);
            self.schedule.trial = after_nanos(now, self.schedule.trial_gap);
            self.pairs.count = 0;
        }
    }
}
