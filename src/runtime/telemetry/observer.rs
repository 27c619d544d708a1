//! Observation of every call and execution by route, in addition to the metrics. The control stream
//! uses it for its reports.
//!
//! Metrics other than the call durations have no label for the route, since every label multiplies
//! the number of series, but reports to the controller need it. Without a controller no observer is
//! installed, and the data path does not pay for one.

use std::fmt;
use std::time::Duration;

use super::names::Outcome;
use crate::batching::ScopeId;

/// Receives events of the data path. The methods must not block.
pub trait CallObserver: Send + Sync + fmt::Debug {
    /// A recognised call ended.
    fn on_completion(&self, scope: ScopeId, call: &CompletedCall);

    /// An execution was dispatched. `delays` contains the queueing time of each of its calls.
    fn on_dispatch(&self, scope: ScopeId, items: u32, delays: &mut dyn Iterator<Item = Duration>);

    /// Isolation made an upstream call.
    fn on_isolation(&self);

    /// An execution completed. `well` is `true` if it succeeded.
    fn on_execution(&self, scope: ScopeId, took: Duration, well: bool);
}

/// The end of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompletedCall {
    /// Outcome of the call.
    pub outcome: Outcome,
    /// Latency at the proxy, from arrival to response.
    pub latency: Duration,
    /// Number of items; 0 if the call was never parsed.
    pub items: u32,
    /// SLO of the call, if it has one.
    pub slo: Option<Duration>,
    /// `true` if the server answered with 429 or 5xx.
    pub server_error: bool,
}
