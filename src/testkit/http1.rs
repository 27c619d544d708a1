//! A minimal HTTP/1.1 framing layer for the test kit: it reads bytes and returns one message at a
//! time.
//!
//! The load generators must cost as little as possible, and the misbehaving upstream must write
//! bytes that no HTTP library would write. Headers are searched, not parsed into a map. Chunked
//! bodies are joined and informational responses are skipped. Pipelining, `HEAD` and upgrades are
//! not supported.

#[cfg(test)]
mod tests;

use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::path::PathBuf;

use bytes::{Buf, BytesMut};
use memchr::memmem;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream, tcp, unix};

/// Maximum size of a head, larger than any head in these tests.
const HEAD_BYTES_MAX: usize = 256 * 1024;
/// Maximum size of a body, larger than any body in these tests.
const BODY_BYTES_MAX: usize = 256 * 1024 * 1024;
/// Size of a single read. Most messages fit in one.
const READ_BYTES: usize = 16 * 1024;

/// Address of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerAddr {
    /// A TCP address.
    Tcp(SocketAddr),
    /// The path of a Unix socket.
    Unix(PathBuf),
}

/// Read half of a connection, with its buffer of unprocessed bytes.
#[derive(Debug)]
pub(crate) struct MessageReader {
    half: ReadHalf,
    buf: BytesMut,
    /// Number of bytes at the front of `buf` that belong to the last returned message.
    taken: usize,
    /// Joined body of a chunked message.
    joined: Vec<u8>,
}

/// Write half of a connection.
#[derive(Debug)]
pub(crate) struct MessageWriter {
    half: WriteHalf,
}

#[derive(Debug)]
enum ReadHalf {
    Tcp(tcp::OwnedReadHalf),
    Unix(unix::OwnedReadHalf),
}

#[derive(Debug)]
enum WriteHalf {
    Tcp(tcp::OwnedWriteHalf),
    Unix(unix::OwnedWriteHalf),
}

/// A connection with both halves.
#[derive(Debug)]
pub(crate) struct HttpConnection {
    pub(crate) inbox: MessageReader,
    pub(crate) outbox: MessageWriter,
}

/// A complete message. It borrows from the buffer until the next message is read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Message<'a> {
    /// Start line and headers.
    pub(crate) head: &'a [u8],
    /// The body. Chunks are joined.
    pub(crate) body: &'a [u8],
    /// Status code of a response, or 0 for a request.
    pub(crate) status: u16,
    /// `true` if the connection ends after this message.
    pub(crate) close: bool,
}

/// State of a connection between two calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IdleState {
    /// Ready for the next call.
    Quiet,
    /// Unsolicited bytes have arrived.
    Unasked,
    /// The peer has closed the connection.
    Closed,
}

/// Delimitation of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Framing {
    Length(usize),
    Chunked,
    UntilClose,
}

#[derive(Debug, Clone, Copy)]
struct MessageHead {
    length: usize,
    status: u16,
    framing: Framing,
    close: bool,
}

enum BodyLocation {
    Plain(Range<usize>),
    Joined,
}

// === impl ServerAddr ===

impl ServerAddr {
    /// Opens a connection.
    pub(crate) async fn connect(&self) -> io::Result<HttpConnection> {
        match self {
            Self::Tcp(addr) => HttpConnection::tcp(TcpStream::connect(addr).await?),
            Self::Unix(path) => Ok(HttpConnection::unix(UnixStream::connect(path).await?)),
        }
    }
}

impl From<SocketAddr> for ServerAddr {
    fn from(addr: SocketAddr) -> Self {
        Self::Tcp(addr)
    }
}

// === impl HttpConnection ===

impl HttpConnection {
    pub(crate) fn tcp(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        let (read, write) = stream.into_split();
        Ok(Self::of(ReadHalf::Tcp(read), WriteHalf::Tcp(write)))
    }

    fn unix(stream: UnixStream) -> Self {
        let (read, write) = stream.into_split();
        Self::of(ReadHalf::Unix(read), WriteHalf::Unix(write))
    }

    fn of(read: ReadHalf, write: WriteHalf) -> Self {
        let inbox =
            MessageReader { half: read, buf: BytesMut::with_capacity(READ_BYTES), taken: 0, joined: Vec::new() };
        Self { inbox, outbox: MessageWriter { half: write } }
    }

    /// Closes the connection with a TCP reset instead of a FIN.
    pub(crate) fn reset(self) {
        if let ReadHalf::Tcp(half) = &self.inbox.half {
            // If the option cannot be set, the connection is closed with a FIN, which is a fault as
            // well.
            half.as_ref().set_zero_linger().ok();
        }
        if let WriteHalf::Tcp(half) = self.outbox.half {
            // Dropping the half normally would send a FIN before the reset.
            half.forget();
        }
    }

