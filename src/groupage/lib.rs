//! Groupage: adaptive batching in front of the model server you already run.
//!
//! Single inference calls arrive; Groupage groups them into batches, sends each batch upstream as
//! one call, and answers each call exactly as if it had been forwarded alone.
//! `docs/architecture.md` is the map of the code.
//!
//! This crate holds the command line (`cli`) and the assembly of a proxy and a controller (`app`).
//! The packages that it assembles are exported for the tests.

pub use groupage_batching as batching;
pub use groupage_control as control;
pub use groupage_controller as controller;
pub use groupage_controller::rollout;
pub use groupage_controller::tuner;
pub use groupage_injector as injector;
pub use groupage_policy::api;
pub use groupage_policy::config;
pub use groupage_protocol as protocol;
pub use groupage_protocol::error;
pub use groupage_proxy as proxy;
pub use groupage_proxy::admin;
pub use groupage_proxy::backend;
pub use groupage_proxy::body;
pub use groupage_proxy::bounded_body;
pub use groupage_proxy::relay;
pub use groupage_proxy::scheduler;
pub use groupage_proxy::upstream;
pub use groupage_runtime::access_log;
pub use groupage_runtime::clock;
pub use groupage_runtime::memory;
pub use groupage_runtime::permits;
pub use groupage_runtime::socket;
pub use groupage_runtime::telemetry;
pub use groupage_runtime::tls;
pub use groupage_simulator as simulator;
pub use groupage_testkit as testkit;

pub mod redirect;
pub mod app;
pub mod cli;
