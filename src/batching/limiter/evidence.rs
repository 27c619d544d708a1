//! Evaluation of completed executions: evidence for a jump while open, and for batch sizes, probes
//! and the level while limited.

use super::super::math::to_f64;
use super::super::tick::Tick;
use super::curve::ServerChange;
use super::execution_record::{ConnectionUse, ExecutionEnd, InFlightExecution};
use super::growth::{GrowthOutcome, UnbatchedBase};
use super::jump::JUMP_KNEES;
use super::latency_line::nanos_between;
use super::open_limiter::QueueRelease;
use super::permit::Permit;
use super::sojourn::Sojourn;
use super::{ConcurrencyLimiter, OpenReason};

/// Ratio of the latency of unbatched calls under the new limit to the latency expected from the
/// base, above which the base is outdated: it was measured before a change of the server. Like the
/// ratio for the cells of the load curve, it is beyond the noise of a few calls.
const BASE_STALE: f64 = 1.5;
/// Minimum rate of unbatched calls under the new limit, by Little's law, as a part of the rate
/// before.
const RATE_KEPT: f64 = 0.8;
/// The same if the knee is an upper bound, where a server without a queue keeps less than a half.
const RATE_KEPT_BOUND: f64 = 0.65;
/// Smallest limit at which these rates are compared, because a mean of several answers is needed.
const RATE_LIMIT_MIN: f64 = 4.0;
/// Knee below which the server has one worker: halfway to two.
const ONE_WORKER: f64 = 1.5;
/// Time without an answer to mergeable calls after which a limit has nothing to gain, in mean batch
/// latencies, and its minimum in nanoseconds.
const UNMERGED: (f64, f64) = (20.0, 1e9);
/// Number of answers to other calls, while calls are queued, that is required too: time also passes
/// between two bursts of calls, and no limit holds the calls of a single client.
const UNMERGED_ANSWERS: u32 = 4;

// === impl ConcurrencyLimiter ===

impl ConcurrencyLimiter {
    /// Records the end of an execution.
    ///
    /// If it was answered, its times are evidence for the load curve and the harm test. The further
    /// tests that it serves depend on whether its calls can be merged, and on the state: open, on
    /// trial, or limited.
    pub(in super::super) fn on_completion(&mut self, now: Tick, mark: &InFlightExecution, mut done: ExecutionEnd) {
        self.now = self.now.max(now);
        self.load.advance(now, self.flights);
        done.items = mark.items;
        self.end_flight(mark, &done);
        if !done.answered {
            self.wave.reset();
            self.burst.reset();
        }
        if mark.permit == Permit::Control {
            self.observe_control(done.answered.then(|| nanos_between(mark.sent, now)));
        }
        if !done.answered || self.pinned {
            return;
        }
        self.answered_calls += u64::from(done.calls);
        if let (Some(tokens), Some(first_token)) = (done.tokens, done.first_byte) {
            return self.observe_generated(now, mark, (first_token, tokens), done.queued > 0);
        }
        // A stream without a token, because its caller left, is no evidence for a limit on streams.
        if mark.unmergeable && self.limits_streams() {
            return;
        }
        // A stream may last for an unbounded time. The time to its first byte shows the load of the
        // server.
        let latency = done.first_byte.filter(|_| mark.unmergeable).unwrap_or_else(|| nanos_between(mark.sent, now));
        let limited = self.limit.is_some();
        self.observe_load(now, mark, latency, done.calls);
        let settled = !limited || self.trial.is_some() || self.track_drain(now);
        // Mean over the calls, as if their arrivals were spread evenly.
        let sojourn = (nanos_between(done.first, now) + nanos_between(done.last, now)) / 2.0;
        done.items_in_system = self.items_here(done.queued) + u64::from(mark.items);
        let items_present = done.items_in_system;
        let (arrived, items, in_flight) = (done.first, mark.items, mark.in_flight);
        self.sojourns.push(Sojourn { arrived, mean: sojourn, items_present, items, in_flight });
        if self.observe_harm(now, sojourn, &done) {
            self.back_off_jumps(now);
            return self.release(now, OpenReason::NoQueue);
        }
        if self.verify_room(now, done.first, sojourn, done.calls) {
            return;
        }
        if mark.unmergeable {
            self.observe_stream(now, mark.sent, latency);
            return self.learn_unmergeable(now, mark, latency, &done, settled);
        }
        (self.last_merged, self.unmerged) = (now, 0);
        if self.reason == OpenReason::NothingToMerge {
            self.reason = OpenReason::Learning;
        }
        self.answered_mergeable += u64::from(done.calls);
        if mark.permit == Permit::Pair {
            self.observe_pair(now, latency);
        }
        if self.ordering.is_some() {
            return self.learn_ordered(now, mark, latency, settled);
        }
        self.order_at_knee(now, false);
        if self.trial.is_some() {
            self.learn_trial(now, mark, &done);
        } else if !limited {
            self.jump_to_knee(now);
        } else if settled && self.limit.is_some() {
            self.observe_limited(now, mark, latency, &done);
        }
        self.begin_trial(now, &done);
    }

