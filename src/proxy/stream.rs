//! Client streams: plain or TLS, and a wrapper that monitors the traffic of a connection.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::activity::ConnectionActivity;
use super::connections::ConnectionGuard;
use super::frame_monitor::FrameMonitor;
use super::frames::PREFACE;
use super::long_head::{DIRECT_MAX, LongHeadBuffer};
use super::memory_accounting::ConnectionMemory;
use crate::relay::{poll_read_within, poll_write_joined};
use crate::telemetry::names::FloodReason;
use crate::tls::DownstreamStream;

/// Number of bytes that a connection reads in a row before it yields to other tasks. It applies to
/// HTTP/2 frames, because `h2` reads everything available before it returns the calls among it and
/// a few bytes of a compressed head can be expensive, and to long HTTP/1 heads, which would delay
/// the calls of other connections.
const TURN_BYTES: usize = 16 << 10;

#[derive(Debug)]
pub(super) enum ClientStream {
    Plain(TcpStream),
    /// Boxed, because its size of about 1 KiB would enlarge every plain connection.
    Tls(Box<DownstreamStream>),
}

/// A client stream that records its traffic in the connection's [`ConnectionActivity`].
///
/// It also holds the permit of the connection, so that a tunnel keeps it after hyper has handed
/// over the stream.
#[derive(Debug)]
pub(super) struct MonitoredStream {
    stream: ClientStream,
    /// Bytes read during protocol detection, which hyper reads again.
    prefix: Bytes,
    /// The rest of a long HTTP/1 head that is not complete yet, withheld from hyper.
    rest: LongHeadBuffer,
    /// The rest of a long head once it is complete, to be read by hyper.
    completed_head: Bytes,
    /// Maximum size of a head in bytes.
    head_max: usize,
    activity: Arc<ConnectionActivity>,
    memory: Arc<ConnectionMemory>,
    version: HttpVersionState,
    /// Bytes read since the connection last yielded.
    bytes_since_yield: usize,
    _guard: ConnectionGuard,
}

/// The HTTP version of a client, as far as its bytes determine it.
#[derive(Debug)]
enum HttpVersionState {
    /// Only this many bytes of the HTTP/2 preface have arrived.
    Preface(usize),
    Http1,
    Http2(Box<FrameMonitor>),
}

// === impl ClientStream ===

impl AsyncRead for ClientStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for ClientStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => poll_write_joined(Pin::new(stream), cx, bufs),
            Self::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

// === impl MonitoredStream ===

impl MonitoredStream {
    /// Wraps the stream of a connection. `prefix` contains the bytes already read from it, and
    /// `head_max` limits the size of its heads.
    pub(super) fn new(
        stream: ClientStream,
        prefix: Bytes,
        (activity, memory): (&Arc<ConnectionActivity>, &Arc<ConnectionMemory>),
        (head_max, guard): (usize, ConnectionGuard),
    ) -> Self {
        Self {
            stream,
            prefix,
            rest: LongHeadBuffer::default(),
            completed_head: Bytes::new(),
            head_max,
            activity: activity.clone(),
            memory: memory.clone(),
            version: HttpVersionState::Preface(0),
            bytes_since_yield: 0,
            _guard: guard,
        }
    }

    /// Reads and records the next bytes.
    fn poll_read_recorded(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        if self.prefix.is_empty() {
            let max = self.memory.read_max();
            let poll = poll_read_within(&mut self.stream, cx, buf, max);
            if poll.is_pending() {
                self.bytes_since_yield = 0;
            }
            ready!(poll)?;
        } else {
            let room = self.prefix.len().min(buf.remaining());
            buf.put_slice(&self.prefix.split_to(room));
        }
        if let Some(bytes) = buf.filled().get(before..)
            && !bytes.is_empty()
        {
            self.bytes_since_yield += bytes.len();
            self.on_read(bytes);
        }
        Poll::Ready(Ok(()))
    }

    /// Returns `true` if the current HTTP/1 head exceeds [`DIRECT_MAX`], so that its rest is
    /// withheld from hyper until it is complete.
    fn is_gathering(&self) -> bool {
        matches!(self.version, HttpVersionState::Http1) && self.activity.head_bytes() >= DIRECT_MAX
    }

