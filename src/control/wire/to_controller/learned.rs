//! State that the scheduler of a sidecar has learned about its model server: concurrency, costs and
//! limits, by cost class.

use serde::{Deserialize, Serialize};

use super::super::LimiterState;

/// State that the scheduler learned about a model server.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LearnedReport {
    /// Number of batches that the server executes concurrently.
    pub slots: u32,
    /// Lead in microseconds: time before a batch returns at which the next one may be dispatched.
    pub lead_us: u64,
    /// EWMA of execution times, in microseconds.
    pub mean_us: u64,
    /// Number of times that a change of the server was detected since the sidecar started.
    pub changes: u64,
    /// State of the concurrency limiters.
    pub concurrency: LimiterSummary,
    /// Highest weight limit of a cost class, learned from rejections or failures. `None` while a
    /// class was never refused for its weight.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight_ceiling: Option<u64>,
    /// Smallest limit on items that was learned or published.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub items_ceiling: Option<u64>,
    /// Batch costs by cost class, the busiest first.
    pub classes: Vec<ClassCostReport>,
    /// SLOs that no execution can meet.
    pub infeasible: Vec<InfeasibleSlo>,
}

/// State of a server's concurrency limiters. `learning` and `trying` describe the busiest cost
/// class.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LimiterSummary {
    /// Every call is forwarded on arrival.
    pub open: bool,
    /// Too few responses were observed to determine the server's concurrency.
    pub learning: bool,
    /// A trial of another limit is in progress.
    pub trying: bool,
}

/// Learned batch cost of a cost class.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClassCostReport {
    /// Name of the cost class, escaped with `u8::escape_ascii`.
    pub class: String,
    /// Readable description of the calls: their path, and their model if they name one. Empty from
    /// a sidecar without this field.
    pub calls: String,
    /// Constant term of the linear fit, the cost of a batch, in microseconds.
    pub batch_us: u64,
    /// Linear term of the fit, the cost of an item, in nanoseconds: for small models it is less
    /// than a microsecond.
    pub item_ns: u64,
    /// Number of observed batches.
    pub samples: u64,
    /// Relative error of the linear fit, in thousandths.
    pub error_permille: u64,
    /// Tail ratio, the 98th percentile of observed over predicted execution time, in thousandths.
    pub tail_permille: u64,
    /// Mean weight of an item, in thousandths.
    pub weight_milli: u64,
    /// Execution time of one item, in microseconds; 0 if unknown.
    pub lone_us: u64,
    /// 98th percentile of the time of one item with nothing else in flight, in microseconds; 0 if
    /// no call was alone in flight yet.
    pub lone_late_us: u64,
    /// Mean times by size, as triples of items, microseconds and samples.
    pub points: Vec<(u32, u64, u32)>,
    /// Concurrency limiter of the class. Absent if it has no result yet, and from a sidecar without
    /// this field.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limiter: Option<LimiterState>,
    /// Present if merging is suspended: the server rejects batches, or accepts one item per call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suspended: Option<MergingSuspension>,
}

/// Reason why merging is suspended for a cost class.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MergingSuspension {
    /// Response to the last batch, as one word: `status`, `too_large`, `mismatch`, `usage`,
    /// `reset`, `out_of_memory`, `silence`, `overload`; `one_item` if the server's limit is one
    /// item.
    pub answer: String,
    /// Status code of that response, if it was an error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
}

/// An SLO that is shorter than the time of an unbatched call.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct InfeasibleSlo {
    /// Name of the route.
    pub route: String,
    /// The SLO in microseconds.
    pub slo_us: u64,
    /// 98th percentile of the time of an unbatched call, in microseconds.
    pub lone_us: u64,
}
