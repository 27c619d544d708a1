//! Tests of times and rates over sockets: learning, latency objectives and adaptation under a
//! steady load.
//!
//! They are a separate binary and run one after the other. The tests of `it` run concurrently and
//! would use the same cores, which distorts measured times.

#![expect(clippy::unwrap_used, reason = "a test that cannot continue reports its place")]

mod change;
mod load;
mod slo;
mod slots;

#[path = "../it/proxy/setup.rs"]
#[expect(dead_code, reason = "`it` uses all of it")]
mod setup;
#[path = "../support/all.rs"]
#[expect(dead_code, reason = "each test binary uses a part of the support")]
mod support;

use std::time::Duration;

/// Acquires the lock of all tests, so that only one is measured at a time.
async fn quiet() -> tokio::sync::MutexGuard<'static, ()> {
    static TURN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
    TURN.lock().await
}

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}
