//! Buffers the rest of a long HTTP/1 head until it may be complete, which hyper then decides.
//!
//! hyper searches for the end of a head byte by byte (`is_complete_fast` in its `proto::h1::role`),
//! which was 60 % of the cost of heads that never end. The rest of a long head is searched here
//! with SIMD and passed to hyper in one piece.

use bytes::Bytes;

/// Bytes of a head that are passed to hyper as they arrive: the size of its first read buffer, in
/// which the head of a typical client is complete.
pub(super) const DIRECT_MAX: usize = 8 << 10;

/// The buffered rest of one head.
#[derive(Debug, Default)]
pub(super) struct LongHeadBuffer {
    bytes: Vec<u8>,
}

// === impl LongHeadBuffer ===

impl LongHeadBuffer {
    /// Appends bytes; returns `true` once the head may be complete.
    pub(super) fn push(&mut self, fresh: &[u8]) -> bool {
        // The end may begin in bytes that were buffered before, or in bytes that hyper already has.
        let from = self.bytes.len().saturating_sub(2);
        // Exact, because a buffer that grows by doubling would hold more than is charged for it.
        self.bytes.reserve_exact(fresh.len());
        self.bytes.extend_from_slice(fresh);
        let searched = self.bytes.get(from..).unwrap_or_default();
        (from == 0 && begins_line(searched))
            || memchr::memchr_iter(b'\n', searched)
                .any(|at| searched.get(at + 1..).is_some_and(|after| !after.is_empty() && begins_line(after)))
    }

    /// Takes the buffered bytes.
    pub(super) fn take(&mut self) -> Bytes {
        std::mem::take(&mut self.bytes).into()
    }
}

/// Returns `true` if an empty line begins at this position.
fn begins_line(bytes: &[u8]) -> bool {
    matches!(bytes, [b'\n', ..] | [b'\r', b'\n', ..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_complete_with_its_empty_line_for_any_split() {
        for head in [&b"a: b\r\nc: d\r\n\r\n"[..], b"a: b\nc: d\n\n", b"a: b\r\n\n"] {
            for cut in 1..head.len() {
                let mut rest = LongHeadBuffer::default();
                let (first, last) = head.split_at(cut);
                assert!(!rest.push(first), "{cut}");
                assert!(rest.push(last), "{cut}");
                assert_eq!(rest.take(), head);
                assert!(rest.take().is_empty());
            }
        }
    }

    #[test]
    fn the_end_of_a_head_is_found_if_its_first_bytes_were_passed_on_before() {
        for rest in [&b"\n"[..], b"\r\n", b"\n\r\n", b"\r\n\r\n"] {
            assert!(LongHeadBuffer::default().push(rest), "{rest:?}");
            let mut apart = LongHeadBuffer::default();
            assert!(rest.iter().any(|byte| apart.push(&[*byte])), "{rest:?}");
        }
    }

    #[test]
    fn header_lines_without_an_empty_line_do_not_end_the_head() {
        let mut rest = LongHeadBuffer::default();
        for _ in 0..100 {
            assert!(!rest.push(b"x: y\r\n"));
        }
    }
}
