//! Number of calls that a server runs at once, measured from calls that are forwarded.
//!
//! By Little's law, the work answered in an interval (in times of lone calls) divided by the
//! interval is the number of calls that ran side by side. The calls with company show if the server
//! could run more: those that were not slowed ran beside all the others.

use std::collections::VecDeque;

/// Minimum number of answers in a measurement, because single ones arrive in any order.
const LOOK_CALLS: u32 = 64;
/// Number of answers at which a measurement without company ends. Calls that are always alone show
/// nothing about others.
const LOOK_CALLS_MAX: u32 = 1024;
/// Number of measurements kept. A server that was slow an hour ago may not be slow now, and a
/// server that was idle since then has not lost its workers.
const LOOKS: usize = 64;
/// Number of measurements with a queue inside the server that are averaged.
const SATURATED: usize = 4;
/// Minimum number of calls with company in a measurement to determine if they were slowed.
const ACCOMPANIED_MIN: u32 = 8;
/// Ratio to the time of a lone call up to which a call was not slowed, in thousandths: noise, and
/// the little that sockets and threads share.
const SLOWED: u64 = 1200;

/// A call that was answered successfully.
#[derive(Debug, Clone, Copy)]
pub(super) struct AnsweredCall {
    /// Predicted time of the call alone, in nanoseconds.
    pub(super) takes: u64,
    /// Measured time.
    pub(super) took: u64,
    /// Time since the previous answer during which the server had work.
    pub(super) busy: u64,
    /// Number of calls in flight at its dispatch, itself included.
    pub(super) beside: u32,
}

/// Estimator of the number of calls that a server runs at once.
#[derive(Debug, Clone, Default)]
pub(super) struct ConcurrencyEstimator {
    look: LoadWindow,
    looks: VecDeque<LoadMeasurement>,
}

/// Sums of the measurement in progress.
#[derive(Debug, Clone, Copy, Default)]
struct LoadWindow {
    calls: u32,
    work: u64,
    time: u64,
    peak: u32,
    accompanied: u32,
    accompanied_takes: u64,
    accompanied_took: u64,
}

/// Result of a measurement: the calls that ran at once, in thousandths.
#[derive(Debug, Clone, Copy)]
struct LoadMeasurement {
    milli: u64,
    /// `true` if others waited inside the server, so that it runs no more than these.
    saturated: bool,
}

// === impl ConcurrencyEstimator ===

impl ConcurrencyEstimator {
    pub(super) fn observe(&mut self, answered: AnsweredCall) {
        let AnsweredCall { takes, took, busy, beside } = answered;
        let look = &mut self.look;
        look.calls += 1;
        look.work = look.work.saturating_add(takes);
        look.time = look.time.saturating_add(busy);
        look.peak = look.peak.max(beside);
        if beside > 1 {
            look.accompanied += 1;
            look.accompanied_takes = look.accompanied_takes.saturating_add(takes);
            look.accompanied_took = look.accompanied_took.saturating_add(took);
        }
        let more = look.accompanied < ACCOMPANIED_MIN && look.calls < LOOK_CALLS_MAX;
        if look.calls < LOOK_CALLS || more {
            return;
        }
        let measurement = look.measurement();
        self.look = LoadWindow::default();
        if self.looks.len() >= LOOKS {
            self.looks.pop_front();
        }
        self.looks.push_back(measurement);
    }

    /// Returns the number of calls that may run at once. It is unbounded as long as no queue inside
    /// the server was observed: without evidence calls proceed as without a proxy.
    pub(super) fn concurrency_limit(&self) -> usize {
        if self.looks.iter().any(|look| look.saturated) { self.measured_concurrency() } else { usize::MAX }
    }

    /// Returns the number of calls that were observed to run at once, at least 1.
    pub(super) fn measured_concurrency(&self) -> usize {
        let queues = || self.looks.iter().rev().filter(|look| look.saturated).take(SATURATED);
        let count = u64::try_from(queues().count()).unwrap_or(0);
        let measured = queues().map(|look| look.milli).fold(0, u64::saturating_add).checked_div(count).unwrap_or(0);
        // The calls that ran at once since then show that there is room for this many.
        let since = self.looks.iter().rev().take_while(|look| !look.saturated);
        let most = since.map(|look| look.milli).fold(measured, u64::max).max(1000);
        usize::try_from(most.saturating_add(500) / 1000).unwrap_or(usize::MAX)
    }

    /// Returns the number of calls that ran at once in the last measurement, in thousandths. Below
    /// 1000 it is the pace of a busy server in relation to that of lone calls.
    pub(super) fn last_concurrency(&self) -> u64 {
        self.looks.back().map_or(1000, |look| look.milli)
    }
}

// === impl LoadWindow ===

impl LoadWindow {
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
    fn calls_as_fast_beside_others_as_alone_count_as_concurrent() {
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
        assert!(load(same(100_000, lone)).looks.len() <= LOOKS);
    }

    #[test]
    fn a_slower_pace_under_load_lowers_the_last_concurrency() {
        let slow = AnsweredCall { takes: 5, took: 20, busy: 10, beside: 2 };
        let load = load(same(64, slow));
        assert_eq!((load.measured_concurrency(), load.last_concurrency()), (1, 500));
    }
}
