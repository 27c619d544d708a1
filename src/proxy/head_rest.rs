//! The rest of a long head of HTTP/1, kept from hyper until it is whole.
//!
//! hyper looks for the end of a head in every byte that it is given, one after the other
//! (`is_complete_fast` in its `proto::h1::role`): of heads that never end that was 60 % of what
//! they cost. The rest of a long one is searched here, with SIMD, and given to hyper in one piece.

use bytes::Bytes;

/// Bytes of a head that hyper is given as they come: its first read buffer, in which heads of usual
/// clients are whole.
pub(super) const DIRECT_MAX: usize = 8 << 10;

/// The rest of one head.
#[derive(Debug, Default)]
pub(super) struct HeadRest {
    bytes: Vec<u8>,
}

// === impl HeadRest ===

impl HeadRest {
    /// Adds bytes; returns `true` once the head may be whole.
    pub(super) fn push(&mut self, fresh: &[u8]) -> bool {
        // An end may begin in what was there before, or in what hyper has.
        let from = self.bytes.len().saturating_sub(2);
        // Exact: a buffer that doubles would hold more than is charged for it.
        self.bytes.reserve_exact(fresh.len());
        self.bytes.extend_from_slice(fresh);
        let searched = self.bytes.get(from..).unwrap_or_default();
        (from == 0 && begins_line(searched))
            || memchr::memchr_iter(b'\n', searched)
                .any(|at| searched.get(at + 1..).is_some_and(|after| !after.is_empty() && begins_line(after)))
    }

    /// Takes all of it.
    pub(super) fn take(&mut self) -> Bytes {
        std::mem::take(&mut self.bytes).into()
    }
}

/// Returns `true` where an empty line begins here, or may: its end has not come.
fn begins_line(bytes: &[u8]) -> bool {
    matches!(bytes, [b'\n', ..] | [b'\r', b'\n', ..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_whole_with_its_empty_line_however_it_is_cut() {
        for head in [&b"a: b\r\nc: d\r\n\r\n"[..], b"a: b\nc: d\n\n", b"a: b\r\n\n"] {
            for cut in 1..head.len() {
                let mut rest = HeadRest::default();
                let (first, last) = head.split_at(cut);
                assert!(!rest.push(first), "{cut}");
                assert!(rest.push(last), "{cut}");
                assert_eq!(rest.take(), head);
                assert!(rest.take().is_empty());
            }
        }
    }

    #[test]
    fn an_end_that_began_in_what_hyper_has_is_found() {
        for rest in [&b"\n"[..], b"\r\n", b"\n\r\n", b"\r\n\r\n"] {
            assert!(HeadRest::default().push(rest), "{rest:?}");
            let mut apart = HeadRest::default();
            assert!(rest.iter().any(|byte| apart.push(&[*byte])), "{rest:?}");
        }
    }

    #[test]
    fn lines_that_go_on_are_no_end() {
        let mut rest = HeadRest::default();
        for _ in 0..100 {
            assert!(!rest.push(b"x: y\r\n"));
        }
    }
}
