//! Splits the response to a shared call into the responses that its members would have received
//! alone.
//!
//! The response is validated completely first ([`plan`]) and written afterwards: the raw bytes of
//! the upstream, with the results replaced by those of the client, indexes counted from 0, new ids,
//! and divided counters. All other bytes are preserved: key order, spacing, spelling of numbers,
//! and a newline at the end. Parts that belong to no single result are forwarded only if they
//! cannot quote an input ([`envelope`], [`head`]).

mod head;
mod envelope;
mod foreign;
mod join;
mod plan;
mod quote;
mod results;
mod shares;
mod stream;
mod token_ids;

use bytes::Bytes;
use http::StatusCode;
use http::header::{self, HeaderMap, HeaderValue};

use crate::batching::Tick;
use crate::call::{Call, MismatchKind, Reply, ResponseMismatch, SharedRequest, is_overload};
use crate::engines::is_engine;
use crate::evidence::{AnswerPart, Constancy, ObservedAnswer, UnbatchedEvidence};
use crate::route::Endpoint;
use crate::shape::{Counters, Payload};
use crate::v2::binary::Framing;
use crate::v2::grpc::split::MessageSplit;
use crate::v2::split::TensorSplit;

use envelope::{BatchContext, UndeclaredPart};
use foreign::ForeignItems;
use head::SharedHead;
use plan::SplitPlan;
use results::LocatedResults;

pub use join::PartAnswer;
pub use stream::{FirstChunk, StreamSplit, StreamStep};

/// The response to a shared call.
#[derive(Debug, Clone, Copy)]
pub struct BatchResponse<'a> {
    /// The status code.
    pub status: StatusCode,
    /// The response headers.
    pub headers: &'a HeaderMap,
    /// The complete body.
    pub body: &'a Bytes,
}

/// Maximum length in bytes of a member name in a log line.
const NAME_MAX: usize = 64;

// === impl Endpoint ===

impl Endpoint {
    /// Splits the successful response to the shared call `sent` among `members`, given in the order
    /// in which they were written. Without `evidence`, members outside the results are copied
    /// without a check, which is meant for responses that no client receives.
    ///
    /// # Errors
    /// The response is incomplete, does not match the items, or has parts that may quote an input.
    /// No client may receive any part of it.
    pub fn split_batch(
        &self,
        members: &[&Call],
        sent: &SharedRequest,
        answer: BatchResponse<'_>,
        evidence: Option<(Tick, &UnbatchedEvidence)>,
    ) -> Result<Vec<Reply>, ResponseMismatch> {
        let BatchResponse { status, headers, body } = answer;
        if matches!(status, StatusCode::NO_CONTENT | StatusCode::RESET_CONTENT | StatusCode::PARTIAL_CONTENT)
            || !status.is_success()
        {
            return Err(MismatchKind::Status.into());
        }
        if has_content_coding(headers) {
            return Err(MismatchKind::Compressed.into());
        }
        if body.is_empty() {
            return Err(MismatchKind::Empty.into());
        }
        if matches!(self.shape.counters, Counters::Usage(_)) && counts_first_item_only(headers) {
            return Err(MismatchKind::Usage.into());
        }
        if members.is_empty() {
            return Ok(Vec::new());
        }
        let document = self.document(headers, body);
        let check_envelope = || match evidence {
            Some(evidence) => self.check_envelope(members, &document, evidence),
            None => Ok(()),
        };
        if self.shape.payload == Payload::Tensors {
            let split = TensorSplit::new(members, body, headers)?;
            check_envelope()?;
            let head = SharedHead::new(self, members, headers, evidence.map(|(_, evidence)| evidence));
            let reply = |(index, call): (usize, &&Call)| split.reply(index, call, sent, head.of_member(call, sent));
            return Ok(members.iter().enumerate().map(reply).map(|reply| Reply { status, ..reply }).collect());
        }
        if self.shape.payload == Payload::GrpcTensors {
            let split = MessageSplit::new(members, body)?;
            check_envelope()?;
            let head = SharedHead::new(self, members, headers, evidence.map(|(_, evidence)| evidence));
            let reply = |(index, call): (usize, &&Call)| split.reply(index, call, sent, head.of_member(call, sent));
            return Ok(members.iter().enumerate().map(reply).collect());
        }
        let check_parts = |results: &LocatedResults| {
            evidence.map_or(Ok(()), |evidence| self.check_results(members, (results, body), evidence))?;
            check_envelope()
        };
        let plan = SplitPlan::new(&self.shape, members, (body, headers), check_parts)?;
        let head = SharedHead::new(self, members, headers, evidence.map(|(_, evidence)| evidence));
        let reply = |(index, call): (usize, &&Call)| {
            let written = plan.write(index, call, sent, &self.shape);
            let mut own = head.of_member(call, sent);
            plan.write_headers(index, &mut own);
            Reply { status: written.status.unwrap_or(status), headers: own, body: written.body, trailers: None }
        };
        Ok(members.iter().enumerate().map(reply).collect())
    }

