//! The parts of a response body that belong to no single result.
//!
//! The protocol and the policy declare results, ids, counters, and the scalars of the protocol's
//! envelope. Any other member may quote an input of any client, and so may a declared scalar that
//! has a part in common with an item. These are listed as undeclared, to be checked against
//! [`UnbatchedEvidence`](crate::evidence::UnbatchedEvidence).

mod agreement;
mod declared;
mod message;
mod outputs;

use crate::call::Call;
use crate::evidence::{AnswerPart, MEMBERS_MAX};
use crate::ids;
use crate::json::{self, Elements, JsonRules, JsonType, Members, Span, kind, unescape};
use crate::pointer::Pointer;
use crate::shape::{Counters, Measure, Payload, ProtocolShape, ResultLayout, TensorPointers};
use crate::usage;

use super::quote;

pub(super) use message::undeclared_in_message;

/// Maximum length in bytes of the name of a column, or of a model that the calls do not name. Paths
/// of models are no longer in practice.
const NAME_MAX: usize = 256;
/// Maximum number of tokens that a server adds to an item, by a prompt or a template. A token has at
/// least one byte, so a larger count is not a number of tokens.
const TEMPLATE_MAX: usize = 1024;
/// Prefixes of the ids that known servers generate.
const ID_PREFIXES: [&[u8]; 12] = [
    b"",
    b"embd-",
    b"emb-",
    b"cmpl-",
    b"chatcmpl-",
    b"infinity-",
    b"modr-",
    b"classify-",
    b"pool-",
    b"pooling-",
    b"score-",
    b"rerank-",
];
/// Names inside a usage object that the protocols define.
pub(super) const USAGE: [&str; 16] = [
    "prompt_tokens",
    "completion_tokens",
    "total_tokens",
    "input_tokens",
    "output_tokens",
    "cached_tokens",
    "audio_tokens",
    "text_tokens",
    "image_tokens",
    "reasoning_tokens",
    "accepted_prediction_tokens",
    "rejected_prediction_tokens",
    "prompt_tokens_details",
    "completion_tokens_details",
    "input_tokens_details",
    "output_tokens_details",
];

/// A part of a response that may quote an input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct UndeclaredPart {
    /// The path to it, with a slash before each name.
    pub(super) path: Vec<u8>,
    pub(super) value: Span,
    /// Number of unbatched responses to different inputs that must have the same bytes here before
    /// they count as a constant.
    agreement: u32,
}

/// The batch with the response that is searched.
#[derive(Debug, Clone, Copy)]
pub(super) struct BatchContext<'a> {
    /// The members of the shared call.
    pub(super) members: &'a [&'a Call],
    /// Wall-clock time in seconds since the Unix epoch, if it is known.
    pub(super) now: Option<u64>,
}

/// A traversal of a response body that collects its undeclared parts.
struct EnvelopeWalker<'a> {
    doc: &'a [u8],
    shape: &'a ProtocolShape,
    /// Pointers to values that need no check.
    declared: Vec<Pointer>,
    /// The members of the shared call. `None` for an unbatched response: all its texts are listed,
    /// to be compared with those of batch responses.
    members: Option<&'a [&'a Call]>,
    /// Wall-clock time in seconds since the Unix epoch, if it is known.
    now: Option<u64>,
    found: Vec<UndeclaredPart>,
}

/// Returns the undeclared parts of `doc`, a response to a shared call. The policy declares
/// `fields`.
pub(super) fn undeclared_in_batch(
    doc: &[u8],
    shape: &ProtocolShape,
    fields: &[Pointer],
    batch: BatchContext<'_>,
) -> Vec<UndeclaredPart> {
    EnvelopeWalker { now: batch.now, ..EnvelopeWalker::new(doc, shape, fields, Some(batch.members)) }.walk()
}

/// Returns the parts of an unbatched response that are undeclared in some batch response; empty if
/// it is not JSON. `now` is the wall-clock time in seconds, if it is known.
pub(super) fn undeclared_in_unbatched(
    doc: &[u8],
    shape: &ProtocolShape,
    fields: &[Pointer],
    now: Option<u64>,
) -> Vec<UndeclaredPart> {
    if json::validate(doc, JsonRules::ANSWER).is_err() {
        return Vec::new();
    }
    let mut envelope = EnvelopeWalker { now, ..EnvelopeWalker::new(doc, shape, fields, None) };
    if let (ResultLayout::Lists(lists), Some(single)) = (&shape.results, &shape.single_result) {
        envelope.declared.extend(lists.iter().filter_map(|list| list.with_name(single)));
    }
    envelope.walk()
}

