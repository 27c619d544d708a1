//! Detection of a queue inside the server while it builds up: the latencies of the calls during
//! which it grew are compared with those of the calls that followed.
//!
//! The load curve needs answers in the order of their calls, at few and at many in flight. Clients
//! that all start at once are answered in any order, because their connections are opened side by
//! side, and from then on the number in flight never falls; nor does it after a server has lost
//! workers. But a queue builds up from empty: if `k` of `N` calls are computed at a time, the first
//! `N` (the first wave) take `(N/k + 1) / 2` service times on average, in whatever order, and each
//! later one (the second wave) takes `N/k`. If all are computed at once, both take the same,
//! whatever their distribution. Welch's t-test decides between the two. Then `k` is, by Little's
//! law, the rate times the mean latency of the `k` fastest calls of the first wave, which did not
//! queue. The ratio `r` of the means also determines `k`, as `N (2/r - 1)`, but for a long queue
//! that is a small difference, in which noise dominates.

use std::collections::VecDeque;

use super::super::math::{round_to_u64, to_f64};
use super::super::tick::Tick;
use super::curve::Knee;
use super::latency_line::nanos_between;

/// Minimum number of calls of a wave: a mean of fewer shows little.
const CALLS_MIN: usize = 8;
/// Maximum number of calls kept: for 256 clients, the first wave, the second of 64 calls, and up to
/// 192 that are sent before the last of these is answered.
const CALLS_MAX: usize = 512;
/// Maximum time from the first to the last call of a first wave, as a part of its mean latency.
/// Clients that arrive one by one are left to the load curve.
const BURST: f64 = 0.25;
/// Size of the second wave, as a part of the first one.
const SECOND_PART: f64 = 0.25;
/// Bounds for the number in flight at each call of the second wave, as factors of the number at
/// the end of the first one. If arrivals fluctuate, the latencies of consecutive calls follow the
/// load and are correlated, so that the t-test does not apply.
const STEADY: (f64, f64) = (0.8, 1.25);
/// Minimum ratio of the mean latencies of the second and the first wave, after a start and after a
/// change of the server. With `k` = 2 and `N` = 3 the ratio is 1.5 / 1.25, the first value. After a
/// change more is required, because the first wave was partly computed before it.
const RATIO: (f64, f64) = (1.2, 1.5);
/// Minimum of Welch's t at which the waves differ. With normally distributed latencies, chance
/// exceeds it in one test of 570 for two waves of [`CALLS_MIN`] calls, and of 4300 for long ones.
const T_MIN: f64 = 3.5;

/// Wave test over the last calls that were sent unmerged while the limiter was open.
#[derive(Debug, Clone, Default)]
pub(super) struct WaveTest {
    calls: VecDeque<WaveCall>,
    /// Number of the first of these calls.
    offset: usize,
    stage: WaveStage,
}

#[derive(Debug, Clone, Copy, Default)]
enum WaveStage {
    /// No test is in progress.
    #[default]
    Over,
    /// The server was idle before the call of this number.
    Start(usize),
    /// A change of the server was detected before the call of this number.
    Change(usize),
}

#[derive(Debug, Clone, Copy)]
struct WaveCall {
    sent: Tick,
    /// Executions in flight when it was sent, itself included.
    in_flight: u32,
    /// Latency in nanoseconds; `None` until it is answered.
    latency: Option<f64>,
    /// `true` if it was in flight when a change of the server was detected.
    pending: bool,
}

/// The calls of both waves.
struct WavePair {
    first: Vec<WaveCall>,
    second: Vec<WaveCall>,
    /// Executions in flight once the first wave was sent; their mean after a change of the server.
    in_flight: f64,
}

// === impl WaveTest ===

impl WaveTest {
    /// Records an unmerged call and returns its number. `in_flight` includes the call itself.
    pub(super) fn on_send(&mut self, now: Tick, in_flight: u32) -> usize {
        if self.calls.len() >= CALLS_MAX {
            self.calls.pop_front();
            self.offset += 1;
        }
        let number = self.offset + self.calls.len();
        if in_flight == 1 {
            self.on_idle();
        }
        self.calls.push_back(WaveCall { sent: now, in_flight, latency: None, pending: false });
        number
    }

    /// Starts a test at the next call: the server is idle, or the limiter opens and the calls that
    /// follow far outnumber those in flight.
    pub(super) fn on_idle(&mut self) {
        self.stage = WaveStage::Start(self.offset + self.calls.len());
    }

    /// Starts a test because latencies have changed. The outstanding calls are the first wave.
    pub(super) fn on_change(&mut self) {
        if matches!(self.stage, WaveStage::Over) {
            self.stage = WaveStage::Change(self.offset + self.calls.len());
            self.calls.iter_mut().for_each(|call| call.pending = call.latency.is_none());
        }
    }

    /// Ends the test and drops all calls, because one failed, was merged, or was sent under a
    /// limit.
    pub(super) fn reset(&mut self) {
        self.stage = WaveStage::Over;
        self.offset += self.calls.len();
        self.calls.clear();
    }

