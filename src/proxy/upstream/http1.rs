//! HTTP/1 connections to the model server, with a limit on interim responses.

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

use super::connect::UpstreamIo;
use super::failure::SendError;
use crate::body::Body;

/// Maximum size of a response head in bytes, equal to that of a client's request head. The number
/// of headers keeps hyper's default of 100: if it is set explicitly, hyper clears memory for that
/// number of headers before each head.
const ANSWER_HEAD_BYTES_MAX: usize = 64 << 10;
/// Maximum number of interim responses (1xx) to one call. A server may send one every few seconds
/// during a long computation to show that it is alive. More are a flood, each of which hyper reads
/// and discards.
const INTERIM_MAX: u32 = 10_000;

/// The sender for calls on one HTTP/1 connection. The connection itself is polled separately.
#[derive(Debug)]
pub(super) struct Http1Sender {
    sender: http1::SendRequest<Body>,
    interim: Arc<AtomicU32>,
}

/// An HTTP/1 connection that must be polled. It ends if the server floods it with interim
/// responses.
#[derive(Debug)]
pub(super) struct Http1Connection {
    connection: http1::Connection<TokioIo<UpstreamIo>, Body>,
    interim: Arc<AtomicU32>,
}

/// Opens an HTTP/1 connection on a stream, driven by a task of its own.
pub(super) async fn spawn_http1(io: UpstreamIo) -> Result<Http1Sender, SendError> {
    let (sender, connection) = handshake_http1(io).await?;
    let Http1Connection { connection, interim } = connection;
    let mut connection = connection.with_upgrades();
    tokio::spawn(std::future::poll_fn(move |cx| {
        // The sender reports the error to the call.
        if Pin::new(&mut connection).poll(cx).is_ready() || is_flooded(&interim) {
            return Poll::Ready(());
        }
        Poll::Pending
    }));
    Ok(sender)
}

/// Opens an HTTP/1 connection on a stream, to be driven by the caller.
pub(super) async fn handshake_http1(io: UpstreamIo) -> Result<(Http1Sender, Http1Connection), SendError> {
    let mut builder = http1::Builder::new();
    builder.max_buf_size(ANSWER_HEAD_BYTES_MAX);
    let (sender, connection) = builder.handshake(TokioIo::new(io)).await.map_err(|_| SendError::Broken)?;
    let interim = Arc::<AtomicU32>::default();
    Ok((Http1Sender { sender, interim: interim.clone() }, Http1Connection { connection, interim }))
}

fn is_flooded(interim: &AtomicU32) -> bool {
    interim.load(Ordering::Relaxed) > INTERIM_MAX
}

// === impl Http1Sender ===

impl Http1Sender {
    /// Sends a call. The error contains the request if none of it was sent.
    pub(super) fn try_send_request(
        &mut self,
        mut request: Request<Body>,
    ) -> impl Future<Output = Result<Response<Incoming>, TrySendError<Request<Body>>>> + Send + use<> {
        self.interim.store(0, Ordering::Relaxed);
        let interim = self.interim.clone();
        on_informational(&mut request, move |_| _ = interim.fetch_add(1, Ordering::Relaxed));
        self.sender.try_send_request(request)
    }

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
    /// Polls the connection, and is ready once it has ended.
    pub(super) fn poll_ended(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        // The error is reported to the call that it affects.
        if Pin::new(&mut self.connection).poll(cx).is_ready() || is_flooded(&self.interim) {
            return Poll::Ready(());
        }
        Poll::Pending
    }
}
