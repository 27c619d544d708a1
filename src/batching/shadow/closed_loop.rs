//! Detection of callers that send their next call once the last one is answered, before a server in
//! which calls wait for each other: a closed loop.
//!
//! Such calls arrive exactly as fast as the server answers. If they were answered sooner, more
//! would arrive, so their arrivals show nothing about batching. The highest number of calls in
//! flight is the number of callers at any time, while a queue of random arrivals grows and shrinks.

use super::super::math::to_f64;

/// Number of calls in a window.
const WINDOW_CALLS: u32 = 32;
/// Number of windows that are compared. The highest numbers in flight of that many windows of
/// random arrivals are hardly ever equal.
const WINDOWS: usize = 4;
/// Maximum difference of these numbers: a caller may be between two calls.
const DIFFERENCE_MAX: u32 = 1;
/// Maximum ratio of the highest to the lowest number in flight in a window. Several answers at once
/// lower it for a moment; a queue that becomes empty is not that of a closed loop.
const RATIO_MAX: u32 = 2;
/// Minimum ratio of the latency of a call to that of a lone one. With less, calls do not wait for
/// each other, and the arrivals are the same with batching.
const SLOWED_MIN: f64 = 1.5;
/// Maximum number of samples in the running mean of that ratio.
const MEMORY: f64 = 32.0;

/// Detector of a closed loop.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ClosedLoopDetector {
    window: LoadRange,
    /// The last complete windows, the latest one first.
    windows: [Option<LoadRange>; WINDOWS],
    slowed: f64,
    answers: u32,
}

/// Range of the numbers in flight at the dispatch of some calls.
#[derive(Debug, Clone, Copy, Default)]
struct LoadRange {
    calls: u32,
    least: u32,
    most: u32,
}

// === impl ClosedLoopDetector ===

impl ClosedLoopDetector {
    /// Records a call that is sent with this many in flight, itself included.
    pub(super) fn on_dispatch(&mut self, in_flight: u32) {
        let window = &mut self.window;
        window.least = if window.calls == 0 { in_flight } else { window.least.min(in_flight) };
        window.most = window.most.max(in_flight);
        window.calls += 1;
        if window.calls == WINDOW_CALLS {
            self.windows.rotate_right(1);
            self.windows[0] = Some(std::mem::take(window));
        }
    }

    /// Records the latency of a call, and the predicted time of a lone one.
    pub(super) fn on_answer(&mut self, took: u64, takes: u64) {
        self.answers = self.answers.saturating_add(1);
        let slowed = to_f64(took) / to_f64(takes.max(1));
        self.slowed += (slowed - self.slowed) / f64::from(self.answers).min(MEMORY);
    }

    /// Returns `true` if the calls are those of a closed loop, and wait for each other.
    pub(super) fn is_closed(&self) -> bool {
        let most = || self.windows.iter().flatten().map(|window| window.most);
        let (Some(highest), Some(lowest)) = (most().max(), most().min()) else { return false };
        let is_steady = |window: &Option<LoadRange>| {
            window.is_some_and(|window| window.most <= window.least.saturating_mul(RATIO_MAX))
        };
        self.slowed >= SLOWED_MIN && highest - lowest <= DIFFERENCE_MAX && self.windows.iter().all(is_steady)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns whether a loop is detected after calls with these numbers in flight, each of which
    /// took this many times as long as a lone call.
    fn is_closed(in_flight: impl Iterator<Item = u32>, slowed: u64) -> bool {
        let mut detector = ClosedLoopDetector::default();
        for in_flight in in_flight {
            detector.on_dispatch(in_flight);
            detector.on_answer(slowed * 20, 20);
        }
        detector.is_closed()
    }

    #[test]
    fn a_constant_number_of_waiting_calls_is_a_closed_loop() {
        assert!(is_closed(std::iter::repeat_n(16, 128), 16));
        assert!(is_closed((0..128).map(|call| 21 + call % 4), 6), "four answers at once");
        assert!(!is_closed(std::iter::repeat_n(16, 127), 16), "too few calls");
    }

    #[test]
    fn calls_that_do_not_wait_or_arrive_at_random_are_none() {
        assert!(!is_closed(std::iter::repeat_n(48, 200), 1), "no call waits");
        assert!(!is_closed((0..200).map(|call| 1 + call % 4), 2), "the server is idle in between");
        assert!(!is_closed((0..200).map(|call| 100 + call / 16), 100), "a queue that grows");
    }
}
