//! Load curve: mean latency of unbatched calls by the number in flight at their dispatch, and the
//! knee in it.
//!
//! There is one cell for each power of two of the number in flight, so that a few answers fill it.
//! By Little's law, the number in flight divided by the latency is the throughput. Where it stops
//! growing, calls queue inside the server.

use std::collections::VecDeque;

use super::super::math::{round_to_u64, to_f64};
use super::super::tick::Tick;

/// Number of cells: up to 4095 executions in flight, more than the connections of a process.
pub(super) const CELLS: usize = 12;
/// Maximum number of samples in a cell's running mean. With 10, noise is taken for slopes (measured
/// on 280 simulated rows).
const MEMORY: f64 = 30.0;
/// A sample is *off* if its latency is above or below the mean of its cell by this factor.
const OFF_FACTOR: f64 = 1.5;
/// Number of samples of one cell in a row, all above or all below it, that shows a change of the
/// server.
const OFF_MAX: i32 = 4;
/// Minimum number of samples of a cell before others are compared with it.
const OFF_SAMPLES: f64 = 4.0;
/// Number of samples that are not off, after one that was, until the curve counts as settled again:
/// the cell of the latter may get no further sample.
const OFF_RECENT: u32 = 8;
/// Weight of a latency that was measured under a limit, in samples: two answers of a server that
/// has changed outweigh it.
const BEGIN_SAMPLES: f64 = 2.0;
/// Number of completions kept for the measured rate, and the minimum for a rate.
const COMPLETIONS: usize = 65;
const COMPLETIONS_MIN: usize = 8;
/// Number of completions that show the present rate, as a multiple of the executions that run at
/// once, and its minimum.
const COMPLETIONS_RECENT: (f64, f64) = (4.0, 16.0);
/// Minimum samples of a cell before the cells of fewer executions are checked against it.
const STALE_SAMPLES: f64 = 8.0;
/// Minimum samples in all cells for a knee.
const SAMPLES_MIN: f64 = 4.0;
/// Minimum number in flight of a *loaded* cell, as a part of the knee.
const LOADED: f64 = 0.75;
/// Minimum throughput of the first loaded cell, as a part of the highest throughput, because the
/// latencies of the first waves at several workers rise in steps (a *staircase*). With less, limits
/// are set too early; with more, servers with 4 and 8 workers are detected late (both measured).
const THROUGHPUT: f64 = 0.8;
/// The same for a cell that was passed only once while the load rose. It applies if all cells of at
/// least `FLAT_FROM` times the knee have at least the part `FLAT` of the highest throughput.
const THROUGHPUT_ONCE: f64 = 0.65;
const FLAT_FROM: f64 = 2.0;
const FLAT: f64 = 0.9;
/// Mean fraction of the execution in service that is left when another one arrives beside it.
/// Without it, throughput is overestimated at few executions in flight.
const RESIDUAL: f64 = 0.5;
/// Minimum samples of a loaded cell if the knee is above 2.
const LOADED_SAMPLES: f64 = 3.0;
/// Maximum intercept of the line through the loaded cells, which is its latency at zero executions,
/// as a part of the least latency. A queue has no intercept, while a server that slows down gently
/// (continuous batching) keeps most of its base latency. The staircases of several workers have an
/// intercept of up to a half, which is accepted once a pair has shown that a batch gains something.
/// Before that, late detection does less harm than a wrong limit.
const INTERCEPT: f64 = 0.25;
const INTERCEPT_PAIRED: f64 = 0.5;
/// The same for the line over the mean number in flight during a call, in place of the number at
/// its dispatch: a queue has up to a half, continuous batching nine tenths.
const INTERCEPT_SEEN: f64 = 0.6;
/// Maximum mean number in flight of the cells for that line, as a multiple of the knee: in a
/// fivefold overload, it is some three times the number at dispatch.
const SEEN_KNEES: f64 = 64.0;
/// Maximum number in flight of the cells for the intercept, as a multiple of the knee: beyond it
/// the error of the slope exceeds the intercept.
const INTERCEPT_KNEES: f64 = 16.0;
/// Minimum number in flight of the least loaded cell for its latency to be possibly that of a
/// queue.
const BOUND_FROM: f64 = 2.0;
/// Minimum relative variance of the loads of a line: below it, the slope is noise.
const SPREAD_MIN: f64 = 0.01;
/// Evidence of a queue: minimum number in flight of the cells that count, as a multiple of the
/// knee, minimum ratio of their latency to the base, and minimum number of samples in them.
const BEYOND_KNEE: f64 = 2.0;
const BEYOND_BASE: f64 = 1.6;
const BEYOND_SAMPLES: f64 = 2.0;
/// Limit as a multiple of the knee: the knee is an estimate, and an execution too many costs
/// little.
const MARGIN: f64 = 1.15;