    /// Sends a complete request and reads the complete response.
    pub(crate) async fn call(&mut self, request: &[u8]) -> io::Result<Message<'_>> {
        self.outbox.send(request).await?;
        self.inbox.answer().await
    }
}

// === impl MessageWriter ===

impl MessageWriter {
    /// Writes all of `bytes`, waiting until the socket is writable.
    pub(crate) async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.half {
            WriteHalf::Tcp(half) => half.write_all(bytes).await,
            WriteHalf::Unix(half) => half.write_all(bytes).await,
        }
    }

    /// Closes the write direction.
    pub(crate) async fn finish(&mut self) -> io::Result<()> {
        match &mut self.half {
            WriteHalf::Tcp(half) => half.shutdown().await,
            WriteHalf::Unix(half) => half.shutdown().await,
        }
    }

    /// Writes as much as possible without waiting. It takes `&self`, so the half can be shared.
    pub(crate) fn try_send(&self, bytes: &[u8]) -> io::Result<usize> {
        match &self.half {
            WriteHalf::Tcp(half) => half.try_write(bytes),
            WriteHalf::Unix(half) => half.try_write(bytes),
        }
    }

    /// Writes all of `bytes` through a shared reference. No other task may write concurrently.
    pub(crate) async fn send_shared(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.try_send(bytes) {
                Ok(n) => bytes = bytes.get(n..).unwrap_or_default(),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => match &self.half {
                    WriteHalf::Tcp(half) => half.writable().await?,
                    WriteHalf::Unix(half) => half.writable().await?,
                },
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

// === impl MessageReader ===

impl MessageReader {
    /// Reads the next final response, skipping informational ones.
    pub(crate) async fn answer(&mut self) -> io::Result<Message<'_>> {
        loop {
            let head = self.head(true).await?.ok_or(io::ErrorKind::UnexpectedEof)?;
            if !(100..200).contains(&head.status) {
                return self.message(head).await;
            }
            self.taken += head.length;
        }
    }

    /// Reads the next request. Returns `None` if the peer closed the connection between two
    /// requests.
    pub(crate) async fn request(&mut self) -> io::Result<Option<Message<'_>>> {
        match self.head(false).await? {
            Some(head) => self.message(head).await.map(Some),
            None => Ok(None),
        }
    }

    /// Returns the received bytes of an incomplete message, or of an unsolicited one.
    pub(crate) fn rest(&self) -> &[u8] {
        self.buf.get(self.taken..).unwrap_or_default()
    }

    /// Returns the state of an idle connection, as far as it is known without waiting.
    pub(crate) fn idle(&mut self) -> IdleState {
        self.buf.reserve(READ_BYTES);
        let read = match &self.half {
            ReadHalf::Tcp(half) => half.try_read_buf(&mut self.buf),
            ReadHalf::Unix(half) => half.try_read_buf(&mut self.buf),
        };
        match read {
            _ if !self.rest().is_empty() => IdleState::Unasked,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => IdleState::Quiet,
            Ok(_) | Err(_) => IdleState::Closed,
        }
    }

    /// Discards all input until the peer closes the connection.
    pub(crate) async fn drain_until_closed(&mut self) {
        loop {
            self.buf.clear();
            self.taken = 0;
            match self.fill().await {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
        }
    }

    async fn fill(&mut self) -> io::Result<usize> {
        self.buf.reserve(READ_BYTES);
        match &mut self.half {
            ReadHalf::Tcp(half) => half.read_buf(&mut self.buf).await,
            ReadHalf::Unix(half) => half.read_buf(&mut self.buf).await,
        }
    }

    async fn fill_or_eof(&mut self) -> io::Result<()> {
        match self.fill().await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }

    async fn head(&mut self, answer: bool) -> io::Result<Option<MessageHead>> {
        self.buf.advance(self.taken);
        self.taken = 0;
        let mut searched = 0;
        loop {
            // The terminator may begin in the last three bytes that were already searched.
            let from = usize::saturating_sub(searched, 3);
            if let Some(at) = self.buf.get(from..).and_then(|rest| memmem::find(rest, b"\r\n\r\n")) {
                let length = from + at + 4;
                return MessageHead::read(&self.buf[..length], answer).map(Some);
            }
            searched = self.buf.len();
            if searched > HEAD_BYTES_MAX {
                return Err(invalid("head too long"));
            }
            if self.fill().await? == 0 {
                return if searched == 0 { Ok(None) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
            }
        }
    }

    async fn message(&mut self, head: MessageHead) -> io::Result<Message<'_>> {
        let body = match head.framing {
            Framing::Length(length) => {
                let end = head.length + length;
                while self.buf.len() < end {
                    self.fill_or_eof().await?;
                }
                self.taken = end;
                BodyLocation::Plain(head.length..end)
            }
            Framing::Chunked => {
                let end = self.join(head.length).await?;
                self.taken = end;
                BodyLocation::Joined
            }
            Framing::UntilClose => {
                while self.fill().await? != 0 {
                    if self.buf.len() > BODY_BYTES_MAX {
                        return Err(invalid("body too long"));
                    }
                }
                self.taken = self.buf.len();
                BodyLocation::Plain(head.length..self.taken)
            }
        };
        let body = match body {
            BodyLocation::Plain(range) => &self.buf[range],
            BodyLocation::Joined => &self.joined,
        };
        Ok(Message { head: &self.buf[..head.length], body, status: head.status, close: head.close })
    }

    /// Joins the chunks that begin at `at`, and returns the offset at which the message ends,
    /// including its trailers.
    async fn join(&mut self, mut at: usize) -> io::Result<usize> {
        self.joined.clear();
        loop {
            let line = self.line(at).await?;
            let size = chunk_size(&self.buf[at..line])?;
            at = line + 2;
            if size == 0 {
                break;
            }
            if self.joined.len() + size > BODY_BYTES_MAX {
                return Err(invalid("body too long"));
            }
            while self.buf.len() < at + size + 2 {
                self.fill_or_eof().await?;
            }
            self.joined.extend_from_slice(&self.buf[at..at + size]);
            at += size + 2;
        }
        loop {
            let line = self.line(at).await?;
            let empty = line == at;
            at = line + 2;
            if empty {
                return Ok(at);
            }
        }
    }

    /// Returns the offset at which the line that begins at `at` ends.
    async fn line(&mut self, at: usize) -> io::Result<usize> {
        loop {
            if let Some(end) = self.buf.get(at..).and_then(|rest| memmem::find(rest, b"\r\n")) {
                return Ok(at + end);
            }
            self.fill_or_eof().await?;
        }
    }
}

// === impl MessageHead ===

impl MessageHead {
    fn read(head: &[u8], answer: bool) -> io::Result<Self> {
        let status = if answer { status(head)? } else { 0 };
        let bare = answer && matches!(status, 100..200 | 204 | 304);
        let mut framing = if answer && !bare { Framing::UntilClose } else { Framing::Length(0) };
        let mut close = false;
        for (name, value) in headers(head) {
            if name.eq_ignore_ascii_case(b"content-length") {
                let length = number(value, 10).filter(|&n| n <= BODY_BYTES_MAX);
                let length = length.ok_or_else(|| invalid("content-length"))?;
                if !bare && framing != Framing::Chunked {
                    framing = Framing::Length(length);
                }
            } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
                if !bare {
                    framing = Framing::Chunked;
                }
            } else if name.eq_ignore_ascii_case(b"connection") {
                close = value.eq_ignore_ascii_case(b"close");
            }
        }
        close |= framing == Framing::UntilClose;
        Ok(Self { length: head.len(), status, framing, close })
    }
}

