//! `groupage inject` and `uninject` as processes: pods in, pods out, held to golden files.
//!
//! `tests/data/inject/CASE.yaml` goes in; `CASE.out.yaml` and `CASE.report.txt` are what comes out, on standard output and standard error. A first line
//! `# groupage inject FLAGS` adds flags. A case that is refused has no output. `UPDATE=1 cargo test --test it injector` rewrites them.

mod golden;
mod manifests;
mod schemas;
mod binary;
