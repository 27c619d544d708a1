//! Writes the message of a shared call: that of the leader, with the rows of all members.

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderValue};

use super::frame::MessageWriter;
use super::request::{ID, INPUTS, InferRequest, RAW_CONTENTS, TensorData};
use super::wire::{self, WireFields};
use crate::call::Call;

/// Returns the body of the shared call of `members`, and completes its headers. The first member is
/// the leader. `id` becomes the id of the shared call, which servers return.
pub(crate) fn write_shared(members: &[&Call], id: &str, headers: &mut HeaderMap) -> Bytes {
    let all: Vec<(&Call, &InferRequest)> =
        members.iter().filter_map(|call| Some((*call, call.message.as_deref()?))).collect();
    let Some((leader, own)) = all.first() else { return Bytes::new() };
    let doc = &leader.body;
    let mut body = MessageWriter::with_capacity(members.iter().map(|call| call.body.len()).sum());
    let out = body.bytes();
    let rows = all.iter().map(|(_, request)| request.rows).sum();
    let (mut input, mut raw) = (0, 0);
    for field in WireFields::new(doc, own.message).flatten() {
        match field.number {
            ID if own.id.is_some() => wire::write_bytes(out, ID, id.as_bytes()),
            INPUTS => {
                if let Some(place) = own.inputs.get(input) {
                    let is_typed = matches!(place.data, TensorData::Typed(_));
                    let elements = if is_typed { data_at(&all, input) } else { Vec::new() };
                    place.tensor.write(doc, INPUTS, rows, &elements, out);
                }
                input += 1;
            }
            RAW_CONTENTS => {
                let parts = data_at(&all, raw);
                wire::write_head(out, RAW_CONTENTS, parts.iter().map(|part| part.len()).sum());
                parts.iter().for_each(|part| out.extend_from_slice(part));
                raw += 1;
            }
            _ => out.extend_from_slice(field.whole.of(doc)),
        }
    }
    if let Some(content_type) = leader.head.headers.get(header::CONTENT_TYPE) {
        headers.insert(header::CONTENT_TYPE, content_type.clone());
    }
    // Servers reject calls without it, because an intermediary might have dropped the trailers.
    headers.insert(header::TE, HeaderValue::from_static("trailers"));
    body.finish()
}

/// Returns the data of an input of all members.
fn data_at<'a>(members: &[(&'a Call, &'a InferRequest)], index: usize) -> Vec<&'a [u8]> {
    let data =
        |(call, request): &(&'a Call, &'a InferRequest)| Some(request.inputs.get(index)?.data.span().of(&call.body));
    members.iter().filter_map(data).collect()
}
