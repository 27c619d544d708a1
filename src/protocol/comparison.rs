//! Comparison of the response that a call received from a batch with the response to it alone.
//!
//! Ids, counters and numbers beside the results are left out: they differ between two responses to
//! the same call. Numbers of a result are compared relative to the largest number of that result, in
//! which the rounding of a sum of products shows; a component near zero would otherwise differ by
//! any factor. Scores with indexes belong to one call, and are compared relative to the largest of
//! them. A number between 0 and 1 may be a probability, and is compared relative to its product with
//! its logarithm, which the model rounds. A number that is a value of its own and an integer is a
//! class or a count, and has to be equal. So has an element of a tensor, unless its datatype is one
//! of floating-point numbers; a tensor without a datatype is one of integers if all of its elements
//! are. The form of a tensor does not matter: its elements are compared in a JSON document, in
//! binary form and in a gRPC message.

mod floats;
mod scale;
mod tensors;

use std::borrow::Cow;

use bytes::Bytes;
use http::header::HeaderMap;

use floats::decode_floats;
use scale::{holds_list, probability_scale, to_number};

use crate::call::Call;
use crate::items::number_at;
use crate::json::{self, Elements, JsonRules, JsonType, Members, Span, kind, unescape};
use crate::pointer::Pointer;
use crate::route::Endpoint;
use crate::shape::{Counters, Payload, ProtocolShape, ResultLayout};

/// Maximum difference that rounding explains, relative to the largest number of a result: the
/// spacing of bfloat16 with its 8 significant bits, the coarsest of the floating-point formats in
/// which servers commonly compute.
pub const ROUNDING_MAX: f64 = 1.0 / 128.0;

/// Name of the member beside a generated text that describes its execution.
const GENERATION_METADATA: &str = "meta_info";

/// Result of a comparison of two responses.
#[derive(Debug, Clone, PartialEq)]
pub enum AnswerComparison {
    /// They are equal, apart from the spelling of numbers and the parts that are left out.
    Equal,
    /// Numbers differ by at most this much, relative to the largest number of their result.
    Rounded(f64),
    /// They differ by more than rounding explains.
    Different(AnswerDifference),
}

/// A response to be compared.
#[derive(Debug, Clone, Copy)]
pub struct AnswerContent<'a> {
    /// Its headers, of which those that describe the framing of the body are read.
    pub headers: &'a HeaderMap,
    /// Its body.
    pub body: &'a Bytes,
}

/// The first difference between two responses.
#[derive(Debug, Clone, PartialEq)]
pub struct AnswerDifference {
    /// JSON Pointer to the place. It may contain names from the response, so it does not belong in a
    /// log.
    pub at: String,
    /// Kind of the difference.
    pub kind: DifferenceKind,
}

/// Kind of a difference between two responses.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum DifferenceKind {
    /// A value is missing, or of another type.
    Structure,
    /// A text or another value that is no number.
    Value,
    /// A number, by this much relative to the largest number of its result.
    Number(f64),
}

/// State of a comparison. The first document is the one from the batch.
struct Comparer<'a> {
    docs: [&'a [u8]; 2],
    shape: &'a ProtocolShape,
    /// Texts of results are floating-point numbers in base64.
    has_base64: bool,
    path: Vec<String>,
    rounding: f64,
}

/// Scale of the numbers of a result; `None` beside the results.
type Scale = Option<f64>;

// === impl Endpoint ===

impl Endpoint {
    /// Returns `true` if responses to a call like this can be compared: the server computes them from
    /// its items alone. Generated texts may differ from one time to the next, so they can be compared
    /// only if two responses to the call alone are equal.
    #[must_use]
    pub fn is_comparable(&self, call: &Call) -> bool {
        self.shape.generation.is_none() && !call.streaming
    }

    /// Compares the response that a call received from a batch with the response to it alone.
    #[must_use]
    pub fn compare_answers(
        &self,
        call: &Call,
        merged: AnswerContent<'_>,
        unbatched: AnswerContent<'_>,
    ) -> AnswerComparison {
        let answers = [merged, unbatched];
        let rounding = match self.shape.payload {
            Payload::GrpcTensors => tensors::compare_messages(call, answers),
            Payload::Tensors if answers.iter().any(|answer| tensors::is_binary(*answer)) => {
                tensors::compare_binary(self, call, answers)
            }
            Payload::Items | Payload::Tensors | Payload::Generation(_) => {
                self.compare_documents(call, answers.map(|answer| answer.body.as_ref()))
            }
        };
        match rounding {
            Err(difference) => AnswerComparison::Different(difference),
            Ok(rounding) if rounding > 0.0 => AnswerComparison::Rounded(rounding),
            Ok(_) => AnswerComparison::Equal,
        }
    }

