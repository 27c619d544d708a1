//! Snapshots and reports of a cost curve, in integers.

use super::super::math::round_to_u64;
use super::{CostMeasure, CostModel, CostSample};

/// Mean execution time of one size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CurvePoint {
    /// Items in the batch.
    pub items: u32,
    /// Mean time from dispatch to answer, at typical weights.
    pub nanos: u64,
    /// Number of samples in the mean: at most 16, at most 3 in a [`CostSnapshot`].
    pub count: u32,
}

/// State of a cost curve from which a later process starts. It is small and has little weight, so
/// that the first batches correct a wrong one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CostSnapshot {
    /// Model in use.
    pub base: CostMeasure,
    /// Time of the first sample; 0: nothing was learned.
    pub first_nanos: u64,
    /// The newest 3 samples of each kind of batch.
    pub samples: Vec<CostSample>,
    /// Mean times by size.
    pub points: Vec<CurvePoint>,
    /// Size of the largest batch.
    pub largest: u32,
    /// Tail ratio.
    pub tail_permille: u64,
    /// Squared relative noise, in millionths.
    pub noise_ppm: u64,
    /// `true` if weights determined the selection of calls for a batch.
    pub weights_matter: bool,
    /// Mean weight of an item, in thousandths.
    pub weight_milli: u64,
    /// Weight of the heaviest item by size bucket, in thousandths; 0: not observed.
    pub heaviest_milli: Vec<u64>,
    /// Relative excess of the heaviest item of a batch over the mean one.
    pub padding_permille: u64,
}

/// Learned cost curve, for reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CostReport {
    /// Model in use.
    pub base: CostMeasure,
    /// Constant cost of a batch (a), in nanoseconds.
    pub batch_nanos: u64,
    /// Cost of an item (b), in nanoseconds.
    pub item_nanos: u64,
    /// Cost of a unit of weight (c), in picoseconds.
    pub weight_picos: u64,
    /// `true` if the line does not fit, so that the points are used.
    pub shaped: bool,
    /// `true` if weights determine the selection of calls for a batch.
    pub weights_matter: bool,
    /// Mean times by size.
    pub points: Vec<CurvePoint>,
    /// Number of samples since the last change.
    pub samples: u32,
    /// Running error of the linear model.
    pub error_permille: u64,
    /// Tail ratio q.
    pub tail_permille: u64,
}

/// The linear model and its error, without the points: cheap enough to compute after every batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(in super::super) struct CostGauges {
    pub(in super::super) batch_nanos: u64,
    pub(in super::super) item_nanos: u64,
    pub(in super::super) error_permille: u64,
    pub(in super::super) tail_permille: u64,
}

impl CostModel {
    /// Returns the linear model and its error.
    pub(in super::super) fn gauges(&self) -> CostGauges {
        let line = self.models.line();
        CostGauges {
            batch_nanos: round_to_u64(line.batch),
            item_nanos: round_to_u64(line.item),
            error_permille: round_to_u64(self.models.error() * 1e3),
            tail_permille: self.tail_permille(),
        }
    }
}
