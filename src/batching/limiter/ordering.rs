//! A limit for calls that are not merged, where calls are ordered by class, SLO or tenant.
//!
//! Without batches, a limit makes no call faster on average, so a limiter with nothing to merge
//! stays open. An order of calls needs a queue while the server is saturated: calls that
//! wait inside the server are answered in the server's order. The limit is then the knee and a
//! margin, so that the server always has a call to go on with, and the other calls queue here.
//!
//! The latency of calls that were sent at the limit is watched. By Little's law, it is the limit
//! divided by the rate, so a lower rate than before the limit, a change of the server, and room
//! beyond the limit all appear in it. In each of these cases the limiter opens and learns again. If
//! the server becomes slower and gains room at once, the latency may stay the same, so the limit is
//! also raised from time to time, for a few calls.

use super::super::math::to_f64;
use super::super::tick::Tick;
use super::curve::Knee;
use super::execution_record::InFlightExecution;
use super::growth::GrowthRamp;
use super::jump::JUMP_KNEES;
use super::latency_line::nanos_between;
use super::{ConcurrencyLimiter, OpenReason, after_nanos};

/// Factor on the knee for the limit: the knee is an estimate, and a server that shares its
/// processor among executions has none (measured on simulated rows). At least one call more covers
/// the time between an answer and the next call, during which a server with one worker would be
/// idle.
const MARGIN: f64 = 2.0;
/// Number of answers in a mean latency: with a deviation of a fifth from call to call, the mean is
/// known to 4 %.
const ANSWERS: u32 = 32;
/// The same while a limit is tested that may be too low, at which calls are lost.
const ANSWERS_LOWERED: u32 = 16;
/// Minimum rate under the limit, as a part of the highest rate before it.
const RATE_KEPT: f64 = 0.8;
/// Range of the mean latency, relative to the mean before, of a server that has not changed. A
/// server with room beyond the limit answers in a part of at most 1 / [`MARGIN`].
const UNCHANGED: (f64, f64) = (0.75, 1.5);
/// Weight of the latest mean in the base.
const BASE_WEIGHT: f64 = 0.25;
/// Factor by which the limit is raised to look for room, and minimum growth of the latency, as a
/// part of the factor, if there is none.
const RAISE: f64 = 1.5;
const RAISE_SLOWED: f64 = 0.9;
/// Minimum rate at a lower limit, as a part of the rate before.
const LOWER_KEPT: f64 = 0.93;
/// Minimum ratio of the mean time in flight to the mean time to the first byte at which answers
/// count as streams. A single answer may be written slowly.
const STREAM: f64 = 1.5;
/// Weight of an answer in these means.
const STREAM_WEIGHT: f64 = 1.0 / 16.0;
/// Time after a streamed answer during which no limit orders calls, as a multiple of its time in
/// flight, and its minimum in nanoseconds. Under a limit, a few long streams would hold all other
/// calls until they end.
const STREAM_REST: (f64, f64) = (10.0, 60e9);
/// Minimum and maximum time between two increases, in nanoseconds.
const RAISE_REST: (f64, f64) = (10e9, 300e9);

/// The test of a limit that only orders calls. It concludes from one mean latency after another,
/// each over calls that were sent at the limit.
///
/// 1. At first (`First`), the rate must be nearly that before the limit.
/// 2. Then the limit is raised (`Raised`). If the latency does not grow with it, the server has
///    room, and the limiter opens.
/// 3. Otherwise the previous limit applies again, unless the load curve has a lower one by now.
///    That one is tried (`Lowered`), kept if the rate is, and the latency at the resulting limit is
///    measured (`Base`).
/// 4. From then on (`Steady`), the latency is compared with the mean before. If it falls much, the
///    limiter opens. The limit is raised again if calls become slower, and from time to time.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct OrderingTest {
    stage: OrderingStage,
    /// Mean latency at the limit, in nanoseconds; 0 before it is known.
    base: f64,
    /// Sum of the latencies of the calls since the last conclusion, in nanoseconds, and their
    /// number.
    sum: f64,
    count: u32,
    /// Calls sent before this instant do not count.
    from: Tick,
    /// Earliest instant of the next increase at an unchanged latency.
    next_raise: Tick,
    /// Length of the wait for it, in nanoseconds; 0 until the first increase has found no room.
    raise_rest: f64,
}

/// Mean times of recent answers to calls that were not merged, in nanoseconds: in flight, and to
/// the first byte.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct StreamOccupancy {
    in_flight: f64,
    first_byte: f64,
}

/// Stage of a test, by the reference for the next mean latency.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
enum OrderingStage {
    /// The rate before the limit.
    #[default]
    First,
    /// The rate at the limit `start`, which was higher.
    Lowered { start: f64, rate: f64 },
    /// None: the mean latency becomes the base.
    Base,
    /// The mean latency before.
    Steady,
    /// The mean latency at the limit before it was raised.
    Raised { previous: f64 },
}