    /// Records received bytes, and determines the HTTP version from the first ones.
    fn on_read(&mut self, mut bytes: &[u8]) {
        self.activity.on_read(bytes);
        if self.activity.is_relayed() {
            return;
        }
        if let HttpVersionState::Preface(matched) = self.version {
            let expected = PREFACE.get(matched..).unwrap_or_default();
            let count = expected.iter().zip(bytes).take_while(|(expected, byte)| expected == byte).count();
            if count < expected.len().min(bytes.len()) {
                self.version = HttpVersionState::Http1;
            } else if count < expected.len() {
                self.version = HttpVersionState::Preface(matched + count);
            } else {
                self.version = HttpVersionState::Http2(Box::new(FrameMonitor::new(self.activity.clock())));
                self.activity.set_http2();
            }
            bytes = bytes.get(count..).unwrap_or_default();
        }
        let HttpVersionState::Http2(frames) = &mut self.version else { return };
        if frames.on_read(bytes) {
            self.activity.shut_down_flooded(FloodReason::ControlFrames);
        }
    }

    /// Writes the GOAWAY frame of a connection whose client exceeded a limit. A client that does
    /// not take it is not recorded as blocked, because the connection is closed within a bound of
    /// its own.
    fn poll_goaway(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.version {
            HttpVersionState::Http2(frames) if self.activity.is_flooded() => frames.poll_goaway(cx, &mut self.stream),
            _ => Poll::Ready(Ok(())),
        }
    }

    /// Records the result of a write. `written` is called with a result that is ready.
    fn on_write<T>(&mut self, poll: Poll<T>, written: impl FnOnce(&mut Self, &T)) -> Poll<T> {
        self.activity.on_write(poll.is_pending());
        if let Poll::Ready(done) = &poll {
            written(self, done);
        }
        poll
    }

    /// Records written bytes. On HTTP/2 only the payload of DATA frames counts as response bytes.
    fn on_written<'a>(&mut self, pieces: impl Iterator<Item = &'a [u8]>, mut bytes: usize) {
        let HttpVersionState::Http2(frames) = &mut self.version else {
            self.memory.on_written(bytes);
            return;
        };
        let mut data = 0;
        for piece in pieces {
            let piece = piece.get(..bytes).unwrap_or(piece);
            bytes -= piece.len();
            data += frames.on_written(piece);
        }
        self.memory.on_written(data);
    }
}

impl AsyncRead for MonitoredStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.activity.is_flooded() {
            // The connection is closed once its calls are answered, and its task is woken for that.
            return Poll::Pending;
        }
        if self.activity.is_relay_evicted(cx.waker()) {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        while self.completed_head.is_empty() {
            // The charge is settled before the next read: bytes that arrived together with the end
            // of a head do not belong to the head.
            self.memory.update_charge();
            let (is_gathering, before) = (self.is_gathering(), buf.filled().len());
            if self.bytes_since_yield >= TURN_BYTES
                && (is_gathering || matches!(self.version, HttpVersionState::Http2(_)))
            {
                self.bytes_since_yield = 0;
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            ready!(self.poll_read_recorded(cx, buf))?;
            if !is_gathering {
                return Poll::Ready(Ok(()));
            }
            // The bytes are moved from hyper's buffer to `rest`, until the head may be complete,
            // the client has closed its side, or the head is too large, which hyper then rejects.
            let bytes = buf.filled().get(before..).unwrap_or_default();
            let is_over = bytes.is_empty() || self.activity.head_bytes() >= self.head_max;
            let is_whole = self.rest.push(bytes);
            buf.set_filled(before);
            if is_whole || is_over {
                self.completed_head = self.rest.take();
                // The end of the stream, which an empty buffer reports to hyper.
                if self.completed_head.is_empty() {
                    return Poll::Ready(Ok(()));
                }
            }
        }
        let room = self.completed_head.len().min(buf.remaining());
        buf.put_slice(&self.completed_head.split_to(room));
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for MonitoredStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_goaway(cx))?;
        let poll = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.on_write(poll, |this, done| {
            if let Ok(bytes) = done {
                this.on_written(std::iter::once(buf), *bytes);
            }
        })
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_goaway(cx))?;
        let poll = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.on_write(poll, |this, done| {
            if let Ok(bytes) = done {
                this.on_written(bufs.iter().map(|buf| &**buf), *bytes);
            }
        })
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // `h2` flushes in each poll, also if it has written nothing.
        ready!(self.poll_goaway(cx))?;
        let poll = Pin::new(&mut self.stream).poll_flush(cx);
        match self.stream {
            ClientStream::Plain(_) => poll,
            // TLS has encrypted and buffered the written bytes, so a client that reads nothing
            // blocks the flush first.
            ClientStream::Tls(_) => self.on_write(poll, |_, _| {}),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
