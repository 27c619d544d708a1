//! The controller against an API server that the test controls: real sockets, real watches, and
//! every way in which they fail.
//!
//! No test sleeps to let something happen. A test waits for the effect of its action, in the
//! server's store or among the requests that the server has received.

mod api;
mod certs;
mod idle_connections;
mod lease;
mod streams;
mod watch;
mod end_to_end;
