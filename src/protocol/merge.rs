//! Writes a shared call: the raw body of the leader, with the raw items of all members in place of
//! its own.

use bytes::Bytes;
use http::{HeaderValue, Version};

use crate::call::{Call, SharedRequest};
use crate::headers;
use crate::items::Slot;
use crate::json::{self, Span, to_json_string};
use crate::pointer::Pointer;
use crate::route::Endpoint;
use crate::shape::{ListPath, Payload, ProtocolShape, TokenIds};
use crate::{BatchTooLarge, head, ids, v2};

/// Pointer to the field that requests token ids from vLLM and SGLang.
const TOKEN_IDS_FIELD: &str = "/return_token_ids";
/// That field with its value, to be inserted at the end of an object.
const REQUEST_TOKEN_IDS: &[u8] = b",\"return_token_ids\":true";

/// A replacement of a byte range in the leader's body.
enum RequestEdit {
    /// Removes a member that need not be equal in all calls.
    Cut,
    /// Replaces the key by the name of the list form, in quotes.
    Name(Vec<u8>),
    /// Replaces the list at this index of `ItemSpans::slots` by the items of all members.
    Items(usize),
    /// Replaces the first dimension in the shape of a tensor by the number of rows of all members.
    Rows,
    /// Replaces a value, or inserts a member, with this text.
    Text(&'static [u8]),
}

// === impl Endpoint ===

impl Endpoint {
    /// Writes the shared call of `members`, which are two or more calls with equal keys. The first
    /// one is the leader. `deadline_ms` is the latest deadline of all members, and is sent in the
    /// header format that a member used.
    #[must_use]
    pub fn write_batch(&self, members: &[&Call], deadline_ms: Option<u64>) -> SharedRequest {
        let request_id = ids::request_id();
        // A shared call is traced if a member is, and sampled if the trace of a member is.
        let traceparent = members.iter().filter_map(|call| call.sampled_trace).max().map(ids::traceparent);
        let mut headers = head::shared_head(members, &self.rules, &self.common);
        if let Ok(value) = HeaderValue::from_str(&request_id) {
            headers.insert(headers::REQUEST_ID, value);
        }
        if let Some(value) = traceparent.as_ref().and_then(|value| HeaderValue::from_str(value).ok()) {
            headers.insert(headers::TRACEPARENT, value);
        }
        if let Some(ms) = deadline_ms
            && let Some(name) = head::deadline_header(members, &self.common)
        {
            let value = headers::format_deadline(&name, ms);
            headers.insert(name, value);
        }
        let (method, target) = members.first().map_or_else(Default::default, |leader| {
            let uri = &leader.head.uri;
            let path = match &self.shape.upstream_path {
                None => uri.path().to_owned(),
                Some(ListPath::Whole(path)) => path.clone(),
                Some(ListPath::Below(steps)) => format!("{}{steps}", uri.path()),
            };
            let target = uri.query().map_or_else(|| path.clone(), |query| format!("{path}?{query}"));
            (leader.head.method.clone(), target)
        });
        let body = match self.shape.payload {
            Payload::Items | Payload::Generation(_) => Bytes::from(self.merged_body(members)),
            Payload::Tensors => Bytes::from(v2::merge::write_shared(members, &request_id, &mut headers)),
            Payload::GrpcTensors => v2::grpc::merge::write_shared(members, &request_id, &mut headers),
        };
        let is_grpc = self.shape.payload == Payload::GrpcTensors;
        let version = if is_grpc { Version::HTTP_2 } else { Version::HTTP_11 };
        SharedRequest { version, method, target, headers, body, request_id, traceparent }
    }

