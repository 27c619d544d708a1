//! Length-prefixed messages of gRPC: a byte with the compressed flag, a length of four bytes, and
//! the message (gRPC over HTTP/2, "Length-Prefixed-Message").

use bytes::Bytes;

use crate::json::Span;

/// Number of bytes before a message.
pub(crate) const PREFIX_BYTES: usize = 5;

/// Body that is not a single plain message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FrameError {
    /// The message is compressed.
    Compressed,
    /// No message, an incomplete one, or several.
    Length,
}

/// A body with one message, which is appended to it.
#[derive(Debug)]
pub(crate) struct MessageWriter(Vec<u8>);

/// Returns the position of the only message of a body.
pub(crate) fn message(body: &[u8]) -> Result<Span, FrameError> {
    let (flag, length) = match body {
        [flag, a, b, c, d, ..] => (*flag, u32::from_be_bytes([*a, *b, *c, *d])),
        _ => return Err(FrameError::Length),
    };
    if usize::try_from(length).ok() != Some(body.len() - PREFIX_BYTES) {
        return Err(FrameError::Length);
    }
    if flag == 0 { Ok(Span { start: PREFIX_BYTES, end: body.len() }) } else { Err(FrameError::Compressed) }
}

// === impl MessageWriter ===

impl MessageWriter {
    /// Creates a body with room for a message of about `length` bytes.
    pub(crate) fn with_capacity(length: usize) -> Self {
        let mut body = Vec::with_capacity(length.saturating_add(PREFIX_BYTES));
        body.extend_from_slice(&[0; PREFIX_BYTES]);
        Self(body)
    }

    /// Returns the bytes to which the message is appended.
    pub(crate) const fn bytes(&mut self) -> &mut Vec<u8> {
        &mut self.0
    }

    /// Completes the prefix and returns the body.
    pub(crate) fn finish(mut self) -> Bytes {
        // A body is far below 4 GiB: calls and responses have limits.
        let length = u32::try_from(self.0.len() - PREFIX_BYTES).unwrap_or(u32::MAX);
        if let Some(prefix) = self.0.get_mut(1..PREFIX_BYTES) {
            prefix.copy_from_slice(&length.to_be_bytes());
        }
        Bytes::from(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_single_plain_message_is_read() {
        assert_eq!(message(b"\0\0\0\0\x02ab"), Ok(Span { start: 5, end: 7 }));
        assert_eq!(message(b"\0\0\0\0\0"), Ok(Span { start: 5, end: 5 }));
        assert_eq!(message(b"\x01\0\0\0\x02ab"), Err(FrameError::Compressed));
        for body in [&b""[..], b"\0\0\0\0", b"\0\0\0\0\x03ab", b"\0\0\0\0\x01ab", b"\0\0\0\0\x01a\0\0\0\0\0"] {
            assert_eq!(message(body), Err(FrameError::Length), "{body:?}");
        }
    }

    #[test]
    fn a_written_message_is_read_again() {
        let mut writer = MessageWriter::with_capacity(2);
        writer.bytes().extend_from_slice(b"ab");
        assert_eq!(writer.finish(), &b"\0\0\0\0\x02ab"[..]);
    }
}
