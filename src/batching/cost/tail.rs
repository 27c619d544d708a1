//! How much longer than foreseen a batch may take, and when the server is no longer the one that was learned.
//!
//! Both look at z, observed over predicted (`scheduling.md` §3, "tail q" and "outlier, change, drift").

use super::super::math::{exp, ln, whole};

/// Batches remembered.
const RING: usize = 128;
/// Refreshed at every one of so many, from [`READY`] on.
const REFRESH: u32 = 8;
const READY: usize = 20;
/// The percentile, as a fraction.
const PERCENTILE: (usize, usize) = (98, 100);
/// From here on it is a stall: stalls must not inflate every decision.
const STALL: f64 = 3.0;
/// Bounds and start of q, in permille.
const Q_MIN: u64 = 1020;
const Q_MAX: u64 = 1600;
const Q_FIRST: u64 = 1250;

/// Outside of these a sample is a stall or a sign of change.
const SLOW: f64 = 2.5;
const FAST: f64 = 0.4;
/// What each adds to the run, and where the run is believed. Being faster by chance is rarer than a stall.
const SLOW_STEP: u32 = 1;
const FAST_STEP: u32 = 2;
const RUN_MAX: u32 = 6;
/// What a new sample counts in the drift, and how far it may go, in logarithms.
const DRIFT_SHARE: f64 = 0.1;
const DRIFT_MAX: f64 = 0.15;
/// Samples that must agree for a drift to be taken as larger than its running mean, which is still on its way: a server half as slow again is
/// foreseen after 5 batches instead of 20, and plain noise up to 25 % is not taken for more than before.
const NEWEST: usize = 4;

/// The learned tail ratio q.
#[derive(Debug, Clone)]
pub(super) struct Tail {
    ring: [f64; RING],
    len: usize,
    next: usize,
    since: u32,
    permille: u64,
}

/// Watches for change.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Watch {
    run: u32,
    drift: f64,
    /// The logarithms of the newest z.
    newest: [f64; NEWEST],
}

/// What a sample says about what was learned.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Verdict {
    /// Learn from it.
    Normal,
    /// A stall, or the first sign of a change: ignore it.
    Outlier,
    /// All is this many times what it was, its shape the same.
    Drifted(f64),
    /// Another server: forget everything.
    Changed,
}

// === impl Tail ===

impl Default for Tail {
    fn default() -> Self {
        Self { ring: [0.0; RING], len: 0, next: 0, since: 0, permille: Q_FIRST }
    }
}

impl Tail {
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

    /// q in permille.
    pub(super) fn permille(&self) -> u64 {
        self.permille
    }

    /// Forgets the batches; q stays until there are enough of new ones.
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
        whole(*z * 1e3).clamp(Q_MIN, Q_MAX)
    }
}

// === impl Watch ===

impl Watch {
    /// `guessed`: what was foreseen was a guess, which is no measure for a drift.
    pub(super) fn observe(&mut self, z: f64, guessed: bool) -> Verdict {
        if (FAST..=SLOW).contains(&z) {
            return if guessed { Verdict::Normal } else { self.normal(z) };
        }
        self.run += if z > SLOW { SLOW_STEP } else { FAST_STEP };
        if self.run < RUN_MAX {
            return Verdict::Outlier;
        }
        *self = Self::default();
        Verdict::Changed
    }

    fn normal(&mut self, z: f64) -> Verdict {
        let off = ln(z);
        self.run = self.run.saturating_sub(1);
        self.drift += DRIFT_SHARE * (off - self.drift);
        self.newest.rotate_left(1);
        self.newest[NEWEST - 1] = off;
        if self.drift.abs() <= DRIFT_MAX {
            return Verdict::Normal;
        }
        let factor = exp(self.drifted());
        *self = Self::default();
        Verdict::Drifted(factor)
    }

    /// The running mean, or the weakest of the newest samples if all of them are beyond it.
    fn drifted(&self) -> f64 {
        if self.drift > 0.0 {
            self.newest.iter().copied().fold(f64::INFINITY, f64::min).max(self.drift)
        } else {
            self.newest.iter().copied().fold(f64::NEG_INFINITY, f64::max).min(self.drift)
        }
    }
}
