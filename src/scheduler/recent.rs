//! What batching would have done of late, and whether it would be worth it.
//!
//! Means since the start hide what a server does now, so they are of the last one to two minutes.

use std::time::Duration;

use crate::batching::{ShadowEnd, Tick, Would};

/// A window; the sum is of the current one and the one before it.
const WINDOW: Duration = Duration::from_secs(60);
/// Calls of which a verdict can be given.
const JUDGED_MIN: u64 = 100;
/// Batching is worth it from this share of upstream calls saved on, in thousandths...
const SAVED_MIN: u64 = 100;
/// ...unless calls would be answered later than as they pass by more than this, in thousandths:
/// noise of what is predicted.
const SLOWER_MAX: u64 = 50;

/// Counts of a recent span of time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Recent {
    /// How long it is.
    pub over: Duration,
    /// Calls of which something was predicted.
    pub calls: u64,
    /// Upstream calls that these would have been.
    pub executions: u64,
    /// Calls and items in those.
    pub carried: (u64, u64),
    /// Calls that would have been answered.
    pub answered: u64,
    /// Calls that would have been refused or given up.
    pub unserved: u64,
    /// From arrival to answer, of those that would have been answered, together.
    pub latency: Duration,
    /// Calls that were answered as they passed, and the same time of those.
    pub passed: (u64, Duration),
}

/// Whether batching would be worth it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Benefit {
    /// Too few calls have passed.
    Unknown,
    /// Nearly every call would go as it goes without it.
    NothingToMerge,
    /// Calls would share, and be answered later.
    Slower,
    /// Calls would share, and be answered no later.
    Worth,
}

/// The current window and the one before it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Windows {
    began: Tick,
    current: Recent,
    before: Option<Recent>,
}

// === impl Recent ===

impl Recent {
    pub(super) fn count(&mut self, would: &Would) {
        match would {
            Would::Leave { members, items, .. } => {
                self.executions += 1;
                self.carried.0 += members.len() as u64;
                self.carried.1 += u64::from(*items);
            }
            Would::End { how: ShadowEnd::Answered, latency, .. } => {
                self.answered += 1;
                self.latency += *latency;
            }
            Would::End { how: ShadowEnd::Rejected | ShadowEnd::Expired, .. } => self.unserved += 1,
            Would::End { how: ShadowEnd::Cancelled, .. } => {}
        }
    }

    /// Whether batching would be worth it.
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
        if batched * 1000 > passed * u128::from(1000 + SLOWER_MAX) { Benefit::Slower } else { Benefit::Worth }
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
    /// The word in reports.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::NothingToMerge => "nothing_to_merge",
            Self::Slower => "slower",
            Self::Worth => "worth",
        }
    }
}

// === impl Windows ===

impl Windows {
    pub(super) fn new(now: Tick) -> Self {
        Self { began: now, current: Recent::default(), before: None }
    }

    /// The window of an instant; begins another one where the last is over.
    pub(super) fn at(&mut self, now: Tick) -> &mut Recent {
        let over = now.since(self.began);
        if over >= WINDOW {
            // After a silence as long as a window nothing before it is recent.
            let ended = Recent { over, ..std::mem::take(&mut self.current) };
            self.before = (over < 2 * WINDOW).then_some(ended);
            self.began = now;
        }
        &mut self.current
    }

    /// Both windows together.
    pub(super) fn sum(&mut self, now: Tick) -> Recent {
        self.at(now);
        let current = Recent { over: now.since(self.began), ..self.current };
        self.before.map_or(current, |before| before.add(current))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recent(executions: u64, batched_ms: u64, passed_ms: u64) -> Recent {
        Recent {
            executions,
            carried: (1000, 1000),
            answered: 1000,
            latency: Duration::from_millis(1000 * batched_ms),
            passed: (1000, Duration::from_millis(1000 * passed_ms)),
            ..Recent::default()
        }
    }

    #[test]
    fn batching_is_worth_it_where_calls_share_and_are_no_later() {
        assert_eq!(recent(100, 20, 60).benefit(), Benefit::Worth);
        assert_eq!(recent(100, 61, 60).benefit(), Benefit::Worth, "as late, with fewer calls");
        assert_eq!(recent(100, 70, 60).benefit(), Benefit::Slower);
        assert_eq!(recent(950, 20, 60).benefit(), Benefit::NothingToMerge);
        let few = Recent { carried: (99, 99), ..recent(10, 20, 60) };
        assert_eq!(few.benefit(), Benefit::Unknown);
    }

    #[test]
    fn what_is_long_ago_does_not_count() {
        let mut windows = Windows::new(Tick(0));
        let second = |at: u64| Tick::from_millis(1000 * at);
        for at in 0..200 {
            windows.at(second(at)).calls += 1;
        }
        let sum = windows.sum(second(200));
        assert!((60..=120).contains(&sum.calls) && sum.over.as_secs().abs_diff(sum.calls) <= 1, "{sum:?}");
        assert_eq!(windows.sum(second(1000)).calls, 0, "nothing came for minutes");
    }
}
