//! Splits the streamed response to a shared call among its members, chunk by chunk.
//!
//! A chunk has a piece of one result, and the index of the result selects the member. The chunk is
//! written with the index and id that the member would receive alone; all its other bytes are
//! preserved. The stream of a member ends with its own last result, and waits for no other member.
//!
//! The first chunk is validated like a complete response. If the stream fails before it is written,
//! the batch is isolated. From then on, members have received bytes, and nothing is sent again:
//!
//! - A chunk that belongs to no result ends all streams with an error.
//! - A member of a chunk that may quote an input is left out. Ending the streams instead would cost
//!   the callers their texts, although only a part beside the text is in doubt.
//! - An error of the whole call may quote any input. It is replaced by one of the proxy, except for
//!   the only member that is left, if the error shares nothing with the inputs of the others.
//! - A comment that shares something with an input is replaced by an empty one. Of those before the
//!   first chunk, the members receive the last one, with that chunk.

mod chunk;
mod edit;
mod events;
mod first_chunk;
mod member;
mod shared_parts;

use std::sync::Arc;

use bytes::Bytes;
use http::StatusCode;
use http::header::HeaderMap;

use self::chunk::{Chunk, ChunkCounts, ResultChunk};
use self::edit::{ChunkEdit, apply_edits, contains};
use self::events::{Event, EventBuffer, EventContent};
pub use self::first_chunk::FirstChunk;
use self::member::MemberStream;
use super::head::SharedHead;
use super::{counts_first_item_only, has_content_coding, plan};
use crate::batching::Tick;
use crate::call::{Call, MismatchKind, ResponseMismatch, SharedRequest};
use crate::error::FailureKind;
use crate::evidence::UnbatchedEvidence;
use crate::headers;
use crate::json::Span;
use crate::route::Endpoint;
use crate::stream_options::StreamOptions;

/// Data of the event that ends a stream.
const DONE: &[u8] = b"[DONE]";

/// The state of a streamed response that is being split.
#[derive(Debug)]
pub struct StreamSplit {
    endpoint: Arc<Endpoint>,
    calls: Vec<Arc<Call>>,
    sent: SharedRequest,
    options: StreamOptions,
    buffer: EventBuffer,
    streams: Vec<MemberStream>,
    /// Bytes of the last chunk outside its result, id and numbers, which were found to quote no
    /// input. They are usually the same in all chunks.
    approved: Vec<u8>,
    /// The last comment that was found to quote no input.
    approved_comment: Bytes,
    is_open: bool,
    /// The last comment before the first chunk. The members receive it when their streams open.
    early_comment: Option<Bytes>,
    /// The step that follows the last one without more bytes.
    next: Option<StreamStep>,
}

/// A step of a streamed response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StreamStep {
    /// Bytes for one member.
    Member {
        /// Its place in the batch.
        member: usize,
        /// The bytes.
        bytes: Bytes,
        /// The response of the member is complete with them.
        is_last: bool,
    },
    /// A comment for every member with a stream that has not ended.
    Comment(Bytes),
    /// The server reported an error, which ends the streams of these members with these bytes.
    Error(Vec<(usize, Bytes)>),
    /// The server has ended the stream.
    End,
}

// === impl Endpoint ===

impl Endpoint {
    /// Begins to split the streamed response to the shared call `sent` among `calls`, given in the
    /// order in which they were written. Also returns the head for each of them.
    ///
    /// # Errors
    /// The response is not a stream of events, or cannot be split. No client may receive any part
    /// of it.
    pub fn begin_stream(
        self: &Arc<Self>,
        calls: Vec<Arc<Call>>,
        sent: SharedRequest,
        (status, headers): (StatusCode, &HeaderMap),
        evidence: &UnbatchedEvidence,
    ) -> Result<(StreamSplit, Vec<HeaderMap>), ResponseMismatch> {
        if status != StatusCode::OK {
            return Err(MismatchKind::Status.into());
        }
        if has_content_coding(headers) {
            return Err(MismatchKind::Compressed.into());
        }
        if counts_first_item_only(headers) {
            return Err(MismatchKind::Usage.into());
        }
        let options = calls.first().and_then(|leader| leader.stream);
        let Some(options) = options.filter(|_| headers::is_event_stream(headers)) else {
            return Err(MismatchKind::NotJson.into());
        };
        let members: Vec<&Call> = calls.iter().map(AsRef::as_ref).collect();
        let head = SharedHead::new(self, &members, headers, Some(evidence));
        let heads = members.iter().map(|call| head.of_member(call, &sent)).collect();
        let mut next = 0;
        let streams = calls.iter().map(|call| {
            let (items, each) = (call.found.count(), call.found.results_each());
            let start = next;
            next += items * each;
            MemberStream::new(start, items, each)
        });
        let streams = streams.collect();
        let split = StreamSplit {
            endpoint: self.clone(),
            calls,
            // Only the ids are needed.
            sent: SharedRequest { body: Bytes::new(), ..sent },
            options,
            buffer: EventBuffer::default(),
            streams,
            approved: Vec::new(),
            approved_comment: Bytes::new(),
            is_open: false,
            early_comment: None,
            next: None,
        };
        Ok((split, heads))
    }
}

