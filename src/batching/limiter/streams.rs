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

use super::super::math::to_f64;
use super::super::tick::Tick;
use super::level::nanos_between;
use super::ordering::OrderingTest;
use super::request::FlightRecord;
use super::{ConcurrencyLimiter, OpenReason, after_nanos};

/// Number of answers in a measurement: their mean time to the first token is known to an eighth if
/// its deviation from call to call is a half.
const ANSWERS: u32 = 16;
/// Minimum number of calls waiting in the engine for a search for a limit, in calls and as a part
/// of those in flight. The first token of a long prompt takes longer too, so a small estimate shows
/// nothing.
const QUEUE: (f64, f64) = (4.0, 0.25);
/// The same for a search that has begun: fewer are left in the engine, so that it always has a
/// further call to begin.
const QUEUE_LEFT: (f64, f64) = (1.0, 0.05);
/// Minimum rate of tokens under a lower limit, as a part of the rate before. The rate varies by
/// some hundredths with the lengths of prompts.
const RATE_KEPT: f64 = 0.95;
/// Minimum limit after one step of the search, as a part of the calls in flight.
const STEP: f64 = 0.25;
/// Difference between the limits of a bisection at which it ends, as a part of the limit.
const CLOSE: f64 = 0.1;
/// Part by which a limit is raised to look for room, and the minimum rate of tokens under the
/// raised limit, as a part of the rate before. The former doubles with each gain, up to a maximum.
const RAISE: (f64, f64) = (0.125, 1.03);
const RAISE_MAX: f64 = 1.0;
/// Time to the first token below which the engine may have room, as a part of the time before.
const QUICKER: f64 = 0.5;
/// Weight of the latest measurement in the means of those under a limit.
const WEIGHT: f64 = 0.25;
/// Range of the rate under a limit, relative to the rate before, of an engine that has not changed.
const UNCHANGED: (f64, f64) = (0.75, 1.33);
/// Minimum and maximum time between two tests, in nanoseconds.
const REST: (f64, f64) = (10e9, 300e9);
/// Maximum duration of a search. With too few calls, the limit under test is never reached, and the
/// search would not end.
const SEARCH_MAX: f64 = 600e9;

/// The limit on calls that stream.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct StreamLimiter {
    /// Maximum number of calls in flight.
    limit: Option<f64>,
    stage: StreamStage,
    window: StreamWindow,
    /// `true` after the limit was raised, until the end of the next measurement, which is
    /// discarded: the engine reads the prompts of many calls at once, which delays the tokens of
    /// all others.
    is_settling: bool,
    /// Start of the search.
    since: Tick,
    /// Time to the first token of a call that does not wait, in nanoseconds; 0 if unknown.
    base: f64,
    /// The same beside as many calls as the engine runs at once; 0 if unknown.
    loaded: f64,
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
    Raised { previous: f64, rate: f64 },
}

/// An answered call.
#[derive(Debug, Clone, Copy)]
pub(super) struct StreamSample {
    pub(super) now: Tick,
    pub(super) sent: Tick,
    /// Time to the first token, in nanoseconds.
    pub(super) first_token: f64,
    /// Tokens of all streams of the class so far.
    pub(super) tokens: u64,
    /// Number of calls that are still in flight.
    pub(super) flights: u32,
    /// `true` if calls of the class are queued.
    pub(super) is_queued: bool,
}

/// A measurement of the calls that were sent since its start.
#[derive(Debug, Clone, Copy, Default)]
struct StreamWindow {
    begun: Tick,
    /// Tokens of all streams of the class at the start.
    tokens: u64,
    /// Number of answers since the start.
    ended: u32,
    /// Number of those that count; under a limit, only the ones to calls that were sent since.
    answers: u32,
    /// Sum of their times to the first token, in nanoseconds.
    first_token: f64,
    /// Sum of the numbers of calls in flight at their ends.
    flights: f64,
}

/// Result of a measurement.
#[derive(Debug, Clone, Copy)]
struct StreamMeasure {
    /// Tokens per nanosecond.
    rate: f64,
    /// Mean number of calls in flight.
    flights: f64,
    /// Mean time to the first token, in nanoseconds.
    first_token: f64,
    /// Estimated number of calls that wait in the engine.
    waiting: f64,
}

// === impl StreamMeasure ===

