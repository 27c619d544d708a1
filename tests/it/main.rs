//! Integration tests that run in one process: the batching core against a model, the proxy over
//! real sockets, the controller against a fake API server, and the rules that the source tree
//! follows.

#![expect(clippy::unwrap_used, reason = "a test that cannot continue reports its place")]

mod batching;
mod controller;
mod demo;
mod fuzz_replay;
mod injector;
mod ledger;
mod proxy;
mod redirect;
mod sim;
mod tidy;

use groupage::testkit::report_skipped;
