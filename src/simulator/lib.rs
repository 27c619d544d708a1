//! The batching simulator: runs policies against simulated upstreams in virtual time.
//!
//! It is a discrete-event simulator with nanosecond resolution, and a run is deterministic for a
//! seed. It drives the same core as the proxy, and the batching rules of other systems, with the
//! same arrivals, and measures the goodput and latency of each. `groupage simulate` and the
//! acceptance tables of the scheduler use it. It is pure: no clock, no tasks, no files.
//!
//! Left out: the overhead of the proxy itself, sockets, and faults other than refusals, stalls and
//! running out of memory. Tests over sockets cover those.

use groupage_batching as batching;

pub mod baseline;
pub mod compare;
pub mod curve;
pub mod random;
pub mod live_policy;
pub mod metrics;
pub mod groupage_policy;
pub mod scenario;
pub mod upstream;
pub mod workers;
pub mod workload;
mod event_queue;
mod batch;
mod call;
mod proxy;
mod event_loop;
mod policy;
mod event_log;

pub use batch::{BatchCompletion, ResponseStatus, SimBatchId};
pub use call::{Arrival, CallOutcome, CompletedCall};
pub use event_log::{CoreEvent, EventLog};
pub use event_loop::{RunResult, run};
pub use policy::SimPolicy;
pub use proxy::{DispatchCounts, SimProxy};

#[cfg(test)]
mod tests;
