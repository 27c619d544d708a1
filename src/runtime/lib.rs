//! What the proxy and the controller share: telemetry, TLS, clocks, memory budgets, and the
//! addresses of a pod. The modules are listed in reading order.

pub mod telemetry;
pub mod access_log;
pub mod clock;
pub mod memory;
pub mod socket;
pub mod permits;
pub mod tls;

use groupage_batching as batching;
use groupage_protocol::error;
