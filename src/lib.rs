//! Groupage: adaptive batching in front of the model server you already run.
//!
//! Single inference calls arrive; Groupage groups them into batches, sends each batch upstream as
//! one call, and answers each call exactly as if it had been forwarded alone.
//! `docs/architecture.md` is the map of the code. The modules are listed in reading order, and each
//! may import only from those above it (a test enforces this table).

pub mod error;
pub mod batching;
pub mod telemetry;
pub mod accesslog;
pub mod api;
pub mod clock;
pub mod memory;
pub mod socket;
pub mod places;
pub mod redirect;
pub mod tls;
pub mod protocol;
pub mod body;
pub mod relay;
pub mod gather;
pub mod standin;
pub mod simulate;
pub mod backend;
pub mod upstream;
pub mod scheduler;
pub mod proxy;
pub mod admin;
pub mod config;
pub mod injector;
pub mod control;
pub mod tuner;
pub mod rollout;
pub mod controller;
pub mod cli;