    /// Returns the responses to the members of a shared call that was refused with 429 or 503
    /// because of load. Each has the status, the retry headers, and a body of the proxy in the
    /// client's format. The server's body may quote inputs, so it is forwarded only if unbatched
    /// responses had the same one.
    #[must_use]
    pub fn overload_replies(
        &self,
        members: &[&Call],
        sent: &SharedRequest,
        answer: BatchResponse<'_>,
        evidence: &UnbatchedEvidence,
    ) -> Vec<Reply> {
        let BatchResponse { status, headers, body } = answer;
        let Some(leader) = members.first() else { return Vec::new() };
        let head = SharedHead::new(self, members, headers, Some(evidence));
        let is_known = self.shape.payload != Payload::GrpcTensors
            && !has_content_coding(headers)
            && evidence.is_constant(leader, AnswerPart::Body(status, body));
        let own = self.dialect.overload_response(status);
        let reply = |call: &&Call| {
            let mut headers = head.of_member(call, sent);
            if is_known {
                return Reply { status, headers, body: body.clone(), trailers: None };
            }
            headers.extend(own.headers.clone());
            Reply { headers, ..own.clone() }
        };
        members.iter().map(reply).collect()
    }

    /// Records the parts of an unbatched response that may be constants of its merge key, as
    /// evidence for later batches.
    pub fn observe_unbatched(&self, call: &Call, answer: BatchResponse<'_>, evidence: &UnbatchedEvidence) {
        self.observe_document(call, answer, None, evidence);
    }

    /// Records these parts of an unbatched response, or of the first chunk of a stream. `now` is the
    /// wall-clock time in seconds, if it is known.
    fn observe_document(&self, call: &Call, answer: BatchResponse<'_>, now: Option<u64>, evidence: &UnbatchedEvidence) {
        let BatchResponse { status, headers, body } = answer;
        // An error of gRPC has no body.
        let has_body = self.shape.payload != Payload::GrpcTensors;
        let overload = (is_overload(status) && has_body).then_some(AnswerPart::Body(status, body));
        // The members of the body are recorded only where they are needed: in the first responses
        // of a key, in all of a key after one of its batches had undeclared members, and on routes
        // that must not retry calls, which need this evidence before their first batch.
        let is_evidence = status.is_success() && (!self.idempotent || evidence.is_observed(call));
        let body = &self.document(headers, body);
        let members = if is_evidence { self.undeclared_in_unbatched(body, now) } else { Vec::new() };
        let headers = head::free_text_headers(headers).map(|name| AnswerPart::Header(name, headers));
        let members = members.iter().map(|own| own.in_response(body));
        let parts = headers.chain(overload).chain(members);
        evidence.observe(call, ObservedAnswer { guards: !self.idempotent, is_complete: is_evidence }, parts);
    }

    /// Returns the members of a batch response outside the results that neither the protocol nor
    /// the policy declares: their paths, and `true` for those that have the same bytes in the
    /// response `unbatched`.
    #[must_use]
    pub fn undeclared_members(&self, members: &[&Call], body: &Bytes, unbatched: &Bytes) -> Vec<(String, bool)> {
        let known = self.undeclared_in_unbatched(unbatched, None);
        let is_same = |part: &UndeclaredPart| {
            known.iter().any(|own| own.path == part.path && own.value.of(unbatched) == part.value.of(body))
        };
        let parts = self.undeclared_in_batch(body, members, None);
        parts.iter().map(|part| (String::from_utf8_lossy(&part.path).into_owned(), is_same(part))).collect()
    }

    /// Returns the JSON document of a response, without the tensors in binary form after it.
    fn document(&self, headers: &HeaderMap, body: &Bytes) -> Bytes {
        match self.shape.payload {
            Payload::Items | Payload::Generation(_) | Payload::GrpcTensors => body.clone(),
            Payload::Tensors => Framing::read(headers, body.len()).unwrap_or(Framing::Json).document(body),
        }
    }

