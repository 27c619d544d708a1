//! The load curve: mean latency of lone calls over the number in flight when they were sent, and
//! the knee in it.
//!
//! One cell for each power of two of the number in flight, so that a few answers fill it. By
//! Little's law the number in flight over the latency is the throughput; where it stops growing,
//! calls queue inside the server.

use std::collections::VecDeque;

use super::super::math::float;
use super::super::tick::Tick;

/// Cells: up to 4095 requests in flight, more than the connections of a process.
pub(super) const CELLS: usize = 12;
/// Samples that a cell's mean remembers: 10 take noise for slopes (measured on 280 simulated rows).
const MEMORY: f64 = 30.0;
/// A sample this many times above or below its cell is off, and this many in a row mean that the
/// server has changed.
const OFF_FACTOR: f64 = 1.5;
const OFF_MAX: i32 = 4;
const OFF_SAMPLES: f64 = 4.0;
/// Samples of other cells after which one that was off is not waited for any more.
const OFF_RECENT: u32 = 8;
/// The samples that a latency measured under a limit counts as: two answers of a server that has
/// changed outweigh it.
const BEGIN_SAMPLES: f64 = 2.0;
/// Completions whose times are remembered for the measured rate, and the fewest that give one.
const COMPLETIONS: usize = 65;
const COMPLETIONS_MIN: usize = 8;
/// Completions that show the present rate: some waves of the requests that run at once, and at
/// least.
const COMPLETIONS_RECENT: (f64, f64) = (4.0, 16.0);
/// Samples of a cell that show its latency well enough to judge the cells of fewer requests by it.
const STALE_SAMPLES: f64 = 8.0;
/// Fewest samples in all cells for a knee.
const SAMPLES_MIN: f64 = 4.0;
/// The first cell at this part of the knee or more belongs to the loaded ones...
const LOADED: f64 = 0.75;
/// ...and must have this part of the highest throughput: the first waves of several workers are
/// staircases. Below it limits are set too early, above it servers with 4 and 8 workers are found
/// late (both measured).
const THROUGHPUT: f64 = 0.8;
/// A cell that was passed only once on the way up shows less; then this much is enough, where all
/// cells from this many knees on show nearly the highest.
const THROUGHPUT_ONCE: f64 = 0.65;
const FLAT_FROM: f64 = 2.0;
const FLAT: f64 = 0.9;
/// The rest, on average, of the request in service when another one arrives beside it, as a part of
/// one: without it, throughput is overestimated where few are in flight.
const RESIDUAL: f64 = 0.5;
/// Samples of a cell, where the knee is above 2.
const LOADED_SAMPLES: f64 = 3.0;
/// The line through the loaded cells meets zero requests below this part of the least latency: a
/// queue has no intercept, while a server that slows down gently (continuous batching) keeps most
/// of its base latency. The first waves of several workers are staircases with up to a half, which
/// is enough once a pair has shown that a batch gains something; before, what is found late is less
/// harm than a limit that is wrong.
const INTERCEPT: f64 = 0.25;
const INTERCEPT_PAIRED: f64 = 0.5;
/// The same over the number in flight that a call saw on average: a queue shows up to a half,
/// continuous batching nine tenths.
const INTERCEPT_SEEN: f64 = 0.6;
/// Up to this many knees: in an overload of five times, calls see some three times as many as they
/// were sent beside.
const SEEN_KNEES: f64 = 64.0;
/// Cells up to this many knees show it: in those beyond, the slope's error is larger than the
/// intercept.
const INTERCEPT_KNEES: f64 = 16.0;
/// Evidence of a queue: this weight of samples beyond this many knees, slower than the base by this
/// factor.
const BEYOND_KNEE: f64 = 2.0;
const BEYOND_BASE: f64 = 1.6;
const BEYOND_SAMPLES: f64 = 2.0;