// === impl Message ===

impl<'a> Message<'a> {
    /// Returns the value of the first header with this name.
    pub(crate) fn header(&self, name: &str) -> Option<&'a [u8]> {
        headers(self.head).find(|(have, _)| have.eq_ignore_ascii_case(name.as_bytes())).map(|(_, value)| value)
    }

    /// Returns all headers in order.
    pub(crate) fn headers(&self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> + use<'a> {
        headers(self.head)
    }

    /// Returns the method and the target of a request.
    pub(crate) fn target(&self) -> (&'a [u8], &'a [u8]) {
        let mut words = self.head.split(|&byte| byte == b' ' || byte == b'\r');
        (words.next().unwrap_or_default(), words.next().unwrap_or_default())
    }
}

fn headers(head: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    let mut rest = head.get(memmem::find(head, b"\r\n").map_or(head.len(), |at| at + 2)..).unwrap_or_default();
    std::iter::from_fn(move || {
        let end = memmem::find(rest, b"\r\n")?;
        let line = rest.get(..end)?;
        rest = rest.get(end + 2..)?;
        let colon = memchr::memchr(b':', line)?;
        Some((line.get(..colon)?, line.get(colon + 1..)?.trim_ascii()))
    })
}

fn status(head: &[u8]) -> io::Result<u16> {
    let digits = head.strip_prefix(b"HTTP/1.").and_then(|rest| rest.get(2..5)).ok_or_else(|| invalid("status line"))?;
    number(digits, 10).and_then(|status| u16::try_from(status).ok()).ok_or_else(|| invalid("status"))
}

fn chunk_size(line: &[u8]) -> io::Result<usize> {
    let digits = line.split(|&byte| byte == b';').next().unwrap_or_default().trim_ascii();
    number(digits, 16).filter(|&size| size <= BODY_BYTES_MAX).ok_or_else(|| invalid("chunk size"))
}

fn number(digits: &[u8], radix: u32) -> Option<usize> {
    usize::from_str_radix(std::str::from_utf8(digits).ok()?, radix).ok()
}

fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}
