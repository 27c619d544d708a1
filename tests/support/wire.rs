//! A connection of a test, for the messages of both sides. The test kit's strict parser
//! (`testkit::message`) reads them. It never repairs: a bare line feed, two lengths, a length
//! beside chunked coding or a malformed chunk is an error, so that the proxy is judged by the bytes
//! that it sends.

use std::io;

use groupage::testkit::message::{self, BodyDecoder, OwnedHeaders, RequestHead, ResponseHead};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

pub(crate) use groupage::testkit::message::Framing;

/// Header names as received and values without surrounding white space, in order.
pub(crate) type Headers = OwnedHeaders;

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
pub(crate) struct RawConnection {
    stream: TcpStream,
    prefix: Vec<u8>,
}

// === impl End ===

impl From<io::Error> for End {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Self::Closed,
            io::ErrorKind::InvalidData => Self::Garbled(error.to_string()),
            _ => Self::Reset,
        }
    }
}

// === impl RawConnection ===

impl RawConnection {
    /// Wraps a connection and disables Nagle's algorithm, so that small writes are sent at once.
    pub(crate) fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self { stream, prefix: Vec::new() })
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
        self.prefix.reserve(16 * 1024);
        Ok(self.stream.read_buf(&mut self.prefix).await? > 0)
    }

    /// Returns the bytes that have arrived after the last message, without waiting.
    pub(crate) fn stray(&mut self) -> Vec<u8> {
        let mut chunk = [0; 4096];
        while let Ok(n) = self.stream.try_read(&mut chunk) {
            if n == 0 {
                break;
            }
            self.prefix.extend(chunk.iter().take(n));
        }
        std::mem::take(&mut self.prefix)
    }

    /// Waits until the peer closes the connection and discards the bytes that it sends meanwhile.
    pub(crate) async fn closed(&mut self) {
        while matches!(self.fill().await, Ok(true)) {
            self.prefix.clear();
        }
    }

    /// Reads the head of a request: method, target and headers. Returns `None` if the connection
    /// ends before its first byte.
    pub(crate) async fn request(&mut self) -> Result<Option<(String, String, Headers)>, End> {
        self.head(|bytes| {
            let Some(head) = RequestHead::parse(bytes)? else { return Ok(None) };
            let request = (head.method.to_owned(), head.target.to_owned(), owned(&head.headers));
            Ok(Some((head.length, request)))
        })
        .await
    }

    /// Reads the head of a response, interim or final: status and headers.
    pub(crate) async fn response(&mut self) -> Result<(u16, Headers), End> {
        let head = self.head(|bytes| {
            let Some(head) = ResponseHead::parse(bytes)? else { return Ok(None) };
            Ok(Some((head.length, (head.status, owned(&head.headers)))))
        });
        head.await?.ok_or(End::Closed)
    }

    /// Reads until `parse` returns the length and the content of a head.
    async fn head<T>(&mut self, parse: impl Fn(&[u8]) -> io::Result<Option<(usize, T)>>) -> Result<Option<T>, End> {
        loop {
            if let Some((length, head)) = parse(&self.prefix)? {
                self.prefix.drain(..length);
                return Ok(Some(head));
            }
            if !self.fill().await? {
                return if self.prefix.is_empty() { Ok(None) } else { Err(End::Closed) };
            }
        }
    }

    /// Reads a body and returns its trailers. Bytes are stored in `body` as they arrive, so that
    /// they are not lost if the caller gives up.
    pub(crate) async fn body(&mut self, framing: Framing, body: &mut Vec<u8>) -> Result<Headers, End> {
        let mut decoder = BodyDecoder::new(framing);
        loop {
            let used = decoder.decode(&self.prefix, body)?;
            self.prefix.drain(..used);
            if decoder.is_complete() {
                return Ok(decoder.into_trailers());
            }
            if !self.fill().await? {
                decoder.on_connection_end()?;
                return Ok(Headers::new());
            }
        }
    }
}

fn owned(headers: &[(&str, &[u8])]) -> Headers {
    headers.iter().map(|(name, value)| ((*name).to_owned(), value.to_vec())).collect()
}

fn borrowed(headers: &Headers) -> impl Iterator<Item = (&str, &[u8])> {
    headers.iter().map(|(name, value)| (name.as_str(), value.as_slice()))
}

/// Returns the framing of a request with these headers.
pub(crate) fn request_framing(headers: &Headers) -> Result<Framing, End> {
    Ok(message::request_framing(borrowed(headers))?)
}

/// Returns the framing of a response with these headers to a request with this method.
pub(crate) fn response_framing(method: &str, status: u16, headers: &Headers) -> Result<Framing, End> {
    Ok(message::response_framing(method, status, borrowed(headers))?)
}

/// Returns all values of a header, in order.
pub(crate) fn values<'a>(headers: &'a Headers, name: &str) -> Vec<&'a [u8]> {
    headers.iter().filter(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_slice()).collect()
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
