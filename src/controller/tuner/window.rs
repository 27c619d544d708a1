//! Counts of a period of time, and their comparison with the SLO.

use std::time::Duration;

use super::GroupReport;
use crate::control::histogram::Histogram;

/// Minimum number of answered calls for a statement about a 99th percentile: two late ones are
/// expected of an SLO that is just met.
const SAMPLES_MIN: u64 = 200;
/// Share of late answers that an SLO on the 99th percentile allows, in thousandths.
const LATE_PERMILLE: u64 = 10;
/// Required confidence that more answers are late than allowed, in standard deviations (one-sided
/// 95 %). By chance, one window in twenty of an SLO that is just met is classified as late, but a
/// first step requires three consecutive ones.
const LATE_Z: f64 = 1.645;
/// Maximum p99 of a calm window, in thousandths of the SLO. Between it and the SLO is the
/// hysteresis band of the control loop.
const CALM_PERMILLE: u64 = 850;
/// Maximum share of late answers of a calm window, in thousandths.
const CALM_LATE_PERMILLE: u64 = 2;
/// Minimum share of lost calls, in thousandths, at which the deadline shift is assumed to lose
/// calls: with earlier deadlines, more calls expire in the queue.
const LOST_PERMILLE: u64 = 10;
/// Minimum decrease of the share of calls answered in time for a window to be worse than another,
/// in standard deviations.
const WORSE_Z: f64 = 3.0;
/// The same minimum in thousandths of the calls: among many calls, a negligible decrease is
/// significant too.
const WORSE_PERMILLE: f64 = 10.0;
/// Maximum difference between the call rates of two comparable windows, in thousandths.
const LOAD_PERMILLE: f64 = 300.0;

/// Maximum age of counts. The load may have changed since older ones were collected.
pub(super) const WINDOW_MAX: Duration = Duration::from_secs(300);

/// Counts of the calls with an SLO over a period of time.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SampleWindow {
    /// Duration of the period.
    pub over: Duration,
    /// Latency of the answered calls, from arrival to answer, in microseconds.
    pub latency: Histogram,
    /// Number of answers later than their SLO.
    pub late: u64,
    /// Number of calls that were refused, expired in the queue, or failed.
    pub lost: u64,
}

/// Consecutive windows with the same verdict: their total duration, and the sum of the newest.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct VerdictRun {
    /// Total duration, not limited by [`WINDOW_MAX`].
    pub(super) duration: Duration,
    /// Sum of the newest windows. Covers less than [`WINDOW_MAX`] plus one window.
    pub(super) window: SampleWindow,
}

/// Comparison of a window with the SLO.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SloVerdict {
    /// More answers are late than the SLO allows.
    Late,
    /// Neither late nor calm: the hysteresis band in which nothing moves.
    Near,
    /// The SLO is met with time to spare.
    Calm,
}

// === impl SampleWindow ===

impl SampleWindow {
    /// Adds an observation.
    pub fn add(&mut self, report: &GroupReport) {
        self.over += report.over;
        self.latency.merge(&report.latency);
        self.late = self.late.saturating_add(report.late);
        self.lost = self.lost.saturating_add(report.lost);
    }

