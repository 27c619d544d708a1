//! What users of other batchers have asked for, as tests: the cases of the design's list, each named after what it says, with its number.
//!
//! They run under the policy that learns. Cases that other files show already have their number there; here stand those that need a server with a curve,
//! many callers, or a process. Those whose figures are times run in `tests/timed`, where nothing else takes the cores.

mod callers;
mod overload;
mod process;
mod waiting;

use std::time::Duration;

use groupage::standin::server::{Running, Server, ServerConfig};
use serde_json::Value;

use super::setup::{Proxy, learning};

/// A proxy that learns, before a stand-in.
async fn before(config: ServerConfig, spec: &Value) -> (Proxy, Running) {
    let server = Server::start(config).await.unwrap();
    (Proxy::before(&server.url(), learning(spec)), server)
}

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}
