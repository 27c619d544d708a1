//! Detection of a server that computes one call at a time, from bursts of calls on an idle server.
//!
//! A burst over new connections is answered in any order, so the load curve does not show that the
//! later calls queued; and no calls follow it, as the wave test requires. But the answers of one
//! worker come at even intervals, beginning with the first. Answers to calls that are computed side
//! by side do not: those to equal calls come together, and the intervals between others vary by
//! about their mean.

use super::super::math::to_f64;
use super::super::tick::Tick;
use super::curve::Knee;
use super::latency_line::nanos_between;

/// Minimum number of answers of a burst, and calls that are left once it is evaluated: with fewer,
/// no jump to the knee follows.
const ANSWERS_MIN: u32 = 6;
const LEFT: u32 = 4;
/// Maximum coefficient of variation of the intervals, and number of bursts in a row that have to be
/// that even. Six intervals between exponential or uniform latencies are in one burst of 50 (of
/// 100 000 simulated ones), and by chance in three of 150 000.
const VARIATION_MAX: f64 = 0.4;
const BURSTS: u32 = 3;
/// Maximum ratio of the mean intervals of two such bursts.
const RATIO_MAX: f64 = 1.25;

/// Burst test over the calls that are sent unmerged while the limiter is open.
#[derive(Debug, Clone, Default)]
pub(super) struct BurstTest {
    burst: Option<Burst>,
    /// Number of bursts in a row that were answered evenly, and the mean interval in the last one.
    even: u32,
    interval: f64,
}

/// The intervals between the answers to a burst. The first one begins with the burst.
#[derive(Debug, Clone, Copy)]
struct Burst {
    last: Tick,
    answers: u32,
    first: f64,
    sum: f64,
    squares: f64,
}

// === impl BurstTest ===

impl BurstTest {
    /// Records an unmerged call. `in_flight` includes the call itself.
    pub(super) fn on_send(&mut self, now: Tick, in_flight: u32) {
        if in_flight == 1 {
            self.burst = Some(Burst { last: now, answers: 0, first: 0.0, sum: 0.0, squares: 0.0 });
        } else if self.burst.is_some_and(|burst| burst.answers > 0) {
            // Clients that call again are left to the wave test.
            self.burst = None;
        }
    }

    /// Ends the burst, because a call of it failed or was merged, or a limit is in force.
    pub(super) fn reset(&mut self) {
        *self = Self::default();
    }

    /// Records an answer, after which `left` calls are in flight. Returns the knee once enough
    /// bursts show one.
    pub(super) fn observe(&mut self, now: Tick, left: u32) -> Option<Knee> {
        let burst = self.burst.as_mut()?;
        burst.push(now);
        if left > LEFT {
            return None;
        }
        let burst = self.burst.take().filter(|burst| burst.answers >= ANSWERS_MIN)?;
        let mean = burst.mean();
        let is_alike = (mean / self.interval).max(self.interval / mean) <= RATIO_MAX;
        self.even = match (burst.variation() <= VARIATION_MAX, is_alike) {
            (false, _) => 0,
            (true, false) => 1,
            (true, true) => self.even.saturating_add(1),
        };
        self.interval = mean;
        // Workers in turn answer at even intervals too, but the first of them after a longer time.
        let at = (burst.first / mean).max(1.0);
        (self.even >= BURSTS).then(|| Knee { at, base: at * mean, rate: 1.0 / mean, is_bound: false })
    }
}

// === impl Burst ===

impl Burst {
    fn push(&mut self, now: Tick) {
        let interval = nanos_between(self.last, now);
        if self.answers == 0 {
            self.first = interval;
        }
        self.last = now;
        self.answers += 1;
        self.sum += interval;
        self.squares += interval * interval;
    }

    /// Returns the mean interval, at least a nanosecond.
    fn mean(&self) -> f64 {
        (self.sum / to_f64(u64::from(self.answers))).max(1.0)
    }

    /// Returns the coefficient of variation of the intervals.
    fn variation(&self) -> f64 {
        let count = to_f64(u64::from(self.answers));
        let variance = (self.squares - self.sum * self.sum / count).max(0.0) / (count - 1.0);
        variance.sqrt() / self.mean()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends a burst and answers it at these times in milliseconds.
    fn run_burst(test: &mut BurstTest, begin: u64, answers: &[u64]) -> Option<Knee> {
        let at = |ms: u64| Tick((begin + ms) * 1_000_000);
        (1_u32..).zip(answers).for_each(|(in_flight, _)| test.on_send(at(0), in_flight));
        let left = (0..u32::try_from(answers.len()).unwrap()).rev();
        answers.iter().zip(left).map(|(ms, left)| test.observe(at(*ms), left)).fold(None, Option::or)
    }

    fn run_bursts(answers: &[u64]) -> Option<Knee> {
        let mut test = BurstTest::default();
        (0..3).map(|burst| run_burst(&mut test, burst * 10_000, answers)).fold(None, Option::or)
    }

    #[test]
    fn answers_at_even_intervals_show_one_worker() {
        let knee = run_bursts(&[30, 61, 89, 120, 152, 179, 210, 241, 270, 300]).expect("one worker");
        assert!((knee.at - 1.0).abs() < 0.1 && (knee.base - 30e6).abs() < 3e6, "{knee:?}");
    }

    #[test]
    fn answers_of_calls_that_are_computed_together_show_none() {
        for answers in [
            [30, 30, 30, 30, 31, 31, 31, 31, 32, 32],
            [30, 30, 60, 60, 90, 90, 120, 120, 150, 150],
            [3, 4, 25, 27, 50, 90, 91, 95, 180, 300],
        ] {
            assert!(run_bursts(&answers).is_none(), "{answers:?}");
        }
        assert!(run_bursts(&[30, 60, 90, 120, 150, 180, 210, 240, 270]).is_none(), "a burst of nine is too short");
    }

    #[test]
    fn bursts_have_to_agree_and_calls_that_follow_end_a_burst() {
        let even: Vec<u64> = (1..=10).map(|answer| answer * 30).collect();
        let slower: Vec<u64> = (1..=10).map(|answer| answer * 60).collect();
        let mut test = BurstTest::default();
        for (begin, answers) in [(0, &even), (1000, &even), (2000, &slower), (3000, &slower)] {
            assert!(run_burst(&mut test, begin, answers).is_none());
        }
        test.on_send(Tick(4_000_000_000), 1);
        test.on_send(Tick(4_000_000_000), 2);
        assert!(test.observe(Tick(4_030_000_000), 1).is_none());
        test.on_send(Tick(4_031_000_000), 2);
        assert!(test.burst.is_none());
        assert!(run_burst(&mut test, 5000, &slower).is_some());
    }
}
