//! Limits, header lists and checks that heads and bodies share.

use std::fmt::Display;
use std::io;

use httparse::{Header, Status};

/// Maximum size of a head, of trailers and of the line before a chunk, larger than any in these
/// tests.
const SECTION_BYTES_MAX: usize = 256 * 1024;
/// Maximum number of headers. A proxy forwards 100 by default, and adds fewer than ten.
pub(super) const HEADERS_MAX: usize = 128;
/// Number of bytes that an error quotes.
const QUOTE_BYTES: usize = 200;

/// Names and values of headers in order, as received, without white space around the values.
pub type HeaderList<'a> = Vec<(&'a str, &'a [u8])>;
/// A [`HeaderList`] that borrows nothing.
pub type OwnedHeaders = Vec<(String, Vec<u8>)>;

pub(super) fn header_list<'a>(headers: &[Header<'a>]) -> HeaderList<'a> {
    headers.iter().map(|header| (header.name, header.value)).collect()
}

/// Converts the result of a parser: `None` if it needs more bytes and may still receive them.
pub(super) fn complete<T>(bytes: &[u8], parsed: Result<Status<T>, impl Display>) -> io::Result<Option<T>> {
    match parsed {
        Ok(Status::Complete(found)) => Ok(Some(found)),
        Ok(Status::Partial) if bytes.len() > SECTION_BYTES_MAX => Err(invalid("lines without an end", bytes)),
        Ok(Status::Partial) => Ok(None),
        Err(error) => Err(invalid(error, bytes)),
    }
}

/// Checks that each of the lines in the first `length` bytes ends with CRLF.
pub(super) fn check_line_ends(bytes: &[u8], length: usize) -> io::Result<()> {
    let lines = bytes.get(..length).unwrap_or_default();
    let is_crlf = |feed: usize| feed.checked_sub(1).and_then(|before| lines.get(before)) == Some(&b'\r');
    if memchr::memchr_iter(b'\n', lines).all(is_crlf) { Ok(()) } else { Err(invalid("bare line feed", lines)) }
}

/// Returns the error for bytes that violate the protocol.
pub(super) fn invalid(what: impl Display, bytes: &[u8]) -> io::Error {
    let quoted = bytes.get(..QUOTE_BYTES).unwrap_or(bytes).escape_ascii();
    io::Error::new(io::ErrorKind::InvalidData, format!("{what}: {quoted}"))
}
