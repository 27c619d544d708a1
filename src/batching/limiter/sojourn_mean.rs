//! A running mean of sojourn times, and of the time between two answers.

use super::super::math::to_f64;
use super::super::tick::Tick;
use super::latency_line::nanos_between;

/// Running mean over the last answers, in nanoseconds.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct SojournMean {
    pub(super) sojourn: f64,
    /// Time between two answers.
    pub(super) gap: f64,
    /// Number of answers in the mean.
    pub(super) answers: f64,
    last: Tick,
}

// === impl SojournMean ===

impl SojournMean {
    /// Adds the mean sojourn time of the calls of one execution. The mean is over about the last
    /// `memory` answers.
    pub(super) fn add(&mut self, now: Tick, sojourn: f64, calls: u32, memory: f64) {
        let calls = to_f64(calls.into());
        if self.last > Tick::default() {
            self.answers = (self.answers + calls).min(memory);
            let weight = (calls / self.answers).min(1.0);
            self.sojourn += weight * (sojourn - self.sojourn);
            self.gap += weight * (nanos_between(self.last, now) / calls - self.gap);
        }
        self.last = now;
    }
}