    /// Records the answer to a call. Once both waves are complete, returns the knee if calls queue
    /// inside the server.
    pub(super) fn observe(&mut self, number: usize, latency: f64) -> Option<Knee> {
        let call = number.checked_sub(self.offset).and_then(|index| self.calls.get_mut(index))?;
        call.latency = Some(latency);
        let (WaveStage::Start(first) | WaveStage::Change(first)) = self.stage else { return None };
        let Some(from) = first.checked_sub(self.offset) else {
            self.stage = WaveStage::Over;
            return None;
        };
        let (waves, burst_max, ratio) = if matches!(self.stage, WaveStage::Start(_)) {
            (self.start_waves(from)?, BURST, RATIO.0)
        } else {
            (self.change_waves(from)?, f64::INFINITY, RATIO.1)
        };
        let knee = waves.conclude(burst_max, ratio)?;
        self.stage = WaveStage::Over;
        knee
    }

    /// Returns the waves of a test that began with the call at this position.
    fn start_waves(&self, from: usize) -> Option<WavePair> {
        let calls = || self.calls.iter().skip(from);
        // The first wave ends with the call that reaches the maximum in flight: from then on, a
        // closed-loop client sends a call only after an answer.
        let highest = calls().map(|call| call.in_flight).max()?;
        let count = calls().position(|call| call.in_flight == highest)? + 1;
        WavePair::new(calls().take(count), calls().skip(count), f64::from(highest))
    }

    /// Returns the waves of a test after a change of the server before the call at this position.
    fn change_waves(&self, from: usize) -> Option<WavePair> {
        let first = self.calls.iter().take(from).filter(|call| call.pending);
        let sum: f64 = first.clone().map(|call| f64::from(call.in_flight)).sum();
        let mean = sum / to_f64(first.clone().count() as u64);
        WavePair::new(first, self.calls.iter().skip(from), mean)
    }
}

// === impl WavePair ===

impl WavePair {
    /// Returns the waves, or `None` until both were sent and answered.
    fn new<'a>(
        first: impl Iterator<Item = &'a WaveCall>,
        second: impl Iterator<Item = &'a WaveCall>,
        in_flight: f64,
    ) -> Option<Self> {
        let answered = |call: &WaveCall| call.latency.map(|_| *call);
        let first: Vec<WaveCall> = first.map(answered).collect::<Option<_>>()?;
        let part = usize::try_from(round_to_u64(to_f64(first.len() as u64) * SECOND_PART)).unwrap_or(CALLS_MAX);
        let count = part.max(CALLS_MIN);
        let second: Vec<WaveCall> = second.take(count).map(answered).collect::<Option<_>>()?;
        (first.len() >= CALLS_MIN && second.len() >= count).then_some(Self { first, second, in_flight })
    }

    fn is_steady(&self) -> bool {
        let within = |call: &WaveCall| (STEADY.0..=STEADY.1).contains(&(f64::from(call.in_flight) / self.in_flight));
        self.second.iter().all(within)
    }

    /// Returns the knee that the waves show. The inner value is `None` if nothing queues, the outer
    /// one if a wave is empty.
    fn conclude(&self, burst_max: f64, ratio: f64) -> Option<Option<Knee>> {
        let burst = nanos_between(self.first.first()?.sent, self.first.last()?.sent);
        let (before, after) = (WaveSample::from_calls(&self.first), WaveSample::from_calls(&self.second));
        let sum: f64 = self.second.iter().map(|call| f64::from(call.in_flight)).sum();
        let in_flight = sum / to_f64(self.second.len() as u64);
        let error = (before.error_squared + after.error_squared).sqrt();
        if burst > burst_max * before.mean
            || !self.is_steady()
            || after.mean < ratio * before.mean
            || after.mean - before.mean < T_MIN * error
        {
            return Some(None);
        }
        // Little's law for the second wave.
        let rate = in_flight / after.mean.max(1.0);
        let at = unqueued_calls(&self.first, rate);
        Some(Some(Knee { at, base: at / rate, rate, is_bound: false }))
    }
}

/// Returns the number of calls of a first wave that did not queue: the fixed point of Little's law,
/// approached from above.
fn unqueued_calls(first: &[WaveCall], rate: f64) -> f64 {
    let mut fastest: Vec<f64> = first.iter().filter_map(|call| call.latency).collect();
    fastest.sort_by(f64::total_cmp);
    let mut count = fastest.len();
    loop {
        let sum: f64 = fastest.iter().take(count).sum();
        let at = (rate * sum / to_f64(count.max(1) as u64)).max(1.0);
        let next = usize::try_from(round_to_u64(at.floor())).unwrap_or(count);
        if next >= count {
            return at;
        }
        count = next;
    }
}

/// Latencies of one wave, in nanoseconds.
#[derive(Debug, Clone, Copy)]
struct WaveSample {
    mean: f64,
    /// Squared standard error of the mean.
    error_squared: f64,
}

// === impl WaveSample ===

impl WaveSample {
    fn from_calls(calls: &[WaveCall]) -> Self {
        let count = to_f64(calls.len().max(2) as u64);
        let (mut sum, mut squares) = (0.0, 0.0);
        for latency in calls.iter().filter_map(|call| call.latency) {
            sum += latency;
            squares += latency * latency;
        }
        let variance = (squares - sum * sum / count).max(0.0) / (count - 1.0);
        Self { mean: sum / count, error_squared: variance / count }
    }
}
