//! Telemetry of the process: metrics, logs, live counts.
//!
//! Metric names and label values are enums ([`names`]). [`Metrics`] holds a registered handle for
//! each, so the data path updates an atomic and performs no map lookup. There is one registry per
//! proxy instance; only the log is global.

mod controller_metrics;
mod durations;
mod port_gauges;
mod live;
pub mod log;
pub mod names;
mod observer;
mod shadow_metrics;
mod registry;
mod routes;
mod series;
mod writer;

pub use controller_metrics::ControllerMetrics;
pub use durations::RouteDurations;
pub use live::LiveCounts;
pub use observer::{CallObserver, CompletedCall};
pub use registry::{CallCounters, DispatchSample, Metrics, UnmergedCounter};
pub use writer::LossyWriter;
