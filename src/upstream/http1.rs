//! An HTTP/1 connection to the model server, and the bound on its interim answers.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll};

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::{TrySendError, http1};
use hyper::ext::on_informational;
use hyper_util::rt::TokioIo;

use super::client::SendError;
use super::connect::Io;
use crate::body::Body;

/// Bound of an answer's head: what we allow a client's (reliability, safe defaults). Of its headers
/// hyper reads 100, as of a client's; that bound is not given to it, since with one it clears room
/// for this many before each head.
const ANSWER_HEAD_BYTES_MAX: usize = 64 << 10;
/// Interim answers (1xx) before an answer. A server that works for long sends one in some seconds
/// to show that it is there; more than these are a flood, each of which hyper reads and drops.
const INTERIM_MAX: u32 = 10_000;

/// Sends HTTP/1 calls on one connection; its task runs beside it.
#[derive(Debug)]
pub(super) struct Http1 {
    sender: http1::SendRequest<Body>,
    interim: Arc<AtomicU32>,
}

/// The connection, to be driven. It ends where the server floods it with interim answers.
#[derive(Debug)]
pub(super) struct Http1Connection {
    connection: http1::Connection<TokioIo<Io>, Body>,
    interim: Arc<AtomicU32>,
}

/// An HTTP/1 connection on this stream, run by a task of its own.
pub(super) async fn http1(io: Io) -> Result<Http1, SendError> {
    let (sender, connection) = shake_http1(io).await?;
    let Http1Connection { connection, interim } = connection;
    let mut connection = connection.with_upgrades();
    tokio::spawn(std::future::poll_fn(move |cx| {
        // The caller sees an error on its own side.
        if Pin::new(&mut connection).poll(cx).is_ready() || is_flooded(&interim) {
            return Poll::Ready(());
        }
        Poll::Pending
    }));
    Ok(sender)
}

/// An HTTP/1 connection on this stream, to be driven.
pub(super) async fn shake_http1(io: Io) -> Result<(Http1, Http1Connection), SendError> {
    let mut builder = http1::Builder::new();
    builder.max_buf_size(ANSWER_HEAD_BYTES_MAX);
    let (sender, connection) = builder.handshake(TokioIo::new(io)).await.map_err(|_| SendError::Broken)?;
    let interim = Arc::<AtomicU32>::default();
    Ok((Http1 { sender, interim: interim.clone() }, Http1Connection { connection, interim }))
}

fn is_flooded(interim: &AtomicU32) -> bool {
    interim.load(Ordering::Relaxed) > INTERIM_MAX
}

// === impl Http1 ===

impl Http1 {
    /// Sends a call; it comes back where nothing of it was sent.
    pub(super) fn try_send_request(
        &mut self,
        mut request: Request<Body>,
    ) -> impl Future<Output = Result<Response<Incoming>, TrySendError<Request<Body>>>> + Send + use<> {
        self.interim.store(0, Ordering::Relaxed);
        let interim = self.interim.clone();
        on_informational(&mut request, move |_| _ = interim.fetch_add(1, Ordering::Relaxed));
        self.sender.try_send_request(request)
    }

    /// Sends a call.
    pub(super) async fn send_request(&mut self, request: Request<Body>) -> hyper::Result<Response<Incoming>> {
        self.try_send_request(request).await.map_err(TrySendError::into_error)
    }

    pub(super) fn is_ready(&self) -> bool {
        self.sender.is_ready()
    }

    pub(super) fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }

    pub(super) fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<hyper::Result<()>> {
        self.sender.poll_ready(cx)
    }
}

// === impl Http1Connection ===

impl Http1Connection {
    /// Drives it; ready once it has ended.
    pub(super) fn poll_ended(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        // Its error is seen by the call that it befell.
        if Pin::new(&mut self.connection).poll(cx).is_ready() || is_flooded(&self.interim) {
            return Poll::Ready(());
        }
        Poll::Pending
    }
}
