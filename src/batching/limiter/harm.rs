//! Harm test of a limit: detects that clients wait longer under it than they did while nothing was
//! held.
//!
//! Trials compare neighbouring limits over one wave of calls. With random arrivals that is noise,
//! and a limit can drift to a value at which all clients wait. This test is slow and takes no part
//! in finding a limit. It is made only if both means are of one server under one load. A server
//! that batches by itself looks serial for a moment under random arrivals, and this test detects
//! it.

use super::super::tick::Tick;
use super::sojourn_mean::SojournMean;

/// Number of answers in a mean. The mean sojourn time of this many calls that arrive at random at
/// 80 % load is known to some 15 %.
const ANSWERS: f64 = 256.0;
/// Ratio of the sojourn time under the limit to that while open from which the limit does harm.
const WORSE: f64 = 1.25;
/// Maximum ratio of the rate of answers under the limit to that while open, for the limit to do
/// harm.
const BUSIER: f64 = 1.1;
/// Maximum growth of latency before the limit was set, in means, for a comparison. Beyond it the
/// server had become slower, or the load higher, and the mean belongs to another time.
const GROWN: f64 = 3.0;

/// Mean sojourn times while open and under the limit.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct HarmTest {
    open: SojournMean,
    limited: SojournMean,
    /// Start of the limit. Calls that arrived before it do not count.
    begun: Tick,
    comparable: bool,
}

// === impl HarmTest ===

impl HarmTest {
    /// Records the sojourn time of calls that were forwarded at once.
    pub(super) fn observe_open(&mut self, now: Tick, sojourn: f64, calls: u32) {
        self.open.add(now, sojourn, calls, ANSWERS);
    }

    /// Records that a limit is set. `recent`: the latency of the last unbatched calls.
    pub(super) fn on_limit(&mut self, now: Tick, recent: f64) {
        self.comparable = self.open.answers >= ANSWERS && recent <= GROWN * self.open.sojourn;
        (self.limited, self.begun) = (SojournMean::default(), now);
    }

    /// Resets the test because the server was replaced.
    pub(super) fn on_change(&mut self) {
        *self = Self::default();
    }

    /// Records the sojourn time of calls under the limit, the first of which arrived at `first`.
    /// Returns `true` if the limit does harm.
    pub(super) fn observe_limited(&mut self, now: Tick, first: Tick, sojourn: f64, calls: u32) -> bool {
        if !self.comparable || first < self.begun {
            return false;
        }
        self.limited.add(now, sojourn, calls, ANSWERS);
        if self.limited.answers < ANSWERS {
            return false;
        }
        let limited = std::mem::take(&mut self.limited);
        limited.sojourn > WORSE * self.open.sojourn && limited.gap * BUSIER >= self.open.gap
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn test(open: f64, limited: f64, gap: u64) -> bool {
        let mut test = HarmTest::default();
        (1..=300).for_each(|at| test.observe_open(Tick::from_millis(at), open, 1));
        test.on_limit(Tick::from_millis(300), open);
        let mut harms = (1..=300).map(|at| {
            let now = Tick::from_millis(300 + at * gap);
            test.observe_limited(now, now, limited, 1)
        });
        harms.any(|harms| harms)
    }

    #[test]
    fn a_limit_with_longer_sojourns_at_the_same_load_fails_the_harm_test() {
        assert!(test(10e6, 20e6, 1));
        assert!(!test(10e6, 11e6, 1), "noise");
        assert!(test(10e6, 20e6, 2), "fewer are answered");
        let mut busier = HarmTest::default();
        (1..=300).for_each(|at| busier.observe_open(Tick::from_millis(2 * at), 10e6, 1));
        busier.on_limit(Tick::from_millis(600), 10e6);
        assert!(!(601..=900).any(|at| busier.observe_limited(Tick::from_millis(at), Tick::from_millis(at), 20e6, 1)));
    }

    #[test]
    fn open_times_that_differ_from_the_base_of_the_limit_are_not_compared() {
        let mut test = HarmTest::default();
        (1..=300).for_each(|at| test.observe_open(Tick::from_millis(at), 10e6, 1));
        test.on_limit(Tick::from_millis(300), 80e6);
        assert!(!(301..=900).any(|at| test.observe_limited(Tick::from_millis(at), Tick::from_millis(at), 20e6, 1)));
    }
}
