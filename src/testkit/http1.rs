//! Minimal HTTP/1.1 connections for the test kit: they return one message at a time.
//!
//! The load generators must cost as little as possible, and the misbehaving upstream must write
//! bytes that no HTTP library would write. `message` parses what arrives. Chunked bodies are joined
//! and informational responses are skipped. Pipelining, `HEAD` and upgrades are not supported.

#[cfg(test)]
mod tests;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream, tcp, unix};

use crate::message::{
    BodyDecoder, Framing, HeaderList, RequestHead, ResponseHead, head_headers, request_framing, response_framing,
};

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
    /// Body of the last message. Chunks are joined.
    body: Vec<u8>,
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

/// Parsed parts of a head that are needed to read the rest of its message.
#[derive(Debug, Clone, Copy)]
struct MessageHead {
    length: usize,
    status: u16,
    framing: Framing,
    close: bool,
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
        Ok(Self::from_halves(ReadHalf::Tcp(read), WriteHalf::Tcp(write)))
    }

    fn unix(stream: UnixStream) -> Self {
        let (read, write) = stream.into_split();
        Self::from_halves(ReadHalf::Unix(read), WriteHalf::Unix(write))
    }

    fn from_halves(read: ReadHalf, write: WriteHalf) -> Self {
        let inbox = MessageReader { half: read, buf: BytesMut::with_capacity(READ_BYTES), taken: 0, body: Vec::new() };
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
        self.inbox.read_answer().await
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
    pub(crate) async fn read_answer(&mut self) -> io::Result<Message<'_>> {
        loop {
            let head = self.read_head(MessageHead::of_response).await?.ok_or(io::ErrorKind::UnexpectedEof)?;
            if !(100..200).contains(&head.status) {
                return self.read_message(head).await;
            }
            self.taken += head.length;
        }
    }

    /// Reads the next request. Returns `None` if the peer closed the connection between two
    /// requests.
    pub(crate) async fn read_request(&mut self) -> io::Result<Option<Message<'_>>> {
        match self.read_head(MessageHead::of_request).await? {
            Some(head) => self.read_message(head).await.map(Some),
            None => Ok(None),
        }
    }

    /// Returns the received bytes of an incomplete message, or of an unsolicited one.
    pub(crate) fn unread(&self) -> &[u8] {
        self.buf.get(self.taken..).unwrap_or_default()
    }

    /// Returns the state of an idle connection, as far as it is known without waiting.
    pub(crate) fn poll_idle(&mut self) -> IdleState {
        self.buf.reserve(READ_BYTES);
        let read = match &self.half {
            ReadHalf::Tcp(half) => half.try_read_buf(&mut self.buf),
            ReadHalf::Unix(half) => half.try_read_buf(&mut self.buf),
        };
        match read {
            _ if !self.unread().is_empty() => IdleState::Unasked,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => IdleState::Quiet,
            Ok(_) | Err(_) => IdleState::Closed,
        }
    }

    /// Discards all input until the peer closes the connection.
    pub(crate) async fn drain_until_closed(&mut self) {
        loop {
            self.buf.clear();
            self.taken = 0;
            match self.fill_buffer().await {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
        }
    }

    async fn fill_buffer(&mut self) -> io::Result<usize> {
        self.buf.reserve(READ_BYTES);
        match &mut self.half {
            ReadHalf::Tcp(half) => half.read_buf(&mut self.buf).await,
            ReadHalf::Unix(half) => half.read_buf(&mut self.buf).await,
        }
    }

    /// Reads until `parse` returns a head. Returns `None` if the connection ends before its first
    /// byte.
    async fn read_head(
        &mut self,
        parse: fn(&[u8]) -> io::Result<Option<MessageHead>>,
    ) -> io::Result<Option<MessageHead>> {
        self.buf.advance(self.taken);
        self.taken = 0;
        loop {
            if let Some(head) = parse(&self.buf)? {
                return Ok(Some(head));
            }
            if self.fill_buffer().await? == 0 {
                return if self.buf.is_empty() { Ok(None) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
            }
        }
    }

    async fn read_message(&mut self, head: MessageHead) -> io::Result<Message<'_>> {
        self.body.clear();
        let mut decoder = BodyDecoder::new(head.framing);
        let mut end = head.length;
        loop {
            end += decoder.decode(self.buf.get(end..).unwrap_or_default(), &mut self.body)?;
            if decoder.is_complete() {
                break;
            }
            if self.fill_buffer().await? == 0 {
                decoder.on_connection_end()?;
                break;
            }
        }
        // Only a complete message is taken, so that `unread` shows all of an incomplete one.
        self.taken = end;
        Ok(Message { head: &self.buf[..head.length], body: &self.body, status: head.status, close: head.close })
    }
}

// === impl MessageHead ===

impl MessageHead {
    fn of_request(bytes: &[u8]) -> io::Result<Option<Self>> {
        let Some(head) = RequestHead::parse(bytes)? else { return Ok(None) };
        let framing = request_framing(head.headers.iter().copied())?;
        Ok(Some(Self { length: head.length, status: 0, framing, close: has_close(&head.headers) }))
    }

    fn of_response(bytes: &[u8]) -> io::Result<Option<Self>> {
        let Some(head) = ResponseHead::parse(bytes)? else { return Ok(None) };
        // The clients never send HEAD, the only method that changes the framing.
        let framing = response_framing("GET", head.status, head.headers.iter().copied())?;
        let close = framing == Framing::UntilClose || has_close(&head.headers);
        Ok(Some(Self { length: head.length, status: head.status, framing, close }))
    }
}

fn has_close(headers: &[(&str, &[u8])]) -> bool {
    let mut headers = headers.iter();
    headers.any(|(name, value)| name.eq_ignore_ascii_case("connection") && value.eq_ignore_ascii_case(b"close"))
}

// === impl Message ===

impl<'a> Message<'a> {
    /// Returns the value of the first header with this name.
    pub(crate) fn header(&self, name: &str) -> Option<&'a [u8]> {
        self.headers().into_iter().find(|(have, _)| have.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// Returns all headers in order.
    pub(crate) fn headers(&self) -> HeaderList<'a> {
        head_headers(self.head)
    }

    /// Returns the method and the target of a request. Those of a response are empty.
    pub(crate) fn target(&self) -> (&'a str, &'a str) {
        let request = RequestHead::parse(self.head).ok().flatten();
        request.map_or(("", ""), |request| (request.method, request.target))
    }
}