/// Mean latency over the number in flight.
#[derive(Debug, Clone, Default)]
pub(super) struct LoadCurve {
    cells: [Cell; CELLS],
    completions: VecDeque<Tick>,
    /// Samples since one was off.
    since_off: u32,
}

/// Requests that were sent with about as many in flight; latencies in nanoseconds.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Cell {
    pub(super) latency: f64,
    pub(super) beside: f64,
    /// The mean of the number in flight when they were sent and when they were answered.
    around: f64,
    pub(super) samples: f64,
    /// Samples in a row that were off: above if positive, below if negative.
    off: i32,
}

/// A change of the server, by the latency of lone calls beside as many as before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ServerChange {
    Slower,
    Quicker,
}

/// The load at which throughput stops growing.
#[derive(Debug, Clone, Copy)]
pub(super) struct Knee {
    /// Requests in flight.
    pub(super) at: f64,
    /// The latency below it, in nanoseconds.
    pub(super) base: f64,
    /// Items a nanosecond.
    pub(super) rate: f64,
}

// === impl LoadCurve ===

impl LoadCurve {
    pub(super) fn clear(&mut self) {
        self.cells = [Cell::default(); CELLS];
        self.completions.clear();
    }

    /// Begins anew with a lone call's latency that was measured under a limit.
    pub(super) fn begin(&mut self, lone: f64) {
        self.clear();
        if lone > 0.0 {
            self.cells[0] = Cell { latency: lone, beside: 1.0, around: 1.0, samples: BEGIN_SAMPLES, off: 0 };
        }
    }

    pub(super) fn forget_rate(&mut self) {
        self.completions.clear();
    }

    /// Takes the latency of a lone call, with the requests in flight when it was sent, itself
    /// included, and when it was answered, without it. Returns how the server has changed, if it was
    /// judged another one by it: the cells begin anew.
    pub(super) fn observe(&mut self, (beside, after): (u32, u32), latency: f64) -> Option<ServerChange> {
        let index = usize::try_from(beside.max(1).ilog2()).unwrap_or(0).min(CELLS - 1);
        let (cell, beside) = (&mut self.cells[index], f64::from(beside.max(1)));
        let scale = beside / cell.beside.max(1.0);
        let above = latency > OFF_FACTOR * cell.latency * scale.max(1.0);
        let below = latency < cell.latency * scale.min(1.0) / OFF_FACTOR;
        cell.off = match (above, below) {
            _ if cell.samples < OFF_SAMPLES => 0,
            (true, _) => cell.off.max(0) + 1,
            (_, true) => cell.off.min(0) - 1,
            _ => 0,
        };
        self.since_off = if cell.off == 0 { self.since_off.saturating_add(1) } else { 0 };
        let changed = (cell.off.abs() >= OFF_MAX).then_some(if cell.off > 0 {
            ServerChange::Slower
        } else {
            ServerChange::Quicker
        });
        if changed.is_some() {
            self.cells = [Cell::default(); CELLS];
        }
        self.cells[index].add(beside, (beside + f64::from(after) + 1.0) / 2.0, latency);
        self.forget_stale(index);
        changed
    }

    /// Forgets the cells of fewer requests that this one shows to be of a server that was quicker:
    /// more in flight are not answered less often.
    fn forget_stale(&mut self, index: usize) {
        let Some(recent) = self.recent_rate(1.0) else { return };
        let (lower, rest) = self.cells.split_at_mut(index);
        let Some(cell) = rest.first().filter(|cell| cell.samples >= STALE_SAMPLES) else { return };
        let rate = cell.throughput().max(recent);
        lower
            .iter_mut()
            .filter(|lower| lower.throughput() > OFF_FACTOR * rate)
            .for_each(|lower| *lower = Cell::default());
    }

    /// Returns `true` if the last sample of a cell was off, some samples ago at most: the server
    /// may be another one, and its cell a mean of both.
    pub(super) fn is_unsettled(&self) -> bool {
        self.since_off < OFF_RECENT && self.cells.iter().any(|cell| cell.off != 0)
    }

