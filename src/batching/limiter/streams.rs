//! A limit for calls whose answers are generated token by token and streamed.
//!
//! An engine for text runs as many calls at once as its memory holds, and each of its steps gives
//! every running call a token. More calls wait in the engine, in its own order. The latency of a
//! call depends mostly on the length of its answer, so a load curve shows nothing. Two other
//! measures do:
//!
//! - By Little's law, the time to the first token beyond that of a call that does not wait,
//!   times the rate of answers, is the number of calls that wait in the engine (TCP Vegas estimates
//!   the queue of a link in this way).
//! - The rate of the tokens of all streams of a class shows whether the engine does as much as
//!   before.
//!
//! While calls wait in the engine, the limit is lowered by bisection to the least one at which the
//! rate of tokens stays. It is raised from time to time, because the engine may have room for more.
//! A limit is only set where calls have an order (`ordering`): in the engine, they have none.

mod window;

use super::super::tick::Tick;
use super::execution_record::InFlightExecution;
use super::latency_line::nanos_between;
use super::ordering::OrderingTest;
use super::{ConcurrencyLimiter, OpenReason, after_nanos};
use window::{RateVariation, StreamMeasure, StreamSample, StreamWindow};

/// Minimum number of calls waiting in the engine for a search for a limit, in calls and as a part
/// of those in flight. The first token of a long prompt takes longer too, so a small estimate shows
/// nothing.
const QUEUE: (f64, f64) = (4.0, 0.25);
/// The same for a search that has begun: fewer are left in the engine, so that it always has a
/// further call to begin.
const QUEUE_LEFT: (f64, f64) = (1.0, 0.05);
/// Minimum rate of tokens under a lower limit, as a part of the rate before, in addition to the
/// standard error of the former.
const RATE_KEPT: f64 = 0.97;
/// Limit after a search, as a part of the one found: some hundredths of the rate are lost there.
const HEADROOM: f64 = 1.05;
/// Number of standard errors that a rate has to be higher to count as the one to keep.
const SURE: f64 = 2.0;
/// Minimum limit after one step of the search, as a part of the calls in flight.
const STEP: f64 = 0.25;
/// Difference between the limits of a bisection at which it ends, as a part of the limit.
const CLOSE: f64 = 0.1;
/// Part by which a limit is raised to look for room, and the minimum rate of tokens under the
/// raised limit, as a part of the rate before. The former doubles with each gain, up to a maximum.
const RAISE: (f64, f64) = (0.125, 1.03);
const RAISE_MAX: f64 = 1.0;
/// Rate of tokens under a raised limit, as a part of the rate before, that a single part shows, and
/// that of an engine with room for all further calls, as a part of the raise.
const CLEAR_GAIN: f64 = 1.1;
const CLEAR_PART: f64 = 0.4;
/// Time to the first token below which the engine may have room, as a part of the time before.
const QUICKER: f64 = 0.5;
/// Weight of the latest measurement in the means of those under a limit.
const WEIGHT: f64 = 0.25;
/// Range of the rate under a limit, relative to the rate before, of an engine that has not changed.
const UNCHANGED: (f64, f64) = (0.75, 1.33);
/// Minimum and maximum time between two tests, in nanoseconds.
const REST: (f64, f64) = (10e9, 300e9);
/// Maximum time between two tests while no call waits in the engine, which may have room.
const REST_WITHOUT_QUEUE: f64 = 30e9;
/// Maximum time of a search without an answer that counts. With too few calls, the limit under test
/// is never reached, and the search would not end.
const SEARCH_MAX: f64 = 600e9;

/// The limit on calls that stream.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct StreamLimiter {
    /// Maximum number of calls in flight.
    limit: Option<f64>,
    stage: StreamStage,
    window: StreamWindow,
    variation: RateVariation,
    /// `true` after the limit was raised, until the end of the first part of the next measurement,
    /// which is discarded: the engine reads the prompts of many calls at once, which delays the
    /// tokens of all others.
    is_settling: bool,
    /// Latest answer that counted, or that left a search more calls than its limit.
    since: Tick,
    /// Number of calls in flight at the start of the search.
    from: f64,
    /// `true` if there was no limit before the search.
    was_open: bool,
    /// Time to the first token of a call that does not wait, in nanoseconds; 0 if unknown.
    base: f64,
    /// The same beside as many calls as the engine runs at once; 0 if unknown.
    loaded: f64,
    /// Instant at which `loaded` is forgotten: it may have been the time in a queue.
    forget: Tick,
    /// Time between the last test and the next one, in nanoseconds.
    rest: f64,
    /// Part by which the limit is raised next.
    raise: f64,
}

