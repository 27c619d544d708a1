//! The proxy over real sockets: clients that write byte by byte on one side, a model server that
//! the test controls on the other.
//!
//! No test sleeps or retries. A test waits for the effect of its action, on the wire or in the
//! proxy's own counters. A wait that takes longer than [`setup::HANG`] fails with its location.

mod acceptance;
mod admin;
mod validate_against;
mod unbatched;
mod batches;
mod binary;
mod cancels;
mod capture;
mod check_local;
mod crashes;
mod deadlines;
mod division;
mod drain;
mod faults;
mod floods;
mod generation;
mod grpc;
mod http2_endpoints;
mod scripted_server;
mod scripted_setup;
mod http2_clients;
mod hostile_clients;
mod crafted_calls;
mod isolation;
mod merge_rules;
mod merged_streams;
mod observe;
mod overload;
mod pass;
mod priorities;
mod process;
mod quoting;
mod refusing;
mod reload;
mod upstream_transports;
mod setup;
mod simulated_tei;
mod simulated_tei_info;
mod state;
mod stream_ledger;
mod streams;
mod tls;
mod tokens;
mod tunnel;
mod verification;
mod explain;

#[path = "../support/all.rs"]
#[expect(dead_code, reason = "each test binary uses a part of the support")]
mod support;