    /// Records an answer for the measured rate.
    pub(super) fn record_completion(&mut self, sent: Tick, now: Tick, items: u32) {
        if self.completions.is_empty() {
            self.completions.push_back(sent);
        }
        for _ in 0..items.min(64) {
            if self.completions.len() >= COMPLETIONS {
                self.completions.pop_front();
            }
            self.completions.push_back(now);
        }
    }

    /// The cells that have samples.
    pub(super) fn cells(&self) -> impl Iterator<Item = &Cell> + Clone {
        self.cells.iter().filter(|cell| cell.samples > 0.0)
    }

    fn measured_rate(&self) -> Option<f64> {
        let (first, last) = (self.completions.front()?, self.completions.back()?);
        let span = float(last.0.saturating_sub(first.0));
        let count = u32::try_from(self.completions.len() - 1).unwrap_or(0);
        (self.completions.len() >= COMPLETIONS_MIN && span > 0.0).then(|| f64::from(count) / span)
    }

    /// Items a nanosecond of the last answers alone, where this many requests run at once.
    pub(super) fn recent_rate(&self, at: f64) -> Option<f64> {
        let count = (COMPLETIONS_RECENT.0 * at).clamp(COMPLETIONS_RECENT.1, float(COMPLETIONS as u64 - 1)).floor();
        let first = self.completions.iter().rev().nth(usize::try_from(super::super::math::whole(count)).ok()?)?;
        let span = float(self.completions.back()?.0.saturating_sub(first.0));
        (span > 0.0).then(|| count / span)
    }

    /// The highest throughput and the base latency, whatever the shape; `None` before there are
    /// samples at two loads.
    pub(super) fn estimate(&self) -> Option<Knee> {
        let first = *self.cells().next()?;
        let samples: f64 = self.cells().map(|cell| cell.samples).sum();
        if self.cells().nth(1).is_none() || samples < SAMPLES_MIN {
            return None;
        }
        let rate = self.cells().map(Cell::throughput_beside).fold(self.measured_rate().unwrap_or(0.0), f64::max);
        let unqueued = (rate * first.latency).max(1.0);
        let below = self.cells().filter(|cell| cell.beside <= unqueued);
        let (sum, weight) =
            below.fold((0.0, 0.0), |sum, cell| (sum.0 + cell.latency * cell.samples, sum.1 + cell.samples));
        let base = if weight > 0.0 { sum / weight } else { first.latency };
        Some(Knee { at: (rate * base).max(1.0), base, rate })
    }

    /// The knee, where the curve shows that calls queue inside the server. `paired`: a batch of two
    /// was measured to be cheaper than two calls.
    pub(super) fn knee(&self, paired: bool) -> Option<Knee> {
        let knee = self.estimate()?;
        let known = |cell: &Cell| knee.at <= 2.0 || cell.samples >= LOADED_SAMPLES;
        let loaded = self.cells().filter(|cell| cell.beside >= LOADED * knee.at && known(cell));
        let first = loaded.clone().next()?;
        let flat = |cell: &Cell| cell.throughput() >= FLAT * knee.rate;
        let part = if self.cells().filter(|cell| cell.beside >= FLAT_FROM * knee.at).all(flat) {
            THROUGHPUT_ONCE
        } else {
            THROUGHPUT
        };
        let staircase = first.throughput() < part * knee.rate;
        if staircase || loaded.clone().nth(1).is_none() {
            return None;
        }
        let least = self.cells().map(|cell| cell.latency).fold(knee.base, f64::min);
        let near = loaded.clone().filter(|cell| cell.beside <= INTERCEPT_KNEES * knee.at);
        // Where a queue was released at once, there may be too few of them.
        let sent = |cell: &Cell| cell.beside;
        let most = if paired { INTERCEPT_PAIRED } else { INTERCEPT };
        let meets = if near.clone().nth(1).is_some() { intercept(near, sent) } else { intercept(loaded.clone(), sent) };
        // While the number in flight grows, a call is slowed by those that come after it, where it
        // does not queue: what it was sent beside is too few.
        let seen = loaded.filter(|cell| cell.around <= SEEN_KNEES * knee.at);
        let seen = if seen.clone().nth(1).is_some() { intercept(seen, |cell| cell.around) } else { 0.0 };
        if meets > most * least || seen > INTERCEPT_SEEN * least {
            return None;
        }
        let queued = |cell: &&Cell| cell.beside >= BEYOND_KNEE * knee.at && cell.latency > BEYOND_BASE * knee.base;
        let beyond: f64 = self.cells().filter(queued).map(|cell| cell.samples).sum();
        (beyond >= BEYOND_SAMPLES).then_some(knee)
    }
}

