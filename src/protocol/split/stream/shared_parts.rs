//! The parts of a stream that belong to no result, and what members may receive of them: other
//! members of chunks, errors of the whole call, and comments.

use std::sync::Arc;

use bytes::Bytes;

use super::super::envelope::{self, BatchContext, UndeclaredPart};
use super::super::quote;
use super::StreamSplit;
use super::chunk::ResultChunk;
use super::edit::{contains, outside};
use super::events::Event;
use crate::batching::Tick;
use crate::call::{Call, MismatchKind, ResponseMismatch};
use crate::error::FailureKind;
use crate::evidence::{MEMBERS_MAX, UnbatchedEvidence};
use crate::items;
use crate::json::{self, Members, Span, unescape};

/// Comment in place of one that may quote an input.
const EMPTY_COMMENT: &[u8] = b":\n\n";

// === impl StreamSplit ===

impl StreamSplit {
    /// Checks the parts of a chunk outside its result. Returns the spans of those that its member
    /// may not receive.
    ///
    /// # Errors
    /// No chunk was forwarded yet, and this one has parts that may quote an input.
    pub(super) fn check_envelope(
        &mut self,
        doc: &[u8],
        chunk: &ResultChunk,
        member: usize,
        (now, evidence): (Tick, &UnbatchedEvidence),
    ) -> Result<Vec<Span>, ResponseMismatch> {
        let rest = outside(doc, chunk);
        let has_id = self.streams.get(member).is_some_and(|stream| stream.id.is_some());
        // Compared with all inputs only once, and not for each member again.
        let is_plain_id = || chunk.id.is_none_or(|id| envelope::is_plain_id(id.inner_bytes(doc)));
        if rest == self.approved && (has_id || is_plain_id()) {
            return Ok(Vec::new());
        }
        let calls = members(&self.calls);
        let Some(leader) = calls.first() else { return Ok(Vec::new()) };
        let fields = &self.endpoint.rules.respond_with_fields;
        let batch = BatchContext { members: &calls, now: evidence.wall_time(now) };
        let mut parts = envelope::undeclared_in_batch(doc, &self.endpoint.shape, fields, batch);
        // Of more parts, not all are listed.
        if parts.len() > MEMBERS_MAX {
            if !self.is_open {
                self.endpoint.check_parts(leader, &parts, doc, (now, evidence))?;
            }
            return Err(MismatchKind::Undeclared.into());
        }
        // The id is replaced once the member has one, and the numbers of tokens always are, or
        // consist of nothing else.
        let is_replaced = |part: &UndeclaredPart| {
            let is_in = |span: Option<Span>| span.is_some_and(|span| contains(span, part.value));
            has_id && is_in(chunk.id) || is_in(chunk.usage) || part.value.len() == 0
        };
        parts.retain(|part| !is_replaced(part));
        if !self.is_open {
            self.endpoint.check_parts(leader, &parts, doc, (now, evidence))?;
            parts.clear();
        }
        parts.retain(|part| !evidence.is_constant(leader, part.in_response(doc)));
        if parts.is_empty() {
            self.approved = rest;
            return Ok(Vec::new());
        }
        let root = json::root(doc);
        let is_undeclared = |member: &json::Member| parts.iter().any(|part| contains(member.value, part.value));
        let starts: Vec<usize> =
            Members::new(doc, root).filter(is_undeclared).map(|member| member.value.start).collect();
        Ok(items::cut_members(doc, root, &starts))
    }

    /// Ends the streams of all members that have not ended with an error of the server.
    pub(super) fn on_error(&mut self, event: &Event, doc: &[u8]) -> Vec<(usize, Bytes)> {
        let open = self.streams.iter().enumerate().filter(|(_, stream)| !stream.is_over());
        let open: Vec<usize> = open.map(|(member, _)| member).collect();
        if let [member] = open[..]
            && !self.quotes_others(doc, member)
            && let Some(stream) = self.streams.get_mut(member)
        {
            stream.end();
            let mut out = Vec::new();
            event.write_with(doc, &mut out);
            event.write_with(super::DONE, &mut out);
            return vec![(member, Bytes::from(out))];
        }
        self.fail(FailureKind::BatchFailed)
    }

    /// Returns `true` if a text shares a piece with an input of another member than this one.
    fn quotes_others(&self, doc: &[u8], member: usize) -> bool {
        let mut others = members(&self.calls);
        others.remove(member);
        quotes(&unescape(doc), &others)
    }

    /// Returns a comment for all members.
    pub(super) fn shared_comment(&mut self, event: &Event) -> Bytes {
        let comment = event.bytes();
        if *comment == self.approved_comment {
            return comment.clone();
        }
        if quotes(comment, &members(&self.calls)) {
            return Bytes::from_static(EMPTY_COMMENT);
        }
        self.approved_comment = Bytes::copy_from_slice(comment);
        self.approved_comment.clone()
    }
}

fn members(calls: &[Arc<Call>]) -> Vec<&Call> {
    calls.iter().map(AsRef::as_ref).collect()
}

fn quotes(text: &[u8], calls: &[&Call]) -> bool {
    quote::shares_text(text, calls) || quote::quotes_digits(text, calls)
}
