//! A client's stream, plain or inside TLS, and one that records what moves on its connection.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::connections::ConnectionGuard;
use super::flow::ClientFlow;
use super::frames::{ControlBudget, FrameKind, FrameScanner, PREFACE};
use super::head_rest::{DIRECT_MAX, HeadRest};
use super::watch::Activity;
use crate::clock::Clock;
use crate::relay::{poll_read_within, poll_write_joined};
use crate::tls::CallerStream;

/// Bytes that a connection is given before others have their turn: of frames, since `h2` reads all
/// there is before it hands out what came with them, and a few bytes of a head can cost much; and of
/// a long head of HTTP/1, which the calls of others would wait for.
const TURN_BYTES: usize = 16 << 10;

/// A client's stream.
#[derive(Debug)]
pub(super) enum Client {
    Plain(TcpStream),
    /// Boxed: it is some 1 KiB, which plain connections would carry along.
    Tls(Box<CallerStream>),
}

/// A stream and its signs of life.
///
/// It also holds the connection's place among the open ones, so that a tunnel keeps it after hyper
/// has handed the stream over.
#[derive(Debug)]
pub(super) struct Watched {
    stream: Client,
    /// Bytes that were read to detect the protocol, and are read again by hyper.
    ahead: Bytes,
    rest: HeadRest,
    /// The rest of a head that hyper may have.
    gathered: Bytes,
    /// The most bytes of a head.
    head_max: usize,
    activity: Arc<Activity>,
    flow: Arc<ClientFlow>,
    spoken: Spoken,
    /// Bytes that were read in this turn.
    turn: usize,
    _guard: ConnectionGuard,
}

/// The protocol of a client, as far as its bytes show it.
#[derive(Debug)]
enum Spoken {
    /// Nothing but this part of the preface of HTTP/2 has come.
    Preface(usize),
    Http1,
    Http2(Box<FrameWatch>),
}

/// The frames of one connection, both ways.
#[derive(Debug)]
struct FrameWatch {
    coming: FrameScanner,
    leaving: FrameScanner,
    control: ControlBudget,
}

// === impl Client ===

impl AsyncRead for Client {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Client {
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

// === impl Watched ===

impl Watched {
    /// The stream of a connection; `ahead` was read of it already, and its heads have at most
    /// `head_max` bytes.
    pub(super) fn new(
        stream: Client,
        ahead: Bytes,
        (activity, flow): (&Arc<Activity>, &Arc<ClientFlow>),
        (head_max, guard): (usize, ConnectionGuard),
    ) -> Self {
        Self {
            stream,
            ahead,
            rest: HeadRest::default(),
            gathered: Bytes::new(),
            head_max,
            activity: activity.clone(),
            flow: flow.clone(),
            spoken: Spoken::Preface(0),
            turn: 0,
            _guard: guard,
        }
    }

    /// Reads what comes next, and records it.
    fn poll_fresh(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        if self.ahead.is_empty() {
            let max = self.flow.read_max();
            let poll = poll_read_within(&mut self.stream, cx, buf, max);
            if poll.is_pending() {
                self.turn = 0;
            }
            ready!(poll)?;
        } else {
            let room = self.ahead.len().min(buf.remaining());
            buf.put_slice(&self.ahead.split_to(room));
        }
        if let Some(fresh) = buf.filled().get(before..)
            && !fresh.is_empty()
        {
            self.turn += fresh.len();
            self.on_read(fresh);
        }
        Poll::Ready(Ok(()))
    }

    /// Returns `true` for a head of HTTP/1 of which hyper has no more: it is long.
    fn is_gathering(&self) -> bool {
        matches!(self.spoken, Spoken::Http1) && self.activity.head_bytes() >= DIRECT_MAX
    }

    fn on_read(&mut self, mut fresh: &[u8]) {
        self.activity.read(fresh);
        if self.activity.is_relayed() {
            return;
        }
        if let Spoken::Preface(matched) = self.spoken {
            let wanted = PREFACE.get(matched..).unwrap_or_default();
            let count = wanted.iter().zip(fresh).take_while(|(wanted, byte)| wanted == byte).count();
            if count < wanted.len().min(fresh.len()) {
                self.spoken = Spoken::Http1;
            } else if count < wanted.len() {
                self.spoken = Spoken::Preface(matched + count);
            } else {
                self.spoken = Spoken::Http2(Box::new(FrameWatch::new(self.activity.clock())));
                self.activity.speak_http2();
            }
            fresh = fresh.get(count..).unwrap_or_default();
        }
        let Spoken::Http2(frames) = &mut self.spoken else { return };
        let FrameWatch { coming, control, .. } = &mut **frames;
        let mut is_flood = false;
        coming.feed(fresh, |frame| is_flood |= control.is_spent_by(frame));
        if is_flood {
            self.activity.end_flood();
        }
    }

    fn on_write<T>(&mut self, poll: Poll<T>, written: impl FnOnce(&mut Self, &T)) -> Poll<T> {
        self.activity.write(poll.is_pending());
        if let Poll::Ready(done) = &poll {
            written(self, done);
        }
        poll
    }

    /// These bytes were written.
    fn on_written<'a>(&mut self, pieces: impl Iterator<Item = &'a [u8]>, mut bytes: usize) {
        let Spoken::Http2(frames) = &mut self.spoken else {
            self.flow.on_written(bytes);
            return;
        };
        let FrameWatch { leaving, control, .. } = &mut **frames;
        let mut data = 0;
        for piece in pieces {
            let piece = piece.get(..bytes).unwrap_or(piece);
            bytes -= piece.len();
            leaving.feed(piece, |frame| {
                if frame.kind == FrameKind::Data {
                    data += frame.length as usize;
                    control.refund(frame.length);
                }
            });
        }
        self.flow.on_written(data);
    }
}

impl AsyncRead for Watched {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.activity.is_flooded() {
            // Its connection is being ended, by which it is woken.
            return Poll::Pending;
        }
        if self.activity.is_relay_evicted(cx.waker()) {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        while self.gathered.is_empty() {
            // Before more is read: what came with a whole head is none of it.
            self.flow.on_head();
            let (is_gathering, before) = (self.is_gathering(), buf.filled().len());
            if self.turn >= TURN_BYTES && (is_gathering || matches!(self.spoken, Spoken::Http2(_))) {
                self.turn = 0;
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            ready!(self.poll_fresh(cx, buf))?;
            if !is_gathering {
                return Poll::Ready(Ok(()));
            }
            let fresh = buf.filled().get(before..).unwrap_or_default();
            let is_over = fresh.is_empty() || self.activity.head_bytes() >= self.head_max;
            let is_whole = self.rest.push(fresh);
            buf.set_filled(before);
            if is_whole || is_over {
                self.gathered = self.rest.take();
                if self.gathered.is_empty() {
                    return Poll::Ready(Ok(()));
                }
            }
        }
        let room = self.gathered.len().min(buf.remaining());
        buf.put_slice(&self.gathered.split_to(room));
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Watched {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
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
        let poll = Pin::new(&mut self.stream).poll_flush(cx);
        match self.stream {
            Client::Plain(_) => poll,
            // What TLS took it has encrypted and holds: a client that takes nothing blocks here first.
            Client::Tls(_) => self.on_write(poll, |_, _| {}),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

// === impl FrameWatch ===

impl FrameWatch {
    fn new(clock: Clock) -> Self {
        Self { coming: FrameScanner::default(), leaving: FrameScanner::default(), control: ControlBudget::new(clock) }
    }
}