/// Returns the length of the beginning of an id that may quote an input: all of it, or its prefix.
/// `None` if it has the form of an id of a known server.
fn undeclared_id_part(id: &[u8]) -> Option<usize> {
    let prefix = ids::prefix_len(id);
    if !id.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_.:".contains(byte)) {
        return Some(id.len());
    }
    (!ID_PREFIXES.iter().any(|known| id.get(..prefix) == Some(*known))).then_some(prefix)
}

/// Returns `true` for an id of which no part may quote an input.
pub(super) fn is_plain_id(id: &[u8]) -> bool {
    undeclared_id_part(id).is_none()
}

/// Returns `true` for a text with the form of the name of a model or column.
fn is_name(text: &[u8]) -> bool {
    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || b"._:/@+-".contains(byte);
    text.len() <= NAME_MAX && text.iter().all(is_part)
}

/// Returns `true` for a text with that form that shares no part, no digits and no number with an
/// item.
fn is_unquoted_name(text: &[u8], members: &[&Call]) -> bool {
    is_name(text)
        && !quote::shares_text(text, members)
        && !quote::quotes_digits(text, members)
        && !quote::quotes_number(text, members)
}

/// Returns `true` if a number may be that of the tokens of all items and of `generated` further
/// bytes. Any other number may quote an input, from which its share for each member is computed.
pub(super) fn is_token_count(number: &[u8], members: &[&Call], generated: usize) -> bool {
    let items = members.iter().flat_map(|call| &call.found.slots).map(|slot| slot.items.len()).sum::<usize>();
    let max = members.iter().map(|call| call.body.len()).sum::<usize>() + TEMPLATE_MAX * items + generated;
    usage::is_count(number, max)
}

/// Returns `true` for a zero that is written with more than a zero. It is copied as written.
fn is_nonstandard_zero(number: &[u8]) -> bool {
    usage::is_zero(number) && !matches!(number, b"0" | b"-0" | b"0.0" | b"-0.0")
}

// === impl UndeclaredPart ===

impl UndeclaredPart {
    /// Returns the part of a response, to be compared with that of unbatched responses.
    pub(super) fn in_response<'a>(&'a self, response: &'a [u8]) -> AnswerPart<'a> {
        AnswerPart::Member { path: &self.path, value: self.value.of(response), agreement: self.agreement }
    }
}

// === impl EnvelopeWalker ===

