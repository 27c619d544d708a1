//! Writes the body of a shared call: the document of the leader with the rows of all members, then
//! the tensors in binary form, input by input.

use http::header::{self, HeaderMap};

use super::request::{InputData, TensorInput, TensorRequest};
use crate::call::Call;
use crate::json::{self, Span, to_json_string};

/// A replacement of a span of the leader's document.
enum TensorEdit {
    Cut,
    /// Replaces the id by that of the shared call.
    Id,
    /// Replaces the first number of a shape by the rows of all members.
    Rows,
    /// Replaces the elements of a list by those of all members.
    Elements(usize),
    /// Replaces the number of bytes by that of all members.
    Size(usize),
}

/// Returns the body of the shared call of `members`, and completes its headers. The first member is
/// the leader. `id` becomes the id of the shared call, which servers return.
pub(crate) fn write_shared(members: &[&Call], id: &str, headers: &mut HeaderMap) -> Vec<u8> {
    let Some(leader) = members.first() else { return Vec::new() };
    let Some(leader_tensors) = &leader.tensors else { return Vec::new() };
    let all: Vec<(&Call, &TensorRequest)> =
        members.iter().filter_map(|call| Some((*call, call.tensors.as_ref()?))).collect();
    let mut body = Vec::with_capacity(members.iter().map(|call| call.body.len()).sum());
    let document = Span { start: 0, end: leader_tensors.framing.tensors_start(&leader.body) };
    json::splice(&leader.body, document, edits(leader, leader_tensors), &mut body, |_, edit, out| match edit {
        TensorEdit::Cut => {}
        TensorEdit::Id => out.extend_from_slice(&to_json_string(id)),
        TensorEdit::Rows => {
            let rows: usize = all.iter().map(|(_, tensors)| tensors.rows).sum();
            out.extend_from_slice(rows.to_string().as_bytes());
        }
        TensorEdit::Elements(index) => write_elements(&all, index, out),
        TensorEdit::Size(index) => {
            let size: usize = binary_parts(&all, index).map(<[u8]>::len).sum();
            out.extend_from_slice(size.to_string().as_bytes());
        }
    });
    // The calls of a batch have the same type, or none.
    match leader.head.headers.get(header::CONTENT_TYPE) {
        Some(_) if !leader_tensors.framing.is_binary() => {}
        Some(content_type) => drop(headers.insert(header::CONTENT_TYPE, content_type.clone())),
        None => drop(headers.remove(header::CONTENT_TYPE)),
    }
    if leader_tensors.framing.is_binary() {
        leader_tensors.framing.write_length(body.len(), headers);
    }
    for index in 0..leader_tensors.inputs.len() {
        binary_parts(&all, index).for_each(|part| body.extend_from_slice(part));
    }
    body
}

/// Returns the replacements in document order.
fn edits(leader: &Call, leader_tensors: &TensorRequest) -> Vec<(Span, TensorEdit)> {
    let mut edits: Vec<(Span, TensorEdit)> = leader.found.cuts.iter().map(|cut| (*cut, TensorEdit::Cut)).collect();
    edits.extend(leader_tensors.id.map(|id| (id, TensorEdit::Id)));
    for (index, input) in leader_tensors.inputs.iter().enumerate() {
        edits.push((input.rows, TensorEdit::Rows));
        edits.push(match &input.data {
            InputData::Json { elements, .. } => (*elements, TensorEdit::Elements(index)),
            InputData::Binary { size, .. } => (*size, TensorEdit::Size(index)),
        });
    }
    edits.sort_by_key(|(span, _)| span.start);
    edits
}

fn inputs_at<'a>(
    members: &'a [(&'a Call, &'a TensorRequest)],
    index: usize,
) -> impl Iterator<Item = (&'a Call, &'a TensorInput)> {
    members.iter().filter_map(move |(call, tensors)| Some((*call, tensors.inputs.get(index)?)))
}

fn write_elements(members: &[(&Call, &TensorRequest)], index: usize, out: &mut Vec<u8>) {
    for (place, (call, input)) in inputs_at(members, index).enumerate() {
        if place > 0 {
            out.push(b',');
        }
        if let InputData::Json { elements, .. } = &input.data {
            out.extend_from_slice(elements.of(&call.body));
        }
    }
}

fn binary_parts<'a>(members: &'a [(&'a Call, &'a TensorRequest)], index: usize) -> impl Iterator<Item = &'a [u8]> {
    inputs_at(members, index).filter_map(|(_, input)| match &input.data {
        InputData::Binary { bytes, .. } => Some(bytes.as_ref()),
        InputData::Json { .. } => None,
    })
}
