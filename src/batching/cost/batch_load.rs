//! Load of a batch in numbers for the fit, and the typical loads of the traffic.
//!
//! Predictions are needed for batches that have not been formed yet, so the mean item and the
//! heaviest item of each size are tracked. They describe the traffic, not the server, and stay
//! valid if the server changes.

use super::super::call::Weight;
use super::super::math::{round_to_u64, to_f64};

/// Round sizes: the upper bounds of the size buckets.
pub(super) const SIZES: [u32; 18] = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512];
/// Weight of a new batch in the mean item, once there are many.
const MEAN_SHARE: f64 = 0.02;
/// Weight of a new batch in the heaviest item of its size, once there are many.
const MAX_SHARE: f64 = 0.1;
/// Maximum multiple of the typical value that a batch counts as: one huge item must not make all
/// batches look expensive.
const STEP_MAX: f64 = 4.0;
/// Weight of a new batch in the padding.
const PADDING_SHARE: f64 = 0.05;

/// Items and weights of one batch. The heaviest item weighs at least the mean and at most the sum.
#[derive(Debug, Clone, Copy)]
pub(super) struct BatchLoad {
    pub(super) items: f64,
    /// Sum of the weights.
    pub(super) sum: f64,
    /// Weight of the heaviest item.
    pub(super) max: f64,
}

/// Typical loads of the traffic.
#[derive(Debug, Clone, Default)]
pub(super) struct TypicalLoad {
    /// Weight of an item.
    mean: RunningMean,
    /// Weight of the heaviest item of a batch, by size bucket.
    max: [RunningMean; SIZES.len()],
    /// Relative padding of a batch (an EWMA).
    padding: f64,
}

/// A mean that becomes an EWMA once it has many values.
#[derive(Debug, Clone, Copy, Default)]
struct RunningMean {
    value: f64,
    count: u32,
}

// === impl BatchLoad ===

impl BatchLoad {
    pub(super) fn new(items: u32, weight: Weight) -> Self {
        let items = f64::from(items.max(1));
        let sum = to_f64(weight.sum).max(to_f64(weight.max));
        Self { items, sum, max: to_f64(weight.max).max(sum / items) }
    }

    /// Returns the relative padding: 0 if all items weigh the same.
    fn padding(self) -> f64 {
        if self.sum > 0.0 { (self.items * self.max / self.sum - 1.0).clamp(0.0, STEP_MAX) } else { 0.0 }
    }
}

// === impl TypicalLoad ===

impl TypicalLoad {
    pub(super) fn observe(&mut self, load: BatchLoad, items: u32) {
        self.mean.observe(load.sum / load.items, MEAN_SHARE);
        if let Some(max) = self.max.get_mut(bucket(items)) {
            max.observe(load.max, MAX_SHARE);
        }
        self.padding += PADDING_SHARE * (load.padding() - self.padding);
    }

    /// Returns the typical load of a batch of this size.
    pub(super) fn load(&self, items: u32) -> BatchLoad {
        self.with_max(items, self.max(bucket(items)))
    }

    /// Returns the typical loads of all sizes in the table of the curve.
    pub(super) fn loads(&self) -> impl Iterator<Item = BatchLoad> {
        let starts = [0].into_iter().chain(SIZES);
        let ranges = starts.zip(SIZES).enumerate();
        ranges.flat_map(move |(bucket, (before, last))| {
            let max = self.max(bucket);
            (before + 1..=last).map(move |items| self.with_max(items, max))
        })
    }

    pub(super) fn mean(&self) -> f64 {
        self.mean.value
    }

    /// Returns the mean relative padding of batches.
    pub(super) fn padding(&self) -> f64 {
        self.padding
    }

    /// Returns the load of a batch of items with the mean weight and this heaviest one.
    fn with_max(&self, items: u32, max: f64) -> BatchLoad {
        let items = f64::from(items.max(1));
        let sum = items * self.mean.value;
        BatchLoad { items, sum, max: max.clamp(self.mean.value, sum.max(self.mean.value)) }
    }

    /// Returns the heaviest item of batches in this bucket, else in the nearest smaller bucket that
    /// was observed, else in the nearest larger one.
    fn max(&self, bucket: usize) -> f64 {
        let (smaller, larger) = self.max.split_at(bucket + 1);
        let has_samples = |average: &&RunningMean| average.count > 0;
        smaller
            .iter()
            .rev()
            .find(has_samples)
            .or_else(|| larger.iter().find(has_samples))
            .map_or(self.mean.value, |max| max.value)
    }

    /// Returns mean and heaviest items in thousandths and the padding, for a snapshot; 0 for a size
    /// that was not observed.
    pub(super) fn keep(&self) -> (u64, Vec<u64>, u64) {
        let milli =
            |average: &RunningMean| if average.count > 0 { round_to_u64(average.value * 1e3).max(1) } else { 0 };
        (milli(&self.mean), self.max.iter().map(milli).collect(), round_to_u64(self.padding * 1e3))
    }

    /// Restores the values of [`TypicalLoad::keep`].
    pub(super) fn restored(mean: u64, max: &[u64], padding: u64) -> Self {
        let mut typical = Self::default();
        typical.mean.restore(mean);
        typical.max.iter_mut().zip(max).for_each(|(average, milli)| average.restore(*milli));
        typical.padding = (to_f64(padding) / 1e3).min(STEP_MAX);
        typical
    }
}

// === impl RunningMean ===

impl RunningMean {
    /// Updates the mean: an arithmetic mean of the first values, later an exponential one (EWMA).
    fn observe(&mut self, value: f64, share: f64) {
        self.count = self.count.saturating_add(1);
        let value = if self.count > 1 && self.value > 0.0 { value.min(STEP_MAX * self.value) } else { value };
        self.value += share.max(1.0 / f64::from(self.count)) * (value - self.value);
    }

    fn restore(&mut self, milli: u64) {
        if milli > 0 {
            *self = Self { value: to_f64(milli) / 1e3, count: super::KEPT };
        }
    }
}

/// Returns the index of the size bucket. The last bucket has no upper bound.
pub(super) fn bucket(items: u32) -> usize {
    SIZES.partition_point(|size| *size < items).min(SIZES.len() - 1)
}
