//! Scales of the numbers in a response: the magnitude by which the rounding of a number is judged.

use super::{Comparer, Scale};
use crate::json::{self, Elements, JsonType, Members, Span, kind};
use crate::pointer::Pointer;
use crate::shape::Payload;

/// Returns the largest magnitude of the elements of a tensor of floating-point numbers; zero for
/// other tensors.
fn tensor_scale(doc: &[u8], tensor: Span) -> f64 {
    let member = |name: &str| json::find(doc, tensor, &Pointer::from_static(name)).ok().flatten();
    let datatype = member("/datatype").map(|found| found.value.inner_bytes(doc)).unwrap_or_default();
    let is_rounded = datatype.starts_with(b"FP") || datatype.starts_with(b"BF");
    let data = member("/data").filter(|_| is_rounded);
    data.map_or(0.0, |data| largest_magnitude(doc, data.value, true))
}

/// Returns the largest magnitude of the elements of a tensor without a datatype; zero if all of
/// them are integers.
fn elements_scale(doc: &[u8], elements: Span) -> f64 {
    let is_rounded = |element: Span| !json::is_integer(element.of(doc));
    if Elements::new(doc, elements).any(is_rounded) { largest_magnitude(doc, elements, false) } else { 0.0 }
}

/// Returns the largest magnitude of the numbers in a value. Integers count only as components of a
/// vector.
fn largest_magnitude(doc: &[u8], value: Span, is_component: bool) -> f64 {
    let magnitudes: Vec<f64> = match kind(doc, value.start) {
        JsonType::Object => {
            Members::new(doc, value).map(|member| largest_magnitude(doc, member.value, false)).collect()
        }
        JsonType::Array => Elements::new(doc, value).map(|element| largest_magnitude(doc, element, true)).collect(),
        JsonType::Number if is_component || !json::is_integer(value.of(doc)) => vec![to_number(value.of(doc)).abs()],
        JsonType::Number | JsonType::String | JsonType::Bool | JsonType::Null => Vec::new(),
    };
    magnitudes.into_iter().filter(|number| number.is_finite()).fold(0.0, f64::max)
}

/// Returns `true` if a result is a list or has one, such as a vector.
pub(super) fn holds_list(doc: &[u8], result: Span) -> bool {
    match kind(doc, result.start) {
        JsonType::Array => true,
        JsonType::Object => Members::new(doc, result).any(|member| kind(doc, member.value.start) == JsonType::Array),
        JsonType::String | JsonType::Number | JsonType::Bool | JsonType::Null => false,
    }
}

/// Returns the scale of a number that may be a probability, and 0 for others. A model computes its
/// logarithm, which is rounded relative to itself, so that a small probability changes by more than
/// its own rounding.
pub(super) fn probability_scale(number: f64) -> f64 {
    if number > 0.0 && number < 1.0 { number * number.ln().abs() } else { 0.0 }
}

pub(super) fn to_number(text: &[u8]) -> f64 {
    std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).unwrap_or(f64::NAN)
}

// === impl Comparer ===

impl Comparer<'_> {
    /// Returns the scale of the member at the current path of an object with this scale: that of a
    /// tensor applies to its elements, and its shape has to be equal.
    pub(super) fn member_scale(&self, scale: Scale) -> Scale {
        if self.shape.tensor.as_ref().is_some_and(|tensor| tensor.shape.tokens() == self.path) {
            return Some(0.0);
        }
        let [outputs, _, name] = self.path.as_slice() else { return scale };
        match name.as_str() {
            _ if self.shape.payload != Payload::Tensors || outputs != "outputs" => scale,
            "data" => scale,
            "shape" => Some(0.0),
            _ => None,
        }
    }

    /// Returns the scale of a result. That of a tensor is the scale of its elements, and zero if they
    /// are exact.
    pub(super) fn result_scale(&self, results: [Span; 2]) -> f64 {
        if self.shape.payload != Payload::Tensors {
            return self.scale_of(results);
        }
        let tensors = self.docs.into_iter().zip(results);
        tensors.map(|(doc, tensor)| tensor_scale(doc, tensor)).fold(0.0, f64::max)
    }

    /// Returns the largest magnitude of the numbers in two values that are not exact.
    pub(super) fn scale_of(&self, values: [Span; 2]) -> f64 {
        let largest = |(doc, value): (&[u8], Span)| largest_magnitude(doc, value, false);
        self.docs.into_iter().zip(values).map(largest).fold(0.0, f64::max)
    }

    /// Returns the scale of the elements of two tensors without datatypes.
    pub(super) fn elements_scale(&self, lists: [Span; 2]) -> f64 {
        self.docs.into_iter().zip(lists).map(|(doc, list)| elements_scale(doc, list)).fold(0.0, f64::max)
    }
}
