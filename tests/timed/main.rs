//! Cases whose figures are times and rates over sockets: what is learned, kept and adapted to under
//! a steady load.
//!
//! They are a binary of their own, and run one after the other: in `it` the tests beside them take
//! the cores, and a figure shows how busy those are.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

mod change;
mod load;
mod promise;
mod slots;

#[path = "../it/proxy/hand.rs"]
#[expect(dead_code, reason = "`it` uses all of it")]
mod hand;
#[path = "../it/proxy/setup.rs"]
#[expect(dead_code, reason = "`it` uses all of it")]
mod setup;
#[path = "../support/all.rs"]
#[expect(dead_code, reason = "each test binary uses a part of the support")]
mod support;

use std::time::Duration;

/// Waits for the turn of a test: none is measured while another runs.
async fn quiet() -> tokio::sync::MutexGuard<'static, ()> {
    static TURN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
    TURN.lock().await
}

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}
