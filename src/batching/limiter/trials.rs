//! Steps of the limit: trials that are due, and the limit that results from one.
//!
//! The load curve is measured with unbatched calls. Whether merged calls gain from another limit
//! shows only in their sojourn times, so the limit is moved in steps, and each step is compared
//! with the time before.

use super::super::tick::Tick;
use super::execution_record::{ExecutionEnd, InFlightExecution};
use super::growth::GrowthRamp;
use super::pair_probe::{OPEN_MIN, PAIR_COST_MAX};
use super::probe::PROBE_GAP;
use super::trial::{LimitTrial, TrialResult};
use super::{ConcurrencyLimiter, after_nanos};

/// Factors of the trials: the first one lowers an open limit to this part of the number in flight;
/// later ones lower a limit to one of these parts, the second after a steep gain; upward ones raise
/// it.
const STEP_FIRST: f64 = 0.8;
const STEP_DOWN: f64 = 0.7;
const STEP_DOWN_STEEP: f64 = 0.5;
const STEP_UP: f64 = 1.5;
/// Factor by which a limit is raised once more, at once, after an increase that gained nearly in
/// proportion.
const STEP_STEEP: f64 = 1.5;
/// Minimum items queued and in flight per execution of a limit for it to be lowered. With fewer,
/// calls that run at once would wait to be merged.
const HELD_MIN: f64 = 1.2;
/// Bounds on the answers that a trial needs, one per item in the system, and the multiple of it
/// over which an open limit is compared.
const TRIAL_ANSWERS: (u64, u64) = (24, 256);
const TRIAL_WAVES: u64 = 3;
/// Minimum and maximum rest after a trial that was not kept, each in base sojourn times and in
/// nanoseconds.
const TRIAL_REST_MIN: (f64, f64) = (8.0, 1e9);
const TRIAL_REST_MAX: (f64, f64) = (64.0, 60e9);

// === impl ConcurrencyLimiter ===

impl ConcurrencyLimiter {
    pub(super) fn learn_trial(&mut self, now: Tick, mark: &InFlightExecution, done: &ExecutionEnd) {
        let Some(trial) = &mut self.trial else { return };
        let limit = trial.next_limit(self.trial_limit.unwrap_or(trial.target));
        self.trial_limit = Some(limit);
        let Some(ended) = trial.observe(now, limit, mark.in_flight, done) else { return };
        self.end_trial(now, &ended);
    }

    fn end_trial(&mut self, now: Tick, ended: &TrialResult) {
        let TrialResult { trial, mean, accepted, steep } = *ended;
        (self.trial, self.trial_limit) = (None, None);
        self.slower = false;
        self.schedule.steep = steep;
        self.schedule.since = now;
        self.sojourns.clear();
        if !accepted {
            let rest = (self.schedule.trial_gap * 2.0).max((TRIAL_REST_MIN.0 * trial.base).max(TRIAL_REST_MIN.1));
            self.schedule.trial_gap = rest.min((TRIAL_REST_MAX.0 * trial.base).max(TRIAL_REST_MAX.1));
            self.schedule.trial = after_nanos(now, self.schedule.trial_gap);
            self.schedule.upward = !self.schedule.upward;
            self.pairs.count = 0;
            return;
        }
        if let Some(previous) = trial.previous.filter(|previous| trial.target < *previous) {
            self.level.lower_unbatched(previous, trial.target);
        }
        if trial.previous.is_none() {
            self.harm.on_limit(now, self.level.recent_unbatched);
            self.level.clear_unbatched();
            self.growth = GrowthRamp::uncapped();
            self.schedule.upward = false;
        }
        self.level.reset_batches();
        self.probe.hits = 0;
        self.refine_from = trial.target;
        let further = trial.is_upward() && steep;
        self.set_limit(if further { trial.target * STEP_STEEP } else { trial.target });
        self.schedule.trial_gap = 0.0;
        self.schedule.trial = now;
        self.probe.next = after_nanos(now, PROBE_GAP * mean);
    }

    /// Starts a trial that is due, if the number in flight has been steady.
    pub(super) fn begin_trial(&mut self, now: Tick, done: &ExecutionEnd) {
        if self.trial.is_some() || now < self.schedule.trial || self.gate.is_some() {
            return;
        }
        let limit = self.limit;
        // An evident knee is reached by a jump, at once.
        if self.draining.is_some() || limit.is_none() && self.schedule.evident.is_some() {
            return;
        }
        let total = self.items_here(done.queued);
        let flights = limit.unwrap_or(f64::from(self.flights));
        let grown = !self.is_growing(done.queued);
        // One trial is made after a change of the server. Otherwise pairs have to be cheap, which
        // find no partner if few calls are in flight.
        let paired = self.pairs.count >= 1 && self.pairs.cost < PAIR_COST_MAX;
        let warranted = self.slower || self.merged_flights >= OPEN_MIN && paired;
        if !grown || flights < 2.0 || limit.is_none() && !warranted {
            return;
        }
        let need = total.clamp(TRIAL_ANSWERS.0, TRIAL_ANSWERS.1);
        let span = if limit.is_none() { TRIAL_WAVES * need } else { need };
        let Some(base) = self.sojourns.steady_mean(self.schedule.since, span, need) else { return };
        let upward = self.schedule.upward && self.is_below_policy_limit() && limit.is_some_and(|limit| limit > 2.0);
        if !upward && limit.is_some_and(|limit| base.items_present < HELD_MIN * limit) {
            return;
        }
        let factor = match limit {
            Some(_) if upward => STEP_UP,
            Some(_) if self.schedule.steep => STEP_DOWN_STEEP,
            Some(_) => STEP_DOWN,
            None => STEP_FIRST,
        };
        let target = (flights * factor).floor().max(1.0);
        let trial = LimitTrial::new(now, limit, flights, target, base, need);
        self.trial_limit = Some(trial.first_limit());
        self.trial = Some(trial);
    }
}
