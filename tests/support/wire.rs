//! A strict HTTP/1.1 reader for the heads and bodies of both sides. It never repairs: a bare line
//! feed, two lengths, a length beside chunked coding or a malformed chunk is an error, so that the
//! proxy is judged by the bytes that it sends.

use std::io;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Header names as received and values without surrounding white space, in order.
pub(crate) type Headers = Vec<(String, Vec<u8>)>;

/// Maximum size of a head. The largest one of a case has a header of 40 kB.
const HEAD_BYTES_MAX: usize = 256 * 1024;
/// Maximum size of a body, far above the largest one of a case. It stops an endless response.
const BODY_BYTES_MAX: usize = 256 * 1024 * 1024;

/// Start line and header lines.
#[derive(Debug, Clone, Default)]
pub(crate) struct Head {
    /// Request line or status line, decoded as latin-1.
    pub(crate) start: String,
    pub(crate) headers: Headers,
}

/// Framing of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Framing {
    /// No body.
    Empty,
    /// A body of this number of bytes.
    Length(u64),
    /// Chunked transfer coding.
    Chunked,
    /// A body that ends with the connection.
    UntilClose,
}

/// End of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum End {
    /// Complete according to its framing.
    Proper,
    /// The connection was closed before the message was complete.
    Closed,
    /// The connection was reset before the message was complete.
    Reset,
    /// The bytes are not HTTP/1.1.
    Garbled(String),
}

/// A connection and the bytes that were read from it and not yet consumed.
#[derive(Debug)]
pub(crate) struct Wire {
    stream: TcpStream,
    ahead: Vec<u8>,
}

// === impl End ===

impl End {
    fn of(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Self::Closed,
            io::ErrorKind::InvalidData => Self::Garbled(error.to_string()),
            _ => Self::Reset,
        }
    }
}

fn garbled(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.into())
}

// === impl Wire ===

