//! Where the cost of a size is not on the line: steps, tiles, knees.
//!
//! A mean per size, made non-decreasing, with straight lines between. It is used only when the line demonstrably does not fit: otherwise noise is
//! read as shape, and near saturation that costs a third of the mean latency (`scheduling.md` §3, "cost: shape").

use super::SIZE_MAX;

/// What a size's mean is worth at most, in samples: it keeps following (`scheduling.md` §3).
const COUNT_MAX: u32 = 16;
/// How much of a sample the line is worth beside them (`scheduling.md` §3).
const LINE_COUNT: f64 = 0.3;
/// Lack of fit over noise from which the line is rejected (`scheduling.md` §3).
const MISFIT_MIN: f64 = 4.0;
/// A single size this far off the line rejects it as well (`scheduling.md` §3).
const DEVIATION_MIN: f64 = 0.25;
/// With fewer sizes than this there is no test: the means are used as they are (`scheduling.md` §3).
const TESTED_MIN: u32 = 4;
/// Samples of a size before it takes part in the test.
const TESTED_COUNT: u32 = 2;
/// Squared relative noise to begin with, 5 %, the share of a new sample, and the bounds of one sample and of all.
const NOISE_FIRST: f64 = 0.0025;
const NOISE_SHARE: f64 = 0.03;
const NOISE_SAMPLE_MAX: f64 = 0.25;
const NOISE_MIN: f64 = 1e-6;

/// The mean of one size, at typical weights.
#[derive(Debug, Clone, Copy)]
pub(super) struct Mean {
    pub(super) items: u32,
    pub(super) nanos: f64,
    pub(super) count: u32,
}

/// The means, the noise around them, and the curve through them if it is needed.
#[derive(Debug, Clone)]
pub(super) struct Shape {
    /// In order of size, at most [`SIZE_MAX`].
    means: Vec<Mean>,
    noise: f64,
    /// (items, nanoseconds), non-decreasing in both; empty while the line will do.
    curve: Vec<(u32, f64)>,
    /// Means pooled so far: nanoseconds, weight, how many sizes. Kept for its memory only.
    pools: Vec<(f64, f64, usize)>,
}

// === impl Shape ===

impl Default for Shape {
    fn default() -> Self {
        Self { means: Vec::new(), noise: NOISE_FIRST, curve: Vec::new(), pools: Vec::new() }
    }
}

impl Shape {
    pub(super) fn put(&mut self, items: u32, nanos: f64) {
        let items = items.clamp(1, SIZE_MAX);
        let at = self.means.partition_point(|mean| mean.items < items);
        if self.means.get(at).is_none_or(|mean| mean.items != items) {
            self.means.insert(at, Mean { items, nanos, count: 1 });
            return;
        }
        let Some(mean) = self.means.get_mut(at) else { return };
        let count = f64::from(mean.count);
        if mean.count >= TESTED_COUNT {
            let off = nanos / mean.nanos - 1.0;
            // A sample differs from the mean of `count` others by more than from the truth.
            let square = (off * off).min(NOISE_SAMPLE_MAX) * count / (count + 1.0);
            self.noise += NOISE_SHARE * (square - self.noise);
        }
        mean.count = (mean.count + 1).min(COUNT_MAX);
        mean.nanos += (nanos - mean.nanos) / f64::from(mean.count);
    }

    /// Draws the curve anew, or none if the line explains the means. `line` holds nanoseconds for 1 to [`SIZE_MAX`] items.
    pub(super) fn draw(&mut self, line: &[f64]) {
        self.curve.clear();
        if !self.means.is_empty() && self.misfits(line) {
            self.pool(line);
            let pooled = self.pools.iter().flat_map(|(nanos, _, sizes)| std::iter::repeat_n(*nanos, *sizes));
            self.curve.extend(self.means.iter().map(|mean| mean.items).zip(pooled));
        }
    }

    /// Bends a line to the curve: straight between the sizes seen, times the last ratio past the ends.
    pub(super) fn bend(&self, line: &mut [f64]) {
        let (Some(first), Some(last)) = (self.curve.first(), self.curve.last()) else { return };
        let (low, high) = (index(first.0), index(last.0));
        let (low_ratio, high_ratio) = (first.1 / line[low], last.1 / line[high]);
        line[..low].iter_mut().for_each(|nanos| *nanos *= low_ratio);
        line[high + 1..].iter_mut().for_each(|nanos| *nanos *= high_ratio);
        line[low] = first.1;
        for pair in self.curve.windows(2) {
            let [(from, start), (to, end)] = pair else { continue };
            let step = (end - start) / f64::from(to - from);
            let mut nanos = *start;
            for at in &mut line[index(*from) + 1..=index(*to)] {
                nanos += step;
                *at = nanos;
            }
        }
    }

