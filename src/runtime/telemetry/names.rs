//! Names, types, labels and help texts of all metrics. A test compares `docs/metrics.md` with these
//! tables.
//!
//! A metric is one row of a table: `proxy_metrics` for the proxy, `controller_metrics` for the
//! controller. A macro in `table` generates from it the variant, its properties, and the handles
//! of its series.

#[macro_use]
mod table;
mod controller_metrics;
mod labels;
mod proxy_metrics;

pub use self::controller_metrics::{AdmissionResult, ControllerMetric, EventResult, WriteResult};
pub use self::labels::{
    EXPIRE_REASONS, FloodReason, HandshakeResult, OTHER_ROUTE, Outcome, OverheadStage, REJECT_REASONS, RelayReason,
    ReloadResult, SLO_RESULTS, UnpredictedReason, VerifyResult, WaitReason,
};
pub use self::proxy_metrics::Metric;
pub use super::kind::MetricKind;

pub(super) use self::controller_metrics::ControllerSeries;
pub(super) use self::proxy_metrics::{
    BatchSeries, CallSeries, ConnectionSeries, ProcessSeries, SchedulerSeries, UpstreamSeries,
};