    /// Compares two JSON documents. Returns the largest difference that rounding explains.
    fn compare_documents(&self, call: &Call, docs: [&[u8]; 2]) -> Result<f64, AnswerDifference> {
        let [merged, unbatched] = docs;
        if docs.iter().any(|doc| json::validate(doc, JsonRules::ANSWER).is_err()) {
            return if merged == unbatched { Ok(0.0) } else { Err(AnswerDifference::new(DifferenceKind::Structure)) };
        }
        let encoding = Pointer::from_static("/encoding_format");
        let encoding = json::find(&call.body, json::root(&call.body), &encoding).ok().flatten();
        let mut comparer = Comparer {
            docs,
            shape: &self.shape,
            has_base64: encoding.is_some_and(|found| found.value.inner_bytes(&call.body) == b"base64"),
            path: Vec::new(),
            rounding: 0.0,
        };
        let roots = docs.map(json::root);
        // A response to a single form may have no list of results: all of it is one.
        let has_list = comparer.has_results(merged) && comparer.has_results(unbatched);
        let scale = (!has_list).then(|| comparer.scale_of(roots));
        match comparer.compare(roots, scale) {
            Err(kind) => Err(AnswerDifference { at: to_pointer(&comparer.path), kind }),
            Ok(()) => Ok(comparer.rounding),
        }
    }
}

/// Compares two numbers of a result with this scale. Returns their difference relative to it, if
/// rounding explains the difference.
fn compare_numbers([one, other]: [f64; 2], scale: f64) -> Result<f64, DifferenceKind> {
    let is_infinite = one.is_infinite() && one.total_cmp(&other).is_eq();
    if is_infinite || one.is_nan() && other.is_nan() || (one - other).abs() <= 0.0 {
        return Ok(0.0);
    }
    // The elements are exact.
    if scale <= 0.0 {
        return Err(DifferenceKind::Value);
    }
    let difference = (one - other).abs() / scale;
    if difference <= ROUNDING_MAX { Ok(difference) } else { Err(DifferenceKind::Number(difference)) }
}

fn to_pointer(path: &[String]) -> String {
    path.iter().map(|name| format!("/{}", name.replace('~', "~0").replace('/', "~1"))).collect()
}

// === impl AnswerDifference ===

impl AnswerDifference {
    /// Creates the difference of two whole responses.
    const fn new(kind: DifferenceKind) -> Self {
        Self { at: String::new(), kind }
    }
}

// === impl DifferenceKind ===

impl DifferenceKind {
    /// Returns the name used in logs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Structure => "structure",
            Self::Value => "value",
            Self::Number(_) => "number",
        }
    }
}

// === impl Comparer ===

