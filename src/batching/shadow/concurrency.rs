//! Number of calls that a server runs at once, measured from calls that are forwarded.
//!
//! By Little's law, the work answered in an interval (in times of lone calls) divided by the
//! interval is the number of calls that ran side by side. The *accompanied* calls, those with
//! others in flight, show if the server could run more: if they were not slowed, they ran beside
//! all the others.

use std::collections::VecDeque;

/// Minimum number of answers in a measurement, because single ones arrive in any order.
const WINDOW_CALLS_MIN: u32 = 64;
/// Number of answers at which a measurement with too few accompanied calls ends. Calls that are
/// always alone show nothing about others.
const WINDOW_CALLS_MAX: u32 = 1024;
/// Number of measurements kept. A server that was slow an hour ago may not be slow now, and a
/// server that was idle since then has not lost its workers.
const MEASUREMENTS_MAX: usize = 64;
/// Number of measurements with a queue inside the server that are averaged.
const SATURATED: usize = 4;
/// Minimum number of accompanied calls in a measurement to determine if they were slowed.
const ACCOMPANIED_MIN: u32 = 8;
/// Maximum ratio of the time of calls that were not slowed to that of lone calls, in thousandths.
/// It covers noise, and the little that sockets and threads share.
const SLOWED: u64 = 1200;

/// A call that was answered successfully.
#[derive(Debug, Clone, Copy)]
pub(super) struct AnsweredCall {
    /// Predicted time of the call alone, in nanoseconds.
    pub(super) takes: u64,
    /// Measured time, in nanoseconds.
    pub(super) took: u64,
    /// Time since the previous answer during which the server had work, in nanoseconds.
    pub(super) busy: u64,
    /// Number of calls in flight at its dispatch, itself included.
    pub(super) beside: u32,
}

/// Estimator of the number of calls that a server runs at once.
#[derive(Debug, Clone, Default)]
pub(super) struct ConcurrencyEstimator {
    /// The measurement in progress.
    window: LoadWindow,
    /// The last measurements, the newest at the back.
    measurements: VecDeque<LoadMeasurement>,
}

/// Sums of the measurement in progress.
#[derive(Debug, Clone, Copy, Default)]
struct LoadWindow {
    calls: u32,
    /// Predicted times of the calls alone, in nanoseconds.
    work: u64,
    /// Time during which the server had work, in nanoseconds.
    time: u64,
    /// Maximum number of calls in flight.
    peak: u32,
    /// Number of calls that were sent while others were in flight.
    accompanied: u32,
    /// Predicted times of these calls alone, in nanoseconds.
    accompanied_takes: u64,
    /// Measured times of these calls, in nanoseconds.
    accompanied_took: u64,
}

/// Result of a measurement.
#[derive(Debug, Clone, Copy)]
struct LoadMeasurement {
    /// Number of calls that ran at once, in thousandths.
    milli: u64,
    /// `true` if others waited inside the server, so that it runs no more than these.
    saturated: bool,
}

// === impl ConcurrencyEstimator ===

impl ConcurrencyEstimator {
    pub(super) fn observe(&mut self, answered: AnsweredCall) {
        let AnsweredCall { takes, took, busy, beside } = answered;
        let window = &mut self.window;
        window.calls += 1;
        window.work = window.work.saturating_add(takes);
        window.time = window.time.saturating_add(busy);
        window.peak = window.peak.max(beside);
        if beside > 1 {
            window.accompanied += 1;
            window.accompanied_takes = window.accompanied_takes.saturating_add(takes);
            window.accompanied_took = window.accompanied_took.saturating_add(took);
        }
        let needs_more = window.accompanied < ACCOMPANIED_MIN && window.calls < WINDOW_CALLS_MAX;
        if window.calls < WINDOW_CALLS_MIN || needs_more {
            return;
        }
        let measurement = window.measurement();
        self.window = LoadWindow::default();
        if self.measurements.len() >= MEASUREMENTS_MAX {
            self.measurements.pop_front();
        }
        self.measurements.push_back(measurement);
    }

    /// Returns the number of calls that may run at once. It is unbounded as long as no queue inside
    /// the server was observed: without evidence calls proceed as without a proxy.
    pub(super) fn concurrency_limit(&self) -> usize {
        if self.measurements.iter().any(|one| one.saturated) { self.measured_concurrency() } else { usize::MAX }
    }

