//! A randomized simulator of the batching core, reproducible from a seed.
//!
//! A seed draws small limits, a few keys and tenants, and the behaviour of clients and upstream.
//! The [`simulation`] sends calls and runs a fake upstream; time jumps from event to event and to
//! `next_wakeup`, so it lands exactly on deadlines and on the ends of holds. A simple [`model`]
//! counts beside the core and checks every step against the invariants of `InvariantId`. The events
//! and the responses of the core are recorded as a [`trace`], which can be printed and replayed.
//!
//! Left out: payloads, sockets and tasks. They belong to the async shell, which has its own tests.

pub(crate) mod batch;
mod ceiling;
mod checks;
pub(crate) mod random;
pub(crate) mod learned;
pub(crate) mod key_queue;
pub(crate) mod model;
pub(crate) mod invariant;
pub(crate) mod run_parameters;
pub(crate) mod check_seed;
pub(crate) mod trace;
pub(crate) mod simulation;
