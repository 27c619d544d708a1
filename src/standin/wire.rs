//! HTTP/1.1 framing for the stand-ins: bytes in, one message out, nothing else.
//!
//! The load generators shall cost as little as they can, and the misbehaving upstream must write what no HTTP library would let it write. Headers
//! are found, not parsed into a map; chunked bodies are joined; informational answers are skipped. No pipelining, no `HEAD`, no upgrades.

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

/// More than any head the stand-ins are sent.
const HEAD_BYTES_MAX: usize = 256 * 1024;
/// More than any body the stand-ins are sent.
const BODY_BYTES_MAX: usize = 256 * 1024 * 1024;
/// One read takes up to this much; most messages fit.
const READ_BYTES: usize = 16 * 1024;

/// Where a server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// A TCP address.
    Tcp(SocketAddr),
    /// The path of a unix socket.
    Unix(PathBuf),
}

/// The reading half of a connection, and what was read but not used yet.
#[derive(Debug)]
pub(crate) struct Inbox {
    half: ReadHalf,
    buf: BytesMut,
    /// Bytes at the front of `buf` that belong to the message handed out last.
    taken: usize,
    /// The joined body of a chunked message.
    joined: Vec<u8>,
}

/// The writing half of a connection.
#[derive(Debug)]
pub(crate) struct Outbox {
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

/// A connection with both halves in one hand.
#[derive(Debug)]
pub(crate) struct Conn {
    pub(crate) inbox: Inbox,
    pub(crate) outbox: Outbox,
}

/// A whole message, until the next one is read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Message<'a> {
    /// Start line and headers.
    pub(crate) head: &'a [u8],
    /// The body, chunks joined.
    pub(crate) body: &'a [u8],
    /// The status; 0 for a request.
    pub(crate) status: u16,
    /// Whether the connection ends with this message.
    pub(crate) close: bool,
}

/// The state of a connection between two calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Idle {
    /// Ready for the next call.
    Quiet,
    /// Bytes have come that nobody asked for.
    Unasked,
    /// The peer has closed.
    Closed,
}

/// How the end of a body is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Framing {
    Length(usize),
    Chunked,
    UntilClose,
}

#[derive(Debug, Clone, Copy)]
struct Head {
    length: usize,
    status: u16,
    framing: Framing,
    close: bool,
}

enum Body {
    Plain(Range<usize>),
    Joined,
}

// === impl Target ===

impl Target {
    /// Opens a connection.
    pub(crate) async fn connect(&self) -> io::Result<Conn> {
        match self {
            Self::Tcp(addr) => Conn::tcp(TcpStream::connect(addr).await?),
            Self::Unix(path) => Ok(Conn::unix(UnixStream::connect(path).await?)),
        }
    }
}

impl From<SocketAddr> for Target {
    fn from(addr: SocketAddr) -> Self {
        Self::Tcp(addr)
    }
}

// === impl Conn ===

impl Conn {
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
        let inbox = Inbox { half: read, buf: BytesMut::with_capacity(READ_BYTES), taken: 0, joined: Vec::new() };
        Self { inbox, outbox: Outbox { half: write } }
    }

    /// Closes by a reset instead of in order.
    pub(crate) fn reset(self) {
        if let ReadHalf::Tcp(half) = &self.inbox.half {
            // Where the option cannot be set the close is an orderly one, which is a fault as well.
            half.as_ref().set_zero_linger().ok();
        }
        if let WriteHalf::Tcp(half) = self.outbox.half {
            // Dropped in the usual way the half would send a FIN before the reset.
            half.forget();
        }
    }

    /// Sends a whole request and reads the whole answer.
    pub(crate) async fn call(&mut self, request: &[u8]) -> io::Result<Message<'_>> {
        self.outbox.send(request).await?;
        self.inbox.answer().await
    }
}

// === impl Outbox ===

impl Outbox {
    /// Writes all of `bytes`, waiting where it must.
    pub(crate) async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.half {
            WriteHalf::Tcp(half) => half.write_all(bytes).await,
            WriteHalf::Unix(half) => half.write_all(bytes).await,
        }
    }

    /// Ends the writing direction in order.
    pub(crate) async fn finish(&mut self) -> io::Result<()> {
        match &mut self.half {
            WriteHalf::Tcp(half) => half.shutdown().await,
            WriteHalf::Unix(half) => half.shutdown().await,
        }
    }

    /// Writes what fits now, from whoever holds a reference.
    pub(crate) fn try_send(&self, bytes: &[u8]) -> io::Result<usize> {
        match &self.half {
            WriteHalf::Tcp(half) => half.try_write(bytes),
            WriteHalf::Unix(half) => half.try_write(bytes),
        }
    }

    /// Writes all of `bytes` from whoever holds a reference; nobody else may write meanwhile.
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

