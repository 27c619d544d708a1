//! Joins the responses to the parts of a divided call into the one that the whole call would have
//! received: the inverse of splitting.
//!
//! The first response is written again, with the results of all of them in its lists, as raw bytes
//! and with the server's own bytes between them. Indexes are counted on, and counters are added up.
//! Its ids and all declared members are kept. A response with any other member is not joined, since
//! the member may depend on the number of items.

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderValue};

use super::has_content_coding;
use super::results::{LocatedResults, ResultList};
use crate::call::{Call, MismatchKind, Reply, ResponseMismatch};
use crate::headers;
use crate::items;
use crate::json::{self, Elements, JsonRules, ObjectIndex, Span};
use crate::pointer::Pointer;
use crate::route::Endpoint;
use crate::shape::{CostShare, Counters, Payload};
use crate::spacing::infer_separator;
use crate::usage::{self, IndivisibleCounter};
use crate::v2;

/// Headers of TEI with the number of characters or tokens of a call.
const COUNTED_HEADERS: [http::HeaderName; 2] = [headers::COMPUTE_CHARACTERS, headers::COMPUTE_TOKENS];

/// The successful response to a part of a divided call.
#[derive(Debug)]
pub struct PartAnswer<'a> {
    /// The part.
    pub call: &'a Call,
    /// Its response.
    pub reply: &'a Reply,
}

/// A validated response to a part.
struct LocatedPart<'a> {
    doc: &'a Bytes,
    results: LocatedResults,
}

/// A replacement in the first response.
enum JoinEdit {
    /// Removes a counter.
    Cut,
    /// Replaces the list at this index by the results of all parts.
    List(usize),
    /// Replaces a counter, or the number of rows of a tensor, by the sum.
    Number(String),
}

// === impl Endpoint ===

