//! Division of a call with many rows into parts with some of its rows each, and the join of their
//! responses.
//!
//! A part has the bytes of the whole call, except for its rows and their numbers. Responses are
//! joined only if they are equal apart from their rows and their ids.

use std::ops::Range;

use bytes::Bytes;
use http::HeaderMap;

use super::binary;
use super::request::{InputData, TensorInput, TensorRequest};
use super::split::{OutputEdit, TensorSplit};
use super::tensor::json_rows;
use crate::call::{Call, MismatchKind, Reply};
use crate::json::{self, Elements, JsonType, Members, Span, kind};
use crate::pointer::Pointer;
use crate::spacing::infer_separator;

/// The rows of a call, cut into parts.
#[derive(Debug)]
pub(crate) struct TensorDivision<'a> {
    call: &'a Call,
    tensors: &'a TensorRequest,
    rows: Vec<usize>,
    /// For each input, the data of each part.
    inputs: Vec<Vec<PartData>>,
}

#[derive(Debug)]
enum PartData {
    Json(Span),
    Binary(Bytes),
}

// === impl TensorDivision ===

impl<'a> TensorDivision<'a> {
    /// Cuts the rows of a call. `None` if the parts do not have all of them.
    pub(crate) fn new(call: &'a Call, ranges: &[Range<usize>]) -> Option<Self> {
        let tensors = call.tensors.as_ref()?;
        let rows: Vec<usize> = ranges.iter().map(ExactSizeIterator::len).collect();
        let cut = |input: &TensorInput| match &input.data {
            InputData::Json { list, .. } => {
                let found = json_rows(&call.body, *list, &input.dimensions, &rows, |_| true)?;
                Some(found.parts.into_iter().map(PartData::Json).collect())
            }
            InputData::Binary { bytes, .. } => {
                let parts = binary::cut_rows(bytes, input.datatype, &input.dimensions, &rows)?;
                Some(parts.into_iter().map(PartData::Binary).collect())
            }
        };
        let inputs = tensors.inputs.iter().map(cut).collect::<Option<Vec<Vec<PartData>>>>()?;
        Some(Self { call, tensors, rows, inputs })
    }

    /// Returns the number of bytes of the data of a part.
    pub(crate) fn data_len(&self, part: usize) -> usize {
        let len = |data: &PartData| match data {
            PartData::Json(span) => span.len(),
            PartData::Binary(bytes) => bytes.len(),
        };
        self.inputs.iter().filter_map(|parts| parts.get(part)).map(len).sum()
    }

    /// Returns the body of a part, and completes its headers.
    pub(crate) fn part_body(&self, part: usize, headers: &mut HeaderMap) -> Option<Bytes> {
        let doc = &self.call.body;
        let mut edits: Vec<(Span, Vec<u8>)> = Vec::with_capacity(2 * self.inputs.len());
        let mut tensors: Vec<&Bytes> = Vec::new();
        for (input, parts) in self.tensors.inputs.iter().zip(&self.inputs) {
            edits.push((input.rows, self.rows.get(part)?.to_string().into_bytes()));
            edits.push(match (&input.data, parts.get(part)?) {
                (InputData::Json { elements, .. }, PartData::Json(own)) => (*elements, own.of(doc).to_vec()),
                (InputData::Binary { size, .. }, PartData::Binary(own)) => {
                    tensors.push(own);
                    (*size, own.len().to_string().into_bytes())
                }
                _ => return None,
            });
        }
        edits.sort_by_key(|(span, _)| span.start);
        let mut body = Vec::new();
        let document = Span { start: 0, end: self.tensors.framing.tensors_start(doc) };
        json::splice(doc, document, edits, &mut body, |_, text, out| out.extend_from_slice(&text));
        self.tensors.framing.write_length(body.len(), headers);
        tensors.into_iter().for_each(|own| body.extend_from_slice(own));
        Some(Bytes::from(body))
    }
}