/// The test in progress. Rates are in tokens per nanosecond; `lower`, `kept` and `previous` are
/// limits.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
enum StreamStage {
    /// There is no limit.
    #[default]
    Open,
    /// The limit is between the largest one at which the rate was lower and the least one at which
    /// it was kept.
    Search { lower: f64, kept: f64, rate: f64 },
    /// The limit is in force, and is raised at this instant, or once calls wait much less than this
    /// for their first token.
    Hold { rate: f64, first_token: f64, raise: Tick },
    /// The limit was raised.
    Raised { previous: f64, rate: f64, first_token: f64 },
}

// === impl StreamLimiter ===

impl StreamLimiter {
    pub(super) fn limit(&self) -> Option<f64> {
        self.limit
    }

    /// Returns `true` while a limit is being found; `None` before the first stream.
    pub(super) fn is_searching(&self) -> Option<bool> {
        (self.base > 0.0).then_some(matches!(self.stage, StreamStage::Search { .. }))
    }

    /// Lifts the limit because calls have no order.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Records an answered call. `is_ordered`: calls have an order, so that a limit is of use.
    pub(super) fn observe(&mut self, sample: &StreamSample, is_ordered: bool) {
        if !is_ordered && self.limit.is_some() {
            return self.clear();
        }
        if self.base <= 0.0 || sample.first_token < self.base {
            self.base = sample.first_token;
        }
        if self.loaded > 0.0 && sample.now >= self.forget {
            self.loaded = 0.0;
        }
        // The time until the next call is none of the engine.
        if sample.flights == 0 && !sample.is_queued {
            self.window = StreamWindow::default();
            return;
        }
        if !self.is_comparable(sample) {
            return self.skip(sample);
        }
        self.since = sample.now;
        if !self.window.add(sample, self.limit.is_some(), &mut self.variation) {
            return;
        }
        if std::mem::take(&mut self.is_settling) {
            self.window = StreamWindow::begin(sample);
            return;
        }
        let measure = self.window.measure(sample, self.base.max(self.loaded), self.variation);
        if measure.rate > 0.0 && !self.is_conclusive(&measure) {
            return;
        }
        self.window = StreamWindow::begin(sample);
        if measure.rate <= 0.0 {
            return;
        }
        match self.stage {
            StreamStage::Open if is_ordered && measure.is_waiting(QUEUE) => self.search(&measure),
            StreamStage::Open => {}
            StreamStage::Search { lower, kept, rate } => self.narrow(sample.now, &measure, (lower, kept), rate),
            StreamStage::Hold { rate, first_token, raise } => {
                self.hold(sample.now, &measure, (rate, first_token), raise);
            }
            StreamStage::Raised { previous, rate, first_token } => {
                self.conclude_raise(sample.now, &measure, (previous, first_token), rate);
            }
        }
    }

    /// Returns `true` if a measurement has enough parts for the test in progress.
    fn is_conclusive(&self, measure: &StreamMeasure) -> bool {
        match self.stage {
            _ if measure.is_last() || self.is_clear_gain(measure) => true,
            StreamStage::Raised { rate, .. } => {
                measure.is_precise() && (measure.rate < RAISE.1 * rate || measure.exceeds(rate, SURE))
            }
            _ => measure.is_precise(),
        }
    }

    /// Returns `true` if the limit was raised and the rate of tokens rose by so much that chance
    /// does not explain it.
    fn is_clear_gain(&self, measure: &StreamMeasure) -> bool {
        let StreamStage::Raised { rate, .. } = self.stage else { return false };
        let expected = 1.0 + CLEAR_PART * self.raise;
        measure.exceeds(CLEAR_GAIN.max(expected) * rate, 1.0) || measure.exceeds(expected * rate, SURE)
    }

