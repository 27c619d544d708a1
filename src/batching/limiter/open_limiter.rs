//! Opening of a limiter: it discards the limit and all that was measured under it, and releases the
//! calls that the limit held.

use super::super::tick::Tick;
use super::growth::GrowthRamp;
use super::pair_probe::{PAIR_FIRST, PairTest};
use super::probe::UpwardProbe;
use super::room::RoomTest;
use super::{ConcurrencyLimiter, OpenReason};

/// Release of a queue when the limiter opens: executions allowed beyond those in flight, and the
/// growth of that number with each completion if the server is saturated and if it is not.
/// Releasing all calls at once would stop a server that shares its processor among executions for a
/// whole wave.
const GATE_FIRST: f64 = 2.0;
const GATE_STEP_SATURATED: f64 = 0.25;
const GATE_STEP: f64 = 2.0;

/// The gradual release of a queue after the limiter opens.
#[derive(Debug, Clone, Copy)]
pub(super) struct QueueRelease {
    /// Number of executions that may be in flight.
    pub(super) limit: f64,
    /// Growth of `limit` with each completion.
    pub(super) step: f64,
}

// === impl ConcurrencyLimiter ===

impl ConcurrencyLimiter {
    /// Opens the limiter because the server refuses batches, so that a limit has nothing to gain.
    pub(in super::super) fn open_for_refused_batches(&mut self, now: Tick) {
        if self.limit.is_some() && self.ordered {
            self.keep_for_order();
        } else if self.limit.is_some() || self.trial.is_some() {
            self.open(now, OpenReason::NothingToMerge);
        }
    }

    /// Opens the limiter and discards everything that was measured under the limit.
    pub(super) fn open(&mut self, now: Tick, reason: OpenReason) {
        self.limit = None;
        self.ordering = None;
        self.policy_limit = None;
        self.trial_limit = None;
        self.trial = None;
        self.draining = None;
        self.reason = reason;
        self.schedule.since = now;
        self.schedule.evident = None;
        self.sojourns.clear();
        self.room = RoomTest::default();
        match reason {
            // The measurements that the limit was set by have proved wrong.
            OpenReason::NoQueue => self.curve.clear(),
            _ => self.curve.reset_to(self.knee.map_or(self.level.unbatched, |knee| knee.base)),
        }
        self.knee = None;
        self.narrowing = None;
        self.wave.on_idle();
        self.growth = GrowthRamp::uncapped();
        self.level.reset_batches();
        self.probe = UpwardProbe { id: self.probe.id.wrapping_add(1), ..UpwardProbe::default() };
        // A pair that was sent beside a queue that no longer exists is no evidence. If batches do
        // not pay, it is one more reason to stay open.
        if !matches!(reason, OpenReason::NoGain { .. }) {
            self.pairs = PairTest { next: self.answered_mergeable + PAIR_FIRST, ..PairTest::default() };
        }
    }

    /// Opens the limiter and releases the queue in order, a few executions at a time.
    pub(super) fn release(&mut self, now: Tick, reason: OpenReason) {
        self.open(now, reason);
        let saturated = matches!(reason, OpenReason::NoGain { .. });
        let step = if saturated { GATE_STEP_SATURATED } else { GATE_STEP };
        self.gate = Some(QueueRelease { limit: f64::from(self.flights) + GATE_FIRST, step });
    }
}
