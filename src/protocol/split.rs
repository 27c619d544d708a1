//! Cuts the answer to a shared call into the answers that its members would have had alone.
//!
//! Everything is validated first ([`plan`]), then written: upstream's raw bytes with the results replaced by the caller's own, indexes counted
//! from 0, ids afresh and counters shared out. All other bytes stay: key order, spacing, spelling of numbers, the newline at the end.

mod plan;
mod results;

use bytes::Bytes;
use http::StatusCode;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};

use crate::protocol::call::{Call, Mismatch, MismatchKind, Outgoing, Reply};
use crate::protocol::route::Endpoint;
use crate::protocol::shape::Counters;
use crate::protocol::{fresh, headers};

use plan::Plan;

// === impl Endpoint ===

impl Endpoint {
    /// Splits a success to the shared call `sent` among `members`, in the order in which it was written.
    ///
    /// # Errors
    /// The answer is not whole, or not one for these items; then nobody may get any of it.
    pub fn split_batch(
        &self,
        members: &[&Call],
        sent: &Outgoing,
        status: StatusCode,
        headers: &HeaderMap,
        body: &Bytes,
    ) -> Result<Vec<Reply>, Mismatch> {
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
        let plan = Plan::new(&self.shape, members, body, headers)?;
        let reply = |(index, call): (usize, &&Call)| {
            let written = plan.write(index, call, sent, &self.shape);
            let mut own = self.answer_headers(call, sent, headers);
            plan.write_headers(index, &mut own);
            Reply { status: written.status.unwrap_or(status), headers: own, body: written.body, trailers: None }
        };
        Ok(members.iter().enumerate().map(reply).collect())
    }

    /// An answer that is the same for all members by construction (401, 405, 429, 503), for each of them.
    #[must_use]
    pub fn forward_all(
        &self,
        members: &[&Call],
        sent: &Outgoing,
        status: StatusCode,
        headers: &HeaderMap,
        body: &Bytes,
    ) -> Vec<Reply> {
        let reply = |call: &&Call| {
            let mut own = self.answer_headers(call, sent, headers);
            // The body goes as it is, so what it is coded in must be said.
            if let Some(coding) = headers.get(header::CONTENT_ENCODING) {
                own.insert(header::CONTENT_ENCODING, coding.clone());
            }
            Reply { status, headers: own, body: body.clone(), trailers: None }
        };
        members.iter().map(reply).collect()
    }

    /// What of upstream's head a member may see, with what echoes our id replaced by its own.
    fn answer_headers(&self, call: &Call, sent: &Outgoing, headers: &HeaderMap) -> HeaderMap {
        let nominated = headers::nominated(headers);
        let never =
            [header::CONTENT_LENGTH, header::CONTENT_ENCODING, headers::COMPUTE_CHARACTERS, headers::COMPUTE_TOKENS];
        let shown = |name: &HeaderName| {
            (headers::is_shared_answer(name) || self.rules.respond_with_headers.contains(name))
                && headers::is_end_to_end(name)
                && *name != header::TRAILER
                && !never.contains(name)
                && !nominated.contains(name)
                && *name != headers::REQUEST_ID
        };
        let own_id = || {
            let given = call.head.headers.get(headers::REQUEST_ID).cloned();
            given
                .unwrap_or_else(|| HeaderValue::from_str(&fresh::request_id()).unwrap_or(HeaderValue::from_static("-")))
        };
        let mut out = HeaderMap::with_capacity(headers.len());
        for (name, value) in headers {
            if shown(name) {
                let echoes = memchr::memmem::find(value.as_bytes(), sent.request_id.as_bytes()).is_some();
                out.append(name.clone(), if echoes { own_id() } else { value.clone() });
            }
        }
        if headers.contains_key(headers::REQUEST_ID) {
            out.insert(headers::REQUEST_ID, own_id());
        }
        out
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
