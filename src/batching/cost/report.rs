//! What is kept across restarts, and what is told: integers only.

use super::super::math::whole;
use super::{Base, Cost, Sample};

/// What a size took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Point {
    /// Items of the batch.
    pub items: u32,
    /// Mean time from dispatch to answer, at typical weights.
    pub nanos: u64,
    /// Samples it stands for: at most 16, at most 3 in a [`Snapshot`].
    pub count: u32,
}

/// What a later process may begin with. It is small, and believed little: a wrong one is corrected by the first batches.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// The model in use.
    pub base: Base,
    /// What the first sample took; 0: nothing was learned.
    pub first_nanos: u64,
    /// The newest 3 samples of each kind of batch.
    pub samples: Vec<Sample>,
    /// Mean times by size.
    pub points: Vec<Point>,
    /// The largest batch.
    pub largest: u32,
    /// The tail ratio.
    pub tail_permille: u64,
    /// Squared relative noise, in millionths.
    pub noise_ppm: u64,
    /// Whether weights decided who shares a batch.
    pub weights_matter: bool,
    /// The mean weight of an item, in thousandths.
    pub weight_milli: u64,
    /// The heaviest item by size bucket, in thousandths; 0: not seen.
    pub heaviest_milli: Vec<u64>,
    /// How far the heaviest item of a batch is above the mean one.
    pub padding_permille: u64,
}

/// What was learned, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The model in use.
    pub base: Base,
    /// a: nanoseconds a batch costs, whatever is in it.
    pub batch_nanos: u64,
    /// b: nanoseconds an item adds.
    pub item_nanos: u64,
    /// c: picoseconds a unit of weight adds.
    pub weight_picos: u64,
    /// Whether the line was found not to fit, so that the points are used.
    pub shaped: bool,
    /// Whether weights decide who shares a batch.
    pub weights_matter: bool,
    /// Mean times by size.
    pub points: Vec<Point>,
    /// Samples since the last change.
    pub samples: u32,
    /// The running error of the line.
    pub error_permille: u64,
    /// The tail ratio q.
    pub tail_permille: u64,
}

/// The line and how well it fits, without the points: cheap enough for every batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) struct Gauges {
    pub(in super::super) batch_nanos: u64,
    pub(in super::super) item_nanos: u64,
    pub(in super::super) error_permille: u64,
    pub(in super::super) tail_permille: u64,
}

impl Cost {
    /// The line and how well it fits.
    pub(in super::super) fn gauges(&self) -> Gauges {
        let line = self.models.line();
        Gauges {
            batch_nanos: whole(line.batch),
            item_nanos: whole(line.item),
            error_permille: whole(self.models.error() * 1e3),
            tail_permille: self.tail_permille(),
        }
    }
}
