//! Upward probes under a small limit: executions in addition to those that are allowed.

use super::super::math::to_f64;
use super::super::tick::Tick;
use super::execution_record::InFlightExecution;
use super::latency_line::nanos_between;
use super::permit::{Permit, PermitRequest};
use super::{ConcurrencyLimiter, after_nanos, count};

/// Largest limit that is probed upward, by as many additional executions. Larger ones are raised by
/// trials.
pub(super) const PROBE_LIMIT_MAX: f64 = 2.0;
/// Latest time of a probe after the last dispatch, as a part of a batch's latency. Later the
/// overlap of the two would be too short.
const PROBE_EARLY: f64 = 0.4;
/// Minimum interval between probes, in batch latencies and in nanoseconds.
pub(super) const PROBE_GAP: f64 = 5.0;
const PROBE_GAP_MIN: f64 = 500e6;
/// Additional delay of a probe with few items, in nanoseconds, to wait for more of them: such a
/// probe leaves too few items for the next batch.
const PROBE_FEW: f64 = 3e9;
/// Minimum interval between batches that are split in two, in batch latencies and in nanoseconds.
/// If one batch takes the calls of all clients, nothing is queued beside it to probe with, and the
/// second half is the probe. On a serial server a split costs the fixed part of a batch.
const SPLIT_GAP: f64 = 5.0;
const SPLIT_GAP_MIN: f64 = 600e6;
/// Minimum number of items for a split.
const SPLIT_ITEMS: u64 = 4;
/// Ratio of measured to expected time below which a probe hits, and the number of consecutive hits
/// that open the limiter. A probe that queued behind another execution takes 1.5 times and more.
const PROBE_HIT: f64 = 1.15;
const PROBE_HITS: u32 = 2;
/// Ratio of measured to expected time from which an execution that was in flight at the probe's
/// dispatch was slowed by it: half of the probe.
const COMPANION_SLOWED: f64 = 1.4;

/// State of the upward probes.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct UpwardProbe {
    /// Number of the probe, by which answers to an earlier one are recognised.
    pub(super) id: u32,
    /// Executions of the probe that are still to be sent.
    pub(super) left: u32,
    /// Sum of the ratios of measured to expected time of its answered executions.
    pub(super) sum: f64,
    /// Number of its answered executions.
    pub(super) count: u32,
    /// `true` once it was evaluated.
    pub(super) done: bool,
    /// Number of consecutive probes that hit.
    pub(super) hits: u32,
    /// Earliest instant of the next probe.
    pub(super) next: Tick,
    /// Earliest instant at which a batch may be split for a probe.
    pub(super) split: Tick,
    /// Dispatch of the first batch of the probe, and number of unanswered executions that were in
    /// flight beside it.
    pub(super) sent: Tick,
    pub(super) companions: u32,
    /// Largest ratio of measured to expected time among these: a server that keeps no order may
    /// answer the probe first.
    pub(super) slowed: f64,
}

// === impl ConcurrencyLimiter ===

impl ConcurrencyLimiter {
    /// Returns `true` if a batch is to be split for a probe, and starts the probe.
    pub(super) fn begin_split(&mut self, request: &PermitRequest) -> bool {
        let is_serial = self.limit.is_some_and(|limit| limit < 2.0) && self.trial.is_none() && self.draining.is_none();
        let may_probe = self.growth.cap() > 2 && self.level.batches >= 3 && self.is_below_policy_limit();
        let rests = request.now < self.schedule.room_from;
        if !is_serial
            || !may_probe
            || rests
            || request.unmergeable
            || self.flights > 0
            || request.queued < SPLIT_ITEMS
            || request.now < self.probe.split
        {
            return false;
        }
        self.begin_probe(request.now);
        true
    }

    fn begin_probe(&mut self, now: Tick) {
        self.probe = UpwardProbe {
            id: self.probe.id.wrapping_add(1),
            left: self.limit.map_or(1, count),
            next: after_nanos(now, (PROBE_GAP * self.level.batch).max(PROBE_GAP_MIN)),
            split: after_nanos(now, (SPLIT_GAP * self.level.batch).max(SPLIT_GAP_MIN)),
            hits: self.probe.hits,
            ..UpwardProbe::default()
        };
    }

    /// Returns `true` if an upward probe may leave now. Starts one that is due.
    pub(super) fn try_probe(&mut self, request: &PermitRequest) -> bool {
        let now = request.now;
        let is_small = self.limit.is_some_and(|limit| limit <= PROBE_LIMIT_MAX) && self.is_below_policy_limit();
        let overlaps = nanos_between(self.last_sent, now) < PROBE_EARLY * self.level.batch;
        if !is_small
            || !overlaps
            || now < self.schedule.room_from
            || self.draining.is_some()
            || self.growth.cap() <= 1
            || self.level.batches < 3
        {
            return false;
        }
        let next = if request.queued < SPLIT_ITEMS { after_nanos(self.probe.next, PROBE_FEW) } else { self.probe.next };
        if self.probe.left == 0 && now >= next {
            self.begin_probe(now);
        }
        let may_leave = self.probe.left > 0 && self.probe.count == 0;
        self.probe.left -= u32::from(may_leave);
        may_leave
    }

    /// Records the answer to an execution of the probe.
    pub(super) fn observe_probe(&mut self, now: Tick, mark: &InFlightExecution, latency: f64) {
        if mark.probe != self.probe.id || self.probe.done {
            return;
        }
        self.probe.left = 0;
        self.probe.count += 1;
        self.probe.sum += latency / self.expected_nanos(mark);
        self.conclude_probe(now);
    }

    /// Records the answer to an execution that was in flight at the probe's dispatch.
    pub(super) fn observe_companion(&mut self, now: Tick, mark: &InFlightExecution, latency: f64) {
        let is_companion = self.probe.companions > 0 && mark.sent <= self.probe.sent;
        if is_companion && !matches!(mark.permit, Permit::Probe(_)) {
            self.probe.companions -= 1;
            self.probe.slowed = self.probe.slowed.max(latency / self.expected_nanos(mark));
            self.conclude_probe(now);
        }
    }

    /// Returns the expected time of an execution with its slot idle, in nanoseconds and at least 1:
    /// the smaller one of the predictions by size and by cost. In the first second either may be
    /// twice too long, and a probe that queued would look like one that did not.
    fn expected_nanos(&self, mark: &InFlightExecution) -> f64 {
        let by_size = self.level.predict(f64::from(mark.items), self.pairs.cost);
        let by_cost = if mark.expected > 0 { to_f64(mark.expected) } else { by_size };
        by_size.min(by_cost).max(1.0)
    }

    /// Evaluates a probe, once it and the executions beside it are answered.
    fn conclude_probe(&mut self, now: Tick) {
        let half = (self.limit.unwrap_or(1.0) / 2.0).ceil();
        if self.probe.done || f64::from(self.probe.count) < half || self.probe.companions > 0 {
            return;
        }
        self.probe.done = true;
        let ratio = self.probe.sum / f64::from(self.probe.count);
        if ratio >= PROBE_HIT || self.probe.slowed >= COMPANION_SLOWED {
            self.probe.hits = 0;
            return;
        }
        self.probe.hits += 1;
        (self.probe.next, self.probe.split) = (now, now);
        if self.probe.hits >= PROBE_HITS {
            self.open_for_room(now);
        }
    }
}