/// Evidence for a conclusion, beside the latency at the limit.
#[derive(Debug, Clone, Copy)]
struct OrderingEvidence {
    /// Calls per nanosecond before the limit.
    rate: f64,
    /// `false` while the limiter must not open for a server that answers sooner.
    may_open: bool,
    /// The limit that follows from the load curve at present, if its knee is no upper bound.
    lower_limit: Option<f64>,
}

/// Conclusion from a mean latency at the limit.
#[derive(Debug, Clone, Copy, PartialEq)]
enum OrderingOutcome {
    /// The limit stays.
    Keep,
    /// Another limit, and the stage under it.
    Set(f64, OrderingStage),
    /// The server answers less than before the limit, or more above it.
    Wrong,
    /// The server has changed, or has room beyond the limit.
    Changed,
}

// === impl OrderingTest ===

impl OrderingTest {
    /// Returns `true` once the latency under the limit is known.
    pub(super) fn is_known(&self) -> bool {
        self.base > 0.0
    }

    /// Records the latency of a call that was sent at the limit. Returns the mean latency once
    /// enough of them are known.
    fn add(&mut self, latency: f64) -> Option<f64> {
        self.sum += latency;
        self.count += 1;
        let is_lowered = matches!(self.stage, OrderingStage::Lowered { .. });
        if self.count < if is_lowered { ANSWERS_LOWERED } else { ANSWERS } {
            return None;
        }
        Some(std::mem::take(&mut self.sum) / f64::from(std::mem::take(&mut self.count)))
    }

    /// Evaluates a mean latency at this limit.
    fn conclude(&mut self, now: Tick, limit: f64, latency: f64, known: &OrderingEvidence) -> OrderingOutcome {
        // By Little's law, the limit divided by the latency is the rate.
        let is_kept = limit / latency.max(1.0) >= RATE_KEPT * known.rate;
        match self.stage {
            OrderingStage::First if !is_kept => OrderingOutcome::Wrong,
            OrderingStage::First => {
                self.base = latency;
                Self::raise(limit)
            }
            OrderingStage::Lowered { start, rate } => {
                let is_kept = limit / latency.max(1.0) >= LOWER_KEPT * rate;
                OrderingOutcome::Set(if is_kept { limit } else { start }, OrderingStage::Base)
            }
            OrderingStage::Base => {
                (self.stage, self.base) = (OrderingStage::Steady, latency);
                OrderingOutcome::Keep
            }
            OrderingStage::Steady => self.compare(now, limit, latency, known.may_open),
            OrderingStage::Raised { previous } => {
                // Without room, the latency grows in proportion to the limit.
                let is_slowed = latency >= RAISE_SLOWED * self.base * limit / previous;
                match (is_slowed, self.raise_rest > 0.0) {
                    (true, _) => {
                        self.rest_raise(now);
                        let stage = OrderingStage::Lowered { start: previous, rate: previous / self.base };
                        let lower = known.lower_limit.filter(|lower| *lower < previous);
                        lower.map_or(OrderingOutcome::Set(previous, OrderingStage::Steady), |lower| {
                            OrderingOutcome::Set(lower, stage)
                        })
                    }
                    (false, true) => OrderingOutcome::Changed,
                    // The server had room from the start.
                    (false, false) => OrderingOutcome::Wrong,
                }
            }
        }
    }

    /// Returns `true` if a mean latency at the limit shows a slower server.
    fn is_slower(&self, latency: f64) -> bool {
        self.stage == OrderingStage::Steady && latency > UNCHANGED.1 * self.base
    }

    /// Compares a mean latency with that before.
    fn compare(&mut self, now: Tick, limit: f64, latency: f64, may_open: bool) -> OrderingOutcome {
        if may_open && latency < UNCHANGED.0 * self.base {
            return OrderingOutcome::Changed;
        }
        if self.is_slower(latency) {
            // The server may have room.
            self.base = latency;
            return Self::raise(limit);
        }
        self.base += BASE_WEIGHT * (latency - self.base);
        if now < self.next_raise {
            return OrderingOutcome::Keep;
        }
        Self::raise(limit)
    }

    /// Raises the limit, to look for room.
    fn raise(limit: f64) -> OrderingOutcome {
        OrderingOutcome::Set((RAISE * limit).ceil(), OrderingStage::Raised { previous: limit })
    }

    /// Doubles the time until the next increase, because there was no room.
    fn rest_raise(&mut self, now: Tick) {
        self.raise_rest = (self.raise_rest * 2.0).clamp(RAISE_REST.0, RAISE_REST.1);
        self.next_raise = after_nanos(now, self.raise_rest);
    }
}

// === impl ConcurrencyLimiter ===

impl ConcurrencyLimiter {
    /// Sets whether the policy orders calls.
    pub(in super::super) fn set_ordered(&mut self, now: Tick, ordered: bool) {
        if !ordered && self.ordering.is_some() {
            self.release(now, OpenReason::Learning);
        }
        self.ordered = ordered;
    }

