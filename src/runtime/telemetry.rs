//! Telemetry of the process: metrics, logs, live counts.
//!
//! Metric names and label values are enums ([`names`]); a metric is one row of a table there.
//! [`Metrics`] holds the registered handles of its series, so the data path updates an atomic and
//! performs no map lookup. There is one registry per proxy instance; only the log is global.

pub mod names;
mod kind;
mod series;
mod registry;
mod port_gauges;
mod routes;
mod labelled_counts;
mod call_metrics;
mod batch_metrics;
mod connection_metrics;
mod process_metrics;
mod durations;
mod shadow_metrics;
mod engine_metrics;
mod controller_metrics;
mod live;
mod observer;
pub mod log;
mod writer;

pub use batch_metrics::DispatchSample;
pub use call_metrics::{CallCounters, UnmergedCounter, UnrecognisedCounter};
pub use controller_metrics::ControllerMetrics;
pub use durations::RouteDurations;
pub use engine_metrics::EngineDeviceCounts;
pub use live::LiveCounts;
pub use observer::{CallObserver, CompletedCall};
pub use registry::Metrics;
pub use writer::LossyWriter;
