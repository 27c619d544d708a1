//! A request body during its upload: it keeps the connection busy, and may be evicted to free
//! memory for others.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::body::Incoming;

use super::activity::ActiveCall;
use crate::body::UploadWatch;
use crate::error::BoxError;
use crate::memory::{BufferGuard, EvictedError, EvictionWatch, HoldPhase};

/// Charge of a pass-through body while its bytes are awaited, for parts of hyper's buffers and
/// HTTP/2 windows. A body that is buffered is charged as it arrives.
const TRANSIT: usize = 16 << 10;

/// Guards that are held until a request body has arrived.
#[derive(Debug)]
pub(super) struct UploadGuard {
    _busy: ActiveCall,
    held: BufferGuard,
    stream: Option<StreamCharge>,
}

/// The memory charge of an HTTP/2 stream while the client uploads its body. Dropping it records
/// that the stream waits for the server.
#[derive(Debug)]
pub(super) struct StreamCharge(pub(super) EvictionWatch);

/// A body to be buffered, which fails with [`EvictedError`] when its stream is evicted.
pub(super) struct UploadBody<'a> {
    body: Incoming,
    stream: Option<&'a StreamCharge>,
    evicted: bool,
}

// === impl UploadGuard ===

impl UploadGuard {
    pub(super) const fn new(busy: ActiveCall, held: BufferGuard, stream: Option<StreamCharge>) -> Self {
        Self { _busy: busy, held, stream }
    }

    /// Converts the guards into the watch of a pass-through body.
    pub(super) fn into_watch(self: Box<Self>) -> Box<dyn UploadWatch> {
        self
    }

    /// Returns the body to be buffered, and the charge that counts its bytes.
    pub(super) fn split_for_reading(&mut self, body: Incoming, empty: BufferGuard) -> (UploadBody<'_>, BufferGuard) {
        let held = std::mem::replace(&mut self.held, empty);
        (UploadBody { body, stream: self.stream.as_ref(), evicted: false }, held)
    }
}

impl UploadWatch for UploadGuard {
    fn on_connect(&mut self) {
        self.held.mark_upstream();
    }

    fn on_data(&mut self) {
        self.held.on_move();
    }

    fn poll_evicted(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.held.bytes() == 0 {
            self.held.set_bytes(TRANSIT);
        }
        match &self.stream {
            Some(StreamCharge(charge)) if charge.poll_evicted(cx).is_ready() => Poll::Ready(()),
            _ => self.held.poll_evicted(cx),
        }
    }
}

impl Drop for StreamCharge {
    fn drop(&mut self) {
        self.0.set_phase(HoldPhase::Server);
    }
}

// === impl UploadBody ===

impl UploadBody<'_> {
    /// Returns the rest of the body, and `true` if its stream was evicted.
    pub(super) fn into_parts(self) -> (Incoming, bool) {
        (self.body, self.evicted)
    }
}

impl HttpBody for UploadBody<'_> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        match (Pin::new(&mut this.body).poll_frame(cx), this.stream) {
            (Poll::Pending, Some(StreamCharge(charge))) if charge.poll_evicted(cx).is_ready() => {
                this.evicted = true;
                Poll::Ready(Some(Err(Box::new(EvictedError))))
            }
            (frame, _) => frame.map_err(Into::into),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
