//! Three linear models of the cost of a batch, fitted side by side. The one that predicts best is
//! used.
//!
//! *Padded* charges every item as the heaviest one, *ragged* charges the weights as they are, *size
//! only* charges the number of items. The fit is ridge regression in relative error, so that small
//! batches count as much as large ones.

use super::super::math::ln;
use super::NANOS_MIN;
use super::batch_load::{BatchLoad, TypicalLoad};
use super::sample_window::{CostReading, CostSampleWindow};

/// Strength of the ridge regularization, in samples like the first.
const RIDGE: f64 = 0.02;
/// Weight of a new sample in the running error of a model, an EWMA.
const ERROR_SHARE: f64 = 0.05;
/// Maximum error of a sample, in logarithms.
const ERROR_MAX: f64 = 1.0;
/// Ratio of errors below which another model replaces the one in use (hysteresis).
const BETTER: f64 = 0.92;
/// Initial errors: equal, with a slight preference for the simplest model.
const ERRORS_FIRST: [f64; 3] = [0.1, 0.1, 0.09];
/// Share of its initial value below which a pivot is a rounding error: the effect of its
/// coefficient cannot be separated from that of the others.
const PIVOT_MIN: f64 = 1e-13;

/// Measure that determines the cost of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CostMeasure {
    /// The server pads: items × the weight of the heaviest one.
    Padded,
    /// The server packs: the sum of the weights.
    Ragged,
    /// Weights do not affect the cost.
    #[default]
    SizeOnly,
}

/// Linear cost a + b·n + c·x in nanoseconds, where n is the number of items and x the weight in the
/// measure of the model. No coefficient is negative.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LinearFit {
    /// a, the cost of a batch.
    pub(super) batch: f64,
    /// b, the cost of an item.
    pub(super) item: f64,
    /// c, the cost of a unit of weight.
    pub(super) weight: f64,
}

/// The models, their running errors, and the model in use.
#[derive(Debug, Clone)]
pub(super) struct LinearModels {
    /// Fits by `CostMeasure::index`.
    lines: [LinearFit; 3],
    /// Running errors by `CostMeasure::index`.
    errors: [f64; 3],
    /// The model in use.
    chosen: CostMeasure,
}

/// Normal equations of the fit of a, b and c. The matrix is symmetric, so only its upper half is
/// stored, in rows that begin on the diagonal.
#[derive(Debug, Clone, Copy, Default)]
struct NormalEquations {
    /// Row of a.
    one: [f64; 3],
    /// Row of b.
    item: [f64; 2],
    /// Row of c.
    weight: f64,
    /// Right-hand side.
    target: [f64; 3],
}

// === impl CostMeasure ===

impl CostMeasure {
    const ALL: [Self; 3] = [Self::Padded, Self::Ragged, Self::SizeOnly];

    /// Returns the factor of the weight coefficient.
    pub(super) fn weight_term(self, load: BatchLoad) -> f64 {
        match self {
            Self::Padded => load.items * load.max,
            Self::Ragged => load.sum,
            Self::SizeOnly => 0.0,
        }
    }

    const fn index(self) -> usize {
        self as usize
    }
}

// === impl LinearFit ===

impl LinearFit {
    fn time(self, base: CostMeasure, load: BatchLoad) -> f64 {
        (self.batch + self.item * load.items + self.weight * base.weight_term(load)).max(NANOS_MIN)
    }

    fn scale(&mut self, factor: f64) {
        self.batch *= factor;
        self.item *= factor;
        self.weight *= factor;
    }
}

// === impl LinearModels ===

impl Default for LinearModels {
    fn default() -> Self {
        Self::new(CostMeasure::default())
    }
}

impl LinearModels {
    /// Creates models without data. `chosen` is used until another one predicts better.
    pub(super) fn new(chosen: CostMeasure) -> Self {
        let mut errors = ERRORS_FIRST;
        errors.swap(chosen.index(), CostMeasure::SizeOnly.index());
        Self { lines: [LinearFit::default(); 3], errors, chosen }
    }

    pub(super) fn chosen(&self) -> CostMeasure {
        self.chosen
    }

    pub(super) fn line(&self) -> LinearFit {
        self.lines[self.chosen.index()]
    }

    /// Returns the running error of the model in use: the mean absolute logarithm of observed over
    /// predicted time.
    pub(super) fn error(&self) -> f64 {
        self.errors[self.chosen.index()]
    }

    /// Returns the time that the model in use predicts, in nanoseconds.
    pub(super) fn time(&self, load: BatchLoad) -> f64 {
        self.line().time(self.chosen, load)
    }