    /// Number of completed calls with an SLO.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.latency.count().saturating_add(self.lost)
    }

    /// Number of calls that were answered in time.
    #[must_use]
    pub fn in_time(&self) -> u64 {
        self.latency.count().saturating_sub(self.late)
    }

    /// The 99th percentile of the latency of answered calls.
    #[must_use]
    pub fn p99(&self) -> Option<Duration> {
        self.latency.quantile(990).map(Duration::from_micros)
    }

    /// Returns `true` if the answered calls suffice for a statement about the p99.
    pub(super) fn is_enough(&self) -> bool {
        self.latency.count() >= SAMPLES_MIN
    }

    /// Number of answered calls, and the number required.
    pub(super) fn sample_progress(&self) -> (u64, u64) {
        (self.latency.count(), SAMPLES_MIN)
    }

    pub(super) fn verdict(&self, slo: Option<Duration>) -> SloVerdict {
        let answered = self.latency.count();
        if wilson_lower_bound(self.late, answered) > to_f64(LATE_PERMILLE) / 1000.0 {
            return SloVerdict::Late;
        }
        let few_late = self.late * 1000 <= answered * CALM_LATE_PERMILLE;
        let spare = slo.is_none_or(|slo| {
            self.p99().is_none_or(|p99| p99.as_micros() * 1000 <= slo.as_micros() * u128::from(CALM_PERMILLE))
        });
        if few_late && spare { SloVerdict::Calm } else { SloVerdict::Near }
    }

    /// Returns `true` if enough calls are lost for a step towards a smaller deadline shift, which
    /// might save some.
    pub(super) fn has_lost_calls(&self) -> bool {
        self.lost * 1000 >= self.calls().max(1) * LOST_PERMILLE
    }

    /// Returns `true` if the SLO is met significantly less often than in `before`, by a
    /// two-proportion z-test. Returns `false` if the load of the two windows is not comparable.
    pub(super) fn is_worse_than(&self, before: &Self) -> bool {
        let (calls, calls_before) = (to_f64(self.calls()), to_f64(before.calls()));
        if calls < 1.0 || calls_before < 1.0 || self.over.is_zero() || before.over.is_zero() {
            return false;
        }
        let (rate, rate_before) = (calls / self.over.as_secs_f64(), calls_before / before.over.as_secs_f64());
        if (rate / rate_before - 1.0).abs() * 1000.0 > LOAD_PERMILLE {
            return false;
        }
        let decrease = to_f64(before.in_time()) / calls_before - to_f64(self.in_time()) / calls;
        let pooled = (to_f64(self.in_time()) + to_f64(before.in_time())) / (calls + calls_before);
        let deviation = (pooled * (1.0 - pooled) * (1.0 / calls + 1.0 / calls_before)).sqrt();
        decrease * 1000.0 >= WORSE_PERMILLE && decrease > WORSE_Z * deviation
    }
}

// === impl VerdictRun ===

impl VerdictRun {
    pub(super) fn append(&mut self, next: &SampleWindow) {
        self.duration += next.over;
        // The sum starts anew rather than slides: subtracting an old window would require all of
        // them to be kept.
        if self.window.over >= WINDOW_MAX {
            self.window = SampleWindow::default();
        }
        let window = &mut self.window;
        window.over += next.over;
        window.latency.merge(&next.latency);
        window.late = window.late.saturating_add(next.late);
        window.lost = window.lost.saturating_add(next.lost);
    }
}

/// Lower bound of the Wilson score interval for a proportion (Wilson 1927).
fn wilson_lower_bound(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        return 0.0;
    }
    let (n, z) = (to_f64(whole), LATE_Z);
    let p = to_f64(part) / n;
    let spread = z * (p * (1.0 - p) / n + z * z / (4.0 * n * n)).sqrt();
    ((p + z * z / (2.0 * n) - spread) / (1.0 + z * z / n)).max(0.0)
}

#[expect(clippy::cast_precision_loss, reason = "counts of calls stay below 2^53")]
fn to_f64(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLO: Option<Duration> = Some(Duration::from_millis(100));

    fn window(answers: u64, late: u64, lost: u64) -> SampleWindow {
        let mut window = SampleWindow { over: Duration::from_secs(10), late, lost, ..SampleWindow::default() };
        window.latency.record_n(60_000, answers - late);
        window.latency.record_n(130_000, late);
        window
    }

    #[test]
    fn a_window_is_late_only_beyond_chance() {
        assert_eq!(window(1000, 10, 0).verdict(SLO), SloVerdict::Near, "as many as are allowed");
        assert_eq!(window(1000, 14, 0).verdict(SLO), SloVerdict::Near, "that may be chance");
        assert_eq!(window(1000, 18, 0).verdict(SLO), SloVerdict::Late);
        assert_eq!(window(200, 4, 0).verdict(SLO), SloVerdict::Near);
        assert_eq!(
            window(100_000, 1100, 0).verdict(SLO),
            SloVerdict::Late,
            "many calls distinguish a small excess from chance"
        );
        assert_eq!(window(1000, 0, 0).verdict(SLO), SloVerdict::Calm);
    }

    #[test]
    fn a_window_is_worse_only_beyond_margin_and_chance_at_the_same_load() {
        let before = window(1000, 0, 20);
        assert!(window(1000, 0, 80).is_worse_than(&before));
        assert!(!window(1000, 0, 30).is_worse_than(&before), "a thousandth");
        assert!(!window(100, 0, 6).is_worse_than(&window(100, 0, 2)), "chance");
        assert!(!window(2000, 0, 400).is_worse_than(&before), "twice as many calls arrived");
        assert!(!window(1000, 0, 20).is_worse_than(&SampleWindow::default()));
    }
}
