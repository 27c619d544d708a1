//! Measurements of an engine for text: the rate of its tokens, and the time to the first ones.

use super::super::super::math::to_f64;
use super::super::super::tick::Tick;
use super::super::latency_line::nanos_between;

/// Number of answers in a part of a measurement: their mean time to the first token is known to an
/// eighth if its deviation from call to call is a half.
const ANSWERS: u32 = 16;
/// Maximum standard error of the rate of tokens at the end of a measurement, as a part of the rate,
/// and the number of parts at which a measurement ends in any case. The rate varies by a tenth from
/// part to part if the memory of an engine holds few long or many short calls.
const ERROR_MAX: f64 = 0.025;
const PARTS_MAX: u32 = 12;
/// Number of changes from part to part from which the variation is known, and the number over which
/// it is averaged.
const CHANGES: (u32, u32) = (3, 16);

/// An answered call.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct StreamSample {
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

/// A measurement of the calls that were sent since its start, in parts of some answers.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct StreamWindow {
    begun: Tick,
    /// Tokens of all streams of the class at the start.
    tokens: u64,
    /// Number of answers since the start.
    ended: u32,
    /// Number of those with no call of the class in the queue.
    unqueued: u32,
    /// Number of the answers that count; under a limit, only the ones to calls that were sent
    /// since.
    answers: u32,
    /// Sum of their times to the first token, in nanoseconds.
    first_token: f64,
    /// Sum of the numbers of calls in flight at their ends.
    flights: f64,
    /// Start of the part in progress, and the tokens at it.
    part: (Tick, u64),
    /// Rate of tokens in the part before; 0 before the second one.
    rate: f64,
}

/// Variation of the rate of tokens from part to part, over all measurements.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct RateVariation {
    /// Number of changes from a part to the next one of its measurement.
    changes: u32,
    /// Variance of the rate of a part, as a part of its square: half of the mean squared change.
    variance: f64,
}

/// Result of a measurement.
#[derive(Debug, Clone, Copy)]
pub(super) struct StreamMeasure {
    /// Tokens per nanosecond.
    pub(super) rate: f64,
    /// Standard error of the rate, as a part of it; infinite if it is unknown.
    pub(super) error: f64,
    /// Mean number of calls in flight.
    pub(super) flights: f64,
    /// Mean time to the first token, in nanoseconds.
    pub(super) first_token: f64,
    /// Estimated number of calls that wait in the engine.
    pub(super) waiting: f64,
    /// `true` if calls were queued at all answers.
    pub(super) is_loaded: bool,
    /// Number of parts.
    parts: u32,
}

// === impl StreamWindow ===

impl StreamWindow {
    pub(super) fn begin(sample: &StreamSample) -> Self {
        let (begun, tokens) = (sample.now, sample.tokens);
        Self { begun, tokens, part: (begun, tokens), ..Self::default() }
    }

    /// Adds an answered call. Returns `true` if it is the last one of a part.
    pub(super) fn add(&mut self, sample: &StreamSample, is_limited: bool, variation: &mut RateVariation) -> bool {
        // The answer at which a measurement begins does not count.
        if self.begun == Tick::default() {
            *self = Self::begin(sample);
            return false;
        }
        self.ended += 1;
        self.unqueued += u32::from(!sample.is_queued);
        // A call that was sent before the limit changed may have waited longer than those after it.
        if is_limited && sample.sent < self.begun {
            return false;
        }
        self.answers += 1;
        self.first_token += sample.first_token;
        self.flights += f64::from(sample.flights) + 1.0;
        if !self.answers.is_multiple_of(ANSWERS) {
            return false;
        }
        let (begun, tokens) = std::mem::replace(&mut self.part, (sample.now, sample.tokens));
        let rate = to_f64(sample.tokens.saturating_sub(tokens)) / nanos_between(begun, sample.now).max(1.0);
        let before = std::mem::replace(&mut self.rate, rate);
        // Below a limit, the rate varies with the load.
        if !is_limited || self.unqueued == 0 {
            variation.observe(before, rate);
        }
        true
    }

    /// Returns the means until this answer. `base`: time to the first token of a call that does not
    /// wait, in nanoseconds.
    pub(super) fn measure(&self, sample: &StreamSample, base: f64, variation: RateVariation) -> StreamMeasure {
        let (answers, time) = (f64::from(self.answers), nanos_between(self.begun, sample.now).max(1.0));
        let (first_token, flights) = (self.first_token / answers, self.flights / answers);
        let rate = to_f64(sample.tokens.saturating_sub(self.tokens)) / time;
        // Little's law for the queue in the engine.
        let waiting = f64::from(self.ended) / time * (first_token - base).max(0.0);
        let parts = self.answers / ANSWERS;
        let (error, is_loaded) = (variation.error(parts), self.unqueued == 0);
        StreamMeasure { rate, error, flights, first_token, waiting, is_loaded, parts }
    }
}

// === impl RateVariation ===

impl RateVariation {
    fn observe(&mut self, before: f64, rate: f64) {
        let sum = before + rate;
        if before <= 0.0 || sum <= 0.0 {
            return;
        }
        self.changes = (self.changes + 1).min(CHANGES.1);
        let change = 2.0 * (rate - before) / sum;
        self.variance += (change * change / 2.0 - self.variance) / f64::from(self.changes);
    }

    /// Returns the standard error of the mean rate of some parts, as a part of it; infinite while
    /// it is unknown.
    fn error(self, parts: u32) -> f64 {
        if self.changes < CHANGES.0 { f64::INFINITY } else { (self.variance / f64::from(parts)).sqrt() }
    }
}

// === impl StreamMeasure ===

impl StreamMeasure {
    /// Returns `true` if the rate is known well enough for a comparison.
    pub(super) fn is_precise(&self) -> bool {
        self.error <= ERROR_MAX
    }

    /// Returns `true` if the measurement has as many parts as one may have.
    pub(super) fn is_last(&self) -> bool {
        self.parts >= PARTS_MAX
    }

    /// Returns `true` if the rate exceeds another one by this number of standard errors.
    pub(super) fn exceeds(&self, rate: f64, errors: f64) -> bool {
        self.rate * (1.0 - errors * self.error) >= rate
    }

    /// Returns `true` if at least this many calls wait in the engine, given as a number and as a
    /// part of those in flight.
    pub(super) fn is_waiting(&self, (least, part): (f64, f64)) -> bool {
        self.waiting >= least.max(part * self.flights)
    }
}