impl StreamMeasure {
    /// Returns `true` if at least this many calls wait in the engine, given as a number and as a
    /// part of those in flight.
    fn is_waiting(&self, (least, part): (f64, f64)) -> bool {
        self.waiting >= least.max(part * self.flights)
    }
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
        if !self.is_comparable(sample) {
            return self.skip(sample);
        }
        let Some(measure) = self.window.add(sample, self.base.max(self.loaded), self.limit.is_some()) else { return };
        self.window = StreamWindow::begin(sample);
        if std::mem::take(&mut self.is_settling) {
            return;
        }
        match self.stage {
            StreamStage::Open if is_ordered && measure.is_waiting(QUEUE) => self.search(sample.now, &measure),
            StreamStage::Open => {}
            StreamStage::Search { lower, kept, rate } => self.narrow(sample.now, &measure, (lower, kept), rate),
            StreamStage::Hold { rate, first_token, raise } => {
                self.hold(sample.now, &measure, (rate, first_token), raise);
            }
            StreamStage::Raised { previous, rate } => self.conclude_raise(sample.now, &measure, previous, rate),
        }
    }

    /// Returns `true` if the engine works at the limit: as many calls are in flight as it allows,
    /// and others wait for it. Under a raised limit, more than before are enough.
    fn is_comparable(&self, sample: &StreamSample) -> bool {
        let flights = f64::from(sample.flights);
        let is_loaded = match self.stage {
            StreamStage::Raised { previous, .. } => flights >= previous,
            _ => sample.is_queued,
        };
        self.limit.is_none_or(|limit| is_loaded && flights <= limit)
    }

    /// Begins the measurement again, and ends a search that the load does not allow.
    fn skip(&mut self, sample: &StreamSample) {
        self.window = StreamWindow::begin(sample);
        let StreamStage::Search { kept, rate, .. } = self.stage else { return };
        if nanos_between(self.since, sample.now) > SEARCH_MAX {
            self.limit = Some(kept.ceil());
            self.stage = StreamStage::Hold { rate, first_token: 0.0, raise: sample.now };
        }
    }

    /// Begins a search, because calls wait in the engine.
    fn search(&mut self, now: Tick, measure: &StreamMeasure) {
        self.since = now;
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
        let is_kept = measure.rate >= RATE_KEPT * rate;
        if is_kept {
            kept = limit.min(kept);
        } else {
            lower = limit;
        }
        self.stage = StreamStage::Search { lower, kept, rate: rate.max(measure.rate) };
        if lower <= 0.0 && measure.is_waiting(QUEUE_LEFT) {
            return self.lower(measure);
        }
        if lower > 0.0 && kept - lower > (CLOSE * kept).max(1.0) {
            self.limit = Some(((lower + kept) / 2.0).ceil());
            return;
        }
        // The wait that is left is no queue: prompts wait for the step of the others.
        self.loaded = measure.first_token * (kept / limit).max(1.0);
        self.limit = Some(kept.ceil());
        self.rest = REST.0;
        // An engine in which no call waits may have room.
        let raise = if measure.waiting < 1.0 { now } else { after_nanos(now, self.rest) };
        self.stage = StreamStage::Hold { rate: rate.max(measure.rate), first_token: measure.first_token, raise };
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
            return self.search(now, measure);
        }
        if now < raise && is_unchanged && measure.first_token >= QUICKER * first_token {
            let mean = |before: f64, last: f64| before + WEIGHT * (last - before);
            let (rate, first_token) = (mean(rate, measure.rate), mean(first_token, measure.first_token));
            self.stage = StreamStage::Hold { rate, first_token, raise };
            return;
        }
        self.stage = StreamStage::Raised { previous: limit, rate: measure.rate };
        self.raise = self.raise.max(RAISE.0);
        self.limit = Some(((1.0 + self.raise) * limit).ceil());
        self.is_settling = true;
    }

    /// Keeps a raised limit if the rate of tokens rose with it, and restores the previous one
    /// otherwise.
    fn conclude_raise(&mut self, now: Tick, measure: &StreamMeasure, previous: f64, rate: f64) {
        if measure.rate >= RAISE.1 * rate {
            (self.rest, self.raise) = (0.0, (2.0 * self.raise).min(RAISE_MAX));
            self.stage = StreamStage::Hold { rate: measure.rate, first_token: measure.first_token, raise: now };
            return;
        }
        (self.rest, self.raise) = ((2.0 * self.rest).clamp(REST.0, REST.1), RAISE.0);
        self.limit = Some(previous);
        // The time to the first token at the lower limit is measured again.
        self.stage = StreamStage::Hold { rate, first_token: 0.0, raise: after_nanos(now, self.rest) };
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
        mark: &FlightRecord,
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

// === impl StreamWindow ===

impl StreamWindow {
    fn begin(sample: &StreamSample) -> Self {
        Self { begun: sample.now, tokens: sample.tokens, ..Self::default() }
    }

    /// Adds an answered call. Returns the result once there are enough of them. `base`: time to the
    /// first token of a call that does not wait, in nanoseconds.
    fn add(&mut self, sample: &StreamSample, base: f64, is_limited: bool) -> Option<StreamMeasure> {
        if self.begun == Tick::default() {
            *self = Self::begin(sample);
        }
        self.ended += 1;
        // A call that was sent before the limit changed may have waited longer than those after it.
        if is_limited && sample.sent < self.begun {
            return None;
        }
        self.answers += 1;
        self.first_token += sample.first_token;
        self.flights += f64::from(sample.flights) + 1.0;
        if self.answers < ANSWERS {
            return None;
        }
        let (answers, time) = (f64::from(self.answers), nanos_between(self.begun, sample.now).max(1.0));
        let (first_token, flights) = (self.first_token / answers, self.flights / answers);
        let tokens = to_f64(sample.tokens.saturating_sub(self.tokens));
        // Little's law for the queue in the engine.
        let waiting = f64::from(self.ended) / time * (first_token - base).max(0.0);
        Some(StreamMeasure { rate: tokens / time, flights, first_token, waiting })
    }
}
