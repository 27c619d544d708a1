//! Property tests of the batching core and its parts over random input. A failing input is shrunk
//! to its smallest form.
//!
//! The random input is the same in every run (`.cargo/config.toml`), so that a failure reproduces
//! on every machine. `just sim` runs new input.

mod adaptive;
mod budget;
mod isolation;
mod sequences;
mod shares;
