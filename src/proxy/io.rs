//! A client's stream that tells its connection what moves.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::watch::Activity;

/// A stream and its signs of life.
///
/// It also holds the connection's place among the open ones, so that a tunnel keeps it after hyper has handed the stream over.
#[derive(Debug)]
pub(super) struct Watched<H> {
    pub(super) stream: TcpStream,
    pub(super) activity: Arc<Activity>,
    pub(super) _held: H,
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
        let poll = Pin::new(&mut self.stream).poll_read(cx, buf);
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
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
