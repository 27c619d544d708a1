//! What runs in this process: the core against a model, the proxy over real sockets, the rules that hold the tree together.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

mod batching;
mod controller;
mod fuzz_replay;
mod injector;
mod ledger;
mod proxy;
mod redirect;
mod sim;
mod simulated;
mod tidy;

/// Says what is not run here, past what the harness keeps of tests that pass.
fn skipped(why: &str) {
    use std::io::Write as _;
    // Nobody reads it where this fails.
    let _said = writeln!(std::io::stderr(), "SKIPPED: {why}");
}
