//! A client's stream, plain or inside TLS, and one that tells its connection what moves.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::watch::Activity;
use crate::relay::poll_write_joined;
use crate::tls::CallerStream;

/// A client's stream.
#[derive(Debug)]
pub(super) enum Client {
    Plain(TcpStream),
    /// Boxed: it is some 1 KiB, which plain connections would carry along.
    Tls(Box<CallerStream>),
}

/// A stream and its signs of life.
///
/// It also holds the connection's place among the open ones, so that a tunnel keeps it after hyper has handed the stream over.
#[derive(Debug)]
pub(super) struct Watched<H> {
    pub(super) stream: Client,
    /// What was read to see what is spoken, and is read again by whoever speaks it.
    pub(super) ahead: Bytes,
    pub(super) activity: Arc<Activity>,
    pub(super) _held: H,
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

impl<H> Watched<H> {
    fn wrote<T>(&self, poll: Poll<T>) -> Poll<T> {
        self.activity.write(poll.is_pending());
        poll
    }
}

impl<H: Unpin> AsyncRead for Watched<H> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let poll = if self.ahead.is_empty() {
            Pin::new(&mut self.stream).poll_read(cx, buf)
        } else {
            let room = self.ahead.len().min(buf.remaining());
            buf.put_slice(&self.ahead.copy_to_bytes(room));
            Poll::Ready(Ok(()))
        };
        if let Some(fresh) = buf.filled().get(before..)
            && !fresh.is_empty()
        {
            self.activity.read(fresh);
        }
        poll
    }
}

impl<H: Unpin> AsyncWrite for Watched<H> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.wrote(poll)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.wrote(poll)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let poll = Pin::new(&mut self.stream).poll_flush(cx);
        match self.stream {
            Client::Plain(_) => poll,
            // What TLS took it has encrypted and holds: a client that takes nothing blocks here first.
            Client::Tls(_) => self.wrote(poll),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