    /// Returns `true` if the engine works at the limit: as many calls are in flight as it allows,
    /// and others wait for it. Under a raised limit, more than before are enough, and under one in
    /// force any number: calls may wait in the engine below a limit that is too high.
    fn is_comparable(&self, sample: &StreamSample) -> bool {
        let flights = f64::from(sample.flights);
        let is_loaded = match self.stage {
            StreamStage::Raised { previous, .. } => flights >= previous,
            StreamStage::Hold { .. } => true,
            StreamStage::Open | StreamStage::Search { .. } => sample.is_queued,
        };
        self.limit.is_none_or(|limit| is_loaded && flights <= limit)
    }

    /// Begins the measurement again, and ends a search that the load does not allow.
    fn skip(&mut self, sample: &StreamSample) {
        self.window = StreamWindow::default();
        let StreamStage::Search { kept, rate, .. } = self.stage else { return };
        // Calls beyond a lower limit leave the engine first, however long that takes.
        if self.limit.is_some_and(|limit| f64::from(sample.flights) > limit) {
            self.since = sample.now;
        }
        if nanos_between(self.since, sample.now) <= SEARCH_MAX {
            return;
        }
        if kept >= self.from {
            return self.end_without_result(sample.now, kept, rate);
        }
        self.limit = Some(kept.ceil());
        self.stage = StreamStage::Hold { rate, first_token: 0.0, raise: sample.now };
    }

    /// Ends a search in which no lower limit kept the rate. The rate to keep may have been one of
    /// before a change of the engine, so that the search is repeated, after longer and longer
    /// times.
    fn end_without_result(&mut self, now: Tick, kept: f64, rate: f64) {
        self.rest = (2.0 * self.rest).clamp(REST.0, REST.1);
        self.forget = after_nanos(now, self.rest);
        (self.limit, self.stage) = if self.was_open {
            (None, StreamStage::Open)
        } else {
            (Some(kept.ceil()), StreamStage::Hold { rate, first_token: 0.0, raise: self.forget })
        };
    }

    /// Begins a search, because calls wait in the engine.
    fn search(&mut self, measure: &StreamMeasure) {
        (self.from, self.was_open) = (measure.flights, self.limit.is_none());
        self.stage = StreamStage::Search { lower: 0.0, kept: measure.flights, rate: measure.rate };
        self.lower(measure);
    }

    /// Lowers the limit by the calls that wait, at most to a part of those in flight.
    fn lower(&mut self, measure: &StreamMeasure) {
        let from = measure.flights;
        self.limit = Some((from - measure.waiting).max(STEP * from).max(1.0).floor());
    }

    /// Continues the search with the result at the present limit.
    fn narrow(&mut self, now: Tick, measure: &StreamMeasure, (mut lower, mut kept): (f64, f64), rate: f64) {
        let limit = self.limit.unwrap_or(kept);
        let is_kept = measure.rate * (1.0 + measure.error) >= RATE_KEPT * rate;
        if is_kept {
            kept = limit.min(kept);
        } else {
            lower = limit;
        }
        let rate = rate.max(measure.rate * (1.0 - SURE * measure.error));
        self.stage = StreamStage::Search { lower, kept, rate };
        if lower <= 0.0 && measure.is_waiting(QUEUE_LEFT) {
            return self.lower(measure);
        }
        if lower > 0.0 && kept - lower > (CLOSE * kept).max(1.0) {
            let middle = ((lower + kept) / 2.0).ceil();
            // The calls that wait under a limit need not be admitted either.
            let needed = if is_kept { (kept - measure.waiting).ceil() } else { middle };
            self.limit = Some(needed.clamp(lower + 1.0, middle));
            return;
        }
        // The wait that is left is no queue: prompts wait for the step of the others.
        self.loaded = measure.first_token * (kept / limit).max(1.0);
        if kept >= self.from {
            return self.end_without_result(now, kept, rate);
        }
        (self.rest, self.forget) = (REST.0, after_nanos(now, REST.1));
        self.limit = Some((HEADROOM * kept).ceil());
        // An engine in which no call waits may have room.
        let raise = if measure.waiting < 1.0 { now } else { after_nanos(now, self.rest) };
        self.stage = StreamStage::Hold { rate, first_token: measure.first_token, raise };
    }

