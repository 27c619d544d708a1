//! The simulator: policies against upstreams in virtual time, to the nanosecond and equal for a seed.
//!
//! It drives the core that the proxy runs, beside the batching rules of others, through the same arrivals, and says what each does to goodput and
//! latency (`scheduling.md` §5, §6). `groupage simulate`, the tables and the build's checks use it. It is pure: no clock, no tasks, no files.
//!
//! It leaves out what the proxy itself costs, sockets, and faults other than refusals, stalls and memory; those are tested on the wire.

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

pub use call::{Arrival, Ended, Outcome};
pub use desk::{Counts, Desk};
pub use engine::{Run, run};
pub use policy::{Done, Policy, SentId, Status};
pub use record::{Event, Log};

#[cfg(test)]
mod tests;