    /// Removes an execution from those in flight. The release of a queue advances with each end.
    fn end_flight(&mut self, mark: &InFlightExecution, done: &ExecutionEnd) {
        self.batches = self.batches.saturating_sub(u32::from(done.calls > 1));
        self.flights = self.flights.saturating_sub(1);
        if !mark.unmergeable {
            self.merged_flights = self.merged_flights.saturating_sub(1);
            self.merged_items = self.merged_items.saturating_sub(u64::from(mark.items));
            self.newest = self.newest.saturating_sub(u32::from(mark.newest));
        }
        // Without queued calls, nothing is left to release.
        self.gate =
            self.gate.filter(|_| done.queued > 0).map(|gate| QueueRelease { limit: gate.limit + gate.step, ..gate });
    }

    /// Records the latency of an unbatched call, and the rate of answers while there is no limit.
    fn observe_load(&mut self, now: Tick, mark: &InFlightExecution, latency: f64, calls: u32) {
        let limited = self.limit.is_some();
        if mark.connection == ConnectionUse::Own {
            // Its latency includes that of its connection, so it is not comparable.
        } else if calls == 1 && mark.clean && (!limited || mark.unmergeable) && self.trial.is_none() {
            self.observe_unbatched(now, mark, latency);
        } else if calls == 1 && !limited && self.trial.is_none() {
            // An unbatched call beside a pair, which is compared with the calls around it.
            self.level.observe_unbatched(latency);
        }
        if limited {
            self.curve.forget_rate();
        } else {
            self.curve.record_completion(mark.sent, now, calls);
        }
    }

    /// Records an answer to an execution that cannot be merged. `settled`: no drain of executions
    /// from before a jump is in progress.
    fn learn_unmergeable(
        &mut self,
        now: Tick,
        mark: &InFlightExecution,
        latency: f64,
        done: &ExecutionEnd,
        settled: bool,
    ) {
        if self.trial.is_some() {
            self.learn_trial(now, mark, done);
        }
        self.order_at_knee(now, true);
        if self.ordering.is_some() {
            if settled {
                self.observe_ordered(now, mark, latency);
            }
            return;
        }
        let new = mark.sent >= self.schedule.since;
        if settled && new && self.limit.is_some() && self.trial.is_none() && self.growth.cap() == 1 {
            self.observe_size(now, mark, latency, done);
        }
        self.open_unmerged(now, done.queued);
    }

    /// Records an answer to a call that might be merged, under a limit that only orders calls.
    fn learn_ordered(&mut self, now: Tick, mark: &InFlightExecution, latency: f64, settled: bool) {
        if settled {
            self.observe_ordered(now, mark, latency);
        }
        self.merge_under_order(now);
    }

