//! The control stream between a sidecar and the controller.
//!
//! ```text
//! sidecar  client ── POST /v1/stream, HTTP/2 over TLS, the pod's token ──▶ server  controller
//!            ▲  up    Hello, then a Report every 5 s, and Events             │
//!            │  down  Config, Bundle, Goaway, Ping                           ▼
//!     client::SidecarStreamHandler              server::ControllerStreamHandler
//!     (app: applied, stored)                    (controller: tuner)
//! ```
//! The sidecar opens the connection, so a pod needs neither an open port nor permissions in the
//! cluster, and it serves calls whether or not the controller responds. `wire` defines the
//! messages, `frame` the framing, `delivery` exactly-once delivery, `histogram` and `route_counts`
//! the counts: all of these are pure. `client` and `server` are the two ends.
//!
//! The package does not apply a `SidecarConfig` or evaluate a `SidecarReport`: both ends call back
//! into the trait that their user implements.

use groupage_batching as batching;
use groupage_runtime::clock;
use groupage_runtime::permits;
use groupage_runtime::telemetry;
use groupage_runtime::tls;

pub mod client;
pub mod frame;
pub mod delivery;
pub mod token_bucket;
pub mod server;
pub mod histogram;
pub mod route_counts;
pub mod wire;