    /// Returns the parts of a batch response that may quote an input. `now` is the wall-clock time in
    /// seconds, if it is known.
    fn undeclared_in_batch(&self, body: &[u8], members: &[&Call], now: Option<u64>) -> Vec<UndeclaredPart> {
        if self.shape.payload == Payload::GrpcTensors {
            return envelope::undeclared_in_message(body, Some(members));
        }
        let batch = BatchContext { members, now };
        envelope::undeclared_in_batch(body, &self.shape, &self.rules.respond_with_fields, batch)
    }

    /// Returns the parts of an unbatched response that may quote its input. `now` is the wall-clock time
    /// in seconds, if it is known.
    fn undeclared_in_unbatched(&self, body: &[u8], now: Option<u64>) -> Vec<UndeclaredPart> {
        if self.shape.payload == Payload::GrpcTensors {
            return envelope::undeclared_in_message(body, None);
        }
        envelope::undeclared_in_unbatched(body, &self.shape, &self.rules.respond_with_fields, now)
    }

    /// Checks that no result of a member quotes an item of another member. Where calls must not be
    /// retried, an item that occurs in the results of some members only is ignored: it may be there
    /// by chance, and the members could not be executed again alone.
    fn check_results(
        &self,
        members: &[&Call],
        (results, body): (&LocatedResults, &Bytes),
        (now, evidence): (Tick, &UnbatchedEvidence),
    ) -> Result<(), ResponseMismatch> {
        // A generated text may contain any other text by chance.
        if self.shape.generation.is_some() {
            return Ok(());
        }
        match foreign::find_foreign_items(body, &results.values(), members) {
            ForeignItems::Some if self.idempotent => Err(MismatchKind::Undeclared.into()),
            ForeignItems::Absent | ForeignItems::Some => Ok(()),
            ForeignItems::Everywhere => {
                if let Some(leader) = members.first() {
                    evidence.on_quote(now, leader, self.idempotent);
                }
                Err(MismatchKind::Undeclared.into())
            }
        }
    }

    /// Checks that no part of the body outside the results may quote an input.
    fn check_envelope(
        &self,
        members: &[&Call],
        body: &Bytes,
        (now, evidence): (Tick, &UnbatchedEvidence),
    ) -> Result<(), ResponseMismatch> {
        let Some(leader) = members.first() else { return Ok(()) };
        let parts = self.undeclared_in_batch(body, members, evidence.wall_time(now));
        self.check_parts(leader, &parts, body, (now, evidence))
    }

    /// Checks that undeclared parts of a response are constants of the merge key of the leader.
    fn check_parts(
        &self,
        leader: &Call,
        parts: &[UndeclaredPart],
        body: &[u8],
        (now, evidence): (Tick, &UnbatchedEvidence),
    ) -> Result<(), ResponseMismatch> {
        if parts.is_empty() {
            evidence.on_plain_batch(now, leader);
            return Ok(());
        }
        match evidence.check_members(now, leader, self.idempotent, parts.iter().map(|own| own.in_response(body))) {
            Constancy::Constant => Ok(()),
            Constancy::Unknown | Constancy::Learning => Err(MismatchKind::Undeclared.into()),
            Constancy::Varies(place) => {
                let path =
                    place.and_then(|place| parts.get(place)).map(|own| own.path.get(..NAME_MAX).unwrap_or(&own.path));
                let member = path.map(|path| String::from_utf8_lossy(path).escape_debug().to_string());
                Err(ResponseMismatch { what: MismatchKind::Undeclared, member })
            }
        }
    }
}

/// Returns `true` if the responding server is llama.cpp: for several inputs, its `usage` counts
/// only the first.
pub(crate) fn counts_first_item_only(headers: &HeaderMap) -> bool {
    headers.get(header::SERVER).is_some_and(|server| server.to_str().is_ok_and(is_engine))
}

/// Returns `true` if the body has a content coding other than `identity`.
pub(crate) fn has_content_coding(headers: &HeaderMap) -> bool {
    let plain = |value: &HeaderValue| value.as_bytes().trim_ascii().eq_ignore_ascii_case(b"identity");
    !headers.get_all(header::CONTENT_ENCODING).iter().all(plain)
}
