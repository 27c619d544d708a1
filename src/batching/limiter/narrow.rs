//! Search for a knee below the first limit, after a jump from a curve that has no unloaded cell.
//!
//! After a change of a loaded server, calls queue at every load that is measured, so the base
//! latency and the knee are upper bounds. The limit is then halved, with a few unbatched calls at
//! each one, for as long as the server answers at the same rate. Where the rate falls, the latency
//! is the base, and the knee is the rate before times the base, by Little's law.

use super::super::math::to_f64;
use super::super::tick::Tick;
use super::ConcurrencyLimiter;
use super::growth::GrowthRamp;

/// Largest limit below which the knee is searched: at higher ones, calls at half the rate cost more
/// than the search gains.
pub(super) const NARROWED_MAX: u64 = 16;
/// Part of the rate before that a halved limit keeps if calls still queue: between one half and
/// one, at the noise of three calls.
const RATE_KEPT: f64 = 0.75;

/// State of the search.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct NarrowingSearch {
    /// Rate at the limit before, in calls per nanosecond; 0 at the first one.
    rate: f64,
}

// === impl NarrowingSearch ===

impl NarrowingSearch {
    /// Returns `true` once the first limit was measured.
    pub(super) fn has_started(self) -> bool {
        self.rate > 0.0
    }
}

// === impl ConcurrencyLimiter ===

impl ConcurrencyLimiter {
    /// Records the mean latency of unbatched calls under a limit that may be above the knee.
    /// Returns `true` if another limit is set, under which unbatched calls have to be measured
    /// first.
    pub(super) fn narrow(&mut self, now: Tick, limit: f64, latency: f64) -> bool {
        let Some(NarrowingSearch { rate: before }) = self.narrowing.take() else { return false };
        let limit = limit.floor().max(1.0);
        let rate = limit / latency.max(1.0);
        if rate >= RATE_KEPT * before && limit >= 2.0 {
            self.narrowing = Some(NarrowingSearch { rate: rate.max(before) });
            self.lower_limit(now, (limit / 2.0).floor(), rate);
            return true;
        }
        let at = (rate.max(before) * latency).clamp(limit, 2.0 * limit);
        // The knee is known for as long as it is searched below the limit.
        let Some(knee) = &mut self.knee else { return false };
        (knee.at, knee.base) = (at, latency);
        let found = to_f64(knee.limit());
        self.refine_from = at;
        self.schedule.upward = at > 2.0;
        if found <= limit {
            return false;
        }
        // Unbatched calls are measured once more: beside a base from a lower limit, batches would
        // look expensive.
        self.set_limit(found);
        self.growth = GrowthRamp::unbatched_only();
        self.schedule.since = now;
        self.sojourns.clear();
        true
    }

    /// Sets a lower limit under which unbatched calls are measured once the server has drained to
    /// it.
    fn lower_limit(&mut self, now: Tick, limit: f64, rate: f64) {
        self.set_limit(limit);
        self.growth = GrowthRamp::unbatched_only();
        self.level.reset_batches();
        self.sojourns.clear();
        self.schedule.since = now;
        self.begin_drain(now, limit, rate, limit / rate);
    }
}
