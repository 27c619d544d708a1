//! Shared infrastructure of the proxy and the controller.
//!
//! In reading order:
//! - [`telemetry`] and [`access_log`]: metrics and logs of the process, and one line for each
//!   sampled call. A metric is one row of a table.
//! - [`clock`]: the only access to the system clock. All other code receives the time as an
//!   argument.
//! - [`memory`]: bounds on the memory that peers can make the process hold, and the eviction of
//!   bodies and connections at a bound.
//! - [`socket`] and [`permits`]: listening sockets for both IP versions, and the limits on the
//!   connections of a port, in total and per peer address.
//! - [`tls`]: TLS on both sides of the proxy, with certificates that are reloaded from files.
//!
//! A resource is released by `Drop`, and everything has a bound. HTTP of calls, the control stream
//! and all decisions about calls are left out; handshake timeouts and the watching of files belong
//! to the users of this package.

pub mod telemetry;
pub mod access_log;
pub mod clock;
pub mod memory;
pub mod socket;
pub mod permits;
pub mod tls;

use groupage_batching as batching;
use groupage_protocol::error;
