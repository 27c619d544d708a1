//! Cuts the outputs of a batch into the rows of its members.
//!
//! Every output must have the rows of all members, in order, and its data must match its shape. An
//! output with another first dimension, such as a sum over the batch, belongs to no member.

use bytes::Bytes;
use http::StatusCode;
use http::header::HeaderMap;

use super::binary::{self, Framing};
use super::tensor::{Datatype, Dimensions, integer, json_rows, members as named_members};
use crate::call::{Call, MismatchKind, Reply, SharedRequest};
use crate::ids;
use crate::json::{self, Elements, JsonRules, JsonType, Span, kind};

/// Members of an output.
const OUTPUT: [&str; 5] = ["name", "shape", "datatype", "parameters", "data"];

/// The replacements that turn a response to a batch into those of its members.
#[derive(Debug)]
pub(crate) struct TensorSplit {
    pub(super) framing: Framing,
    pub(crate) doc: Bytes,
    /// Spans to replace, in order and disjoint.
    pub(super) edits: Vec<(Span, OutputEdit)>,
    /// Number of rows of each member.
    pub(super) rows: Vec<usize>,
    /// For each output in binary form, its datatype and the part of each member.
    pub(super) binary: Vec<(Datatype, Vec<Bytes>)>,
    /// For each output in the document, the elements of each member.
    pub(super) lists: Vec<Vec<Span>>,
    /// For each output in the document, the list as a whole.
    pub(super) arrays: Vec<Span>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OutputEdit {
    /// Replaces the id by that of the member.
    Id,
    /// Replaces the first number of a shape by the rows of the member.
    Rows,
    /// Replaces the elements of the list at this index of `lists`.
    Elements(usize),
    /// Replaces the number of bytes of the tensor at this index of `binary`.
    Size(usize),
}

// === impl TensorSplit ===

impl TensorSplit {
    /// Determines the replacements, after the whole response is validated.
    pub(crate) fn new(members: &[&Call], body: &Bytes, headers: &HeaderMap) -> Result<Self, MismatchKind> {
        let framing = Framing::read(headers, body.len()).map_err(|_| MismatchKind::Shape)?;
        let doc = framing.document(body);
        json::validate(&doc, JsonRules::ANSWER).map_err(|_| MismatchKind::NotJson)?;
        let root = json::root(&doc);
        if kind(&doc, root.start) != JsonType::Object {
            return Err(MismatchKind::Shape);
        }
        let [id, outputs] = named_members(&doc, root, ["id", "outputs"])?;
        let outputs = outputs.filter(|outputs| kind(&doc, outputs.start) == JsonType::Array);
        let outputs = outputs.ok_or(MismatchKind::Shape)?;
        let rows = members.iter().filter_map(|call| call.tensors.as_ref()).map(|tensors| tensors.rows).collect();
        let edits = id.map(|id| (id, OutputEdit::Id)).into_iter().collect();
        let mut split = Self { framing, doc, edits, rows, binary: Vec::new(), lists: Vec::new(), arrays: Vec::new() };
        let mut next = framing.tensors_start(body);
        let doc = split.doc.clone();
        for output in Elements::new(&doc, outputs) {
            split.add_output(output, body, &mut next)?;
        }
        if split.lists.is_empty() && split.binary.is_empty() || next != body.len() {
            return Err(MismatchKind::Shape);
        }
        split.edits.sort_by_key(|(span, _)| span.start);
        Ok(split)
    }

