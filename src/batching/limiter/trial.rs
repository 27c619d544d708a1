//! Trial of another limit: the mean sojourn time of one wave of calls under it is compared with the
//! one before.

use super::super::math::to_f64;
use super::super::tick::Tick;
use super::after_nanos;
use super::execution_record::ExecutionEnd;
use super::latency_line::nanos_between;
use super::pair_probe::{HOLD, OPEN_MIN};
use super::sojourn::SojournBase;

/// Ratio of the mean sojourn time to the base below which a trial is kept: between noise and the
/// step of a saturated server.
pub(super) const ACCEPT: f64 = 0.93;
/// Number of calls after which a trial ends early if their mean is above this part of the base, and
/// its maximum duration in bases. The mean of twelve calls is known to 2 % if calls are alike, and
/// a trial that is to be kept gains 10 % and more.
const BAD_CALLS: u64 = 12;
const BAD: f64 = 1.02;
const BASES_MAX: f64 = 8.0;
/// The limit of the trial was binding for an execution if at least this part of the target was in
/// flight at its dispatch. A trial is kept only if this was so for at least this share of the
/// answered items.
const FULL_PART: f64 = 0.8;
const FULL_SHARE: f64 = 0.8;
/// Tolerance within which a gain is nearly proportional, that is, steep. The next step is larger
/// then.
const STEEP: f64 = 1.1;
/// Maximum hold of a call by a trial that lowers an open limit with few executions in flight: in
/// mean times between two answers, until another call waits beside it, and as a part of the base.
const HOLD_ANSWERS: f64 = 1.5;
const HOLD_MAX: f64 = 0.25;
/// Decrease of the limit with each answer until it is at the target, so that the server always has
/// executions.
const STEP: f64 = 0.5;

/// A trial in progress.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LimitTrial {
    /// Limit before; `None`: open.
    pub(super) previous: Option<f64>,
    /// Executions in flight before.
    pub(super) flights: f64,
    /// The limit on trial.
    pub(super) target: f64,
    /// Mean sojourn time before, in nanoseconds.
    pub(super) base: f64,
    /// Mean number of items queued and in flight before.
    items_before: f64,
    pub(super) began: Tick,
    /// Number of items for a result.
    need: u64,
    /// Instant at which the limit had come down, or up, to the target. Only the time since counts.
    target_reached: Option<Tick>,
    /// Sum of the sojourn times of the items since then, in nanoseconds.
    sum: f64,
    /// Sum over these items of the number of items queued and in flight.
    sum_here: f64,
    /// Number of these items.
    count: u64,
    /// Number of their calls.
    calls: u64,
    /// Number of those for which the limit was binding.
    binding_items: u64,
}

/// Result of a trial.
#[derive(Debug, Clone, Copy)]
pub(super) struct TrialResult {
    pub(super) trial: LimitTrial,
    /// Mean sojourn time, in nanoseconds. If fewer items were in the system than before, it is
    /// scaled up to as many.
    pub(super) mean: f64,
    pub(super) accepted: bool,
    /// `true` if the gain is nearly proportional to the change of the limit.
    pub(super) steep: bool,
}

// === impl LimitTrial ===

impl LimitTrial {
    pub(super) fn new(
        began: Tick,
        previous: Option<f64>,
        flights: f64,
        target: f64,
        before: SojournBase,
        need: u64,
    ) -> Self {
        let (base, items_before) = (before.mean, before.items_present);
        Self { previous, flights, target, base, items_before, began, need, ..Self::default() }
    }

    /// Returns `true` if the trial raises the limit.
    pub(super) fn is_upward(&self) -> bool {
        self.previous.is_some_and(|previous| self.target > previous)
    }

    /// Returns the limit to start with: the target if upward, otherwise the number in flight.
    pub(super) fn first_limit(&self) -> f64 {
        if self.is_upward() { self.target } else { self.flights }
    }

    /// Returns the limit after another answer.
    pub(super) fn next_limit(&self, limit: f64) -> f64 {
        (limit - STEP).max(self.target)
    }

