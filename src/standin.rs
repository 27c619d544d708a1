//! Stand-ins: a model server that only pretends, and load generators that check every answer.
//!
//! Nothing here serves anybody's model. `groupage demo`, the tests, the benches and the soaks need an upstream whose cost is known exactly and a
//! client that notices a wrong answer, and all of them use these, so that a number in the README and a number in a test mean the same thing.
//! - [`server`]: a model server on a real socket, t(n) = a + b·n, a bounded first-come queue; what it answers depends on the items alone.
//! - [`load`]: open-loop (Poisson, latency counted from the scheduled time) and closed-loop load.
//! - [`ledger`]: a misbehaving upstream and restless clients, with books kept over every item.
//! - [`remote`]: the same as processes of their own, told over HTTP what to do, for tests on a cluster.
//!
//! It shares its two cores with the proxy under test, hence the small HTTP/1.1 client of its own in `wire`: no task, no allocation and two system
//! calls for each call. It knows nothing of the proxy: it stands outside and measures, and so it reads the clock itself (`time`).

mod item;
pub mod ledger;
pub mod load;
mod refusal;
pub mod remote;
pub mod server;
mod time;
mod wire;

pub use item::{DIMENSIONS, Route};
pub use refusal::ListRefusal;
pub use wire::Target;
