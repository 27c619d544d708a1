//! Evidence from the streams that answer unbatched calls: the first chunk is read while it is
//! forwarded.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, StatusCode};

use super::Inner;
use crate::body::{Body, BodyTap};
use crate::memory::BufferGuard;
use crate::protocol::{Call, Endpoint, FirstChunk};

/// A tap on the body of a stream.
#[derive(Debug)]
struct EvidenceTap {
    inner: Arc<Inner>,
    /// The reader of the first chunk and the charge of its bytes, until the chunk is read.
    reader: Option<(FirstChunk, BufferGuard)>,
}

// === impl Inner ===

impl Inner {
    /// Returns the body of the response to an unbatched call. If it is a stream whose first chunk is
    /// evidence for later batches, the chunk is observed.
    pub(super) fn observe_stream(
        self: &Arc<Self>,
        (endpoint, call): (&Arc<Endpoint>, &Arc<Call>),
        head: (StatusCode, &HeaderMap),
        body: Body,
    ) -> Body {
        let Some(chunk) = FirstChunk::begin(endpoint, call, head, &self.evidence) else { return body };
        let reader = Some((chunk, self.buffers.empty_for_answer()));
        body.with_tap(Box::new(EvidenceTap { inner: self.clone(), reader }))
    }
}

// === impl EvidenceTap ===

impl BodyTap for EvidenceTap {
    fn data(&mut self, data: &Bytes) {
        let Some((chunk, held)) = &mut self.reader else { return };
        if chunk.read(data, (self.inner.clock.now(), &self.inner.evidence)) {
            self.reader = None;
        } else {
            held.set_bytes(chunk.held_bytes());
        }
    }

    fn end(&mut self, _: bool) {}
}
