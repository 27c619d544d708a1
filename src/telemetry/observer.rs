//! A port for whoever wants to know of every call and execution by route, beside the metrics: the control stream's counts.
//!
//! Metrics have no route as a label, since every label multiplies series; reports to the controller need it. Nobody listens unless there is a controller, and
//! then the data path pays for it and not before.

use std::fmt;
use std::time::Duration;

use super::names::Outcome;
use crate::batching::ScopeId;

/// Told of what happens on the data path. It must not block and answers nothing.
pub trait Observer: Send + Sync + fmt::Debug {
    /// A recognised call ended.
    fn ended(&self, scope: ScopeId, call: &CallEnd);

    /// An execution left, carrying these calls, each having waited so long for it.
    fn dispatched(&self, scope: ScopeId, items: u32, delays: &mut dyn Iterator<Item = Duration>);

    /// Isolation made an upstream call.
    fn isolated(&self);

    /// An execution came back, well or not.
    fn executed(&self, scope: ScopeId, took: Duration, well: bool);
}

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallEnd {
    /// How.
    pub outcome: Outcome,
    /// Arrival to answer at the proxy.
    pub latency: Duration,
    /// Its items; 0 where it was never read.
    pub items: u32,
    /// Within how long it was to be answered.
    pub slo: Option<Duration>,
    /// It was answered, and the server said with 429 or 5xx that it could not.
    pub server_error: bool,
}
