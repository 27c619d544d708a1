//! The controller against an API server at the test's hands: real sockets, real watches, and every way in which they fail.
//!
//! Nothing here sleeps to let something happen: a test waits for what it caused, in the server's store or in what was asked of it.

mod api;
mod certs;
mod crowded;
mod lease;
mod streams;
mod watch;
mod whole;