/// Load curve: mean latency by the number in flight.
#[derive(Debug, Clone, Default)]
pub(super) struct LoadCurve {
    cells: [LoadCell; CELLS],
    /// Times of the latest answers, after the dispatch time of the first one.
    completions: VecDeque<Tick>,
    /// Number of samples since one was off.
    since_off: u32,
}

/// Executions that were sent with a similar number in flight. Latencies are in nanoseconds.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LoadCell {
    /// Mean latency.
    pub(super) latency: f64,
    /// Mean number in flight at dispatch.
    pub(super) in_flight: f64,
    /// Mean number in flight from dispatch to completion.
    mean_in_flight: f64,
    /// Number of samples in the means, up to `MEMORY`.
    pub(super) samples: f64,
    /// Number of samples in a row that were off: positive if above, negative if below.
    off_in_row: i32,
}

/// A change of the server, detected by the latency of unbatched calls at an unchanged number in
/// flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ServerChange {
    Slower,
    Quicker,
}

/// A line of the latency over the number in flight.
#[derive(Debug, Clone, Copy)]
struct LatencyLine {
    /// Nanoseconds by which each execution in flight lengthens the others.
    slope: f64,
    /// Latency at which the line meets zero executions, in nanoseconds.
    intercept: f64,
}

/// The load at which throughput stops growing.
#[derive(Debug, Clone, Copy)]
pub(super) struct Knee {
    /// Executions in flight.
    pub(super) at: f64,
    /// Latency below the knee, in nanoseconds.
    pub(super) base: f64,
    /// Throughput, in calls per nanosecond.
    pub(super) rate: f64,
    /// `true` if calls queued at every load that was measured: `at` and `base` are upper bounds.
    pub(super) is_bound: bool,
}

// === impl LoadCurve ===

impl LoadCurve {
    pub(super) fn clear(&mut self) {
        self.cells = [LoadCell::default(); CELLS];
        self.completions.clear();
    }

    /// Resets the curve to an unbatched call's latency that was measured under a limit.
    pub(super) fn reset_to(&mut self, unbatched: f64) {
        self.clear();
        if unbatched > 0.0 {
            self.cells[0] = LoadCell {
                latency: unbatched,
                in_flight: 1.0,
                mean_in_flight: 1.0,
                samples: BEGIN_SAMPLES,
                off_in_row: 0,
            };
        }
    }

    pub(super) fn forget_rate(&mut self) {
        self.completions.clear();
    }

    /// Records the latency of an unbatched call, with the executions in flight at its dispatch and
    /// their mean number until its completion, itself included. Returns the change of the server if
    /// this sample shows one; the cells are reset then.
    pub(super) fn observe(&mut self, (in_flight, mean): (u32, f64), latency: f64) -> Option<ServerChange> {
        let index = usize::try_from(in_flight.max(1).ilog2()).unwrap_or(0).min(CELLS - 1);
        let (cell, in_flight) = (&mut self.cells[index], f64::from(in_flight.max(1)));
        // A difference up to that in the number in flight is no sign of a change.
        let scale = in_flight / cell.in_flight.max(1.0);
        let above = latency > OFF_FACTOR * cell.latency * scale.max(1.0);
        let below = latency < cell.latency * scale.min(1.0) / OFF_FACTOR;
        cell.off_in_row = match (above, below) {
            _ if cell.samples < OFF_SAMPLES => 0,
            (true, _) => cell.off_in_row.max(0) + 1,
            (_, true) => cell.off_in_row.min(0) - 1,
            _ => 0,
        };
        self.since_off = if cell.off_in_row == 0 { self.since_off.saturating_add(1) } else { 0 };
        let changed = (cell.off_in_row.abs() >= OFF_MAX).then_some(if cell.off_in_row > 0 {
            ServerChange::Slower
        } else {
            ServerChange::Quicker
        });
        if changed.is_some() {
            self.cells = [LoadCell::default(); CELLS];
        }
        self.cells[index].add(in_flight, mean, latency);
        self.forget_stale(index);
        changed
    }

