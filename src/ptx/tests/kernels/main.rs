//! The committed CUDA kernels, run by the interpreter: results beside references in f64, batch
//! invariance, limits, planted bugs, and the manifest beside the sources.

#![expect(clippy::unwrap_used, reason = "a test that cannot continue reports its place")]

mod storage;
mod manifest;
mod fixture;
mod reference;
mod layer_norm;
mod gemm;
mod attention;
mod pooling;
mod head;
mod encoder;
mod limits;
mod mutants;
mod reproducible;
