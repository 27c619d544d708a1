//! The learned cost curve of one cost class, which predicts the execution time of a batch.
//!
//! Every decision about size, deadline and lead uses this prediction. It needs no configuration: it
//! is learned from batches that found their slot idle. The curve is a linear model in items and
//! weights ([`models`]), a shape on top of it where a line does not fit, a ratio for the tail, and
//! a change detector. Floating-point numbers stay inside this module; its results are whole
//! nanoseconds, so decisions compare integers and are reproducible.
//!
//! Left out: the selection of clean samples, which is up to the caller, ceilings, slots, and
//! arrivals.

mod models;
mod batch_load;
mod report;
mod sample_window;
mod shape;
mod tail;
#[cfg(test)]
mod tests;

use super::call::Weight;
use super::math::{round_to_u64, to_f64};
use batch_load::{BatchLoad, TypicalLoad};
pub use models::CostMeasure;
use models::LinearModels;
use report::CostGauges;
pub use report::{CostReport, CostSnapshot, CurvePoint};
use sample_window::{CostReading, CostSampleWindow};
use shape::{CostShape, SizeMean};
use tail::{ChangeDetector, SampleClass, TailRatio};

/// Number of batch sizes with an entry in the table. Larger sizes use the linear model.
const SIZE_MAX: u32 = 512;
/// Prediction before the first sample (1 ms): short enough that no call is shed on a guess.
const UNKNOWN_NANOS: u64 = 1_000_000;
/// Bounds of an execution time, one microsecond and eleven days. They protect the arithmetic and
/// are far from any real server.
const NANOS_MIN: f64 = 1e3;
const NANOS_MAX: f64 = 1e15;
/// Number of samples that a cell of the sample window keeps after a drift or a restart, and maximum
/// number of samples that the mean of a size counts for then. Newer samples soon outweigh the old
/// ones.
const KEPT: u32 = 3;
/// Number of samples before outliers are detected: the first few do not predict the others well.
const JUDGED_MIN: u32 = 6;
/// Number of samples before the models are compared.
const COMPARED_MIN: u32 = 3;
/// Number of samples before the duration of a batch is converted to that of a batch with typical
/// weights.
const CONVERTED_MIN: u32 = 8;
/// The models are fitted at each of the first 40 samples, then at every eighth.
const SOLVED_EACH: u32 = 40;
const SOLVED_EVERY: u32 = 8;
/// Weights start to matter above this mean padding of batches, if more than this share of a batch's
/// time depends on them. They stop to matter below the last value of padding (hysteresis).
const PADDING_ON: f64 = 0.05;
const WEIGHT_PART_ON: f64 = 0.1;
const PADDING_OFF: f64 = 0.03;

/// The measurement of one successful batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CostSample {
    /// Number of items, at least 1.
    pub items: u32,
    /// Weight of the items: the sum, and the heaviest one.
    pub weight: Weight,
    /// Time from dispatch to response, in nanoseconds.
    pub nanos: u64,
}

/// The learned cost curve of one cost class.
///
/// # Bounds
/// 96 kinds of batches × 8 samples, 512 sizes: some 50 KB at most, a few KB usually.
///
/// # Cost
/// [`CostModel::observe`] takes some 100 ns, at every eighth sample some µs; it allocates only for
/// kinds and sizes not seen before. [`CostModel::time`] is a table look-up,
/// [`CostModel::predict_weighted`] a few multiplications.
#[derive(Debug, Clone, Default)]
pub(super) struct CostModel {
    sample_window: CostSampleWindow,
    typical: TypicalLoad,
    models: LinearModels,
    shape: CostShape,
    tail: TailRatio,
    watch: ChangeDetector,
    /// Duration of the first sample, which scales the ridge regularization.
    first: f64,
    /// Number of samples since the last change.
    samples: u32,
    /// Number of samples since the last change or drift.
    recent: u32,
    /// Number of items of the largest batch since the last change.
    largest: u32,
    /// `true` if it pays to select the members of a batch by weight.
    weights_matter: bool,
    /// Nanoseconds at typical weights of 1 to [`SIZE_MAX`] items, non-decreasing; empty before the
    /// first sample.
    table: Vec<u64>,
}

// === impl CostModel ===

impl CostModel {
    /// Learns from a batch that found its slot idle. Returns `true` if the server is found to have
    /// changed permanently, in which case everything but this sample is discarded.
    pub(super) fn observe(&mut self, sample: CostSample) -> bool {
        let reading = CostReading::new(sample);
        let verdict = self.judge(&reading);
        match verdict {
            SampleClass::Outlier => return false,
            SampleClass::Normal => {}
            SampleClass::Drifted(factor) => self.rescale(factor),
            SampleClass::Changed => self.forget(),
        }
        self.learn(reading);
        verdict == SampleClass::Changed
    }

    /// Returns the number of samples since the last change.
    pub(super) fn samples(&self) -> u32 {
        self.samples
    }

