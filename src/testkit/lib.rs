//! Test kit: simulated model servers, and load generators that verify every response.
//!
//! Nothing in this package serves real traffic. `groupage demo`, the tests, the benchmarks and the
//! soak tests need an upstream with an exactly known cost and a client that detects wrong
//! responses. They all share this package, so that a figure in the README and a figure in a test
//! measure the same thing.
//! - [`server`]: a model server on a real socket with t(n) = a + b·n and a bounded FIFO queue. Its
//!   results depend on the items alone.
//! - [`load`]: open-loop load (Poisson arrivals, latency measured from the scheduled time) and
//!   closed-loop load.
//! - [`integrity`]: a misbehaving upstream and clients that cancel calls, with every item accounted
//!   for.
//! - [`remote`]: the same as separate processes that are controlled over HTTP, for tests on a
//!   cluster.
//! - [`message`]: a strict parser for HTTP/1.1 messages, also for the tests that judge the bytes of
//!   the proxy.
//!
//! The test kit shares two cores with the proxy under test. Therefore `http1` contains a minimal
//! HTTP/1.1 client, which needs no task, one small allocation and only two system calls for each
//! call. The package does not depend on the proxy. It measures from outside and reads the clock
//! itself (`time`).

mod boxed_future;
mod item;
pub mod integrity;
pub mod load;
pub mod message;
mod refusal;
pub mod remote;
pub mod server;
mod skipped;
mod time;
mod http1;

pub use boxed_future::BoxedFuture;
pub use http1::ServerAddr;
pub use item::{DIMENSIONS, Route};
pub use refusal::ListResponse;
pub use skipped::report_skipped;
