//! The control stream between a sidecar and the controller.
//!
//! ```text
//! sidecar  client ── POST /v1/stream, HTTP/2 over TLS, a token of the pod's ──▶ server  controller
//!            ▲  up    Hello, then a Report every 5 s, and Events                 │
//!            │  down  Config, Bundle, Goaway, Ping                               ▼
//!          Sidecar (cli: put in force, kept)                          Hub (controller: tuner, status)
//! ```
//! The sidecar dials, so no pod needs an open port or a right in the cluster, and it serves whether or not anybody answers. `wire` is what is said, `frame` how
//! it is cut, `ledger` what has arrived, `sketch` and `tally` what is counted: all pure. `client` and `server` are the two ends.
//!
//! It leaves out what a `Config` means and what a `Report` leads to: both are given by whoever uses an end.

pub mod client;
pub mod frame;
pub mod ledger;
pub mod meter;
pub mod server;
pub mod sketch;
pub mod tally;
pub mod wire;