// === impl StreamSplit ===

impl StreamSplit {
    /// Adds bytes of the response.
    pub fn push(&mut self, data: &[u8]) {
        self.buffer.push(data);
    }

    /// Returns the number of bytes that are held: the calls, whose inputs are compared with parts of
    /// the stream, and an incomplete event of at most the maximum size.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.calls.iter().map(|call| call.body.len()).sum::<usize>() + self.buffer.len()
    }

    /// Returns `true` if a step with bytes for members was returned: the batch cannot be isolated
    /// any more.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        self.is_open
    }

    /// Returns `true` if the streams of all members have ended.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.streams.iter().all(MemberStream::is_over)
    }

    /// Returns the next step that follows from the bytes that were added, or `None` if more are
    /// needed.
    ///
    /// # Errors
    /// The response cannot be split any further.
    pub fn next_step(&mut self, evidence: (Tick, &UnbatchedEvidence)) -> Result<Option<StreamStep>, ResponseMismatch> {
        if let Some(step) = self.next.take() {
            return Ok(Some(step));
        }
        // No known server sends an event larger than the maximum.
        while let Some(event) = self.buffer.next_event().map_err(|_| MismatchKind::NotJson)? {
            let step = match event.content() {
                EventContent::Empty => None,
                EventContent::Unknown => return Err(MismatchKind::Shape.into()),
                // Before the first chunk, nothing may be written, because the batch may have to be
                // isolated.
                EventContent::Comment if !self.is_open => {
                    self.early_comment = Some(self.shared_comment(&event));
                    None
                }
                EventContent::Comment => Some(StreamStep::Comment(self.shared_comment(&event))),
                EventContent::Data { data, .. } if event.text(data).trim_ascii() == DONE => Some(StreamStep::End),
                EventContent::Data { data, .. } => self.on_data(&event, event.text(data), evidence)?,
            };
            if let Some(step) = step {
                self.is_open |= matches!(step, StreamStep::Member { .. });
                if self.is_open
                    && let Some(comment) = self.early_comment.take()
                {
                    self.next = Some(step);
                    return Ok(Some(StreamStep::Comment(comment)));
                }
                return Ok(Some(step));
            }
        }
        Ok(None)
    }

    /// Ends the streams of all members that have not ended with an error of the proxy, and returns
    /// the bytes for each of them.
    pub fn fail(&mut self, kind: FailureKind) -> Vec<(usize, Bytes)> {
        let body = self.endpoint.dialect.failure_response(&kind.into(), None).body;
        let bytes = Bytes::from([b"data: ", &body[..], b"\n\ndata: ", DONE, b"\n\n"].concat());
        let open = self.streams.iter_mut().enumerate().filter(|(_, stream)| !stream.is_over());
        open.map(|(member, stream)| {
            stream.end();
            (member, bytes.clone())
        })
        .collect()
    }

    fn on_data(
        &mut self,
        event: &Event,
        doc: &[u8],
        evidence: (Tick, &UnbatchedEvidence),
    ) -> Result<Option<StreamStep>, ResponseMismatch> {
        match Chunk::read(doc, &self.endpoint.shape)? {
            Chunk::NoResult(usage) => {
                // If the totals have a number of cached tokens, the members miss theirs, because it
                // is not the sum (vLLM). The mismatch ends the merging of such calls, so that later
                // ones receive it.
                usage.map_or(Ok(()), |usage| plan::check_cached_tokens(doc, usage, &self.endpoint.shape))?;
                Ok(None)
            }
            Chunk::Error => Ok(Some(StreamStep::Error(self.on_error(event, doc)))),
            Chunk::Result(chunk) => self.on_result(event, doc, chunk, evidence).map(Some),
        }
    }

    fn on_result(
        &mut self,
        event: &Event,
        doc: &[u8],
        chunk: ResultChunk,
        evidence: (Tick, &UnbatchedEvidence),
    ) -> Result<StreamStep, ResponseMismatch> {
        let owner = self.streams.iter().enumerate();
        let mut owner = owner.filter_map(|(member, stream)| Some((member, stream.own_result(chunk.result)?)));
        let (member, own) = owner.next().ok_or(MismatchKind::Index)?;
        let counts = chunk.usage.and_then(|usage| ChunkCounts::read(doc, usage));
        // The members request totals, which are added up from the numbers in every chunk.
        if self.options.include_usage && counts.is_none() {
            return Err(MismatchKind::Usage.into());
        }
        let cuts = self.check_envelope(doc, &chunk, member, evidence)?;
        let Some(stream) = self.streams.get_mut(member) else { return Err(MismatchKind::Index.into()) };
        // A piece of a result that has ended: the server numbers its results differently.
        if stream.is_over() || !stream.on_chunk(own, chunk.is_last, counts) {
            return Err(MismatchKind::Index.into());
        }
        let is_last = stream.is_over();
        // No id is derived from one that may quote an input and is therefore cut.
        if !cuts.iter().any(|cut| chunk.id.is_some_and(|id| contains(*cut, id))) {
            self.set_id(doc, &chunk, member);
        }
        let bytes = self.write_chunk(event, doc, (&chunk, &cuts), (member, own, counts));
        Ok(StreamStep::Member { member, bytes: Bytes::from(bytes), is_last })
    }

    /// Writes a chunk for its member and, if the member's stream ends with it, the totals of tokens
    /// and the end of the stream.
    fn write_chunk(
        &self,
        event: &Event,
        doc: &[u8],
        (chunk, cuts): (&ResultChunk, &[Span]),
        (member, own, counts): (usize, usize, Option<ChunkCounts>),
    ) -> Vec<u8> {
        let index = own.to_string();
        let mut edits: Vec<ChunkEdit<'_>> = cuts.iter().map(|cut| (*cut, &b""[..])).collect();
        let stream = self.streams.get(member);
        if let (Some(id), Some(own)) = (chunk.id, stream.and_then(|stream| stream.id.as_deref())) {
            edits.push((id, own));
        }
        let mut out = Vec::with_capacity(event.bytes().len() + 64);
        let mut chunk_edits = edits.clone();
        chunk_edits.push((chunk.index, index.as_bytes()));
        // Numbers of tokens that the member would not receive in this chunk alone, or that contain
        // anything else, are replaced with null.
        let has_counts = self.endpoint.shape.generation.is_some_and(|generation| generation.ends_with_counts);
        let are_own = self.options.continuous_usage || has_counts;
        let is_kept = are_own && counts.is_some_and(|counts| counts.is_plain);
        chunk_edits.extend(chunk.usage.filter(|_| !is_kept).map(|usage| (usage, &b"null"[..])));
        event.write_with(&apply_edits(doc, chunk_edits), &mut out);
        let Some(stream) = stream.filter(|stream| stream.is_over()) else { return out };
        if let (true, Some(usage), Some((prompt, completion))) =
            (self.options.include_usage, chunk.usage, stream.tokens())
        {
            let total = prompt + completion;
            let counts =
                format!(r#"{{"prompt_tokens":{prompt},"total_tokens":{total},"completion_tokens":{completion}}}"#);
            edits.extend([(chunk.results, &b"[]"[..]), (usage, counts.as_bytes())]);
            event.write_with(&apply_edits(doc, edits), &mut out);
        }
        event.write_with(DONE, &mut out);
        out
    }

    /// Sets the id of a member from its first chunk.
    fn set_id(&mut self, doc: &[u8], chunk: &ResultChunk, member: usize) {
        let (Some(stream), Some(call), Some(id)) = (self.streams.get_mut(member), self.calls.get(member), chunk.id)
        else {
            return;
        };
        stream.id.get_or_insert_with(|| {
            let mut own = Vec::new();
            plan::write_id(doc, id, call, &self.sent, &self.endpoint.shape, &mut own);
            own
        });
    }
}