impl Comparer<'_> {
    /// Compares two values. After a difference, `path` leads to it.
    fn compare(&mut self, [one, other]: [Span; 2], scale: Scale) -> Result<(), DifferenceKind> {
        if self.is_left_out() {
            return Ok(());
        }
        let [merged, unbatched] = self.docs;
        match (kind(merged, one.start), kind(unbatched, other.start)) {
            (JsonType::Object, JsonType::Object) => self.compare_objects([one, other], scale),
            (JsonType::Array, JsonType::Array) => self.compare_lists([one, other], scale),
            (JsonType::Number, JsonType::Number) => {
                let texts = [one.of(merged), other.of(unbatched)];
                let is_exact = texts.iter().all(|text| json::is_integer(text));
                match scale {
                    None => Ok(()),
                    Some(_) if is_exact && texts[0] == texts[1] => Ok(()),
                    Some(_) if is_exact => Err(DifferenceKind::Value),
                    Some(scale) => {
                        let numbers = texts.map(to_number);
                        let scale = numbers.map(probability_scale).into_iter().fold(scale, f64::max);
                        self.compare_numbers(numbers, scale)
                    }
                }
            }
            (JsonType::String, JsonType::String) => {
                let texts = [unescape(one.inner_bytes(merged)), unescape(other.inner_bytes(unbatched))];
                if texts[0] == texts[1] {
                    return Ok(());
                }
                match texts.each_ref().map(|text| decode_floats(text)) {
                    [Some(one), Some(other)] if self.has_base64 && scale.is_some() && one.len() == other.len() => {
                        let scale = one.iter().chain(&other).fold(0.0, |max: f64, number| max.max(number.abs()));
                        one.into_iter().zip(other).try_for_each(|pair| self.compare_numbers(pair.into(), scale))
                    }
                    _ => Err(DifferenceKind::Value),
                }
            }
            (one_kind, other_kind) if one_kind != other_kind => Err(DifferenceKind::Structure),
            _ if one.of(merged) == other.of(unbatched) => Ok(()),
            _ => Err(DifferenceKind::Value),
        }
    }

    fn compare_objects(&mut self, [one, other]: [Span; 2], scale: Scale) -> Result<(), DifferenceKind> {
        let [merged, unbatched] = self.docs;
        let members = |doc, object| -> Vec<(Cow<'_, [u8]>, Span)> {
            Members::new(doc, object).map(|member| (unescape(member.key.inner_bytes(doc)), member.value)).collect()
        };
        let (own, others) = (members(merged, one), members(unbatched, other));
        for (name, value) in &own {
            self.path.push(String::from_utf8_lossy(name).into_owned());
            let scale = self.member_scale(scale);
            match others.iter().find(|(other, _)| other == name) {
                Some((_, other)) => self.compare([*value, *other], scale)?,
                None if self.is_left_out() => {}
                None => return Err(DifferenceKind::Structure),
            }
            self.path.pop();
        }
        for (name, _) in others.iter().filter(|(name, _)| !own.iter().any(|(own, _)| own == name)) {
            self.path.push(String::from_utf8_lossy(name).into_owned());
            if !self.is_left_out() {
                return Err(DifferenceKind::Structure);
            }
            self.path.pop();
        }
        Ok(())
    }

    fn compare_lists(&mut self, lists: [Span; 2], scale: Scale) -> Result<(), DifferenceKind> {
        let [merged, unbatched] = self.docs;
        let mut elements: [Vec<Span>; 2] =
            [Elements::new(merged, lists[0]).collect(), Elements::new(unbatched, lists[1]).collect()];
        if elements[0].len() != elements[1].len() {
            return Err(DifferenceKind::Structure);
        }
        let scale = if self.is_elements() { Some(self.elements_scale(lists)) } else { scale };
        let are_results = scale.is_none() && self.is_results();
        let are_scores = are_results
            && self.shape.index.is_some()
            && !self.docs.iter().zip(&elements).any(|(doc, results)| results.iter().any(|one| holds_list(doc, *one)));
        let of_all = are_scores.then(|| self.scale_of(lists));
        if are_results && let Some(index) = &self.shape.index {
            // Two results with equal scores may be sorted in either order.
            for (doc, elements) in self.docs.into_iter().zip(&mut elements) {
                elements.sort_by_key(|element| number_at(doc, *element, &index.at).unwrap_or(0));
            }
        }
        let [own, others] = elements;
        for (place, (one, other)) in own.into_iter().zip(others).enumerate() {
            self.path.push(place.to_string());
            let both_numbers = [(merged, one), (unbatched, other)].map(|(doc, span)| kind(doc, span.start));
            match scale {
                None if are_results => {
                    let scale = of_all.unwrap_or_else(|| self.result_scale([one, other]));
                    self.compare([one, other], Some(scale))?;
                }
                // Components of a vector may be integers of a quantized model.
                Some(scale) if both_numbers == [JsonType::Number; 2] => {
                    self.compare_numbers([to_number(one.of(merged)), to_number(other.of(unbatched))], scale)?;
                }
                _ => self.compare([one, other], scale)?,
            }
            self.path.pop();
        }
        Ok(())
    }

    fn compare_numbers(&mut self, numbers: [f64; 2], scale: f64) -> Result<(), DifferenceKind> {
        let difference = compare_numbers(numbers, scale)?;
        self.rounding = self.rounding.max(difference);
        Ok(())
    }

    /// Returns `true` if the current path leads to the elements of a tensor without a datatype.
    fn is_elements(&self) -> bool {
        self.shape.tensor.as_ref().is_some_and(|tensor| tensor.values.tokens() == self.path)
    }

    /// Returns `true` if the current path leads to results.
    fn is_results(&self) -> bool {
        if self.shape.payload == Payload::Tensors {
            return self.path == ["outputs"];
        }
        let is_here = |pointer: &Pointer| pointer.tokens() == self.path;
        match &self.shape.results {
            ResultLayout::Lists(lists) => lists.iter().any(is_here),
            ResultLayout::Columns { at, .. } => {
                self.path.starts_with(at.tokens()) && self.path.len() <= at.tokens().len() + 1
            }
            ResultLayout::Map { .. } => false,
        }
    }

    fn has_results(&self, doc: &[u8]) -> bool {
        let is_list = |pointer: &Pointer| {
            let found = json::find(doc, json::root(doc), pointer).ok().flatten();
            found.is_some_and(|found| matches!(kind(doc, found.value.start), JsonType::Array | JsonType::Object))
        };
        let has_lists = match &self.shape.results {
            ResultLayout::Lists(lists) => lists.iter().all(is_list),
            ResultLayout::Columns { at, .. } => is_list(at),
            ResultLayout::Map { .. } => false,
        };
        has_lists || self.shape.tensor.as_ref().is_some_and(|tensor| is_list(&tensor.values))
    }

    /// Returns `true` if the value at the current path differs between two responses by its nature.
    fn is_left_out(&self) -> bool {
        let is_here = |pointer: &Pointer| pointer.tokens() == self.path;
        let counters = match &self.shape.counters {
            Counters::None => false,
            Counters::Usage(at) => is_here(at),
            Counters::Totals { at, .. } => at.iter().any(is_here),
        };
        // SGLang's ids, times and counters of a generated text.
        let is_metadata =
            self.shape.generation.is_some() && self.path.last().is_some_and(|name| name == GENERATION_METADATA);
        counters || is_metadata || self.shape.ids.iter().chain(&self.shape.call_id).any(is_here)
    }
}

#[cfg(test)]
mod tests;