    /// Adds the replacements of an output. `next` is the offset of the next tensor in binary form.
    fn add_output(&mut self, output: Span, body: &Bytes, next: &mut usize) -> Result<(), MismatchKind> {
        let doc = self.doc.clone();
        if kind(&doc, output.start) != JsonType::Object {
            return Err(MismatchKind::Shape);
        }
        let [_, shape, datatype, parameters, data] = named_members(&doc, output, OUTPUT)?;
        let shape = shape.ok_or(MismatchKind::Shape)?;
        let dimensions = Dimensions::read(&doc, shape).ok_or(MismatchKind::Shape)?;
        let datatype = datatype.and_then(|value| Datatype::read(&doc, value)).ok_or(MismatchKind::Shape)?;
        if dimensions.rows != self.rows.iter().sum::<usize>() {
            return Err(MismatchKind::Count);
        }
        let first = Elements::new(&doc, shape).next().ok_or(MismatchKind::Shape)?;
        self.edits.push((first, OutputEdit::Rows));
        let parameters = parameters.filter(|value| kind(&doc, value.start) == JsonType::Object);
        let size = match parameters {
            Some(parameters) => named_members(&doc, parameters, [binary::SIZE])?[0],
            None => None,
        };
        match (data, size) {
            (Some(list), None) => {
                let found = json_rows(&doc, list, &dimensions, &self.rows, |_| true).ok_or(MismatchKind::Shape)?;
                let (Some(start), Some(end)) = (found.parts.first(), found.parts.last()) else {
                    return Err(MismatchKind::Shape);
                };
                self.edits.push((Span { start: start.start, end: end.end }, OutputEdit::Elements(self.lists.len())));
                self.lists.push(found.parts);
                self.arrays.push(list);
            }
            (None, Some(size)) => {
                let end = integer(&doc, size).and_then(|size| next.checked_add(size));
                let end = end.filter(|end| *end <= body.len()).ok_or(MismatchKind::Shape)?;
                let tensor = body.slice(*next..end);
                let parts = binary::cut_rows(&tensor, datatype, &dimensions, &self.rows);
                *next = end;
                self.edits.push((size, OutputEdit::Size(self.binary.len())));
                self.binary.push((datatype, parts.ok_or(MismatchKind::Shape)?));
            }
            _ => return Err(MismatchKind::Shape),
        }
        Ok(())
    }

    /// Returns the response to a member with these headers.
    pub(crate) fn reply(&self, member: usize, call: &Call, sent: &SharedRequest, mut headers: HeaderMap) -> Reply {
        let mut body = self.write_document(member, call, sent);
        self.framing.write_length(body.len(), &mut headers);
        for part in self.binary.iter().filter_map(|(_, parts)| parts.get(member)) {
            body.extend_from_slice(part);
        }
        Reply { status: StatusCode::OK, headers, body: Bytes::from(body), trailers: None }
    }

    /// Returns the tensors in binary form of a response to a single call.
    pub(crate) fn binary_tensors(&self) -> Vec<(Datatype, &Bytes)> {
        self.binary.iter().filter_map(|(datatype, parts)| Some((*datatype, parts.first()?))).collect()
    }

    /// Returns the length of the response to a member, apart from edits.
    fn reply_len(&self, member: usize) -> usize {
        let in_lists: usize = self.arrays.iter().map(|list| list.len()).sum();
        let own: usize = self.lists.iter().filter_map(|parts| parts.get(member)).map(|part| part.len()).sum();
        let binary: usize = self.binary.iter().filter_map(|(_, parts)| parts.get(member)).map(Bytes::len).sum();
        self.doc.len().saturating_sub(in_lists) + own + binary
    }

    fn write_document(&self, member: usize, call: &Call, sent: &SharedRequest) -> Vec<u8> {
        let doc = &self.doc;
        let mut out = Vec::with_capacity(self.reply_len(member) + ids::EDITS_LEN);
        let edits = self.edits.iter().copied();
        json::splice(doc, Span::whole(doc), edits, &mut out, |span, edit, out| match edit {
            OutputEdit::Id => write_id(doc, span, call, sent, out),
            OutputEdit::Rows => {
                let rows = self.rows.get(member).copied().unwrap_or_default();
                out.extend_from_slice(rows.to_string().as_bytes());
            }
            OutputEdit::Elements(index) => {
                let elements = self.lists.get(index).and_then(|parts| parts.get(member));
                out.extend_from_slice(elements.map(|span| span.of(doc)).unwrap_or_default());
            }
            OutputEdit::Size(index) => {
                let part = self.binary.get(index).and_then(|(_, parts)| parts.get(member));
                out.extend_from_slice(part.map_or(0, Bytes::len).to_string().as_bytes());
            }
        });
        out
    }
}

/// Writes the id that the member would have received alone: its own if the server returned that of
/// the shared call, else a random one of the same form.
fn write_id(doc: &[u8], span: Span, call: &Call, sent: &SharedRequest, out: &mut Vec<u8>) {
    let own = call.tensors.as_ref().and_then(|tensors| tensors.id);
    match (kind(doc, span.start), own) {
        (JsonType::String, Some(own)) if span.inner_bytes(doc) == sent.request_id.as_bytes() => {
            out.extend_from_slice(own.of(&call.body));
        }
        (JsonType::String, _) => {
            out.push(b'"');
            out.extend_from_slice(&ids::random_like(span.inner_bytes(doc), false));
            out.push(b'"');
        }
        (JsonType::Number, _) => out.extend_from_slice(&ids::random_like(span.of(doc), true)),
        _ => out.extend_from_slice(span.of(doc)),
    }
}