// === impl Inbox ===

impl Inbox {
    /// Reads the next answer, past any informational ones.
    pub(crate) async fn answer(&mut self) -> io::Result<Message<'_>> {
        loop {
            let head = self.head(true).await?.ok_or(io::ErrorKind::UnexpectedEof)?;
            if !(100..200).contains(&head.status) {
                return self.message(head).await;
            }
            self.taken += head.length;
        }
    }

    /// Reads the next request; `None` where the peer has closed between two of them.
    pub(crate) async fn request(&mut self) -> io::Result<Option<Message<'_>>> {
        match self.head(false).await? {
            Some(head) => self.message(head).await.map(Some),
            None => Ok(None),
        }
    }

    /// What has arrived of a message that is not whole, or of one that nobody asked for.
    pub(crate) fn rest(&self) -> &[u8] {
        self.buf.get(self.taken..).unwrap_or_default()
    }

    /// What a connection on which nothing is awaited has to say, as far as that is known without waiting.
    pub(crate) fn idle(&mut self) -> Idle {
        self.buf.reserve(READ_BYTES);
        let read = match &self.half {
            ReadHalf::Tcp(half) => half.try_read_buf(&mut self.buf),
            ReadHalf::Unix(half) => half.try_read_buf(&mut self.buf),
        };
        match read {
            _ if !self.rest().is_empty() => Idle::Unasked,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Idle::Quiet,
            Ok(_) | Err(_) => Idle::Closed,
        }
    }

    /// Reads and forgets until the peer is gone.
    pub(crate) async fn until_closed(&mut self) {
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

    async fn fill_some(&mut self) -> io::Result<()> {
        match self.fill().await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }

    async fn head(&mut self, answer: bool) -> io::Result<Option<Head>> {
        self.buf.advance(self.taken);
        self.taken = 0;
        let mut searched = 0;
        loop {
            let from = usize::saturating_sub(searched, 3);
            if let Some(at) = self.buf.get(from..).and_then(|rest| memmem::find(rest, b"\r\n\r\n")) {
                let length = from + at + 4;
                return Head::read(&self.buf[..length], answer).map(Some);
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

    async fn message(&mut self, head: Head) -> io::Result<Message<'_>> {
        let body = match head.framing {
            Framing::Length(length) => {
                let end = head.length + length;
                while self.buf.len() < end {
                    self.fill_some().await?;
                }
                self.taken = end;
                Body::Plain(head.length..end)
            }
            Framing::Chunked => {
                let end = self.join(head.length).await?;
                self.taken = end;
                Body::Joined
            }
            Framing::UntilClose => {
                while self.fill().await? != 0 {
                    if self.buf.len() > BODY_BYTES_MAX {
                        return Err(invalid("body too long"));
                    }
                }
                self.taken = self.buf.len();
                Body::Plain(head.length..self.taken)
            }
        };
        let body = match body {
            Body::Plain(range) => &self.buf[range],
            Body::Joined => &self.joined,
        };
        Ok(Message { head: &self.buf[..head.length], body, status: head.status, close: head.close })
    }

    /// Joins the chunks that begin at `at`; returns where the message ends, trailers included.
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
                self.fill_some().await?;
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

    /// Where the line that begins at `at` ends.
    async fn line(&mut self, at: usize) -> io::Result<usize> {
        loop {
            if let Some(end) = self.buf.get(at..).and_then(|rest| memmem::find(rest, b"\r\n")) {
                return Ok(at + end);
            }
            self.fill_some().await?;
        }
    }
}

// === impl Head ===

impl Head {
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
    /// The value of the first header of that name.
    pub(crate) fn header(&self, name: &str) -> Option<&'a [u8]> {
        headers(self.head).find(|(have, _)| have.eq_ignore_ascii_case(name.as_bytes())).map(|(_, value)| value)
    }

    /// Every header, in order.
    pub(crate) fn headers(&self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> + use<'a> {
        headers(self.head)
    }

    /// Method and target of a request.
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