    /// Whether the line is rejected.
    pub(super) fn drawn(&self) -> bool {
        !self.curve.is_empty()
    }

    /// Nanoseconds on the curve and the size they are for: this one, or the nearest end.
    pub(super) fn at(&self, items: u32) -> Option<(u32, f64)> {
        let (first, last) = (self.curve.first()?, self.curve.last()?);
        let items = items.clamp(first.0, last.0);
        let above = self.curve.partition_point(|point| point.0 < items);
        let high = self.curve.get(above)?;
        let low = self.curve.get(above.saturating_sub(1)).filter(|_| high.0 > items).unwrap_or(high);
        let share = f64::from(items - low.0) / f64::from((high.0 - low.0).max(1));
        Some((items, low.1 + (high.1 - low.1) * share))
    }

    /// The means, in order of size.
    pub(super) fn means(&self) -> &[Mean] {
        &self.means
    }

    /// How often a size was seen, up to [`COUNT_MAX`].
    pub(super) fn seen(&self, items: u32) -> u32 {
        self.means.binary_search_by_key(&items.min(SIZE_MAX), |mean| mean.items).map_or(0, |at| self.means[at].count)
    }

    /// How often batches of at least this size were seen, each size up to [`COUNT_MAX`].
    pub(super) fn seen_from(&self, items: u32) -> u32 {
        self.means.iter().rev().take_while(|mean| mean.items >= items).map(|mean| mean.count).sum()
    }

    /// Squared relative noise.
    pub(super) fn noise(&self) -> f64 {
        self.noise
    }

    /// Multiplies all means, which then count as at most `count` samples each.
    pub(super) fn rescale(&mut self, factor: f64, count: u32) {
        for mean in &mut self.means {
            mean.nanos = (mean.nanos * factor).clamp(super::NANOS_MIN, super::NANOS_MAX);
            mean.count = mean.count.min(count);
        }
    }

    /// Forgets the means. The noise is more of the network than of the model: it stays.
    pub(super) fn clear(&mut self) {
        self.means.clear();
        self.curve.clear();
    }

    /// Means and noise as they were kept, in any order.
    pub(super) fn restored(means: impl Iterator<Item = Mean>, noise: f64) -> Self {
        let mut shape = Self { noise: noise.clamp(NOISE_MIN, NOISE_SAMPLE_MAX), ..Self::default() };
        for mean in means {
            let items = mean.items.clamp(1, SIZE_MAX);
            if let Err(at) = shape.means.binary_search_by_key(&items, |known| known.items) {
                shape.means.insert(at, Mean { items, ..mean });
            }
        }
        shape
    }

    /// The lack-of-fit test: squared deviations from the line against the noise, over what two parameters leave free.
    fn misfits(&self, line: &[f64]) -> bool {
        let (mut squares, mut largest, mut sizes) = (0.0f64, 0.0f64, 0u32);
        for mean in self.means.iter().filter(|mean| mean.count >= TESTED_COUNT) {
            let off = mean.nanos / line[index(mean.items)] - 1.0;
            squares += f64::from(mean.count) * off * off;
            largest = largest.max(off.abs());
            sizes += 1;
        }
        let misfit = squares / f64::from(sizes.saturating_sub(2).max(1)) / self.noise.max(NOISE_MIN);
        sizes < TESTED_MIN || misfit >= MISFIT_MIN || largest >= DEVIATION_MIN
    }

    /// Pools adjacent violators: the non-decreasing sequence nearest to the means, each pulled a little to the line.
    fn pool(&mut self, line: &[f64]) {
        self.pools.clear();
        for mean in &self.means {
            let count = f64::from(mean.count);
            let pulled = (mean.nanos * count + LINE_COUNT * line[index(mean.items)]) / (count + LINE_COUNT);
            let mut top = (pulled, count, 1);
            while let Some(below) = self.pools.pop_if(|below| below.0 > top.0) {
                let weight = below.1 + top.1;
                top = ((below.0 * below.1 + top.0 * top.1) / weight, weight, below.2 + top.2);
            }
            self.pools.push(top);
        }
    }
}

fn index(items: u32) -> usize {
    usize::try_from(items.clamp(1, SIZE_MAX) - 1).unwrap_or(0)
}
