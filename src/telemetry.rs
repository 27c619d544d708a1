//! What the process says about itself: metrics, logs, live counts.
//!
//! Metric names and label values are enums ([`names`]); [`Metrics`] holds one registered handle for each, so the data path touches an atomic and no map.
//! One registry per proxy instance; nothing here is global but the log.

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
pub use observer::{CallEnd, Observer};
pub use registry::{CallLabels, Dispatched, Metrics, Passed, Stats};
pub use writer::LossyWriter;
