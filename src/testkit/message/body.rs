//! Decoding of bodies.

use std::io;

use httparse::EMPTY_HEADER;

use super::head::Framing;
use super::syntax::{HEADERS_MAX, OwnedHeaders, check_line_ends, complete, invalid};

/// Maximum size of a body, larger than any body in these tests. It stops an endless one.
const BODY_BYTES_MAX: usize = 256 * 1024 * 1024;

/// A decoder for a body that arrives in pieces.
#[derive(Debug)]
pub struct BodyDecoder {
    state: DecoderState,
    trailers: OwnedHeaders,
}

/// Expected part of a body. The numbers are the bytes that are missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DecoderState {
    Length(u64),
    UntilClose,
    ChunkSize,
    Chunk(u64),
    ChunkEnd,
    Trailers,
    Complete,
}

// === impl BodyDecoder ===

impl BodyDecoder {
    /// Creates a decoder for a body with this framing.
    #[must_use]
    pub const fn new(framing: Framing) -> Self {
        let state = match framing {
            Framing::Empty | Framing::Length(0) => DecoderState::Complete,
            Framing::Length(length) => DecoderState::Length(length),
            Framing::Chunked => DecoderState::ChunkSize,
            Framing::UntilClose => DecoderState::UntilClose,
        };
        Self { state, trailers: OwnedHeaders::new() }
    }

    /// Appends the content of the next bytes to `body`, and returns the number of bytes that belong
    /// to the message and are decoded. The others must be passed again, with those that follow.
    ///
    /// # Errors
    /// The framing is violated ([`io::ErrorKind::InvalidData`]).
    pub fn decode(&mut self, bytes: &[u8], body: &mut Vec<u8>) -> io::Result<usize> {
        let mut at = 0;
        loop {
            match self.decode_part(bytes.get(at..).unwrap_or_default(), body)? {
                0 => return Ok(at),
                used => at += used,
            }
        }
    }

    /// Returns `true` if the message is complete. A body that ends with the connection never is.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.state == DecoderState::Complete
    }

    /// Checks that the body may end with the connection now.
    ///
    /// # Errors
    /// The body is incomplete ([`io::ErrorKind::UnexpectedEof`]).
    pub fn on_connection_end(&self) -> io::Result<()> {
        match self.state {
            DecoderState::UntilClose | DecoderState::Complete => Ok(()),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Returns the trailers of a complete body.
    #[must_use]
    pub fn into_trailers(self) -> OwnedHeaders {
        self.trailers
    }

    /// Makes one transition. Returns the number of bytes that it used, or 0 if it needs more.
    fn decode_part(&mut self, bytes: &[u8], body: &mut Vec<u8>) -> io::Result<usize> {
        let (used, next) = match self.state {
            DecoderState::Length(missing) => match take(missing, bytes, body)? {
                (used, 0) => (used, DecoderState::Complete),
                (used, missing) => (used, DecoderState::Length(missing)),
            },
            DecoderState::UntilClose => (take(u64::MAX, bytes, body)?.0, DecoderState::UntilClose),
            DecoderState::ChunkSize => match parse_chunk_size(bytes)? {
                None => return Ok(0),
                Some((used, 0)) => (used, DecoderState::Trailers),
                Some((used, size)) => (used, DecoderState::Chunk(size)),
            },
            DecoderState::Chunk(missing) => match take(missing, bytes, body)? {
                (used, 0) => (used, DecoderState::ChunkEnd),
                (used, missing) => (used, DecoderState::Chunk(missing)),
            },
            DecoderState::ChunkEnd => match bytes {
                [b'\r', b'\n', ..] => (2, DecoderState::ChunkSize),
                [] | [b'\r'] => return Ok(0),
                _ => return Err(invalid("chunk longer than its size", bytes)),
            },
            DecoderState::Trailers => match parse_trailers(bytes)? {
                None => return Ok(0),
                Some((used, trailers)) => {
                    self.trailers = trailers;
                    (used, DecoderState::Complete)
                }
            },
            DecoderState::Complete => return Ok(0),
        };
        self.state = next;
        Ok(used)
    }
}

/// Parses the line before a chunk. Returns its length and the size of the chunk, or `None` if the
/// line is incomplete.
fn parse_chunk_size(bytes: &[u8]) -> io::Result<Option<(usize, u64)>> {
    let Some((length, size)) = complete(bytes, httparse::parse_chunk_size(bytes))? else { return Ok(None) };
    // The library also accepts a line without a digit, and white space behind the digits.
    let mut parts = bytes.split(|byte| matches!(*byte, b';' | b'\r'));
    let digits = parts.next().unwrap_or_default();
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_hexdigit) {
        return Err(invalid("invalid chunk size", bytes));
    }
    check_line_ends(bytes, length)?;
    Ok(Some((length, size)))
}

/// Parses trailers. Returns their length, with the empty line at their end, or `None` if they are
/// incomplete.
fn parse_trailers(bytes: &[u8]) -> io::Result<Option<(usize, OwnedHeaders)>> {
    let mut fields = [EMPTY_HEADER; HEADERS_MAX];
    let Some((length, headers)) = complete(bytes, httparse::parse_headers(bytes, &mut fields))? else {
        return Ok(None);
    };
    check_line_ends(bytes, length)?;
    let trailers = headers.iter().map(|header| (header.name.to_owned(), header.value.to_vec())).collect();
    Ok(Some((length, trailers)))
}

/// Moves up to `missing` bytes to the body. Returns their number, and that of the bytes that are
/// still missing.
fn take(missing: u64, bytes: &[u8], body: &mut Vec<u8>) -> io::Result<(usize, u64)> {
    let bytes = bytes.get(..usize::try_from(missing).unwrap_or(usize::MAX)).unwrap_or(bytes);
    body.extend_from_slice(bytes);
    if body.len() > BODY_BYTES_MAX {
        return Err(invalid("endless body", bytes));
    }
    Ok((bytes.len(), missing - bytes.len() as u64))
}
