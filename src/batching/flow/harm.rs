//! A test of every limit: whether callers wait longer under it than they did while nothing was
//! held.
//!
//! Trials compare neighbouring limits over one wave of calls, and where arrivals come at random
//! that is noise: a limit can wander to where all wait. This test is slow and has no part in
//! finding a limit. It is made only where both means are of one server under one load: a server
//! that batches by itself looks serial for a moment under random arrivals, and is found out by it.

use super::super::math::float;
use super::super::tick::Tick;
use super::level::span;

/// Answers of a mean: the mean sojourn of this many calls that arrive at random at 80 % load is
/// known to some 15 parts in a hundred.
const ANSWERS: f64 = 256.0;
/// A limit harms where callers wait this many times what they did while open...
const WORSE: f64 = 1.25;
/// ...and no more than this many times as many are answered.
const BUSIER: f64 = 1.1;
/// The growth of latency before the limit was set, in means, beyond which nothing is compared: the
/// server had become slower, or the load higher, and the mean is of other times.
const GROWN: f64 = 3.0;

/// Mean sojourns while open and under the limit.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct HarmTest {
    open: SojournMean,
    limited: SojournMean,
    /// Calls that arrived before it do not count.
    begun: Tick,
    comparable: bool,
}

/// A mean over about the last [`ANSWERS`] answers, in nanoseconds.
#[derive(Debug, Clone, Copy, Default)]
struct SojournMean {
    sojourn: f64,
    /// Between two answers.
    gap: f64,
    answers: f64,
    last: Tick,
}

// === impl HarmTest ===

impl HarmTest {
    /// Takes the sojourn of calls that were forwarded at once.
    pub(super) fn observe_open(&mut self, now: Tick, sojourn: f64, calls: u32) {
        self.open.add(now, sojourn, calls);
    }

    /// A limit is set; `recent`: the latency of the last lone calls.
    pub(super) fn on_limit(&mut self, now: Tick, recent: f64) {
        self.comparable = self.open.is_full() && recent <= GROWN * self.open.sojourn;
        (self.limited, self.begun) = (SojournMean::default(), now);
    }

    /// The server is another one.
    pub(super) fn on_change(&mut self) {
        *self = Self::default();
    }

    /// Takes the sojourn of calls under the limit, of which the first arrived at `first`. True if
    /// the limit harms.
    pub(super) fn observe_limited(&mut self, now: Tick, first: Tick, sojourn: f64, calls: u32) -> bool {
        if !self.comparable || first < self.begun {
            return false;
        }
        self.limited.add(now, sojourn, calls);
        if !self.limited.is_full() {
            return false;
        }
        let limited = std::mem::take(&mut self.limited);
        limited.sojourn > WORSE * self.open.sojourn && limited.gap * BUSIER >= self.open.gap
    }
}

// === impl SojournMean ===

impl SojournMean {
    fn add(&mut self, now: Tick, sojourn: f64, calls: u32) {
        let calls = float(calls.into());
        if self.last > Tick::default() {
            self.answers = (self.answers + calls).min(ANSWERS);
            let weight = (calls / self.answers).min(1.0);
            self.sojourn += weight * (sojourn - self.sojourn);
            self.gap += weight * (span(self.last, now) / calls - self.gap);
        }
        self.last = now;
    }

    fn is_full(&self) -> bool {
        self.answers >= ANSWERS
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
    fn a_limit_under_which_callers_wait_longer_at_the_same_load_harms() {
        assert!(test(10e6, 20e6, 1));
        assert!(!test(10e6, 11e6, 1), "noise");
        assert!(test(10e6, 20e6, 2), "fewer are answered");
        let mut busier = HarmTest::default();
        (1..=300).for_each(|at| busier.observe_open(Tick::from_millis(2 * at), 10e6, 1));
        busier.on_limit(Tick::from_millis(600), 10e6);
        assert!(!(601..=900).any(|at| busier.observe_limited(Tick::from_millis(at), Tick::from_millis(at), 20e6, 1)));
    }

    #[test]
    fn nothing_is_compared_with_a_server_that_is_gone() {
        let mut test = HarmTest::default();
        (1..=300).for_each(|at| test.observe_open(Tick::from_millis(at), 10e6, 1));
        test.on_limit(Tick::from_millis(300), 80e6);
        assert!(!(301..=900).any(|at| test.observe_limited(Tick::from_millis(at), Tick::from_millis(at), 20e6, 1)));
    }
}