    /// Clears the cells of fewer executions that date from a quicker server, as this cell shows:
    /// more executions in flight are not answered at a lower rate.
    fn forget_stale(&mut self, index: usize) {
        let Some(recent) = self.recent_rate(1.0) else { return };
        let (lower, rest) = self.cells.split_at_mut(index);
        let Some(cell) = rest.first().filter(|cell| cell.samples >= STALE_SAMPLES) else { return };
        let rate = cell.throughput().max(recent);
        lower
            .iter_mut()
            .filter(|lower| lower.throughput() > OFF_FACTOR * rate)
            .for_each(|lower| *lower = LoadCell::default());
    }

    /// Returns `true` if the last sample of a cell was off, and it was a recent one. The server may
    /// have changed, and the cell may be a mean of both states.
    pub(super) fn is_unsettled(&self) -> bool {
        self.since_off < OFF_RECENT && self.cells.iter().any(|cell| cell.off_in_row != 0)
    }

    /// Records the answer to an execution with this many calls, for the measured rate.
    pub(super) fn record_completion(&mut self, sent: Tick, now: Tick, calls: u32) {
        if self.completions.is_empty() {
            self.completions.push_back(sent);
        }
        for _ in 0..calls.min(64) {
            if self.completions.len() >= COMPLETIONS {
                self.completions.pop_front();
            }
            self.completions.push_back(now);
        }
    }

    /// Returns the cells that have samples.
    pub(super) fn cells(&self) -> impl Iterator<Item = &LoadCell> + Clone {
        self.cells.iter().filter(|cell| cell.samples > 0.0)
    }

    fn measured_rate(&self) -> Option<f64> {
        let (first, last) = (self.completions.front()?, self.completions.back()?);
        let span = to_f64(last.0.saturating_sub(first.0));
        let count = u32::try_from(self.completions.len() - 1).unwrap_or(0);
        (self.completions.len() >= COMPLETIONS_MIN && span > 0.0).then(|| f64::from(count) / span)
    }

    /// Returns the rate of the latest answers, in calls per nanosecond, if this many executions run
    /// at once.
    pub(super) fn recent_rate(&self, at: f64) -> Option<f64> {
        let count = (COMPLETIONS_RECENT.0 * at).clamp(COMPLETIONS_RECENT.1, to_f64(COMPLETIONS as u64 - 1)).floor();
        let first = self.completions.iter().rev().nth(usize::try_from(round_to_u64(count)).ok()?)?;
        let span = to_f64(self.completions.back()?.0.saturating_sub(first.0));
        (span > 0.0).then(|| count / span)
    }

    /// Returns the highest throughput and the base latency, whatever the shape of the curve; `None`
    /// before there are samples at two loads.
    pub(super) fn estimate(&self) -> Option<Knee> {
        let first = *self.cells().next()?;
        let samples: f64 = self.cells().map(|cell| cell.samples).sum();
        if self.cells().nth(1).is_none() || samples < SAMPLES_MIN {
            return None;
        }
        let rate = self.cells().map(LoadCell::throughput_beside).fold(self.measured_rate().unwrap_or(0.0), f64::max);
        // By Little's law, this many calls are in flight at the highest throughput if each has the
        // latency of the least loaded cell. The base is the mean latency of the cells up to there.
        let unqueued = (rate * first.latency).max(1.0);
        let below = self.cells().filter(|cell| cell.in_flight <= unqueued);
        let (sum, weight) =
            below.fold((0.0, 0.0), |sum, cell| (sum.0 + cell.latency * cell.samples, sum.1 + cell.samples));
        let base = if weight > 0.0 { sum / weight } else { first.latency };
        let is_bound = first.in_flight >= BOUND_FROM && first.throughput() >= THROUGHPUT * rate;
        Some(Knee { at: (rate * base).max(1.0), base, rate, is_bound })
    }

