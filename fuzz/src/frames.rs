//! Fuzz target for the heads of HTTP/2 frames.

use groupage::proxy::frames::{FrameHeader, FrameScanner};

/// Scans arbitrary bytes as HTTP/2 frames, whole and in pieces, and asserts that the same heads are
/// found.
pub fn frame_heads(data: &[u8]) {
    let whole = heads(data, data.len().max(1));
    for step in [1, 2, 8, 9, 13] {
        assert_eq!(heads(data, step), whole, "pieces of {step} bytes");
    }
    assert!(9 * whole.len() <= data.len(), "more heads were found than fit into the bytes");
}

fn heads(data: &[u8], step: usize) -> Vec<FrameHeader> {
    let (mut scanner, mut heads) = (FrameScanner::default(), Vec::new());
    for piece in data.chunks(step) {
        scanner.scan(piece, |head| heads.push(head));
    }
    heads
}
