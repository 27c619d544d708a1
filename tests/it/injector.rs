//! `groupage inject` and `uninject` run as processes on manifests, with their output compared to
//! golden files.
//!
//! `tests/data/inject/CASE.yaml` is the input; `CASE.out.yaml` and `CASE.report.txt` are the
//! expected standard output and standard error. A first line `# groupage inject FLAGS` adds flags.
//! A case that is rejected has no output file. `UPDATE=1 cargo test --test it injector` rewrites
//! the files.

mod examples;
mod golden;
mod manifests;
mod schemas;
mod binary;