    /// Records the sojourn time of calls for the harm test. Returns `true` if clients wait longer
    /// under the limit than without it.
    fn observe_harm(&mut self, now: Tick, sojourn: f64, done: &ExecutionEnd) -> bool {
        if self.is_open() && self.gate.is_none() {
            self.harm.observe_open(now, sojourn, done.calls);
        }
        self.limit.is_some() && self.harm.observe_limited(now, done.first, sojourn, done.calls)
    }

    /// Records the latency of an unbatched call for the load curve and the wave and burst tests. A
    /// change of the server that it shows makes a trial and a jump due now.
    fn observe_unbatched(&mut self, now: Tick, mark: &InFlightExecution, latency: f64) {
        // Calls with many items, or with heavy ones, take longer in service. The comparison uses
        // their wait and the service time of a typical call.
        let typical = self.level.observe_service(mark.expected);
        let latency =
            if mark.expected > 0 { (latency - to_f64(mark.expected) + typical).max(typical) } else { latency };
        if let Some(number) = mark.wave {
            let knee = self.wave.observe(number, latency);
            self.wave_knee = knee.or_else(|| self.burst.observe(now, self.flights)).or(self.wave_knee);
        }
        if let Some(change) = self.curve.observe((mark.in_flight, self.load.mean_since(&mark.load)), latency) {
            self.slower = change == ServerChange::Slower;
            self.wave.on_change();
            self.schedule.trial_gap = 0.0;
            self.schedule.trial = now;
            self.schedule.jump = now;
            self.schedule.since = now;
            self.sojourns.clear();
        }
        self.level.observe_unbatched(latency);
    }

    /// Opens a limit under which nothing has been merged for a long time.
    fn open_unmerged(&mut self, now: Tick, queued: u64) {
        self.unmerged = self.unmerged.saturating_add(u32::from(queued > 0));
        let rest = (UNMERGED.0 * self.level.batch.max(self.level.unbatched)).max(UNMERGED.1);
        let unmerged = self.unmerged >= UNMERGED_ANSWERS && nanos_between(self.last_merged, now) > rest;
        let limited = self.limit.is_some() || self.trial.is_some();
        if limited && self.merged_flights == 0 && unmerged {
            if self.ordered && self.limit.is_some() {
                return self.keep_for_order();
            }
            self.open(now, OpenReason::NothingToMerge);
        }
        if !limited && self.reason == OpenReason::Learning && nanos_between(self.last_merged, now) > rest {
            self.report_unmerged_queue();
        }
    }

    /// Sets the reported reason if calls queue inside the server and none of them could be merged:
    /// that was learned, although no limit follows from it.
    fn report_unmerged_queue(&mut self) {
        if self.is_learning() || self.merged_flights > 0 {
            return;
        }
        let knee = self.wave_knee.or_else(|| self.curve.knee(false));
        if knee.is_some_and(|knee| self.flights > 1 && f64::from(self.flights) >= JUMP_KNEES * knee.at) {
            self.reason = OpenReason::NothingToMerge;
        }
    }

    /// Records an answer under a limit that is not on trial.
    fn observe_limited(&mut self, now: Tick, mark: &InFlightExecution, latency: f64, done: &ExecutionEnd) {
        self.observe_companion(now, mark, latency);
        if self.limit.is_none() {
            return;
        }
        match mark.permit {
            Permit::Probe(_) => return self.observe_probe(now, mark, latency),
            _ if mark.sent < self.schedule.since => return,
            _ => {}
        }
        if self.level.observe_batch(f64::from(mark.items), latency, mark.expected) {
            self.probe.next = now;
            self.schedule.trial = now;
            self.schedule.trial_gap = 0.0;
        }
        self.observe_size(now, mark, latency, done);
    }

