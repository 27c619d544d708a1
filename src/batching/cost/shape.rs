//! Deviations of the cost from a line: steps, tiles, knees.
//!
//! A mean per size, made non-decreasing by isotonic regression, with straight lines between. It is
//! used only if a lack-of-fit test rejects the line. Otherwise noise would be read as shape, which
//! near saturation costs a third of the mean latency.

use super::SIZE_MAX;

/// Maximum weight of a size's mean, in samples, so that it keeps following changes.
const COUNT_MAX: u32 = 16;
/// Weight of the line beside the means, in samples.
const LINE_COUNT: f64 = 0.3;
/// Ratio of lack of fit to noise from which the line is rejected.
const MISFIT_MIN: f64 = 4.0;
/// Relative deviation of a single size from which the line is rejected as well.
const DEVIATION_MIN: f64 = 0.25;
/// Minimum number of sizes for the test. With fewer the means are used as they are.
const TESTED_MIN: u32 = 4;
/// Minimum number of samples for a size to take part in the test.
const TESTED_COUNT: u32 = 2;
/// Squared relative noise: initial value (5 %), weight of a new sample, maximum of one sample, and
/// minimum of the estimate.
const NOISE_FIRST: f64 = 0.0025;
const NOISE_SHARE: f64 = 0.03;
const NOISE_SAMPLE_MAX: f64 = 0.25;
const NOISE_MIN: f64 = 1e-6;

/// Mean time of one size, at typical weights.
#[derive(Debug, Clone, Copy)]
pub(super) struct SizeMean {
    pub(super) items: u32,
    pub(super) nanos: f64,
    pub(super) count: u32,
}

/// Means by size, the noise around them, and the curve through them if it is needed.
#[derive(Debug, Clone)]
pub(super) struct CostShape {
    /// Sorted by size, at most [`SIZE_MAX`].
    means: Vec<SizeMean>,
    noise: f64,
    /// Points (items, nanoseconds), non-decreasing in both; empty while the line fits.
    curve: Vec<(u32, f64)>,
    /// Scratch buffer of `pool_violators`: nanoseconds, weight and number of sizes of each pool.
    pools: Vec<(f64, f64, usize)>,
}

// === impl CostShape ===

impl Default for CostShape {
    fn default() -> Self {
        Self { means: Vec::new(), noise: NOISE_FIRST, curve: Vec::new(), pools: Vec::new() }
    }
}

impl CostShape {
    pub(super) fn observe(&mut self, items: u32, nanos: f64) {
        let items = items.clamp(1, SIZE_MAX);
        let at = self.means.partition_point(|mean| mean.items < items);
        if self.means.get(at).is_none_or(|mean| mean.items != items) {
            self.means.insert(at, SizeMean { items, nanos, count: 1 });
            return;
        }
        let Some(mean) = self.means.get_mut(at) else { return };
        let count = f64::from(mean.count);
        if mean.count >= TESTED_COUNT {
            let off = nanos / mean.nanos - 1.0;
            // A sample deviates more from the mean of `count` others than from the true value.
            let square = (off * off).min(NOISE_SAMPLE_MAX) * count / (count + 1.0);
            self.noise += NOISE_SHARE * (square - self.noise);
        }
        mean.count = (mean.count + 1).min(COUNT_MAX);
        mean.nanos += (nanos - mean.nanos) / f64::from(mean.count);
    }

    /// Computes the curve, or clears it if the line explains the means. `line` holds nanoseconds
    /// for 1 to [`SIZE_MAX`] items.
    pub(super) fn draw(&mut self, line: &[f64]) {
        self.curve.clear();
        if !self.means.is_empty() && self.is_line_rejected(line) {
            self.pool_violators(line);
            let pooled = self.pools.iter().flat_map(|(nanos, _, sizes)| std::iter::repeat_n(*nanos, *sizes));
            self.curve.extend(self.means.iter().map(|mean| mean.items).zip(pooled));
        }
    }

    /// Replaces a line by the curve: linear between the observed sizes, scaled by the last ratio
    /// beyond the ends.
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

    /// Returns `true` if the line is rejected.
    pub(super) fn is_used(&self) -> bool {
        !self.curve.is_empty()
    }

    /// Returns the nanoseconds on the curve and the size that they apply to: this one, or the
    /// nearest end.
    pub(super) fn interpolate(&self, items: u32) -> Option<(u32, f64)> {
        let (first, last) = (self.curve.first()?, self.curve.last()?);
        let items = items.clamp(first.0, last.0);
        let above = self.curve.partition_point(|point| point.0 < items);
        let high = self.curve.get(above)?;
        let low = self.curve.get(above.saturating_sub(1)).filter(|_| high.0 > items).unwrap_or(high);
        let share = f64::from(items - low.0) / f64::from((high.0 - low.0).max(1));
        Some((items, low.1 + (high.1 - low.1) * share))
    }

    /// Returns the means, sorted by size.
    pub(super) fn means(&self) -> &[SizeMean] {
        &self.means
    }

    /// Returns the number of observations of a size, up to [`COUNT_MAX`].
    pub(super) fn sample_count(&self, items: u32) -> u32 {
        self.means.binary_search_by_key(&items.min(SIZE_MAX), |mean| mean.items).map_or(0, |at| self.means[at].count)
    }

    /// Returns the number of observations of batches of at least this size, each size up to
    /// [`COUNT_MAX`].
    pub(super) fn seen_from(&self, items: u32) -> u32 {
        self.means.iter().rev().take_while(|mean| mean.items >= items).map(|mean| mean.count).sum()
    }

    /// Returns the squared relative noise.
    pub(super) fn noise(&self) -> f64 {
        self.noise
    }

    /// Multiplies all means by a factor and reduces their weight to at most `count` samples.
    pub(super) fn rescale(&mut self, factor: f64, count: u32) {
        for mean in &mut self.means {
            mean.nanos = (mean.nanos * factor).clamp(super::NANOS_MIN, super::NANOS_MAX);
            mean.count = mean.count.min(count);
        }
    }

    /// Clears the means. The noise depends on the network more than on the server and is kept.
    pub(super) fn clear(&mut self) {
        self.means.clear();
        self.curve.clear();
    }

    /// Restores means, in any order, and noise from a snapshot.
    pub(super) fn restored(means: impl Iterator<Item = SizeMean>, noise: f64) -> Self {
        let mut shape = Self { noise: noise.clamp(NOISE_MIN, NOISE_SAMPLE_MAX), ..Self::default() };
        for mean in means {
            let items = mean.items.clamp(1, SIZE_MAX);
            if let Err(at) = shape.means.binary_search_by_key(&items, |known| known.items) {
                shape.means.insert(at, SizeMean { items, ..mean });
            }
        }
        shape
    }

    /// Lack-of-fit test. Returns `true` if the squared deviations from the line, per degree of
    /// freedom that its two parameters leave, are too large for the noise.
    fn is_line_rejected(&self, line: &[f64]) -> bool {
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

    /// Computes the non-decreasing sequence nearest to the means, each pulled slightly towards the
    /// line (isotonic regression with the pool-adjacent-violators algorithm).
    fn pool_violators(&mut self, line: &[f64]) {
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
