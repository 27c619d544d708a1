//! The recent part of the shadow simulation's predictions, and an assessment of the benefit of
//! batching.
//!
//! Averages since the start would hide the current behaviour of a server, so the counts cover the
//! last one to two minutes.

use std::time::Duration;

use strum::IntoStaticStr;

use crate::batching::{ShadowEnd, ShadowOutcome, Tick};

/// Length of a window. The counts are the sum of the current window and the previous one.
const WINDOW: Duration = Duration::from_secs(60);
/// Minimum number of calls for an assessment.
const JUDGED_MIN: u64 = 100;
/// Minimum share of upstream executions that batching saves to be beneficial, in thousandths.
const SAVED_MIN: u64 = 100;
/// Maximum relative increase of the latency for batching to be beneficial, in thousandths: the
/// noise of the predictions.
const SLOWER_MAX: u64 = 50;

/// Counts of the shadow simulation over a recent span of time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RecentCounts {
    /// Length of the span.
    pub over: Duration,
    /// Calls with a prediction.
    pub calls: u64,
    /// Upstream executions that batching would have caused.
    pub executions: u64,
    /// Calls and items in those executions.
    pub carried: (u64, u64),
    /// Calls that would have been answered.
    pub answered: u64,
    /// Calls that would have been rejected or would have expired.
    pub unserved: u64,
    /// Total latency, from arrival to response, of the calls that would have been answered.
    pub latency: Duration,
    /// Calls that were answered as they passed through, and their total latency.
    pub passed: (u64, Duration),
}

/// Assessment of the benefit of batching.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum Benefit {
    /// Too few calls were observed.
    Unknown,
    /// Nearly every call would be executed unbatched.
    NothingToMerge,
    /// Calls would share executions, at a higher latency.
    Slower,
    /// Calls would share executions, without a higher latency.
    #[strum(serialize = "worth")]
    Beneficial,
}

/// The current window and the previous one.
#[derive(Debug, Clone, Copy)]
pub(super) struct CountWindows {
    began: Tick,
    current: RecentCounts,
    before: Option<RecentCounts>,
}

// === impl RecentCounts ===

impl RecentCounts {
    pub(super) fn count(&mut self, would: &ShadowOutcome) {
        match would {
            ShadowOutcome::Dispatched { members, items, .. } => {
                self.executions += 1;
                self.carried.0 += members.len() as u64;
                self.carried.1 += u64::from(*items);
            }
            ShadowOutcome::End { end: ShadowEnd::Answered, latency, .. } => {
                self.answered += 1;
                self.latency += *latency;
            }
            ShadowOutcome::End { end: ShadowEnd::Rejected | ShadowEnd::Expired, .. } => self.unserved += 1,
            ShadowOutcome::End { end: ShadowEnd::Cancelled, .. } => {}
        }
    }

    /// Assesses the benefit of batching.
    #[must_use]
    pub fn benefit(&self) -> Benefit {
        if self.carried.0 < JUDGED_MIN || self.answered == 0 || self.passed.0 == 0 {
            return Benefit::Unknown;
        }
        let saved = self.carried.0.saturating_sub(self.executions);
        if saved * 1000 < self.carried.0 * SAVED_MIN {
            return Benefit::NothingToMerge;
        }
        let mean = |all: Duration, of: u64| all.as_nanos() / u128::from(of.max(1));
        let (batched, passed) = (mean(self.latency, self.answered), mean(self.passed.1, self.passed.0));
        if batched * 1000 > passed * u128::from(1000 + SLOWER_MAX) { Benefit::Slower } else { Benefit::Beneficial }
    }

    fn add(self, other: Self) -> Self {
        Self {
            over: self.over + other.over,
            calls: self.calls + other.calls,
            executions: self.executions + other.executions,
            carried: (self.carried.0 + other.carried.0, self.carried.1 + other.carried.1),
            answered: self.answered + other.answered,
            unserved: self.unserved + other.unserved,
            latency: self.latency + other.latency,
            passed: (self.passed.0 + other.passed.0, self.passed.1 + other.passed.1),
        }
    }
}

// === impl Benefit ===

impl Benefit {
    /// Returns the name of the variant in reports.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

// === impl CountWindows ===

impl CountWindows {
    pub(super) fn new(now: Tick) -> Self {
        Self { began: now, current: RecentCounts::default(), before: None }
    }

    /// Returns the window at an instant, and starts a new one if the current one has ended.
    pub(super) fn window_at(&mut self, now: Tick) -> &mut RecentCounts {
        let over = now.since(self.began);
        if over >= WINDOW {
            // If nothing was recorded for a whole window, the previous one is no longer recent.
            let ended = RecentCounts { over, ..std::mem::take(&mut self.current) };
            self.before = (over < 2 * WINDOW).then_some(ended);
            self.began = now;
        }
        &mut self.current
    }

    /// Returns the sum of both windows.
    pub(super) fn sum(&mut self, now: Tick) -> RecentCounts {
        self.window_at(now);
        let current = RecentCounts { over: now.since(self.began), ..self.current };
        self.before.map_or(current, |before| before.add(current))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recent(executions: u64, batched_ms: u64, passed_ms: u64) -> RecentCounts {
        RecentCounts {
            executions,
            carried: (1000, 1000),
            answered: 1000,
            latency: Duration::from_millis(1000 * batched_ms),
            passed: (1000, Duration::from_millis(1000 * passed_ms)),
            ..RecentCounts::default()
        }
    }

    #[test]
    fn batching_is_beneficial_if_calls_share_batches_and_are_no_later() {
        assert_eq!(recent(100, 20, 60).benefit(), Benefit::Beneficial);
        assert_eq!(recent(100, 61, 60).benefit(), Benefit::Beneficial, "as late, with fewer calls");
        assert_eq!(recent(100, 70, 60).benefit(), Benefit::Slower);
        assert_eq!(recent(950, 20, 60).benefit(), Benefit::NothingToMerge);
        let few = RecentCounts { carried: (99, 99), ..recent(10, 20, 60) };
        assert_eq!(few.benefit(), Benefit::Unknown);
    }

    #[test]
    fn calls_older_than_two_minutes_do_not_count() {
        let mut windows = CountWindows::new(Tick(0));
        let second = |at: u64| Tick::from_millis(1000 * at);
        for at in 0..200 {
            windows.window_at(second(at)).calls += 1;
        }
        let sum = windows.sum(second(200));
        assert!((60..=120).contains(&sum.calls) && sum.over.as_secs().abs_diff(sum.calls) <= 1, "{sum:?}");
        assert_eq!(windows.sum(second(1000)).calls, 0, "no call arrived for minutes");
    }
}