    /// Returns the knee if the curve shows that calls queue inside the server. `paired`: a batch of
    /// two was measured to be cheaper than two calls.
    ///
    /// All of these are required: at least two loaded cells, of which the first has nearly the
    /// highest throughput; lines through them that nearly meet the origin; and samples beyond the
    /// knee with a latency well above the base.
    pub(super) fn knee(&self, paired: bool) -> Option<Knee> {
        let knee = self.estimate()?;
        let has_samples = |cell: &LoadCell| knee.at <= 2.0 || cell.samples >= LOADED_SAMPLES;
        let loaded = self.cells().filter(|cell| cell.in_flight >= LOADED * knee.at && has_samples(cell));
        let first = loaded.clone().next()?;
        let is_flat = |cell: &LoadCell| cell.throughput() >= FLAT * knee.rate;
        let part = if self.cells().filter(|cell| cell.in_flight >= FLAT_FROM * knee.at).all(is_flat) {
            THROUGHPUT_ONCE
        } else {
            THROUGHPUT
        };
        let staircase = first.throughput() < part * knee.rate;
        if staircase || loaded.clone().nth(1).is_none() {
            return None;
        }
        let least = self.cells().map(|cell| cell.latency).fold(knee.base, f64::min);
        let near = loaded.clone().filter(|cell| cell.in_flight <= INTERCEPT_KNEES * knee.at);
        // After a queue was released at once, there may be too few cells near the knee.
        let at_dispatch = |cell: &LoadCell| cell.in_flight;
        let intercept_max = if paired { INTERCEPT_PAIRED } else { INTERCEPT };
        let dispatch_line =
            if near.clone().nth(1).is_some() { line(near, at_dispatch) } else { line(loaded.clone(), at_dispatch) };
        // While the number in flight grows, a call on a server without a queue is also slowed by
        // later calls, so the number at its dispatch is too small. The second line is over the mean
        // number during the calls.
        let seen = loaded.filter(|cell| cell.mean_in_flight <= SEEN_KNEES * knee.at);
        // It shows nothing for rounds of calls that are all sent at once, which have the same mean
        // number, nor if its slope is not positive: the first calls of a burst on an idle server
        // have the largest mean number, and if they are answered first all the same, the others do
        // not slow them down.
        let seen_line = line(seen, |cell| cell.mean_in_flight).filter(|line| line.slope > 0.0);
        let seen_intercept = seen_line.map_or(0.0, |line| line.intercept);
        if dispatch_line.is_none_or(|line| line.intercept > intercept_max * least)
            || seen_intercept > INTERCEPT_SEEN * least
        {
            return None;
        }
        let queued =
            |cell: &&LoadCell| cell.in_flight >= BEYOND_KNEE * knee.at && cell.latency > BEYOND_BASE * knee.base;
        let beyond: f64 = self.cells().filter(queued).map(|cell| cell.samples).sum();
        (beyond >= BEYOND_SAMPLES).then_some(knee)
    }
}

/// Returns the weighted least-squares line of the latency over the number in flight; `None` if the
/// cells have nearly the same number.
fn line<'a>(cells: impl Iterator<Item = &'a LoadCell>, load: impl Fn(&LoadCell) -> f64) -> Option<LatencyLine> {
    let (mut weight, mut x, mut y, mut xx, mut xy) = (0.0, 0.0, 0.0, 0.0, 0.0);
    for cell in cells {
        weight += cell.samples;
        let in_flight = load(cell);
        x += cell.samples * in_flight;
        y += cell.samples * cell.latency;
        xx += cell.samples * in_flight * in_flight;
        xy += cell.samples * in_flight * cell.latency;
    }
    let spread = weight * xx - x * x;
    let slope = (weight * xy - x * y) / spread;
    (spread > SPREAD_MIN * x * x).then(|| LatencyLine { slope, intercept: (y - slope * x) / weight })
}

// === impl LoadCell ===

impl LoadCell {
    fn add(&mut self, in_flight: f64, mean_in_flight: f64, latency: f64) {
        self.samples = (self.samples + 1.0).min(MEMORY);
        self.latency += (latency - self.latency) / self.samples;
        self.in_flight += (in_flight - self.in_flight) / self.samples;
        self.mean_in_flight += (mean_in_flight - self.mean_in_flight) / self.samples;
    }

    /// Returns the throughput, less the residual service of the execution that was in service
    /// first.
    fn throughput_beside(&self) -> f64 {
        let in_flight = if self.in_flight < 1.5 { self.in_flight } else { self.in_flight - RESIDUAL };
        in_flight / self.latency.max(1.0)
    }

    /// Returns the calls per nanosecond, by Little's law.
    pub(super) fn throughput(&self) -> f64 {
        self.in_flight / self.latency.max(1.0)
    }
}

// === impl Knee ===

impl Knee {
    /// Returns the limit at this knee, in executions in flight.
    pub(super) fn limit(&self) -> u64 {
        round_to_u64(MARGIN * self.at).max(1)
    }
}

#[cfg(test)]
mod tests;
