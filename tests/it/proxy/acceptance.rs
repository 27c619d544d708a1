//! Acceptance tests: behaviour that users of other batchers have requested.
//!
//! They run under the adaptive policy. These tests need a server with a cost curve, many clients,
//! or a process; other cases are tested in the other files of `proxy`. Tests that check times are
//! in `tests/timed`, where no other test competes for the cores.

mod callers;
mod overload;
mod process;
mod waiting;

use std::time::Duration;

use groupage::testkit::server::{Server, ServerConfig, ServerHandle};
use serde_json::Value;

use super::setup::{TestProxy, adaptive_spec};

/// Starts a proxy with the adaptive policy in front of a stand-in server.
async fn start_proxy(config: ServerConfig, spec: &Value) -> (TestProxy, ServerHandle) {
    let server = Server::start(config).await.unwrap();
    (TestProxy::start_in_front_of(&server.url(), adaptive_spec(spec)), server)
}

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}
