//! Cuts the answer to a shared call into the answers that its members would have had alone.
//!
//! Everything is validated first ([`plan`]), then written: upstream's raw bytes with the results replaced by the caller's own, indexes counted
//! from 0, ids afresh and counters shared out. All other bytes stay: key order, spacing, spelling of numbers, the newline at the end. What belongs
//! to no single result is passed on only where it cannot quote an input ([`envelope`], [`answer`]).

mod answer;
mod envelope;
mod plan;
mod results;

use bytes::Bytes;
use http::StatusCode;
use http::header::{self, HeaderMap, HeaderValue};

use crate::batching::Tick;
use crate::protocol::call::{Call, Mismatch, MismatchKind, Outgoing, Reply, is_overload};
use crate::protocol::evidence::{LoneEvidence, Part, Standing};
use crate::protocol::route::Endpoint;
use crate::protocol::shape::Counters;

use answer::SharedHead;
use envelope::Undeclared;
use plan::Plan;

/// The answer to a shared call.
#[derive(Debug, Clone, Copy)]
pub struct SharedAnswer<'a> {
    /// The status.
    pub status: StatusCode,
    /// The head.
    pub headers: &'a HeaderMap,
    /// The whole body.
    pub body: &'a Bytes,
}

/// The longest name of a member in a log line, in bytes.
const NAME_MAX: usize = 64;

// === impl Endpoint ===

impl Endpoint {
    /// Splits a success to the shared call `sent` among `members`, in the order in which it was written. Without `evidence` members outside the
    /// results are taken for constants: that is for answers that no caller gets.
    ///
    /// # Errors
    /// The answer is not whole, not one for these items, or has parts that may quote an input; then nobody may get any of it.
    pub fn split_batch(
        &self,
        members: &[&Call],
        sent: &Outgoing,
        answer: SharedAnswer<'_>,
        evidence: Option<(Tick, &LoneEvidence)>,
    ) -> Result<Vec<Reply>, Mismatch> {
        let SharedAnswer { status, headers, body } = answer;
        if matches!(status, StatusCode::NO_CONTENT | StatusCode::RESET_CONTENT | StatusCode::PARTIAL_CONTENT)
            || !status.is_success()
        {
            return Err(MismatchKind::Status.into());
        }
        if is_coded(headers) {
            return Err(MismatchKind::Compressed.into());
        }
        if body.is_empty() {
            return Err(MismatchKind::Empty.into());
        }
        if matches!(self.shape.counters, Counters::Usage(_)) && counts_first_item_only(headers) {
            return Err(MismatchKind::Usage.into());
        }
        let Some(leader) = members.first() else { return Ok(Vec::new()) };
        let plan = Plan::new(&self.shape, members, (body, headers), || match evidence {
            Some(evidence) => self.judge_envelope(members, leader, body, evidence),
            None => Ok(()),
        })?;
        let head = SharedHead::new(self, leader, headers, evidence.map(|(_, evidence)| evidence));
        let reply = |(index, call): (usize, &&Call)| {
            let written = plan.write(index, call, sent, &self.shape);
            let mut own = head.of_member(call, sent);
            plan.write_headers(index, &mut own);
            Reply { status: written.status.unwrap_or(status), headers: own, body: written.body, trailers: None }
        };
        Ok(members.iter().enumerate().map(reply).collect())
    }

    /// The answers to members of a shared call that was refused for load, with 429 or 503: the status, what the head says of when to try again, and
    /// a body of ours in the caller's dialect. The server's own may quote inputs; it is passed on where lone answers have had the same.
    #[must_use]
    pub fn answer_overload(
        &self,
        members: &[&Call],
        sent: &Outgoing,
        answer: SharedAnswer<'_>,
        evidence: &LoneEvidence,
    ) -> Vec<Reply> {
        let SharedAnswer { status, headers, body } = answer;
        let Some(leader) = members.first() else { return Vec::new() };
        let head = SharedHead::new(self, leader, headers, Some(evidence));
        let is_known = !is_coded(headers) && evidence.knows(leader, Part::Body(status, body));
        let own = self.dialect.overload(status);
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

    /// Records what a lone answer shows of its key: whatever of it may be a constant.
    pub fn observe_lone(&self, call: &Call, answer: SharedAnswer<'_>, evidence: &LoneEvidence) {
        let SharedAnswer { status, headers, body } = answer;
        let overload = is_overload(status).then_some(Part::Body(status, body));
        // A route that may not send calls again has to know before its first batch.
        let looks = status.is_success() && (!self.idempotent || evidence.is_watched(call));
        let members =
            if looks { envelope::of_lone(body, &self.shape, &self.rules.respond_with_fields) } else { Vec::new() };
        let headers = answer::free_text(headers).map(|name| Part::Header(name, headers));
        let members = members.iter().map(|own| Part::Member(&own.path, own.value.of(body)));
        evidence.observe(call, headers.chain(overload).chain(members));
    }

    /// The members of a shared answer outside the results that the protocol and the policy do not declare: their paths, and whether a lone answer
    /// has the same bytes there.
    #[must_use]
    pub fn undeclared(&self, members: &[&Call], body: &Bytes, lone: &Bytes) -> Vec<(String, bool)> {
        let fields = &self.rules.respond_with_fields;
        let known = envelope::of_lone(lone, &self.shape, fields);
        let is_same = |part: &Undeclared| {
            known.iter().any(|own| own.path == part.path && own.value.of(lone) == part.value.of(body))
        };
        let parts = envelope::of_shared(body, &self.shape, fields, members);
        parts.iter().map(|part| (String::from_utf8_lossy(&part.path).into_owned(), is_same(part))).collect()
    }

    /// Checks that no part of the body outside the results may quote an input.
    fn judge_envelope(
        &self,
        members: &[&Call],
        leader: &Call,
        body: &Bytes,
        (now, evidence): (Tick, &LoneEvidence),
    ) -> Result<(), Mismatch> {
        let parts = envelope::of_shared(body, &self.shape, &self.rules.respond_with_fields, members);
        if parts.is_empty() {
            return Ok(());
        }
        match evidence.judge(
            now,
            leader,
            self.idempotent,
            parts.iter().map(|own| Part::Member(&own.path, own.value.of(body))),
        ) {
            Standing::Constant => Ok(()),
            Standing::Unknown => Err(MismatchKind::Undeclared.into()),
            Standing::Varies(place) => {
                let path =
                    place.and_then(|place| parts.get(place)).map(|own| own.path.get(..NAME_MAX).unwrap_or(&own.path));
                let member = path.map(|path| String::from_utf8_lossy(path).escape_debug().to_string());
                Err(Mismatch { what: MismatchKind::Undeclared, member })
            }
        }
    }
}

/// Returns whether the server that answers is llama.cpp: of several inputs its `usage` counts the
/// first alone.
fn counts_first_item_only(headers: &HeaderMap) -> bool {
    headers.get(header::SERVER).is_some_and(|name| name.as_bytes().trim_ascii().eq_ignore_ascii_case(b"llama.cpp"))
}

fn is_coded(headers: &HeaderMap) -> bool {
    let plain = |value: &HeaderValue| value.as_bytes().trim_ascii().eq_ignore_ascii_case(b"identity");
    !headers.get_all(header::CONTENT_ENCODING).iter().all(plain)
}