impl Endpoint {
    /// Joins the responses to all parts of a call, in order.
    ///
    /// # Errors
    /// A response is incomplete, does not match the items of its part, or has members that may
    /// depend on the number of items.
    pub fn join_answers(&self, parts: &[PartAnswer<'_>]) -> Result<Reply, ResponseMismatch> {
        if let (Payload::Tensors | Payload::GrpcTensors, Some(first)) = (self.shape.payload, parts.first()) {
            parts.iter().try_for_each(|part| self.check_tensors(part, first))?;
            let pairs: Vec<(&Call, &Reply)> = parts.iter().map(|part| (part.call, part.reply)).collect();
            let headers = join_headers(parts, &first.reply.headers);
            let joined = match self.shape.payload {
                Payload::GrpcTensors => v2::grpc::division::join(&pairs, headers),
                _ => v2::division::join(&pairs, headers),
            };
            return Ok(joined?);
        }
        let mut located = parts.iter().map(|part| self.locate_part(part)).collect::<Result<Vec<_>, _>>()?;
        // Indexes in the results of a part follow those of the parts before it.
        located.iter_mut().fold(0, |before, part| {
            part.results.first_index = before;
            before + part.results.item_at.len()
        });
        let (Some(first), Some(reply)) = (located.first(), parts.first().map(|part| part.reply)) else {
            return Err(MismatchKind::Empty.into());
        };
        if parts.iter().any(|part| part.reply.status != reply.status) {
            return Err(MismatchKind::Status.into());
        }
        let mut edits = self.join_counters(&located)?;
        for (index, list) in first.results.lists.iter().enumerate() {
            let is_same = |part: &LocatedPart<'_>| has_list(part, index, (first, list));
            if !located.iter().all(is_same) {
                return Err(MismatchKind::Shape.into());
            }
            edits.push((list.whole, JoinEdit::List(index)));
        }
        edits.sort_by_key(|(span, _)| span.start);
        if edits.windows(2).any(|pair| pair[0].0.end > pair[1].0.start) {
            return Err(MismatchKind::Shape.into());
        }
        let mut out = Vec::with_capacity(located.iter().map(|part| part.doc.len()).sum());
        json::splice(first.doc, Span::whole(first.doc), edits, &mut out, |_, edit, out| match edit {
            JoinEdit::Cut => {}
            JoinEdit::List(index) => write_list(&located, index, out),
            JoinEdit::Number(sum) => out.extend_from_slice(sum.as_bytes()),
        });
        let headers = join_headers(parts, &reply.headers);
        Ok(Reply { status: reply.status, headers, body: Bytes::from(out), trailers: None })
    }

    /// Checks that a response with tensors has only members that do not depend on the number of rows.
    fn check_tensors(&self, part: &PartAnswer<'_>, first: &PartAnswer<'_>) -> Result<(), ResponseMismatch> {
        check_response(part)?;
        if part.reply.status != first.reply.status {
            return Err(MismatchKind::Status.into());
        }
        let document = self.document(&part.reply.headers, &part.reply.body);
        let mut is_declared = true;
        if self.shape.payload == Payload::Tensors {
            json::validate(&document, JsonRules::ANSWER).map_err(|_| MismatchKind::NotJson)?;
            is_declared = !v2::division::has_numbers(&document);
        }
        is_declared &= !self.has_undeclared(&document, part.call);
        is_declared.then_some(()).ok_or(MismatchKind::Undeclared.into())
    }

    /// Returns `true` if a response has members that may depend on the number of items. Ids, times and
    /// names do not: they may quote an input, which is that of the same client.
    fn has_undeclared(&self, document: &[u8], call: &Call) -> bool {
        let is_name = |path: &[u8]| {
            let mut steps = path.split(|byte| *byte == b'/').skip(1);
            let steps: [Option<&[u8]>; 4] = std::array::from_fn(|_| steps.next());
            match steps {
                [Some(name), None, ..] => {
                    [&b"id"[..], b"created", b"model", b"model_name", b"model_version"].contains(&name)
                }
                [Some(outputs), Some(_), Some(name), None] => outputs == b"outputs" && name == b"name",
                _ => false,
            }
        };
        self.undeclared_in_batch(document, &[call], None).iter().any(|part| !is_name(&part.path))
    }

    /// Validates the response to a part, and locates its results.
    fn locate_part<'a>(&self, part: &PartAnswer<'a>) -> Result<LocatedPart<'a>, ResponseMismatch> {
        check_response(part)?;
        let doc = &part.reply.body;
        json::validate(doc, JsonRules::ANSWER).map_err(|_| MismatchKind::NotJson)?;
        let members = [part.call];
        let results =
            LocatedResults::find(doc, &ObjectIndex::new(doc, json::root_of_validated(doc)), &self.shape, &members)?;
        if self.has_undeclared(doc, part.call) {
            return Err(MismatchKind::Undeclared.into());
        }
        Ok(LocatedPart { doc, results })
    }

    /// Returns the replacements for the counters of the first response, and for its number of rows.
    fn join_counters(&self, parts: &[LocatedPart<'_>]) -> Result<Vec<(Span, JoinEdit)>, ResponseMismatch> {
        let mut edits = Vec::new();
        if let Some(tensor) = parts.first().and_then(|first| first.results.tensor.as_ref()) {
            let rows: usize = parts.iter().map(|part| part.results.item_at.len()).sum();
            edits.push((tensor.count, JoinEdit::Number(rows.to_string())));
        }
        let mut add = |pointer: &Pointer| {
            let sums = add_counters(parts, pointer)?;
            edits.extend(sums.into_iter().map(|(span, sum)| (span, JoinEdit::Number(sum))));
            Ok::<_, MismatchKind>(())
        };
        match &self.shape.counters {
            Counters::None => {}
            Counters::Usage(pointer) => add(pointer)?,
            Counters::Totals { at, share: CostShare::Drop } => {
                let Some(first) = parts.first() else { return Ok(edits) };
                let (cuts, _) =
                    items::removal_spans(first.doc, json::root(first.doc), at).map_err(MismatchKind::from)?;
                edits.extend(cuts.into_iter().map(|cut| (cut, JoinEdit::Cut)));
            }
            Counters::Totals { at, .. } => at.iter().try_for_each(add)?,
        }
        Ok(edits)
    }
}

