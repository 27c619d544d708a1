//! The batching simulator: runs policies against simulated upstreams in virtual time.
//!
//! It is a discrete-event simulator with nanosecond resolution, and a run is deterministic for a
//! seed. It drives the same core as the proxy, and the batching rules of other systems, with the
//! same arrivals, and measures the goodput and latency of each. `groupage simulate`, the tables of
//! rows and the tests use it. It is pure: no clock, no tasks, no files.
//!
//! Left out: the overhead of the proxy itself, sockets, and faults other than refusals, stalls and
//! running out of memory. Tests over sockets cover those.

pub mod baseline;
pub mod compare;
pub mod curve;
pub mod draw;
pub mod live;
pub mod metrics;
pub mod oracle;
pub mod ours;
pub mod scenario;
pub mod upstream;
pub mod workload;
mod agenda;
mod call;
mod desk;
mod engine;
mod policy;
mod record;

pub use call::{Arrival, CallOutcome, CompletedCall};
pub use desk::{DispatchCounts, SimProxy};
pub use engine::{RunResult, run};
pub use policy::{BatchCompletion, ResponseStatus, SimBatchId, SimPolicy};
pub use record::{CoreEvent, EventLog};

#[cfg(test)]
mod tests;