    /// Returns the instant until which a call may be held by a trial that lowers an open limit;
    /// `None` if a limit was in force before.
    pub(super) fn held_until(&self, arrived: Tick) -> Option<Tick> {
        let has_few_executions = self.flights < f64::from(OPEN_MIN);
        let share = if has_few_executions { (HOLD_ANSWERS / self.flights.max(1.0)).min(HOLD_MAX) } else { HOLD };
        self.previous.is_none().then(|| after_nanos(arrived, self.base * share))
    }

    /// Records an answer under the limit in force. `in_flight`: executions in flight at its
    /// dispatch, itself included. Returns the result if the trial is over.
    pub(super) fn observe(
        &mut self,
        now: Tick,
        limit: f64,
        in_flight: u32,
        done: &ExecutionEnd,
    ) -> Option<TrialResult> {
        if self.target_reached.is_none() && limit <= self.target {
            self.target_reached = Some(now);
        }
        if let Some(ready) = self.target_reached {
            let (items, mean) = done.since(now, ready);
            self.sum += mean * to_f64(items);
            self.sum_here += to_f64(done.items_in_system) * to_f64(items);
            self.count += items;
            self.calls += if items > 0 { u64::from(done.calls) } else { 0 };
            if f64::from(in_flight) >= FULL_PART * self.target {
                self.binding_items += items;
            }
        }
        let mean = if self.count > 0 { self.sum / to_f64(self.count) } else { f64::INFINITY };
        let is_bad = self.calls >= BAD_CALLS && mean > BAD * self.base;
        if self.count < self.need && !is_bad && nanos_between(self.began, now) <= BASES_MAX * self.base {
            return None;
        }
        let was_binding = to_f64(self.binding_items) >= FULL_SHARE * to_f64(self.count);
        // With fewer items in the system than before, calls wait less whatever the limit. By
        // Little's law, the gain is in the sojourn time divided by their number.
        let here = self.sum_here / to_f64(self.count.max(1));
        let mean = if here > 0.0 { mean.max(mean * self.items_before / here) } else { mean };
        // A limit that did not bind was not tested.
        let accepted = mean < ACCEPT * self.base && was_binding;
        // The ratio of the sojourn times if they change in proportion to the limit.
        let proportion = match self.previous {
            Some(previous) if self.is_upward() => previous / self.target,
            Some(previous) => self.target / previous,
            None => self.target / self.flights.max(1.0),
        };
        Some(TrialResult { trial: *self, mean, accepted, steep: mean < self.base * proportion * STEEP })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A trial of a lower limit, with 20 items and sojourn times of 10 ms before.
    fn lowering() -> LimitTrial {
        let before = SojournBase { mean: 10e6, items_present: 20.0 };
        LimitTrial::new(Tick(0), Some(20.0), 20.0, 14.0, before, 24)
    }

    /// Returns `true` if a lower limit is kept under which each call took 8 of 10 ms, with this
    /// many items in the system.
    fn is_accepted(here: u64) -> bool {
        let mut trial = lowering();
        let answer = |at: u64| {
            let arrived = Tick(at.saturating_sub(8_000_000));
            ExecutionEnd { items_in_system: here, ..ExecutionEnd::new(true, 1, arrived, arrived, 6, 64) }
        };
        assert!(trial.observe(Tick(1), 14.0, 14, &answer(1)).is_none());
        let mut answers = (1..).map(|number| 8_000_000 + number * 100_000);
        answers.find_map(|at| trial.observe(Tick(at), 14.0, 14, &answer(at))).is_some_and(|ended| ended.accepted)
    }

    #[test]
    fn a_trial_with_proportionally_fewer_calls_in_the_system_is_not_kept() {
        assert!(is_accepted(20));
        assert!(!is_accepted(16), "four fifths of the calls wait four fifths of the time");
    }

    #[test]
    fn one_call_of_many_items_does_not_end_a_trial() {
        let mut trial = lowering();
        let slow = |at: u64| {
            let arrived = Tick(at.saturating_sub(10_300_000));
            ExecutionEnd { items: 12, items_in_system: 20, ..ExecutionEnd::new(true, 1, arrived, arrived, 6, 64) }
        };
        trial.observe(Tick(1), 14.0, 14, &slow(1));
        assert!(trial.observe(Tick(11_000_000), 14.0, 14, &slow(11_000_000)).is_none());
    }
}