/// Checks that a response is successful, complete, and without a content coding.
fn check_response(part: &PartAnswer<'_>) -> Result<(), ResponseMismatch> {
    let Reply { status, headers, body, .. } = part.reply;
    match () {
        () if !status.is_success() => Err(MismatchKind::Status.into()),
        () if has_content_coding(headers) => Err(MismatchKind::Compressed.into()),
        () if body.is_empty() => Err(MismatchKind::Empty.into()),
        () => Ok(()),
    }
}

/// Adds up the numbers at a position that all responses have, or none.
fn add_counters(parts: &[LocatedPart<'_>], pointer: &Pointer) -> Result<Vec<(Span, String)>, MismatchKind> {
    let mut values: Vec<(&[u8], Span)> = Vec::with_capacity(parts.len());
    for part in parts {
        if let Some(found) = json::find(part.doc, json::root(part.doc), pointer)? {
            values.push((part.doc, found.value));
        }
    }
    if !values.is_empty() && values.len() != parts.len() {
        return Err(MismatchKind::Shape);
    }
    usage::add_numbers(&values).map_err(|IndivisibleCounter| MismatchKind::Shape)
}

/// Returns `true` if a response has the same list as the first one, with rows of the same shape in
/// a tensor, and indexes if that has them.
fn has_list(part: &LocatedPart<'_>, index: usize, (first, list): (&LocatedPart<'_>, &ResultList)) -> bool {
    let key = |list: &ResultList, doc: &[u8]| list.key.map(|key| key.of(doc).to_vec());
    let is_indexed = |part: &LocatedPart<'_>| part.results.index.iter().any(Option::is_some);
    let row = |part: &LocatedPart<'_>| part.results.tensor.as_ref().map(|tensor| tensor.dimensions.row.clone());
    let own = part.results.lists.get(index);
    part.results.lists.len() == first.results.lists.len()
        && own.is_some_and(|own| key(own, part.doc) == key(list, first.doc))
        && is_indexed(part) == is_indexed(first)
        && row(part) == row(first)
}

/// Writes a list with the results of all parts, in the bytes of the first one.
fn write_list(parts: &[LocatedPart<'_>], index: usize, out: &mut Vec<u8>) {
    let lists = || parts.iter().filter_map(|part| Some((part, part.results.lists.get(index)?)));
    let between = lists().find_map(|(part, list)| {
        // A row of a tensor has several elements of its list.
        let mut elements = Elements::new(part.doc, list.whole);
        let (first, second) = (elements.next()?, elements.next()?);
        Some(Span { start: first.end, end: second.start }.of(part.doc))
    });
    let Some((first, list)) = lists().next() else { return };
    let (Some(start), Some(end)) = (list.elements.first(), list.elements.last()) else { return };
    let between = between.map_or_else(|| infer_separator(first.doc, list.whole, *start), <[u8]>::to_vec);
    out.extend_from_slice(Span { start: list.whole.start, end: start.start }.of(first.doc));
    for (part, _) in lists() {
        for (place, position) in part.results.positions.first().into_iter().flatten().enumerate() {
            if part.results.first_index + place > 0 {
                out.extend_from_slice(&between);
            }
            part.results.write_element(part.doc, index, *position, 0, out);
        }
    }
    out.extend_from_slice(Span { start: end.end, end: list.whole.end }.of(first.doc));
}

/// Returns the headers of the first response, with the sums of the counting headers of all parts.
fn join_headers(parts: &[PartAnswer<'_>], first: &HeaderMap) -> HeaderMap {
    let mut out = first.clone();
    out.remove(header::CONTENT_LENGTH);
    for name in COUNTED_HEADERS {
        let number = |part: &PartAnswer<'_>| part.reply.headers.get(&name)?.to_str().ok()?.trim().parse::<u64>().ok();
        let sum = parts.iter().map(number).try_fold(0_u64, |sum, own| Some(sum.saturating_add(own?)));
        out.remove(&name);
        if let Some(value) = sum.and_then(|sum| HeaderValue::from_str(&sum.to_string()).ok()) {
            out.insert(name, value);
        }
    }
    if parts.iter().any(|part| part.reply.headers.contains_key(headers::USAGE)) {
        out.insert(headers::USAGE, HeaderValue::from_static("estimated"));
    }
    out
}
