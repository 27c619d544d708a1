//! Bodies of the fuzz targets. Each accepts arbitrary bytes and panics if an invariant is violated.
//!
//! They are separate from the targets because they have two users: `fuzz_targets/` runs them with a
//! fuzzer, and `tests/it/fuzz_replay.rs` includes this file and runs them with the committed
//! corpora in every test run. An input that a fuzzer finds is added to the corpus.

mod common;
mod config;
mod frames;
mod generic;
mod grpc;
mod leak;
mod scanner;
mod webhook;
mod wire;

pub use config::config_load;
pub use frames::frame_heads;
pub use generic::generic_spec;
pub use grpc::grpc_call;
pub use leak::{merge_key, split_leak};
pub use scanner::json_scanner;
pub use webhook::admission_review;
pub use wire::{read_call, split_batch};

/// A fuzz target, which accepts arbitrary bytes.
pub type Target = fn(&[u8]);

/// All targets by name, which is also the name of the corpus and of the file in `fuzz_targets/`.
pub const ALL: [(&str, Target); 10] = [
    ("admission_review", admission_review),
    ("config_load", config_load),
    ("frame_heads", frame_heads),
    ("generic_spec", generic_spec),
    ("grpc_call", grpc_call),
    ("json_scanner", json_scanner),
    ("merge_key", merge_key),
    ("read_call", read_call),
    ("split_batch", split_batch),
    ("split_leak", split_leak),
];