/// The latency at which the weighted least-squares line over the number in flight meets zero
/// requests.
fn intercept<'a>(cells: impl Iterator<Item = &'a Cell>, load: impl Fn(&Cell) -> f64) -> f64 {
    let (mut weight, mut x, mut y, mut xx, mut xy) = (0.0, 0.0, 0.0, 0.0, 0.0);
    for cell in cells {
        weight += cell.samples;
        let beside = load(cell);
        x += cell.samples * beside;
        y += cell.samples * cell.latency;
        xx += cell.samples * beside * beside;
        xy += cell.samples * beside * cell.latency;
    }
    let slope = (weight * xy - x * y) / (weight * xx - x * x).max(1e-9);
    (y - slope * x) / weight
}

// === impl Cell ===

impl Cell {
    fn add(&mut self, beside: f64, around: f64, latency: f64) {
        self.samples = (self.samples + 1.0).min(MEMORY);
        self.latency += (latency - self.latency) / self.samples;
        self.beside += (beside - self.beside) / self.samples;
        self.around += (around - self.around) / self.samples;
    }

    /// The same, less the residual service of the request that was there first.
    fn throughput_beside(&self) -> f64 {
        let beside = if self.beside < 1.5 { self.beside } else { self.beside - RESIDUAL };
        beside / self.latency.max(1.0)
    }

    /// Calls a nanosecond, by Little's law.
    pub(super) fn throughput(&self) -> f64 {
        self.beside / self.latency.max(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Calls that come faster than they are answered: the latency of one that was sent beside
    /// `sent` and saw `seen` on average.
    fn growing(latency: impl Fn(f64, f64) -> f64) -> LoadCurve {
        let mut curve = LoadCurve::default();
        for sent in 1..=80_u32 {
            let after = 2 * sent;
            curve.observe((sent, after - 1), latency(f64::from(sent), f64::from(sent + after) / 2.0));
        }
        curve
    }

    #[test]
    fn a_server_that_slows_gently_has_no_knee_while_its_load_grows() {
        // Continuous batching: a step costs 0.9 + 0.1 for each call inside; one that was sent early
        // is slowed by those that came later.
        assert!(growing(|_, seen| 0.9 + 0.1 * seen).knee(true).is_none());
    }

    #[test]
    fn a_queue_that_grows_has_one() {
        let knee = growing(|sent, _| (sent / 4.0).max(1.0)).knee(true).expect("a queue behind four workers");
        assert!((3.0..=6.0).contains(&knee.at), "{}", knee.at);
    }

    #[test]
    fn a_latency_that_is_off_leaves_the_curve_unsettled_until_it_is_explained() {
        let mut curve = LoadCurve::default();
        (0..8).for_each(|_| assert_eq!(curve.observe((48, 47), 20.0), None));
        assert!(!curve.is_unsettled());
        assert_eq!(curve.observe((48, 47), 2000.0), None);
        assert!(curve.is_unsettled());
        let changed = (0..3).filter(|_| curve.observe((48, 47), 2000.0) == Some(ServerChange::Slower)).count();
        assert_eq!((changed, curve.is_unsettled()), (1, false));
    }
}
