//! The bodies of the fuzz targets: each takes any bytes and panics where a promise breaks.
//!
//! They stand in one place for two users: `fuzz_targets/` feeds them what a fuzzer finds, `tests/it/fuzz_replay.rs` includes this file and feeds them the
//! committed corpora in every run of the tests. What a fuzzer finds becomes a file of the corpus.

mod common;
mod config;
mod frames;
mod generic;
mod leak;
mod scanner;
mod webhook;
mod wire;

pub use config::config_load;
pub use frames::frame_heads;
pub use generic::generic_spec;
pub use leak::{merge_key, split_leak};
pub use scanner::json_scanner;
pub use webhook::admission_review;
pub use wire::{read_call, split_batch};

/// A target: any bytes.
pub type Target = fn(&[u8]);

/// Every target by its name, which is also that of its corpus and of its file in `fuzz_targets/`.
pub const ALL: [(&str, Target); 9] = [
    ("admission_review", admission_review),
    ("config_load", config_load),
    ("frame_heads", frame_heads),
    ("generic_spec", generic_spec),
    ("json_scanner", json_scanner),
    ("merge_key", merge_key),
    ("read_call", read_call),
    ("split_batch", split_batch),
    ("split_leak", split_leak),
];