    /// Searches again if calls wait in the engine. Otherwise keeps the limit until `raise` while
    /// the engine is unchanged, and then raises it.
    fn hold(&mut self, now: Tick, measure: &StreamMeasure, (rate, first_token): (f64, f64), raise: Tick) {
        let limit = self.limit.unwrap_or(measure.flights);
        let is_unchanged = (UNCHANGED.0..=UNCHANGED.1).contains(&(measure.rate / rate));
        if !is_unchanged {
            (self.loaded, self.rest) = (0.0, 0.0);
        }
        if measure.is_waiting(QUEUE) {
            return self.search(measure);
        }
        if !measure.is_loaded {
            return;
        }
        let mean = |before: f64, last: f64| if before > 0.0 { before + WEIGHT * (last - before) } else { last };
        let rested = self.rest - nanos_between(now, raise);
        let is_due = now >= raise || measure.waiting < 1.0 && rested >= REST_WITHOUT_QUEUE;
        if !is_due && is_unchanged && measure.first_token >= QUICKER * first_token {
            let (rate, first_token) = (mean(rate, measure.rate), mean(first_token, measure.first_token));
            self.stage = StreamStage::Hold { rate, first_token, raise };
            return;
        }
        let rate = if is_unchanged { mean(rate, measure.rate) } else { measure.rate };
        self.raise(limit, rate, measure.first_token);
    }

    /// Raises a limit under which the rate of tokens and the time to the first one are these.
    fn raise(&mut self, limit: f64, rate: f64, first_token: f64) {
        self.stage = StreamStage::Raised { previous: limit, rate, first_token };
        self.raise = self.raise.max(RAISE.0);
        self.limit = Some(((1.0 + self.raise) * limit).ceil());
        self.is_settling = true;
    }

    /// Keeps a raised limit if the rate of tokens rose with it, and restores the previous one
    /// otherwise.
    fn conclude_raise(&mut self, now: Tick, measure: &StreamMeasure, (previous, first_token): (f64, f64), rate: f64) {
        if self.is_clear_gain(measure) {
            (self.rest, self.raise) = (0.0, (2.0 * self.raise).min(RAISE_MAX));
            return self.raise(self.limit.unwrap_or(previous), measure.rate, measure.first_token);
        }
        if measure.rate >= RAISE.1 * rate && measure.exceeds(rate, SURE) {
            (self.rest, self.raise) = (0.0, (2.0 * self.raise).min(RAISE_MAX));
            self.stage = StreamStage::Hold { rate: measure.rate, first_token: measure.first_token, raise: now };
            return;
        }
        (self.rest, self.raise) = ((2.0 * self.rest).clamp(REST.0, REST.1), RAISE.0);
        self.limit = Some(previous);
        self.stage = StreamStage::Hold { rate, first_token, raise: after_nanos(now, self.rest) };
    }
}

// === impl ConcurrencyLimiter ===

impl ConcurrencyLimiter {
    /// Returns `true` if the limit is one for generated streams.
    pub(in super::super) fn limits_streams(&self) -> bool {
        self.streams.limit().is_some()
    }

    /// Records the end of a stream of generated tokens: the time to its first one, and the tokens
    /// of all streams so far.
    pub(super) fn observe_generated(
        &mut self,
        now: Tick,
        mark: &InFlightExecution,
        (first_token, tokens): (f64, u64),
        is_queued: bool,
    ) {
        let sent = mark.sent;
        let sample = StreamSample { now, sent, first_token, tokens, flights: self.flights, is_queued };
        self.streams.observe(&sample, self.ordered);
        if self.limit != self.streams.limit() {
            self.limit = self.streams.limit();
            self.schedule.since = now;
        }
        self.ordering = self.limit.map(|_| OrderingTest::default());
        // Calls for text are never merged.
        self.reason = OpenReason::NothingToMerge;
    }
}
