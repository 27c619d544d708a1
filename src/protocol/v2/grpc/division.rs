//! Division of a call with many rows into parts with some of its rows each, and the join of their
//! responses.
//!
//! A part has the fields of the whole call, except for its rows. Responses are joined only if they
//! are equal apart from their rows and their ids.

use std::ops::Range;

use bytes::Bytes;
use http::HeaderMap;

use super::frame::MessageWriter;
use super::request::{INPUTS, InferInput, InferRequest, RAW_CONTENTS as RAW_INPUTS, TensorData};
use super::split::{MessageSplit, OUTPUTS, RAW_CONTENTS};
use super::tensor;
use super::wire::{self, WireFields};
use crate::call::{Call, MismatchKind, Reply};
use crate::json::Span;
use crate::v2::binary;

/// The rows of a call, cut into parts.
#[derive(Debug)]
pub(crate) struct MessageDivision<'a> {
    call: &'a Call,
    request: &'a InferRequest,
    rows: Vec<usize>,
    /// For each input, the data of each part.
    inputs: Vec<Vec<Span>>,
}

// === impl MessageDivision ===

impl<'a> MessageDivision<'a> {
    /// Cuts the rows of a call. `None` if the parts do not have all of them.
    pub(crate) fn new(call: &'a Call, ranges: &[Range<usize>]) -> Option<Self> {
        let request = call.message.as_deref()?;
        let rows: Vec<usize> = ranges.iter().map(ExactSizeIterator::len).collect();
        let cut = |InferInput { tensor, data }: &InferInput| match data {
            TensorData::Raw(blob) => {
                let bytes = call.body.slice(blob.start..blob.end);
                let parts = binary::cut_rows(&bytes, tensor.datatype, &tensor.dimensions, &rows)?;
                Some(binary::to_spans(*blob, &parts))
            }
            TensorData::Typed(elements) => {
                tensor::cut_elements(&call.body, *elements, (tensor.datatype, &tensor.dimensions), &rows)
            }
        };
        let inputs = request.inputs.iter().map(cut).collect::<Option<Vec<Vec<Span>>>>()?;
        Some(Self { call, request, rows, inputs })
    }

    /// Returns the number of bytes of the data of a part.
    pub(crate) fn data_len(&self, part: usize) -> usize {
        self.inputs.iter().filter_map(|parts| parts.get(part)).map(|own| own.len()).sum()
    }

    /// Returns the body of a part.
    pub(crate) fn part_body(&self, part: usize) -> Option<Bytes> {
        let doc = &self.call.body;
        let rows = *self.rows.get(part)?;
        let data = |index: usize| Some(self.inputs.get(index)?.get(part)?.of(doc));
        let rest = self.call.body.len().saturating_sub(self.request.data_len());
        let mut body = MessageWriter::with_capacity(rest + self.data_len(part));
        let out = body.bytes();
        let (mut input, mut raw) = (0, 0);
        for field in WireFields::new(doc, self.request.message).flatten() {
            match field.number {
                INPUTS => {
                    let InferInput { tensor, data: place } = self.request.inputs.get(input)?;
                    let elements = [data(input)?];
                    let is_typed = matches!(place, TensorData::Typed(_));
                    tensor.write(doc, INPUTS, rows, if is_typed { &elements } else { &[] }, out);
                    input += 1;
                }
                RAW_INPUTS => {
                    wire::write_bytes(out, RAW_INPUTS, data(raw)?);
                    raw += 1;
                }
                _ => out.extend_from_slice(field.whole.of(doc)),
            }
        }
        Some(body.finish())
    }
}

/// Joins the responses to all parts of a call, in order. `headers` are those of the response.
///
/// # Errors
/// A response does not have the rows of its part, or differs from the first one beside its rows.
pub(crate) fn join(parts: &[(&Call, &Reply)], headers: HeaderMap) -> Result<Reply, MismatchKind> {
    let found = parts.iter().map(|(call, reply)| MessageSplit::new(&[*call], &reply.body));
    let found = found.collect::<Result<Vec<MessageSplit>, MismatchKind>>()?;
    let (Some(first), Some(reply)) = (found.first(), parts.first().map(|(_, reply)| reply)) else {
        return Err(MismatchKind::Empty);
    };
    if !found.iter().all(|own| own.is_like(first)) {
        return Err(MismatchKind::Undeclared);
    }
    let doc = &first.body;
    let rows = found.iter().flat_map(|own| &own.rows).sum();
    let data = |index: usize| -> Vec<&[u8]> { found.iter().filter_map(|own| own.data_at(index, 0)).collect() };
    let mut body = MessageWriter::with_capacity(parts.iter().map(|(_, reply)| reply.body.len()).sum());
    let out = body.bytes();
    let (mut output, mut raw) = (0, 0);
    for field in WireFields::new(doc, first.message).flatten() {
        match field.number {
            OUTPUTS => {
                if let Some(own) = first.outputs.get(output) {
                    let elements = if own.tensor.elements.is_some() { data(output) } else { Vec::new() };
                    own.tensor.write(doc, OUTPUTS, rows, &elements, out);
                }
                output += 1;
            }
            RAW_CONTENTS => {
                let parts = data(raw);
                wire::write_head(out, RAW_CONTENTS, parts.iter().map(|part| part.len()).sum());
                parts.iter().for_each(|part| out.extend_from_slice(part));
                raw += 1;
            }
            _ => out.extend_from_slice(field.whole.of(doc)),
        }
    }
    Ok(Reply { status: reply.status, headers, body: body.finish(), trailers: reply.trailers.clone() })
}

// === impl MessageSplit ===

impl MessageSplit {
    /// Returns `true` if two responses are equal apart from their rows and ids.
    fn is_like(&self, other: &Self) -> bool {
        self.description() == other.description() && self.other_fields() == other.other_fields()
    }
}
