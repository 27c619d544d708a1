//! The simulator of the batching core: one seed, one story.
//!
//! A seed draws small limits, a handful of keys and tenants, and a mood. The [`world`] sends calls and runs a fake upstream; time jumps from event to
//! event and to `next_wakeup`, so it lands exactly on deadlines and on the ends of holds. A plain [`model`] counts beside the core and holds every step
//! against the promises of `InvariantId`. What the core was told and what it said is kept as a [`trace`], which prints as the story and can be replayed.
//!
//! What it leaves out: bytes, sockets and tasks; those are the shell's, and its own tests hold them.

pub(crate) mod batch;
mod ceiling;
mod checks;
pub(crate) mod draw;
pub(crate) mod learned;
pub(crate) mod line;
pub(crate) mod model;
pub(crate) mod promise;
pub(crate) mod setting;
pub(crate) mod story;
pub(crate) mod trace;
pub(crate) mod world;