    /// Returns the predicted time of a batch of this size with typical weights, in nanoseconds. The
    /// result is non-decreasing in the number of items.
    pub(super) fn time(&self, items: u32) -> u64 {
        let at = usize::try_from(items.clamp(1, SIZE_MAX) - 1).unwrap_or(usize::MAX);
        let Some(known) = self.table.get(at) else { return UNKNOWN_NANOS };
        if items <= SIZE_MAX { *known } else { round_to_u64(self.expect(items, self.typical.load(items))).max(*known) }
    }

    /// Returns the predicted time of a batch in nanoseconds, by its weights if they matter.
    pub(super) fn predict(&self, items: u32, weight: Weight) -> u64 {
        if self.weights_matter { self.predict_weighted(items, weight) } else { self.time(items) }
    }

    /// Returns the predicted time of a batch of this size and these weights, in nanoseconds.
    pub(super) fn predict_weighted(&self, items: u32, weight: Weight) -> u64 {
        if self.samples == 0 { UNKNOWN_NANOS } else { round_to_u64(self.expect(items, BatchLoad::new(items, weight))) }
    }

    /// Returns the 98th percentile of the time of a batch for the predicted time `nanos`: q ×
    /// `nanos`.
    pub(super) fn tail_time(&self, nanos: u64) -> u64 {
        let late = u128::from(nanos) * u128::from(self.tail_permille()) / 1000;
        u64::try_from(late).unwrap_or(u64::MAX)
    }

    /// Returns the tail ratio q in thousandths, 1020 to 1600.
    pub(super) fn tail_permille(&self) -> u64 {
        self.tail.permille()
    }

    /// Returns the size of the largest batch since the last change.
    pub(super) fn largest(&self) -> u32 {
        self.largest
    }

    /// Returns the number of observations of this size since the last change: up to 16, at most 3
    /// of which predate a drift or a restart.
    pub(super) fn sample_count(&self, items: u32) -> u32 {
        self.shape.sample_count(items)
    }

    /// Returns the number of observations of this size and all larger ones, counted likewise.
    pub(super) fn sample_count_from(&self, items: u32) -> u32 {
        self.shape.seen_from(items)
    }

    /// Returns `true` if it pays to select the members of a batch by weight.
    pub(super) fn weights_matter(&self) -> bool {
        self.weights_matter
    }

    /// Returns the model that determines the cost of an item.
    pub(super) fn base_kind(&self) -> CostMeasure {
        self.models.chosen()
    }

    /// Returns the state that a later process may start from.
    pub(super) fn snapshot(&self) -> CostSnapshot {
        let (weight_milli, heaviest_milli, padding_permille) = self.typical.keep();
        CostSnapshot {
            base: self.base_kind(),
            first_nanos: round_to_u64(self.first),
            samples: self.sample_window.newest().map(CostSample::from).collect(),
            points: self.points(KEPT),
            largest: self.largest,
            tail_permille: self.tail_permille(),
            noise_ppm: round_to_u64(self.shape.noise() * 1e6),
            weights_matter: self.weights_matter,
            weight_milli,
            heaviest_milli,
            padding_permille,
        }
    }

    /// Creates a curve from the state of an earlier process; invalid values are clamped. It has
    /// little weight, so the first batches correct a wrong one.
    pub(super) fn restore(snapshot: &CostSnapshot) -> Self {
        let mut cost = Self::default();
        if snapshot.first_nanos == 0 || snapshot.samples.is_empty() {
            return cost;
        }
        for sample in &snapshot.samples {
            cost.sample_window.put(CostReading::new(*sample));
        }
        cost.samples = u32::try_from(cost.sample_window.iter().count()).unwrap_or(u32::MAX);
        cost.first = CostReading::new(CostSample { nanos: snapshot.first_nanos, ..snapshot.samples[0] }).nanos;
        cost.models = LinearModels::new(snapshot.base);
        cost.typical =
            TypicalLoad::restored(snapshot.weight_milli, &snapshot.heaviest_milli, snapshot.padding_permille);
        cost.shape = CostShape::restored(snapshot.points.iter().map(SizeMean::from), to_f64(snapshot.noise_ppm) / 1e6);
        cost.tail = TailRatio::restored(snapshot.tail_permille);
        cost.largest = snapshot.largest;
        cost.weights_matter = snapshot.weights_matter && snapshot.base != CostMeasure::SizeOnly;
        cost.solve();
        cost
    }

    /// Returns the learned state, for reports.
    pub(super) fn report(&self) -> CostReport {
        let CostGauges { batch_nanos, item_nanos, error_permille, tail_permille } = self.gauges();
        CostReport {
            base: self.base_kind(),
            batch_nanos,
            item_nanos,
            weight_picos: round_to_u64(self.models.line().weight * 1e3),
            shaped: self.has_shape(),
            weights_matter: self.weights_matter,
            points: self.points(u32::MAX),
            samples: self.samples,
            error_permille,
            tail_permille,
        }
    }

