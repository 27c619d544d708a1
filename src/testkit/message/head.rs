//! Heads of messages, and the framing of the bodies that follow them.

use std::io;

use httparse::{EMPTY_HEADER, Status};

use super::syntax::{HEADERS_MAX, HeaderList, check_line_ends, complete, header_list, invalid};

/// Head of a request.
#[derive(Debug, Clone)]
pub struct RequestHead<'a> {
    /// Method as received.
    pub method: &'a str,
    /// Request target as received.
    pub target: &'a str,
    /// Headers of the request.
    pub headers: HeaderList<'a>,
    /// Number of bytes of the head, with the empty line at its end.
    pub length: usize,
}

/// Head of a response, interim or final.
#[derive(Debug, Clone)]
pub struct ResponseHead<'a> {
    /// Status code, at least 100.
    pub status: u16,
    /// Headers of the response.
    pub headers: HeaderList<'a>,
    /// Number of bytes of the head, with the empty line at its end.
    pub length: usize,
}

/// Delimitation of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    /// No body.
    Empty,
    /// A body of this number of bytes.
    Length(u64),
    /// Chunked transfer coding.
    Chunked,
    /// A body that ends with the connection.
    UntilClose,
}

// === impl RequestHead ===

impl<'a> RequestHead<'a> {
    /// Parses the head at the start of `bytes`. Returns `None` if it is incomplete.
    ///
    /// # Errors
    /// The bytes are not a request of HTTP/1.1 or HTTP/1.0 ([`io::ErrorKind::InvalidData`]).
    pub fn parse(bytes: &'a [u8]) -> io::Result<Option<Self>> {
        let mut fields = [EMPTY_HEADER; HEADERS_MAX];
        let mut request = httparse::Request::new(&mut fields);
        let Some(length) = head_length(bytes, request.parse(bytes))? else { return Ok(None) };
        let (method, target) = (request.method.unwrap_or_default(), request.path.unwrap_or_default());
        Ok(Some(Self { method, target, headers: header_list(request.headers), length }))
    }
}

// === impl ResponseHead ===

impl<'a> ResponseHead<'a> {
    /// Parses the head at the start of `bytes`. Returns `None` if it is incomplete.
    ///
    /// # Errors
    /// The bytes are not a response of HTTP/1.1 or HTTP/1.0 ([`io::ErrorKind::InvalidData`]).
    pub fn parse(bytes: &'a [u8]) -> io::Result<Option<Self>> {
        let mut fields = [EMPTY_HEADER; HEADERS_MAX];
        let mut response = httparse::Response::new(&mut fields);
        let Some(length) = head_length(bytes, response.parse(bytes))? else { return Ok(None) };
        let status = response.code.filter(|code| *code >= 100).ok_or_else(|| invalid("invalid status", bytes))?;
        Ok(Some(Self { status, headers: header_list(response.headers), length }))
    }
}

/// Returns the framing of a request with these headers.
///
/// # Errors
/// The headers contradict each other or are invalid ([`io::ErrorKind::InvalidData`]).
pub fn request_framing<'h>(headers: impl IntoIterator<Item = (&'h str, &'h [u8])>) -> io::Result<Framing> {
    Ok(declared_framing(headers)?.unwrap_or(Framing::Empty))
}

/// Returns the framing of a response with these headers to a request with this method.
///
/// # Errors
/// The headers contradict each other or are invalid ([`io::ErrorKind::InvalidData`]), even if the
/// response has no body because of its status or the method.
pub fn response_framing<'h>(
    method: &str,
    status: u16,
    headers: impl IntoIterator<Item = (&'h str, &'h [u8])>,
) -> io::Result<Framing> {
    let framing = declared_framing(headers)?.unwrap_or(Framing::UntilClose);
    let is_bodiless = method == "HEAD" || matches!(status, 100..200 | 204 | 304);
    Ok(if is_bodiless { Framing::Empty } else { framing })
}

fn declared_framing<'h>(headers: impl IntoIterator<Item = (&'h str, &'h [u8])>) -> io::Result<Option<Framing>> {
    let mut declared = None;
    for (name, value) in headers {
        let framing = if name.eq_ignore_ascii_case("content-length") {
            let digits = std::str::from_utf8(value).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
            let length = digits.and_then(|digits| digits.parse().ok());
            Framing::Length(length.ok_or_else(|| invalid("content-length is not a number", value))?)
        } else if name.eq_ignore_ascii_case("transfer-encoding") {
            if !value.eq_ignore_ascii_case(b"chunked") {
                return Err(invalid("transfer-encoding is not one chunked", value));
            }
            Framing::Chunked
        } else {
            continue;
        };
        if declared.replace(framing).is_some() {
            return Err(invalid("more than one content-length or transfer-encoding", value));
        }
    }
    Ok(declared)
}

/// Returns the headers of a complete head, of a request or of a response.
pub(crate) fn head_headers(head: &[u8]) -> HeaderList<'_> {
    let start = memchr::memchr(b'\n', head).map_or(head.len(), |at| at + 1);
    let mut fields = [EMPTY_HEADER; HEADERS_MAX];
    match httparse::parse_headers(head.get(start..).unwrap_or_default(), &mut fields) {
        Ok(Status::Complete((_, headers))) => header_list(headers),
        Ok(Status::Partial) | Err(_) => Vec::new(),
    }
}

/// Returns the length of a head that a parser accepted, or `None` if the head is incomplete.
fn head_length(bytes: &[u8], parsed: httparse::Result<usize>) -> io::Result<Option<usize>> {
    if matches!(bytes, [b'\r' | b'\n', ..]) {
        return Err(invalid("empty line before the start line", bytes));
    }
    let Some(length) = complete(bytes, parsed)? else { return Ok(None) };
    check_line_ends(bytes, length)?;
    Ok(Some(length))
}
