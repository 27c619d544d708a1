//! Properties of the core and of its parts over random input; what fails is shrunk to its smallest form.
//!
//! The random input is the same in every run (`.cargo/config.toml`), so that a failure is one for everybody; new input comes from `just sim`.

mod adaptive;
mod budget;
mod isolation;
mod sequences;
mod shares;

use proptest::test_runner::Config;

fn config(cases: u32) -> Config {
    // What fails becomes a test with a name: no file of regressions.
    Config { cases, failure_persistence: None, ..Config::default() }
}
