//! Tail ratio of execution times, and detection of changes of the server. Both evaluate z, the
//! ratio of the observed to the predicted time.

use super::super::math::{exp, ln, round_to_u64};

/// Number of batches in the window.
const RING: usize = 128;
/// The percentile is computed after each of this many batches, once the window holds [`READY`].
const REFRESH: u32 = 8;
const READY: usize = 20;
/// The percentile, as a fraction.
const PERCENTILE: (usize, usize) = (98, 100);
/// Ratio from which a batch is a stall and is excluded, because stalls must not inflate every
/// decision.
const STALL: f64 = 3.0;
/// Bounds and initial value of q, in thousandths.
const Q_MIN: u64 = 1020;
const Q_MAX: u64 = 1600;
const Q_FIRST: u64 = 1250;

/// Bounds of z outside of which a sample is a stall or a sign of a change.
const SLOW: f64 = 2.5;
const FAST: f64 = 0.4;
/// Steps of the run counter for a slow and for a fast outlier, and the value at which a change is
/// concluded. Being faster by chance is rarer than a stall, so it counts double.
const SLOW_STEP: u32 = 1;
const FAST_STEP: u32 = 2;
const RUN_MAX: u32 = 6;
/// Weight of a new sample in the drift, which is an EWMA of ln z, and its tolerance.
const DRIFT_SHARE: f64 = 0.1;
const DRIFT_MAX: f64 = 0.15;
/// Number of newest samples that must agree for a drift to be taken as larger than its EWMA, which
/// lags: a server that becomes 1.5 times as slow is predicted after 5 batches instead of 20, and
/// noise up to 25 % does not cause larger corrections.
const NEWEST: usize = 4;

/// Learned tail ratio q: a percentile of z over a sliding window.
#[derive(Debug, Clone)]
pub(super) struct TailRatio {
    /// Values of z in the window, as a ring buffer.
    ring: [f64; RING],
    /// Number of values in the ring.
    len: usize,
    /// Index in the ring of the next value.
    next: usize,
    /// Number of values since q was last computed.
    since: u32,
    /// q in thousandths.
    permille: u64,
}

/// Change detector: a run counter for outliers and an EWMA for drift.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ChangeDetector {
    /// Run counter: outliers raise it, and each other sample lowers it by one.
    run: u32,
    /// EWMA of ln z.
    drift: f64,
    /// Logarithms of the newest values of z.
    newest: [f64; NEWEST],
}

/// Classification of a sample.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum SampleClass {
    /// A regular sample.
    Normal,
    /// A stall, or the first sign of a change. It is not learned from.
    Outlier,
    /// All times changed by this factor, with the same shape.
    Drifted(f64),
    /// The server was replaced, so everything that was learned is discarded.
    Changed,
}

// === impl TailRatio ===

impl Default for TailRatio {
    fn default() -> Self {
        Self { ring: [0.0; RING], len: 0, next: 0, since: 0, permille: Q_FIRST }
    }
}

impl TailRatio {
    pub(super) fn observe(&mut self, z: f64) {
        self.ring[self.next] = z;
        self.next = (self.next + 1) % RING;
        self.len = (self.len + 1).min(RING);
        self.since += 1;
        if self.len >= READY && self.since >= REFRESH {
            self.since = 0;
            self.permille = self.percentile();
        }
    }

    /// Returns q in thousandths.
    pub(super) fn permille(&self) -> u64 {
        self.permille
    }

    /// Clears the window. q is kept until there are enough new batches.
    pub(super) fn clear(&mut self) {
        (self.len, self.next, self.since) = (0, 0, 0);
    }

    pub(super) fn restored(permille: u64) -> Self {
        Self { permille: permille.clamp(Q_MIN, Q_MAX), ..Self::default() }
    }

    fn percentile(&self) -> u64 {
        let mut sorted = [0.0; RING];
        let mut len = 0;
        for z in self.ring.iter().take(self.len).filter(|z| **z < STALL) {
            sorted[len] = *z;
            len += 1;
        }
        if len == 0 {
            return Q_MAX;
        }
        let at = (len * PERCENTILE.0 / PERCENTILE.1).min(len - 1);
        let (_, z, _) = sorted[..len].select_nth_unstable_by(at, f64::total_cmp);
        round_to_u64(*z * 1e3).clamp(Q_MIN, Q_MAX)
    }
}

// === impl ChangeDetector ===

impl ChangeDetector {
    /// Classifies a sample. `is_extrapolated`: the prediction was an extrapolation, which is no
    /// measure for a drift.
    pub(super) fn observe(&mut self, z: f64, is_extrapolated: bool) -> SampleClass {
        if (FAST..=SLOW).contains(&z) {
            return if is_extrapolated { SampleClass::Normal } else { self.observe_normal(z) };
        }
        self.run += if z > SLOW { SLOW_STEP } else { FAST_STEP };
        if self.run < RUN_MAX {
            return SampleClass::Outlier;
        }
        *self = Self::default();
        SampleClass::Changed
    }

    fn observe_normal(&mut self, z: f64) -> SampleClass {
        let ln_z = ln(z);
        self.run = self.run.saturating_sub(1);
        self.drift += DRIFT_SHARE * (ln_z - self.drift);
        self.newest.rotate_left(1);
        self.newest[NEWEST - 1] = ln_z;
        if self.drift.abs() <= DRIFT_MAX {
            return SampleClass::Normal;
        }
        let factor = exp(self.drift_estimate());
        *self = Self::default();
        SampleClass::Drifted(factor)
    }

    /// Returns the EWMA, or the weakest of the newest samples if all of them are beyond it.
    fn drift_estimate(&self) -> f64 {
        if self.drift > 0.0 {
            self.newest.iter().copied().fold(f64::INFINITY, f64::min).max(self.drift)
        } else {
            self.newest.iter().copied().fold(f64::NEG_INFINITY, f64::max).min(self.drift)
        }
    }
}