impl<'a> EnvelopeWalker<'a> {
    fn new(doc: &'a [u8], shape: &'a ProtocolShape, fields: &[Pointer], members: Option<&'a [&'a Call]>) -> Self {
        let mut declared: Vec<Pointer> = match &shape.results {
            ResultLayout::Lists(lists) => lists.clone(),
            ResultLayout::Columns { at, echo, .. } => vec![at.clone(), echo.clone()],
            ResultLayout::Map { at, .. } => vec![at.clone()],
        };
        declared.extend(shape.tensor.iter().flat_map(TensorPointers::members).cloned());
        declared.extend_from_slice(fields);
        Self { doc, shape, declared, members, now: None, found: Vec::new() }
    }

    /// Returns the undeclared parts of the document.
    fn walk(mut self) -> Vec<UndeclaredPart> {
        self.visit(json::root_of_validated(self.doc), &mut Vec::new());
        self.found
    }

    /// Visits the value at `path`, and lists it unless it is declared.
    fn visit(&mut self, value: Span, path: &mut Vec<String>) {
        if self.declared.iter().any(|pointer| pointer.tokens() == *path) {
            return;
        }
        if self.shape.ids.iter().any(|pointer| pointer.tokens() == *path) {
            return self.visit_id(value, path);
        }
        if self.shape.payload == Payload::Tensors && *path == ["outputs"] {
            return self.visit_outputs(value, path);
        }
        match &self.shape.counters {
            Counters::Usage(at) if at.tokens() == *path => {
                return match kind(self.doc, value.start) {
                    JsonType::Object | JsonType::Null => self.visit_usage(value, path),
                    _ => self.add(value, path),
                };
            }
            Counters::Totals { at, .. } if at.iter().any(|pointer| pointer.tokens() == *path) => {
                return self.visit_usage(value, path);
            }
            _ => {}
        }
        let is_names = self.shape.names.as_ref().is_some_and(|pointer| pointer.tokens() == *path);
        if is_names && self.members.is_some_and(|members| self.are_names(value, members)) {
            return;
        }
        let name = path.join("/");
        if self.shape.envelope.contains(&name.as_str()) && self.is_plain(&name, value) {
            return;
        }
        if self.has_declared_below(path) {
            return self.visit_inside(value, path, Self::visit);
        }
        self.add(value, path);
    }

    /// Applies `visit` to the members or elements of a value. A scalar is listed.
    fn visit_inside(&mut self, value: Span, path: &mut Vec<String>, visit: fn(&mut Self, Span, &mut Vec<String>)) {
        match kind(self.doc, value.start) {
            JsonType::Object => {
                for member in Members::new(self.doc, value) {
                    path.push(String::from_utf8_lossy(&unescape(member.key.inner_bytes(self.doc))).into_owned());
                    visit(self, member.value, path);
                    path.pop();
                    if self.found.len() > MEMBERS_MAX {
                        return;
                    }
                }
            }
            JsonType::Array => {
                for (index, element) in Elements::new(self.doc, value).enumerate() {
                    path.push(index.to_string());
                    visit(self, element, path);
                    path.pop();
                    if self.found.len() > MEMBERS_MAX {
                        return;
                    }
                }
            }
            JsonType::String | JsonType::Number | JsonType::Bool | JsonType::Null => self.add(value, path),
        }
    }

    /// Visits a counter. Its numbers are divided; its names, any text beside them, and numbers that
    /// are copied may quote an input.
    fn visit_usage(&mut self, value: Span, path: &mut Vec<String>) {
        if self.declared.iter().any(|pointer| pointer.tokens() == *path) {
            return;
        }
        match kind(self.doc, value.start) {
            JsonType::Object => {
                for member in Members::new(self.doc, value) {
                    path.push(String::from_utf8_lossy(&unescape(member.key.inner_bytes(self.doc))).into_owned());
                    if path.last().is_some_and(|name| !USAGE.contains(&name.as_str())) {
                        // Only the name is listed, because the number is different for each client.
                        self.add(Span { start: 0, end: 0 }, path);
                    }
                    self.visit_usage(member.value, path);
                    path.pop();
                    if self.found.len() > MEMBERS_MAX {
                        return;
                    }
                }
            }
            JsonType::Array => self.visit_inside(value, path, Self::visit_usage),
            // These are copied to every member, and may belong to one of them only.
            JsonType::String | JsonType::Bool => self.add(value, path),
            JsonType::Number if is_nonstandard_zero(value.of(self.doc)) => self.add(value, path),
            JsonType::Number if self.counts_tokens(path) && !self.is_countable(value.of(self.doc)) => {
                self.add(value, path);
            }
            JsonType::Number | JsonType::Null => {}
        }
    }

    /// Visits an id. It is generated anew, but its prefix and its punctuation are kept.
    fn visit_id(&mut self, value: Span, path: &[String]) {
        match kind(self.doc, value.start) {
            JsonType::Number | JsonType::Null => {}
            JsonType::Object | JsonType::Array | JsonType::Bool => self.add(value, path),
            JsonType::String => {
                let raw = value.inner_bytes(self.doc);
                match undeclared_id_part(raw) {
                    None => {}
                    Some(length) if length == raw.len() => self.add(value, path),
                    Some(length) => self.add(Span { start: value.start + 1, end: value.start + 1 + length }, path),
                }
            }
        }
    }

    /// Returns `true` if a counter may be a number of tokens of the items.
    fn is_countable(&self, number: &[u8]) -> bool {
        // A generated text has at most as many tokens as the response has bytes.
        let generated = if self.shape.generation.is_some() { self.doc.len() } else { 0 };
        self.members.is_none_or(|members| is_token_count(number, members, generated))
    }

    /// Returns `true` if the counter at `path` counts tokens. Counters that a policy declares may count
    /// anything.
    fn counts_tokens(&self, path: &[String]) -> bool {
        match &self.shape.counters {
            Counters::None => false,
            Counters::Usage(at) => path.starts_with(at.tokens()),
            Counters::Totals { .. } => self.shape.weight == Measure::Tokens,
        }
    }

    /// Returns `true` if a declared value lies below `path`.
    fn has_declared_below(&self, path: &[String]) -> bool {
        let below = |pointer: &Pointer| pointer.tokens().len() > path.len() && pointer.tokens().starts_with(path);
        let counters = match &self.shape.counters {
            Counters::None => false,
            Counters::Usage(at) => below(at),
            Counters::Totals { at, .. } => at.iter().any(below),
        };
        let is_below = |name: &&str| {
            let names: Vec<&str> = name.split('/').collect();
            names.len() > path.len() && names.iter().zip(path).all(|(name, step)| name == step)
        };
        counters || self.shape.envelope.iter().any(is_below) || self.declared.iter().chain(&self.shape.ids).any(below)
    }

    /// Adds a part to the list. The list ends with one part more than the maximum, which shows that
    /// there are too many.
    fn add(&mut self, value: Span, path: &[String]) {
        if self.found.len() > MEMBERS_MAX {
            return;
        }
        let path = path.iter().flat_map(|name| std::iter::once(b'/').chain(name.bytes())).collect();
        self.found.push(UndeclaredPart { path, value, agreement: agreement::of_json(self.doc, value) });
    }
}

#[cfg(test)]
mod tests;