    /// Returns `Some` if a shared call is larger than servers of the protocol accept, with the
    /// number of items of the same mean size that they accept.
    #[must_use]
    pub fn detect_oversize(&self, members: &[&Call], sent: &SharedRequest) -> Option<BatchTooLarge> {
        let (length, max) = (sent.body.len(), v2::grpc::MESSAGE_BYTES_MAX);
        if self.shape.payload != Payload::GrpcTensors || length <= max {
            return None;
        }
        let items: usize = members.iter().filter_map(|call| usize::try_from(call.items).ok()).sum();
        let limit = items.saturating_mul(max) / length;
        Some(BatchTooLarge { limit: Some(u32::try_from(limit.max(1)).unwrap_or(u32::MAX)) })
    }

    /// Returns the body of the leader with the items of all members.
    fn merged_body(&self, members: &[&Call]) -> Vec<u8> {
        let Some(leader) = members.first() else { return Vec::new() };
        let mut edits: Vec<(Span, RequestEdit)> =
            leader.found.cuts.iter().map(|cut| (*cut, RequestEdit::Cut)).collect();
        for (index, slot) in leader.found.slots.iter().enumerate() {
            edits.push((slot.value, RequestEdit::Items(index)));
            if let Some(key) = slot.key {
                edits.push((key, RequestEdit::Name(self.list_name(index))));
            }
        }
        edits.extend(leader.found.tensor.as_ref().map(|tensor| (tensor.count, RequestEdit::Rows)));
        if requests_token_ids(&self.shape, leader) {
            // An object with items is not empty, so a comma is always correct.
            let end = json::root(&leader.body).end.saturating_sub(1);
            edits.push((Span { start: end, end }, RequestEdit::Text(REQUEST_TOKEN_IDS)));
        }
        if let Some((span, text)) = leader.stream.and_then(|options| options.counting_edit(&leader.body)) {
            edits.push((span, RequestEdit::Text(text)));
        }
        // The edits never overlap, so they can be applied in document order.
        edits.sort_by_key(|(span, _)| span.start);
        let size = members.iter().map(|call| call.body.len()).sum();
        let mut out = Vec::with_capacity(size);
        json::splice(&leader.body, Span::whole(&leader.body), edits, &mut out, |_, edit, out| match edit {
            RequestEdit::Cut => {}
            RequestEdit::Name(name) => out.extend_from_slice(&name),
            RequestEdit::Text(text) => out.extend_from_slice(text),
            RequestEdit::Rows => {
                let rows: usize = members.iter().map(|call| call.found.count()).sum();
                out.extend_from_slice(rows.to_string().as_bytes());
            }
            RequestEdit::Items(index) => write_items(members, index, out),
        });
        out
    }

    /// Returns the name of the list of items as a JSON string.
    fn list_name(&self, index: usize) -> Vec<u8> {
        let name = self.shape.items.get(index).and_then(|pointer| pointer.name()).unwrap_or_default();
        to_json_string(name)
    }
}

/// Returns `true` if the shared call of a leader requests token ids although no member does. The
/// chunks of a stream have numbers of tokens instead.
pub(crate) fn requests_token_ids(shape: &ProtocolShape, leader: &Call) -> bool {
    let is_available = shape.generation.is_some_and(|generation| generation.token_ids != TokenIds::Unavailable);
    let own = || json::find(&leader.body, json::root(&leader.body), &Pointer::from_static(TOKEN_IDS_FIELD));
    is_available && leader.stream.is_none() && matches!(own(), Ok(None))
}

/// Writes a list with the items of all members at this index of their slots.
fn write_items(members: &[&Call], index: usize, out: &mut Vec<u8>) {
    out.push(b'[');
    let slots = members.iter().filter_map(|call| Some((call, call.found.slots.get(index)?)));
    let items =
        slots.flat_map(|(call, slot): (_, &Slot)| slot.items.iter().map(move |item| (call, item.of(&call.body))));
    for (place, (call, item)) in items.enumerate() {
        if place > 0 {
            out.push(b',');
        }
        if call.found.is_wrapped {
            out.extend_from_slice(&[b"[", item, b"]"].concat());
        } else {
            out.extend_from_slice(item);
        }
    }
    out.push(b']');
}