    /// Returns the limit, unless it only orders calls: that one is above the number that the server
    /// runs at once.
    pub(in super::super) fn batch_limit(&self) -> Option<u32> {
        self.limit().filter(|_| self.ordering.is_none())
    }

    /// Returns the latency of an unbatched call below the knee, in nanoseconds, under a limit that
    /// only orders calls.
    pub(in super::super) fn ordered_base(&self) -> Option<u64> {
        self.ordering.map(|_| self.base_nanos()).filter(|base| *base > 0)
    }

    /// Sets a limit for the order of calls, once calls queue inside the server. `unmergeable`: the
    /// latest answer belongs to a call that cannot be merged.
    pub(super) fn order_at_knee(&mut self, now: Tick, unmergeable: bool) {
        let no_gain = matches!(self.reason, OpenReason::NoGain { .. });
        if !self.ordered || self.pinned || !(unmergeable || no_gain) || self.limit.is_some() || self.trial.is_some() {
            return;
        }
        // While batches do not pay, only merging rests.
        if now < self.streams_until || now < self.schedule.jump && !no_gain {
            return;
        }
        let knee = self.wave_knee.take().or_else(|| self.evident_knee(now));
        let Some(knee) = knee.filter(|knee| f64::from(self.flights) >= JUMP_KNEES * knee.at) else { return };
        self.set_knee(now, Knee { is_bound: false, ..knee }, (MARGIN * knee.at).ceil());
        self.ordering = Some(OrderingTest::default());
    }

    /// Keeps the limit for the order of calls although nothing is merged under it.
    pub(super) fn keep_for_order(&mut self) {
        if self.ordering.is_some() {
            return;
        }
        (self.trial, self.trial_limit) = (None, None);
        // The limit was found for merging, with a smaller margin.
        self.limit = self.limit.map(|limit| (MARGIN * self.knee.map_or(limit, |knee| knee.at)).ceil().max(limit));
        self.growth = GrowthRamp::unbatched_only();
        self.level.reset_batches();
        (self.level.batch, self.level.batch_items) = (0.0, 0.0);
        self.ordering = Some(OrderingTest::default());
    }

    /// Records for how long an answer streamed. Its call counts in flight until the last byte, but
    /// its latency is that of the first one, so neither a rate nor a limit follows from the
    /// latency.
    pub(super) fn observe_stream(&mut self, now: Tick, sent: Tick, latency: f64) {
        let in_flight = nanos_between(sent, now);
        let StreamOccupancy { in_flight: mean, first_byte } = &mut self.occupancy;
        *mean += STREAM_WEIGHT * (in_flight - *mean);
        *first_byte += STREAM_WEIGHT * (latency - *first_byte);
        if *mean < STREAM * *first_byte {
            return;
        }
        self.streams_until = self.streams_until.max(after_nanos(now, (STREAM_REST.0 * in_flight).max(STREAM_REST.1)));
        if self.ordering.is_some() {
            self.release(now, OpenReason::NoQueue);
        }
    }

    /// Records the answer to a call that was sent alone under the limit.
    pub(super) fn observe_ordered(&mut self, now: Tick, mark: &InFlightExecution, latency: f64) {
        let (Some(test), Some(limit)) = (&mut self.ordering, self.limit) else { return };
        let at_limit = f64::from(mark.in_flight) >= limit.floor();
        if !at_limit || mark.sent < test.from.max(self.schedule.since) {
            return;
        }
        let Some(mean) = test.add(latency) else { return };
        if test.is_slower(mean) {
            // Batches that did not pay before the change may pay now.
            self.schedule.jump = now;
        }
        let known = OrderingEvidence {
            rate: self.knee.map_or(0.0, |knee| knee.rate),
            may_open: now >= self.schedule.room_from,
            lower_limit: self.curve.estimate().filter(|knee| !knee.is_bound).map(|knee| (MARGIN * knee.at).ceil()),
        };
        match test.conclude(now, limit, mean, &known) {
            OrderingOutcome::Keep => {}
            OrderingOutcome::Set(limit, stage) => {
                (test.stage, test.from) = (stage, now);
                self.limit = Some(limit);
            }
            OrderingOutcome::Wrong => {
                self.back_off_jumps(now);
                self.release(now, OpenReason::NoQueue);
            }
            OrderingOutcome::Changed => self.open_for_room(now),
        }
    }

    /// Ends the order by a limit alone because calls may be merged under it, unless merging rests.
    pub(super) fn merge_under_order(&mut self, now: Tick) {
        if now < self.schedule.jump {
            return;
        }
        let (Some(test), Some(limit)) = (self.ordering.take(), self.limit) else { return };
        let before = if let OrderingStage::Raised { previous } = test.stage { previous } else { limit };
        // With the margin for order, calls would share as many more and smaller batches.
        self.limit = Some(self.knee.map_or(before, |knee| to_f64(knee.limit())).min(before));
        self.schedule.since = now;
        self.sojourns.clear();
    }
}