    /// Records an execution under a limit as evidence of the cost of its size.
    fn observe_size(&mut self, now: Tick, mark: &InFlightExecution, latency: f64, done: &ExecutionEnd) {
        let limit = self.limit.unwrap_or(1.0);
        let base = UnbatchedBase {
            latency: self.level.unbatched,
            service: self.unbatched_service(limit),
            items: self.level.unbatched_items,
        };
        match self.growth.observe((mark.items, done.calls), latency, base, limit, done.items_max) {
            GrowthOutcome::Nothing => {}
            GrowthOutcome::Base { latency, .. } if !self.growth.is_renewed() && self.is_rate_lower(limit, latency) => {
                self.back_off_jumps(now);
                self.release(now, OpenReason::NoQueue);
            }
            GrowthOutcome::Base { latency, .. } if self.narrow(now, limit, latency) => {}
            GrowthOutcome::Base { latency, items } => {
                self.level.set_unbatched(latency, items, limit);
                if self.growth.is_renewed() {
                    self.harm.on_change();
                }
                self.renew_base(limit, latency);
                self.level.reset_batches();
            }
            GrowthOutcome::Larger => {
                self.level.batches = self.level.batches.min(1);
                self.schedule.since = now;
                self.sojourns.clear();
            }
            // The batch may have waited longer behind other cost classes than the calls before it.
            GrowthOutcome::NoGain { .. } if self.others > 0 && !self.growth.is_renewed() => self.growth.renew(),
            GrowthOutcome::NoGain { ratio } => {
                self.back_off_jumps(now);
                self.release(now, OpenReason::NoGain { permille: super::super::math::round_to_u64(ratio * 1000.0) });
            }
        }
    }

    /// Returns the part of an unbatched call's latency in which it is in service, at this limit.
    fn unbatched_service(&self, limit: f64) -> f64 {
        let unbatched = self.level.unbatched;
        self.knee.map_or(unbatched, |knee| {
            // One worker answers one call in each of its service times. The base may be longer: the
            // first calls of a cold start overtake each other while their connections are opened.
            let of_one = if knee.at < ONE_WORKER { unbatched / limit.max(1.0) } else { unbatched };
            knee.base.min(unbatched).min(of_one)
        })
    }

    /// Replaces a base latency that was measured before the server changed. Under the limit,
    /// unbatched calls wait only for the executions above the knee. Compared with a base that is
    /// too small, no batch would pay.
    fn renew_base(&mut self, limit: f64, latency: f64) {
        if let Some(knee) = &mut self.knee
            && latency > BASE_STALE * knee.base * (limit / knee.at).max(1.0)
        {
            knee.base = latency;
        }
    }

    /// Returns `true` if unbatched calls under the limit are answered at a much lower rate than
    /// before the jump.
    fn is_rate_lower(&self, limit: f64, latency: f64) -> bool {
        let before = self.knee.map_or(0.0, |knee| knee.rate);
        let fraction = match self.narrowing {
            // A lower rate ends the search for the knee below the first limit.
            Some(narrowing) if narrowing.has_started() => return false,
            Some(_) => RATE_KEPT_BOUND,
            None => RATE_KEPT,
        };
        limit >= RATE_LIMIT_MIN && limit / latency < fraction * before
    }
}

#[cfg(test)]
mod tests {
    use super::super::curve::Knee;
    use super::*;

    /// Returns the service time of an unbatched call that takes 40 ms under a limit of two, if the
    /// base was 28 ms before and the knee is `at`.
    fn service_at(at: f64) -> f64 {
        let mut limiter = ConcurrencyLimiter::new();
        limiter.set_limit(2.0);
        limiter.level.set_unbatched(40e6, 1.0, 2.0);
        limiter.knee = Some(Knee { at, base: 28e6, rate: 5e-8, is_bound: false });
        limiter.unbatched_service(2.0)
    }

    #[test]
    fn the_service_time_of_one_worker_is_the_time_between_two_answers() {
        assert!((service_at(1.4) - 20e6).abs() < 1.0, "the base includes a call that overtook");
        assert!((service_at(1.9) - 28e6).abs() < 1.0, "two workers");
    }
}