    /// Compares a sample with the prediction.
    fn judge(&mut self, reading: &CostReading) -> SampleClass {
        if self.samples < JUDGED_MIN {
            return SampleClass::Normal;
        }
        let ratio = reading.nanos / self.expect(reading.items, reading.load);
        // Beyond the largest known size the prediction is an extrapolation: a knee there does not
        // mean that the server has changed.
        let is_extrapolated = ratio > 1.0 && reading.items > self.largest;
        if !is_extrapolated {
            self.tail.observe(ratio);
        }
        self.watch.observe(ratio, is_extrapolated)
    }

    fn learn(&mut self, reading: CostReading) {
        if self.samples == 0 {
            self.first = reading.nanos;
        }
        self.typical.observe(reading.load, reading.items);
        // Fitting is expensive. Once the models have settled it is done at every eighth sample, and
        // whenever another model fits better or weights start or stop to matter.
        let mut must_solve = self.recent < SOLVED_EACH || self.recent.is_multiple_of(SOLVED_EVERY);
        if self.samples >= COMPARED_MIN {
            must_solve |= self.models.score(&reading);
        }
        must_solve |= self.update_weights_matter(&reading);
        self.shape.observe(reading.items, self.at_typical_weights(&reading));
        self.sample_window.put(reading);
        self.samples = self.samples.saturating_add(1);
        self.recent = self.recent.saturating_add(1);
        self.largest = self.largest.max(reading.items);
        if must_solve {
            self.solve();
        }
    }

    /// Decides whether weights matter. Returns `true` if that has changed.
    fn update_weights_matter(&mut self, reading: &CostReading) -> bool {
        let padding = self.typical.padding();
        let is_costly = || self.models.weight_part(reading.load) > WEIGHT_PART_ON * reading.nanos;
        let matter = self.base_kind() != CostMeasure::SizeOnly
            && (padding > PADDING_ON && is_costly() || self.weights_matter && padding > PADDING_OFF);
        std::mem::replace(&mut self.weights_matter, matter) != matter
    }

    /// Converts a duration to typical weights, and to [`SIZE_MAX`] items if the batch had more.
    fn at_typical_weights(&self, reading: &CostReading) -> f64 {
        if self.samples < CONVERTED_MIN && reading.items <= SIZE_MAX {
            return reading.nanos;
        }
        let typical = self.models.time(self.typical.load(reading.items.min(SIZE_MAX)));
        (reading.nanos * typical / self.models.time(reading.load)).clamp(NANOS_MIN, NANOS_MAX)
    }

    /// Returns the predicted time for this load in nanoseconds: the linear model, corrected by the
    /// shape at this size.
    fn expect(&self, items: u32, load: BatchLoad) -> f64 {
        let line = self.models.time(load);
        if !self.has_shape() {
            return line.min(NANOS_MAX);
        }
        // Past the ends of the curve the last ratio applies.
        let ratio = |(items, nanos)| nanos / self.models.time(self.typical.load(items));
        (line * self.shape.interpolate(items).map_or(1.0, ratio)).clamp(NANOS_MIN, NANOS_MAX)
    }

    /// Returns `true` if the shape is used. Its means are per size, so they are not applicable once
    /// weights matter.
    fn has_shape(&self) -> bool {
        self.shape.is_used() && !self.weights_matter
    }

    /// Fits the models, and tabulates the times of all sizes at typical weights.
    fn solve(&mut self) {
        self.models.fit(&self.sample_window, &self.typical, self.first);
        let mut times = [0.0; SIZE_MAX as usize];
        times.iter_mut().zip(self.typical.loads()).for_each(|(time, load)| *time = self.models.time(load));
        self.shape.draw(&times);
        if self.has_shape() {
            self.shape.bend(&mut times);
        }
        // A larger batch is never predicted to be faster.
        let mut longest = 0;
        self.table.clear();
        self.table.extend(times.iter().map(|time| {
            longest = round_to_u64(time.max(NANOS_MIN)).max(longest);
            longest
        }));
    }

    /// Adapts the curve to a server that is slower or faster by this factor.
    fn rescale(&mut self, factor: f64) {
        self.first = (self.first * factor).clamp(NANOS_MIN, NANOS_MAX);
        self.sample_window.rescale(factor);
        self.models.rescale(factor);
        self.shape.rescale(factor, KEPT);
        self.recent = 0;
    }

    /// Discards what was learned of the server. Typical weights describe the traffic and are kept.
    fn forget(&mut self) {
        self.sample_window.clear();
        self.models = LinearModels::default();
        self.shape.clear();
        self.tail.clear();
        self.samples = 0;
        self.recent = 0;
        self.largest = 0;
    }

    /// Returns the mean time of each observed size, with counts of at most `count_max`.
    fn points(&self, count_max: u32) -> Vec<CurvePoint> {
        let point = |mean: &SizeMean| CurvePoint {
            items: mean.items,
            nanos: round_to_u64(mean.nanos),
            count: mean.count.min(count_max),
        };
        self.shape.means().iter().map(point).collect()
    }
}

impl From<&CurvePoint> for SizeMean {
    fn from(point: &CurvePoint) -> Self {
        let nanos = to_f64(point.nanos).clamp(NANOS_MIN, NANOS_MAX);
        Self { items: point.items, nanos, count: point.count.clamp(1, KEPT) }
    }
}
