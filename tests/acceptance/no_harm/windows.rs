//! Measurements of the answers in each window.

use std::time::Duration;

use groupage_batching::Tick;
use groupage_simulator::{CallOutcome, RunResult};

use super::WindowRatio;

/// Minimum number of direct answers for a window to be judged.
const ANSWERS_MIN: u32 = 20;
/// Number of direct answers below which a window may have fewer answers than direct calls by the
/// number of these in flight: as many may be answered just after its end.
const ANSWERS_SURE: u32 = 100;
/// Multiple of the p99 of direct calls within which a call of a test is answered: at a linear server,
/// a batch of two takes twice as long as a call.
const TEST_SOJOURNS: f64 = 2.0;
/// Latency that any proxy may add to a call, in milliseconds, which is not due to batching: twice what
/// `benches/schedule.rs` allows at an idle server.
const OVERHEAD_MS: f64 = 0.3;

/// The answers in a window, in all seeds together. Times are in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct AnswerWindow {
    /// Number of answers.
    answers: u32,
    /// Mean latency.
    mean: f64,
    /// 99th percentile of the latency.
    p99: f64,
}

/// Marks the windows in which something was tested, or in which calls of a test shortly before were
/// answered.
pub(super) fn mark_tested_windows(tests: &[Vec<Tick>], direct: &[AnswerWindow], width: Duration) -> Vec<bool> {
    let mut tested = vec![false; direct.len()];
    for at in tests.iter().flatten() {
        let first = window_index(*at, width);
        let sojourn =
            direct.get(first).map_or(0.0, |window| (TEST_SOJOURNS * window.p99).min(width.as_secs_f64() * 1e3));
        let last = window_index(at.after(Duration::from_secs_f64(sojourn / 1e3)), width);
        tested.iter_mut().take(last + 1).skip(first).for_each(|tested| *tested = true);
    }
    tested
}

/// Returns the index of the window at an instant.
fn window_index(at: Tick, width: Duration) -> usize {
    let number = at.since(Tick::default()).as_nanos() / width.as_nanos().max(1);
    usize::try_from(number).unwrap_or(usize::MAX - 1)
}

// === impl AnswerWindow ===

impl AnswerWindow {
    /// Measures the first `count` windows of the runs together.
    pub(super) fn of(runs: &[RunResult], width: Duration, count: usize) -> Vec<Self> {
        let mut latencies: Vec<Vec<f64>> = vec![Vec::new(); count];
        for ended in runs.iter().flat_map(|run| &run.calls).filter(|ended| ended.outcome == CallOutcome::Answered) {
            if let Some(latencies) = latencies.get_mut(window_index(ended.at, width)) {
                latencies.push(ended.latency().as_secs_f64() * 1e3);
            }
        }
        latencies.into_iter().map(Self::from_latencies).collect()
    }

    fn from_latencies(mut latencies: Vec<f64>) -> Self {
        let Some(last) = latencies.len().checked_sub(1) else {
            return Self { answers: 0, mean: 0.0, p99: 0.0 };
        };
        latencies.sort_unstable_by(f64::total_cmp);
        let mean = latencies.iter().sum::<f64>() / latencies.len() as f64;
        let p99 = latencies[(latencies.len() * 99 / 100).min(last)];
        Self { answers: u32::try_from(latencies.len()).unwrap_or(u32::MAX), mean, p99 }
    }

    /// Returns the ratio of `proxied` to direct calls, which are `self`.
    pub(super) fn compare(&self, proxied: &Self, tested: bool, seeds: u64, width: Duration) -> WindowRatio {
        let (direct, answers) = (f64::from(self.answers), f64::from(proxied.answers));
        // Number of direct calls in flight, by Little's law.
        let flights = direct * self.mean / (width.as_secs_f64() * 1e3);
        let allowed = if self.answers < ANSWERS_SURE { flights.max(seeds as f64) } else { 0.0 };
        WindowRatio {
            direct: self.answers,
            rate: (answers + allowed.min((direct - answers).max(0.0))) / direct.max(1.0),
            mean: (proxied.mean - OVERHEAD_MS) / self.mean.max(1e-9),
            p99: (proxied.p99 - OVERHEAD_MS) / self.p99.max(1e-9),
            tested,
        }
    }
}

// === impl WindowRatio ===

impl WindowRatio {
    /// Returns `true` if the window has enough answers of direct calls.
    pub(crate) fn is_judged(&self) -> bool {
        self.direct >= ANSWERS_MIN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window_of(latencies: &[f64]) -> AnswerWindow {
        AnswerWindow::from_latencies(latencies.to_vec())
    }

    #[test]
    fn a_window_is_compared_by_its_rate_mean_and_p99() {
        let direct = window_of(&[10.0; 200]);
        let proxied = window_of(&[[20.3; 5].as_slice(), [10.3; 145].as_slice()].concat());
        let ratio = direct.compare(&proxied, false, 1, Duration::from_secs(1));
        assert!((ratio.rate - 0.75).abs() < 1e-9, "{ratio:?}");
        assert!((ratio.mean - 31.0 / 30.0).abs() < 1e-9, "{ratio:?}");
        assert!((ratio.p99 - 2.0).abs() < 1e-9, "{ratio:?}");
    }

    #[test]
    fn a_window_of_few_answers_may_lack_one_set_of_requests() {
        // Ten calls are in flight: 50 answers of 200 ms in a second.
        let direct = window_of(&[200.0; 50]);
        let rate = |count| direct.compare(&window_of(&vec![200.0; count]), false, 1, Duration::from_secs(1)).rate;
        assert!((rate(40) - 1.0).abs() < 1e-9 && (rate(30) - 0.8).abs() < 1e-9, "{} {}", rate(40), rate(30));
        assert!((rate(60) - 1.2).abs() < 1e-9, "{}", rate(60));
    }

    #[test]
    fn calls_that_were_sent_in_a_test_count_for_it_where_they_are_answered() {
        let direct = [window_of(&[300.0]), window_of(&[300.0]), window_of(&[300.0])];
        let tests = [vec![Tick::from_millis(800)]];
        assert_eq!(mark_tested_windows(&tests, &direct, Duration::from_secs(1)), [true, true, false]);
    }
}
