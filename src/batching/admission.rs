//! An AIMD limit on calls that are forwarded side by side, once the server has refused one (429 or 503).
//!
//! Without a refusal there is no limit: the clients' own number is the only one, as without a proxy. A refusal cuts it below what was in flight, rounds of
//! good calls raise it again, and at the configured number it ends.

use super::tick::Tick;

/// Fewest calls in flight that an overloaded server is sent.
const CALLS_MIN: u32 = 4;
/// Share of the calls in flight, in tenths, that is left after the server refused one.
const CUT_TENTHS: u64 = 7;
/// The limit rises by one after this many rounds of as many good calls, all sent with no room to spare: one refusal is met in some two limits² calls.
const RISE_ROUNDS: u64 = 8;

/// The limit on forwarded calls in flight.
///
/// # Properties
/// Deterministic and without randomness.
#[derive(Debug, Clone)]
pub(super) struct Admission {
    /// The configured number, at which a limit ends.
    calls_max: u32,
    /// `None`: no refusal binds.
    limit: Option<u32>,
    /// Calls sent before then repeat the last refusal.
    cut_at: Tick,
    /// Good calls sent at the limit since it moved.
    full_good: u64,
}

// === impl Admission ===

impl Admission {
    pub(super) fn new(calls_max: u32) -> Self {
        Self { calls_max: calls_max.max(1), limit: None, cut_at: Tick(0), full_good: 0 }
    }

    /// Another configured number. What was learned below it stays.
    pub(super) fn set_calls_max(&mut self, calls_max: u32) {
        self.calls_max = calls_max.max(1);
        self.limit = self.limit.filter(|limit| *limit < self.calls_max);
    }

    /// Forwarded calls that may be in flight; `None` without a limit. `aside`: the server is known to batch by itself, and takes the configured number.
    pub(super) fn limit(&self, aside: bool) -> Option<u32> {
        self.limit.or(aside.then_some(self.calls_max))
    }

    /// A forwarded call was answered well while this many were in flight, itself included.
    pub(super) fn on_success(&mut self, in_flight: u32) {
        let Some(limit) = self.limit.filter(|limit| in_flight >= *limit) else { return };
        self.full_good += 1;
        if self.full_good >= RISE_ROUNDS * u64::from(limit) {
            self.full_good = 0;
            self.limit = Some(limit + 1).filter(|limit| *limit < self.calls_max);
        }
    }

    /// A forwarded call that left at `sent` was refused; `in_flight` are the others still out. Of calls that were out together the first refusal cuts, as in
    /// congestion control.
    pub(super) fn on_refusal(&mut self, now: Tick, sent: Tick, in_flight: u32) {
        if sent < self.cut_at {
            return;
        }
        self.cut_at = now;
        let left = (u64::from(in_flight) + 1) * CUT_TENTHS / 10;
        let left = u32::try_from(left).unwrap_or(u32::MAX).max(CALLS_MIN);
        self.limit = Some(self.limit.map_or(left, |limit| limit.min(left))).filter(|limit| *limit < self.calls_max);
        self.full_good = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_refusal_there_is_no_limit() {
        let mut admission = Admission::new(512);
        (0..10_000).for_each(|_| admission.on_success(4000));
        assert_eq!(admission.limit(false), None);
    }

    #[test]
    fn the_first_refusal_of_a_wave_cuts_and_good_rounds_raise() {
        let mut admission = Admission::new(16);
        admission.on_refusal(Tick(10), Tick(1), 9);
        assert_eq!(admission.limit(false), Some(7));
        admission.on_refusal(Tick(11), Tick(2), 8);
        assert_eq!(admission.limit(false), Some(7), "it was out together with the first");
        (0..8 * 7).for_each(|_| admission.on_success(7));
        assert_eq!(admission.limit(false), Some(8));
        (0..10_000).for_each(|_| admission.on_success(3));
        assert_eq!(admission.limit(false), Some(8), "calls with room to spare say nothing");
        (0..10_000).for_each(|_| admission.on_success(16));
        assert_eq!(admission.limit(false), None, "at the configured number the limit ends");
    }

    #[test]
    fn some_calls_are_always_sent() {
        let mut admission = Admission::new(512);
        for at in 1..50 {
            admission.on_refusal(Tick(at * 10), Tick(at * 10), 0);
        }
        assert_eq!(admission.limit(false), Some(CALLS_MIN));
    }
}
