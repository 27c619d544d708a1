//! Telemetry of the process: metrics, logs, live counts.
//!
//! Metric names and label values are enums ([`names`]). [`Metrics`] holds a registered handle for
//! each, so the data path updates an atomic and performs no map lookup. There is one registry per
//! proxy instance; only the log is global.

mod controller;
mod durations;
mod gauges;
pub mod log;
pub mod names;
mod observer;
mod predicted;
mod registry;
mod writer;

pub use controller::ControllerMetrics;
pub use durations::RouteDurations;
pub use observer::{CallObserver, CompletedCall};
pub use registry::{CallCounters, DispatchSample, LiveCounts, Metrics, UnmergedCounter};
pub use writer::LossyWriter;
