//! An AIMD limit (additive increase, multiplicative decrease) on forwarded calls, active after the
//! server has refused one with 429 or 503. The rule is that of Chiu and Jain ("Analysis of the
//! increase and decrease algorithms for congestion avoidance in computer networks", 1989).
//!
//! Without a refusal there is no limit, and only the clients bound their concurrency, as without a
//! proxy. A refusal cuts the limit below the number in flight, rounds of successful calls raise it
//! again, and the limit is lifted when it reaches the configured maximum.

use super::tick::Tick;

/// Minimum limit: an overloaded server still receives this many calls at once.
const CALLS_MIN: u32 = 4;
/// Multiplicative decrease: share of the calls in flight that the limit keeps after a refusal, in
/// tenths.
const CUT_TENTHS: u64 = 7;
/// Number of rounds of successful calls after which the limit rises by one. At a limit L a round is
/// L calls that are answered while the limit is fully used. The way from 0.7·L back to L takes some
/// 2·L² calls, which is the interval between two refusals.
const RISE_ROUNDS: u64 = 8;

/// The limit on forwarded calls in flight.
///
/// # Properties
/// Deterministic and without randomness.
#[derive(Debug, Clone)]
pub(super) struct AdmissionLimit {
    /// Configured maximum, at which the limit is lifted.
    stand_aside_max: u32,
    /// `None` while no refusal is in force.
    limit: Option<u32>,
    /// Time of the last cut. Refusals of calls sent before it belong to the same overload and are
    /// ignored.
    cut_at: Tick,
    /// Successful calls answered while the limit was fully used, since it last moved.
    full_good: u64,
}

// === impl AdmissionLimit ===

impl AdmissionLimit {
    pub(super) fn new(stand_aside_max: u32) -> Self {
        Self { stand_aside_max: stand_aside_max.max(1), limit: None, cut_at: Tick(0), full_good: 0 }
    }

    /// Changes the configured maximum. A learned limit below it is kept.
    pub(super) fn set_stand_aside_max(&mut self, stand_aside_max: u32) {
        self.stand_aside_max = stand_aside_max.max(1);
        self.limit = self.limit.filter(|limit| *limit < self.stand_aside_max);
    }

    /// Returns the number of forwarded calls that may be in flight, or `None` without a limit. If
    /// `aside` is set, the server is known to batch by itself and the configured maximum applies.
    pub(super) fn limit(&self, aside: bool) -> Option<u32> {
        self.limit.or(aside.then_some(self.stand_aside_max))
    }

    /// Records a forwarded call that was answered successfully while `in_flight` calls were in
    /// flight, itself included.
    pub(super) fn on_success(&mut self, in_flight: u32) {
        let Some(limit) = self.limit.filter(|limit| in_flight >= *limit) else { return };
        self.full_good += 1;
        if self.full_good >= RISE_ROUNDS * u64::from(limit) {
            self.full_good = 0;
            self.limit = Some(limit + 1).filter(|limit| *limit < self.stand_aside_max);
        }
    }

    /// Records a refused forwarded call that was sent at `sent`; `in_flight` counts the other calls
    /// in flight. Of calls that were in flight together only the first refusal cuts the limit, as
    /// in TCP congestion control.
    pub(super) fn on_refusal(&mut self, now: Tick, sent: Tick, in_flight: u32) {
        if sent < self.cut_at {
            return;
        }
        self.cut_at = now;
        let left = (u64::from(in_flight) + 1) * CUT_TENTHS / 10;
        let left = u32::try_from(left).unwrap_or(u32::MAX).max(CALLS_MIN);
        self.limit =
            Some(self.limit.map_or(left, |limit| limit.min(left))).filter(|limit| *limit < self.stand_aside_max);
        self.full_good = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_refusal_there_is_no_limit() {
        let mut admission = AdmissionLimit::new(512);
        (0..10_000).for_each(|_| admission.on_success(4000));
        assert_eq!(admission.limit(false), None);
    }

    #[test]
    fn first_refusal_cuts_limit_and_successes_raise_it() {
        let mut admission = AdmissionLimit::new(16);
        admission.on_refusal(Tick(10), Tick(1), 9);
        assert_eq!(admission.limit(false), Some(7));
        admission.on_refusal(Tick(11), Tick(2), 8);
        assert_eq!(admission.limit(false), Some(7), "it was out together with the first");
        (0..8 * 7).for_each(|_| admission.on_success(7));
        assert_eq!(admission.limit(false), Some(8));
        (0..10_000).for_each(|_| admission.on_success(3));
        assert_eq!(admission.limit(false), Some(8), "calls with slack are no evidence");
        (0..10_000).for_each(|_| admission.on_success(16));
        assert_eq!(admission.limit(false), None, "at the configured number the limit ends");
    }

    #[test]
    fn some_calls_are_always_sent() {
        let mut admission = AdmissionLimit::new(512);
        for at in 1..50 {
            admission.on_refusal(Tick(at * 10), Tick(at * 10), 0);
        }
        assert_eq!(admission.limit(false), Some(CALLS_MIN));
    }
}