/// Returns `true` if the parameters of a response have a number other than zero, which may count its
/// rows.
pub(crate) fn has_numbers(doc: &[u8]) -> bool {
    let found = json::find(doc, json::root(doc), &Pointer::from_static("/parameters")).ok().flatten();
    let Some(parameters) = found.filter(|found| kind(doc, found.value.start) == JsonType::Object) else { return false };
    let is_number = |value: Span| kind(doc, value.start) == JsonType::Number && value.of(doc) != b"0";
    Members::new(doc, parameters.value).any(|member| is_number(member.value))
}

/// Joins the responses to all parts of a call, in order. `headers` are those of the response.
///
/// # Errors
/// A response does not have the rows of its part, or differs from the first one beside its rows.
pub(crate) fn join(parts: &[(&Call, &Reply)], mut headers: HeaderMap) -> Result<Reply, MismatchKind> {
    let found = parts.iter().map(|(call, reply)| TensorSplit::new(&[*call], &reply.body, &reply.headers));
    let found = found.collect::<Result<Vec<TensorSplit>, MismatchKind>>()?;
    let (Some(first), Some(reply)) = (found.first(), parts.first().map(|(_, reply)| reply)) else {
        return Err(MismatchKind::Empty);
    };
    if !found.iter().all(|own| own.is_like(first)) {
        return Err(MismatchKind::Undeclared);
    }
    let mut body = Vec::with_capacity(parts.iter().map(|(_, reply)| reply.body.len()).sum());
    let binary = |index: usize| found.iter().filter_map(move |own| own.binary.get(index)).flat_map(|(_, parts)| parts);
    let edits = first.edits.iter().copied();
    json::splice(&first.doc, Span::whole(&first.doc), edits, &mut body, |span, edit, out| match edit {
        OutputEdit::Id => out.extend_from_slice(span.of(&first.doc)),
        OutputEdit::Rows => {
            let rows: usize = found.iter().flat_map(|own| &own.rows).sum();
            out.extend_from_slice(rows.to_string().as_bytes());
        }
        OutputEdit::Elements(index) => write_elements(&found, index, out),
        OutputEdit::Size(index) => {
            let size: usize = binary(index).map(Bytes::len).sum();
            out.extend_from_slice(size.to_string().as_bytes());
        }
    });
    first.framing.write_length(body.len(), &mut headers);
    for index in 0..first.binary.len() {
        binary(index).for_each(|tensor| body.extend_from_slice(tensor));
    }
    Ok(Reply { status: reply.status, headers, body: Bytes::from(body), trailers: None })
}

/// Writes the elements of all parts, with the bytes between them that the server writes.
fn write_elements(parts: &[TensorSplit], index: usize, out: &mut Vec<u8>) {
    let between = parts.iter().find_map(|part| {
        let mut elements = Elements::new(&part.doc, *part.arrays.get(index)?);
        let (first, second) = (elements.next()?, elements.next()?);
        Some(Span { start: first.end, end: second.start }.of(&part.doc).to_vec())
    });
    let inferred = || {
        let (array, own) = (parts.first()?.arrays.get(index)?, parts.first()?.lists.get(index)?.first()?);
        Some(infer_separator(&parts.first()?.doc, *array, *own))
    };
    let between = between.or_else(inferred).unwrap_or_else(|| b",".to_vec());
    for (place, part) in parts.iter().enumerate() {
        if place > 0 {
            out.extend_from_slice(&between);
        }
        let own = part.lists.get(index).and_then(|lists| lists.first());
        out.extend_from_slice(own.map(|own| own.of(&part.doc)).unwrap_or_default());
    }
}

// === impl TensorSplit ===

impl TensorSplit {
    /// Returns `true` if two responses are equal apart from their rows and ids.
    fn is_like(&self, other: &Self) -> bool {
        let pieces = |split: &Self| -> Vec<Bytes> {
            let starts = std::iter::once(0).chain(split.edits.iter().map(|(span, _)| span.end));
            let ends = split.edits.iter().map(|(span, _)| span.start).chain([split.doc.len()]);
            starts.zip(ends).map(|(start, end)| split.doc.slice(start..end)).collect()
        };
        let kinds = |split: &Self| split.edits.iter().map(|(_, edit)| *edit).collect::<Vec<OutputEdit>>();
        kinds(self) == kinds(other) && pieces(self) == pieces(other)
    }
}
