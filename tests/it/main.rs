//! What runs in this process: the core against a model, the proxy over real sockets, the rules that hold the tree together.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

mod batching;
mod fuzz_replay;
mod ledger;
mod proxy;
mod sim;
mod simulated;
mod tidy;