impl Wire {
    /// Wraps a connection and disables Nagle's algorithm, so that small writes are sent at once.
    pub(crate) fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self { stream, ahead: Vec::new() })
    }

    /// Returns the socket.
    pub(crate) const fn stream(&mut self) -> &mut TcpStream {
        &mut self.stream
    }

    /// Writes all bytes.
    pub(crate) async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes).await
    }

    /// Reads more bytes. Returns `false` at the end of the stream.
    async fn fill(&mut self) -> io::Result<bool> {
        self.ahead.reserve(16 * 1024);
        Ok(self.stream.read_buf(&mut self.ahead).await? > 0)
    }

    /// Returns the bytes that have arrived after the last message, without waiting.
    pub(crate) fn stray(&mut self) -> Vec<u8> {
        let mut chunk = [0; 4096];
        while let Ok(n) = self.stream.try_read(&mut chunk) {
            if n == 0 {
                break;
            }
            self.ahead.extend(chunk.iter().take(n));
        }
        std::mem::take(&mut self.ahead)
    }

    /// Waits until the peer closes the connection and discards the bytes that it sends meanwhile.
    pub(crate) async fn closed(&mut self) {
        while matches!(self.fill().await, Ok(true)) {
            self.ahead.clear();
        }
    }

    /// Reads a head. Returns `None` if the connection ends before its first byte.
    pub(crate) async fn head(&mut self) -> Result<Option<Head>, End> {
        loop {
            if let Some(at) = self.ahead.windows(4).position(|w| w == b"\r\n\r\n") {
                let text: Vec<u8> = self.ahead.drain(..at + 4).collect();
                return parse_head(text.get(..at).unwrap_or_default()).map(Some).map_err(|e| End::of(&e));
            }
            if self.ahead.len() > HEAD_BYTES_MAX {
                return Err(End::Garbled("head without an end".to_owned()));
            }
            match self.fill().await {
                Ok(true) => {}
                Ok(false) if self.ahead.is_empty() => return Ok(None),
                Ok(false) => return Err(End::Closed),
                Err(e) => return Err(End::of(&e)),
            }
        }
    }

    /// Reads a body and returns its trailers. Bytes are stored in `body` as they arrive, so that
    /// they are not lost if the caller gives up.
    pub(crate) async fn body(&mut self, framing: Framing, body: &mut Vec<u8>) -> Result<Headers, End> {
        let read = match framing {
            Framing::Empty => Ok(Headers::new()),
            Framing::Length(n) => self.exactly(n, body).await.map(|()| Headers::new()),
            Framing::Chunked => self.chunks(body).await,
            Framing::UntilClose => self.until_close(body).await.map(|()| Headers::new()),
        };
        read.map_err(|e| End::of(&e))
    }

    async fn exactly(&mut self, mut missing: u64, body: &mut Vec<u8>) -> io::Result<()> {
        loop {
            let take = self.ahead.len().min(usize::try_from(missing).unwrap_or(usize::MAX));
            body.extend(self.ahead.drain(..take));
            missing -= u64::try_from(take).unwrap_or(missing);
            if missing == 0 {
                return Ok(());
            }
            if body.len() > BODY_BYTES_MAX {
                return Err(garbled("endless body"));
            }
            if !self.fill().await? {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    async fn until_close(&mut self, body: &mut Vec<u8>) -> io::Result<()> {
        loop {
            body.append(&mut self.ahead);
            if body.len() > BODY_BYTES_MAX {
                return Err(garbled("endless body"));
            }
            if !self.fill().await? {
                return Ok(());
            }
        }
    }

    async fn line(&mut self) -> io::Result<Vec<u8>> {
        loop {
            if let Some(at) = self.ahead.iter().position(|b| *b == b'\n') {
                let mut line: Vec<u8> = self.ahead.drain(..=at).collect();
                line.pop();
                return if line.pop() == Some(b'\r') { Ok(line) } else { Err(garbled("bare line feed")) };
            }
            if self.ahead.len() > HEAD_BYTES_MAX {
                return Err(garbled("line without an end"));
            }
            if !self.fill().await? {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    async fn chunks(&mut self, body: &mut Vec<u8>) -> io::Result<Headers> {
        loop {
            let line = self.line().await?;
            let size = line.split(|b| *b == b';').next().unwrap_or_default();
            let size = std::str::from_utf8(size).unwrap_or_default();
            if size.is_empty() || !size.bytes().all(|b| b.is_ascii_hexdigit()) {
                return Err(garbled(format!("chunk size {}", line.escape_ascii())));
            }
            let size = u64::from_str_radix(size, 16).map_err(|_| garbled("chunk size"))?;
            if size == 0 {
                break;
            }
            self.exactly(size, body).await?;
            if !self.line().await?.is_empty() {
                return Err(garbled("chunk longer than its size"));
            }
        }
        let mut trailers = Headers::new();
        loop {
            let line = self.line().await?;
            if line.is_empty() {
                return Ok(trailers);
            }
            trailers.push(parse_header(&line)?);
        }
    }
}

fn parse_head(text: &[u8]) -> io::Result<Head> {
    let mut lines = Vec::new();
    for line in text.split(|b| *b == b'\n') {
        lines.push(line.strip_suffix(b"\r").unwrap_or(line));
    }
    let feeds = text.iter().filter(|b| **b == b'\n').count();
    if text.windows(2).filter(|w| w == b"\r\n").count() != feeds
        || text.iter().filter(|b| **b == b'\r').count() != feeds
    {
        return Err(garbled("bare line end in the head"));
    }
    let mut lines = lines.into_iter();
    let start = lines.next().unwrap_or_default().iter().map(|b| char::from(*b)).collect();
    let headers = lines.map(parse_header).collect::<io::Result<_>>()?;
    Ok(Head { start, headers })
}

fn parse_header(line: &[u8]) -> io::Result<(String, Vec<u8>)> {
    let colon = line.iter().position(|b| *b == b':').ok_or_else(|| garbled("header without a colon"))?;
    let (name, value) = line.split_at(colon);
    let token = |b: &u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(b);
    if name.is_empty() || !name.iter().all(token) {
        return Err(garbled(format!("header name {}", name.escape_ascii())));
    }
    let value = value.get(1..).unwrap_or_default();
    Ok((name.iter().map(|b| char::from(*b)).collect(), value.trim_ascii().to_vec()))
}

/// Returns all values of a header, in order.
pub(crate) fn values<'a>(headers: &'a Headers, name: &str) -> Vec<&'a [u8]> {
    headers.iter().filter(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_slice()).collect()
}

/// Returns the framing that the headers declare, or the reason why they are invalid. `silent` is
/// the framing of a message without framing headers.
pub(crate) fn framing(headers: &Headers, silent: Framing) -> Result<Framing, String> {
    let lengths = values(headers, "content-length");
    match (values(headers, "transfer-encoding").as_slice(), lengths.as_slice()) {
        ([], []) => Ok(silent),
        ([], [length]) => {
            let digits = std::str::from_utf8(length).ok().filter(|l| l.bytes().all(|b| b.is_ascii_digit()));
            let length = digits.and_then(|l| l.parse().ok());
            length.map(Framing::Length).ok_or_else(|| "content-length is not a number".to_owned())
        }
        ([coding], []) if coding.eq_ignore_ascii_case(b"chunked") => Ok(Framing::Chunked),
        ([], _) => Err("more than one content-length".to_owned()),
        (_, []) => Err("transfer-encoding is not one chunked".to_owned()),
        _ => Err("content-length beside transfer-encoding".to_owned()),
    }
}

/// Returns `true` if a `connection` header contains this option.
pub(crate) fn nominates(headers: &Headers, option: &str) -> bool {
    connection_options(headers).iter().any(|o| o.eq_ignore_ascii_case(option))
}

/// Returns the options of all `connection` headers.
pub(crate) fn connection_options(headers: &Headers) -> Vec<String> {
    let lines = values(headers, "connection").into_iter().map(String::from_utf8_lossy);
    lines.flat_map(|line| line.split(',').map(|o| o.trim().to_owned()).collect::<Vec<_>>()).collect()
}
