//! The first chunk of a stream that answers an unbatched call: its parts outside the result are
//! evidence, like those of a complete response.

use std::sync::Arc;

use bytes::Bytes;
use http::StatusCode;
use http::header::HeaderMap;

use super::super::{BatchResponse, has_content_coding};
use super::chunk::Chunk;
use super::events::{Event, EventBuffer, EventContent};
use crate::batching::Tick;
use crate::call::Call;
use crate::evidence::UnbatchedEvidence;
use crate::headers;
use crate::route::Endpoint;

/// A reader of the first chunk of the stream that answers an unbatched call.
#[derive(Debug)]
pub struct FirstChunk {
    endpoint: Arc<Endpoint>,
    call: Arc<Call>,
    headers: HeaderMap,
    buffer: EventBuffer,
}

// === impl FirstChunk ===

impl FirstChunk {
    /// Creates a reader for a response with this head. Returns `None` if the response is not a
    /// stream, or if no more evidence about the merge key of the call is needed.
    #[must_use]
    pub fn begin(
        endpoint: &Arc<Endpoint>,
        call: &Arc<Call>,
        (status, headers): (StatusCode, &HeaderMap),
        evidence: &UnbatchedEvidence,
    ) -> Option<Self> {
        let is_stream = call.is_mergeable_stream()
            && status == StatusCode::OK
            && headers::is_event_stream(headers)
            && !has_content_coding(headers);
        // The same rule as for complete responses (`Endpoint::observe_document`).
        let is_evidence = is_stream && (!endpoint.idempotent || evidence.is_observed(call));
        is_evidence.then(|| Self {
            endpoint: endpoint.clone(),
            call: call.clone(),
            headers: headers.clone(),
            buffer: EventBuffer::default(),
        })
    }

    /// Reads bytes of the stream, and records the parts of its first chunk outside the result.
    /// Returns `true` if no more bytes are needed.
    pub fn read(&mut self, data: &[u8], evidence: (Tick, &UnbatchedEvidence)) -> bool {
        self.buffer.push(data);
        loop {
            match self.buffer.next_event() {
                Ok(Some(event)) if self.on_event(&event, evidence) => return true,
                Ok(Some(_)) => {}
                Ok(None) => return false,
                // No known server sends an event larger than the maximum.
                Err(_) => return true,
            }
        }
    }

    /// Returns the number of bytes that are held: an incomplete event of at most the maximum size.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.buffer.len()
    }

    /// Returns `true` if the event is the first chunk, which is recorded, or shows that there will be
    /// none.
    fn on_event(&self, event: &Event, (now, evidence): (Tick, &UnbatchedEvidence)) -> bool {
        let data = match event.content() {
            EventContent::Empty | EventContent::Comment => return false,
            EventContent::Unknown => return true,
            EventContent::Data { data, .. } => event.text(data),
        };
        match Chunk::read(data, &self.endpoint.shape) {
            // Such a chunk is skipped in a batch response too, so it needs no evidence.
            Ok(Chunk::NoResult(_)) => return false,
            Ok(Chunk::Error) | Err(_) => {}
            Ok(Chunk::Result(_)) => {
                let body = Bytes::copy_from_slice(data);
                let answer = BatchResponse { status: StatusCode::OK, headers: &self.headers, body: &body };
                self.endpoint.observe_document(&self.call, answer, evidence.wall_time(now), evidence);
            }
        }
        true
    }
}
