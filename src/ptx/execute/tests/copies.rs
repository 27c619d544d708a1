//! Asynchronous copies.

use super::run_warp;
use crate::fault::{DeviceFault, FaultKind};

/// Begins a copy of word `lane` of the input to word `lane` of shared memory.
const COPY: &str = "shl.b32 %r2, %r0, 2;\nmul.wide.u32 %rd6, %r2, 1;\nadd.s64 %rd6, %rd6, %rd1;\n\
    cp.async.ca.shared.global [%r2], [%rd6], 4;\n";

/// Begins a copy, with an edit of its operands, commits and waits for it, and loads its target.
fn run_copy(input: &[u32], operands: &str, wait: &str) -> Result<Vec<u64>, DeviceFault> {
    let copy = COPY.replace("[%rd6], 4;", operands);
    run_warp(input, &format!("{copy}{wait}ld.shared.u32 %r9, [%r2];\ncvt.u64.u32 %rd3, %r9;"))
}

const WAIT: &str = "cp.async.commit_group;\ncp.async.wait_group 0;\n";

#[test]
fn async_copies_are_visible_after_the_wait() {
    assert_eq!(run_copy(&[7, 8, 9], "[%rd6], 4;", WAIT).unwrap()[..4], [7, 8, 9, 0]);
    // A group too few, and a copy in no group.
    for wait in ["cp.async.commit_group;\ncp.async.wait_group 1;\n", "cp.async.wait_group 0;\n"] {
        let fault = run_copy(&[7], "[%rd6], 4;", wait).unwrap_err();
        assert!(matches!(fault.kind, FaultKind::IncompleteCopy { .. }), "{fault}");
    }
}

#[test]
fn partial_copies_are_filled_with_zeros() {
    assert_eq!(run_copy(&[0x0403_0201], "[%rd6], 4, 3;", WAIT).unwrap()[0], 0x0003_0201);
    assert_eq!(run_copy(&[7], "[%rd6], 4, 0;", WAIT).unwrap()[0], 0);
    // The source is not read, but its address has to be that of a location, aligned to the copy.
    let fault = run_copy(&[7], "[%rd6+4096], 4, 0;", WAIT).unwrap_err();
    assert!(matches!(fault.kind, FaultKind::OutOfBounds { .. }), "{fault}");
    let fault = run_copy(&[7], "[%rd6+2], 4, 0;", WAIT).unwrap_err();
    assert!(matches!(fault.kind, FaultKind::Misaligned { bytes: 4, .. }), "{fault}");
    let fault = run_copy(&[7], "[%rd6], 4, 5;", WAIT).unwrap_err();
    assert_eq!(fault.kind, FaultKind::CopyLength { length: 5, size: 4 });
}

#[test]
fn targets_of_pending_copies_are_not_written() {
    for write in ["cp.async.ca.shared.global [%r2], [%rd6], 4;", "st.shared.u32 [%r2], %r0;"] {
        // A barrier waits for no copy.
        let body = format!("{COPY}bar.sync 0;\n{write}\nmov.u64 %rd3, 0;");
        let fault = run_warp(&[7], &body).unwrap_err();
        assert!(matches!(fault.kind, FaultKind::PendingCopy { bytes: 4, .. }), "{fault}");
        run_warp(&[7], &body.replace("bar.sync 0;\n", WAIT)).unwrap();
    }
}