    /// Returns the part of the predicted time that the weights cause.
    pub(super) fn weight_part(&self, load: BatchLoad) -> f64 {
        self.line().weight * self.chosen.weight_term(load)
    }

    /// Updates the errors with a sample that the models have not been fitted to. Returns `true` if
    /// another model is now in use.
    pub(super) fn score(&mut self, reading: &CostReading) -> bool {
        for base in CostMeasure::ALL {
            let expected = self.lines[base.index()].time(base, reading.load);
            let error = ln(reading.nanos / expected).abs().min(ERROR_MAX);
            self.errors[base.index()] += ERROR_SHARE * (error - self.errors[base.index()]);
        }
        let better_of = |best: CostMeasure, base: CostMeasure| {
            if self.errors[base.index()] < self.errors[best.index()] { base } else { best }
        };
        let best = CostMeasure::ALL.into_iter().fold(self.chosen, better_of);
        let replaces = self.errors[best.index()] < BETTER * self.error();
        if replaces {
            self.chosen = best;
        }
        replaces
    }

    /// Fits all models to the samples. `first` is the time of the first sample: without other data,
    /// half of it is the cost of a batch and half the cost of an item.
    pub(super) fn fit(&mut self, samples: &CostSampleWindow, typical: &TypicalLoad, first: f64) {
        let [mut padded, mut ragged] =
            [NormalEquations::ridge(first, typical.load(1).max), NormalEquations::ridge(first, typical.mean())];
        for reading in samples.iter() {
            let share = 1.0 / reading.nanos;
            let (one, item) = (share, reading.load.items * share);
            padded.add(one, item, CostMeasure::Padded.weight_term(reading.load) * share);
            ragged.add(one, item, CostMeasure::Ragged.weight_term(reading.load) * share);
        }
        self.lines = [padded.solve(true), ragged.solve(true), padded.solve(false)];
    }

    pub(super) fn rescale(&mut self, factor: f64) {
        self.lines.iter_mut().for_each(|line| line.scale(factor));
    }
}

// === impl NormalEquations ===

impl NormalEquations {
    /// Creates the regularization term, which pulls towards (`first` / 2, `first` / 2, 0). `scale`
    /// is a typical weight, so that the unit of weights does not matter.
    fn ridge(first: f64, scale: f64) -> Self {
        let pull = RIDGE / (first * first);
        let target = pull * 0.5 * first;
        Self { one: [pull, 0.0, 0.0], item: [pull, 0.0], weight: pull * scale * scale, target: [target, target, 0.0] }
    }

    /// Adds a sample. All terms are divided by its time.
    fn add(&mut self, one: f64, item: f64, weight: f64) {
        self.one[0] += one * one;
        self.one[1] += one * item;
        self.item[0] += item * item;
        self.target[0] += one;
        self.target[1] += item;
        self.one[2] += one * weight;
        self.item[1] += item * weight;
        self.weight += weight * weight;
        self.target[2] += weight;
    }

    /// Solves for non-negative coefficients: the last negative one is left out, and the rest is
    /// solved again.
    fn solve(&self, weighted: bool) -> LinearFit {
        let mut used = [true, true, weighted];
        loop {
            let found = self.eliminate(used);
            match found.iter().rposition(|effect| *effect < 0.0) {
                Some(negative) => used[negative] = false,
                None => return LinearFit { batch: found[0], item: found[1], weight: found[2] },
            }
        }
    }

    /// Solves by Gaussian elimination without pivoting: the matrix is symmetric and, due to the
    /// ridge, positive definite.
    fn eliminate(&self, used: [bool; 3]) -> [f64; 3] {
        let [a, ab, ac] = self.one;
        let over_a = inverse(a, a, used[0]);
        let over_b = inverse(self.item[0] - over_a * ab * ab, self.item[0], used[1]);
        let bc = self.item[1] - over_a * ab * ac;
        let over_c = inverse(self.weight - over_a * ac * ac - over_b * bc * bc, self.weight, used[2]);
        let [ta, tb, tc] = self.target;
        let tb = tb - over_a * ab * ta;
        let z = over_c * (tc - over_a * ac * ta - over_b * bc * tb);
        let y = over_b * (tb - bc * z);
        let x = over_a * (ta - ab * y - ac * z);
        [x, y, z]
    }
}

/// Returns the inverse of a pivot; zero for a coefficient that is left out.
fn inverse(pivot: f64, before: f64, used: bool) -> f64 {
    if used && pivot > PIVOT_MIN * before { 1.0 / pivot } else { 0.0 }
}