    /// Returns the number of calls that were observed to run at once, at least 1.
    pub(super) fn measured_concurrency(&self) -> usize {
        let queues = || self.measurements.iter().rev().filter(|one| one.saturated).take(SATURATED);
        let count = u64::try_from(queues().count()).unwrap_or(0);
        let measured = queues().map(|one| one.milli).fold(0, u64::saturating_add).checked_div(count).unwrap_or(0);
        // The calls that ran at once since then show that there is room for this many.
        let since = self.measurements.iter().rev().take_while(|one| !one.saturated);
        let most = since.map(|one| one.milli).fold(measured, u64::max).max(1000);
        usize::try_from(most.saturating_add(500) / 1000).unwrap_or(usize::MAX)
    }

    /// Returns the number of calls that ran at once in the last measurement, in thousandths. Below
    /// 1000 it is the pace of a busy server in relation to that of lone calls.
    pub(super) fn last_concurrency(&self) -> u64 {
        self.measurements.back().map_or(1000, |one| one.milli)
    }
}

// === impl LoadWindow ===

impl LoadWindow {
    /// Returns the result. The calls that ran at once are the work divided by the time, or as many
    /// as were in flight if accompanied calls were not slowed.
    fn measurement(&self) -> LoadMeasurement {
        let per_mille =
            |one: u64, other: u64| u64::try_from(u128::from(one) * 1000 / u128::from(other.max(1))).unwrap_or(u64::MAX);
        let ran = per_mille(self.work, self.time);
        if self.accompanied < ACCOMPANIED_MIN {
            return LoadMeasurement { milli: ran, saturated: false };
        }
        let saturated = per_mille(self.accompanied_took, self.accompanied_takes) > SLOWED;
        let milli = if saturated { ran } else { ran.max(u64::from(self.peak) * 1000) };
        LoadMeasurement { milli, saturated }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(answers: impl Iterator<Item = AnsweredCall>) -> ConcurrencyEstimator {
        let mut load = ConcurrencyEstimator::default();
        answers.for_each(|answered| load.observe(answered));
        load
    }

    fn same(count: usize, answered: AnsweredCall) -> impl Iterator<Item = AnsweredCall> {
        std::iter::repeat_n(answered, count)
    }

    #[test]
    fn calls_as_fast_beside_others_as_lone_ones_count_as_concurrent() {
        let free = AnsweredCall { takes: 200, took: 205, busy: 25, beside: 9 };
        let free = load(same(128, free));
        assert_eq!((free.measured_concurrency(), free.concurrency_limit()), (9, usize::MAX));
        let queued = AnsweredCall { takes: 5, took: 45, busy: 5, beside: 9 };
        let queued = load(same(128, queued));
        assert_eq!((queued.measured_concurrency(), queued.concurrency_limit()), (1, 1));
    }

    #[test]
    fn a_queue_lowers_the_measured_concurrency_and_free_capacity_raises_it() {
        let (free, queued) = (
            AnsweredCall { takes: 200, took: 200, busy: 5, beside: 40 },
            AnsweredCall { takes: 200, took: 1200, busy: 25, beside: 48 },
        );
        assert_eq!(load(same(640, free).chain(same(640, queued))).measured_concurrency(), 8);
        assert_eq!(load(same(640, queued).chain(same(64, free))).measured_concurrency(), 40);
    }

    #[test]
    fn idle_times_do_not_change_the_measured_concurrency() {
        let free = AnsweredCall { takes: 200, took: 200, busy: 5, beside: 40 };
        let lone = AnsweredCall { takes: 200, took: 200, busy: 200, beside: 1 };
        assert_eq!(load(same(64, free).chain(same(2000, lone))).measured_concurrency(), 40);
        assert!(load(same(100_000, lone)).measurements.len() <= MEASUREMENTS_MAX);
    }

    #[test]
    fn a_slower_pace_under_load_lowers_the_last_concurrency() {
        let slow = AnsweredCall { takes: 5, took: 20, busy: 10, beside: 2 };
        let load = load(same(64, slow));
        assert_eq!((load.measured_concurrency(), load.last_concurrency()), (1, 500));
    }
}
