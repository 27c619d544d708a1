//! Members that the protocol declares: the forms of their values that are passed on, unless they
//! quote an input.

use super::super::quote;
use super::{EnvelopeWalker, is_unquoted_name, outputs};
use crate::call::Call;
use crate::json::{self, Elements, JsonType, Members, Span, kind, unescape};

/// Words of known protocols for the type of a response, with quotes.
const OBJECTS: [&[u8]; 7] = [
    b"\"list\"",
    b"\"text_completion\"",
    b"\"chat.completion\"",
    b"\"classify\"",
    b"\"rerank\"",
    b"\"score\"",
    b"\"scoring\"",
];
/// Words of Cohere for the form of its embeddings, with quotes.
const RESPONSE_TYPES: [&[u8]; 2] = [b"\"embeddings_floats\"", b"\"embeddings_by_type\""];
/// Versions of the API of Cohere, with quotes.
const API_VERSIONS: [&[u8]; 2] = [b"\"1\"", b"\"2\""];
/// Number of digits of a time in seconds and in milliseconds since the Unix epoch, between 2001 and
/// 2286. The larger one is also the maximum of a duration of some hours in nanoseconds.
const SECONDS_DIGITS: usize = 10;
const TIME_DIGITS: usize = 13;
/// Maximum number of digits of a constant in place of a time.
const CONSTANT_DIGITS: usize = 3;
/// Maximum difference in seconds between the time in a response and the wall clock. A model that is
/// loaded for the call may take that long.
const TIME_RANGE: u64 = 3600;
// === impl EnvelopeWalker ===

impl EnvelopeWalker<'_> {
    /// Returns `true` for a member of the protocol's envelope if its value has the expected form and
    /// quotes no item. In an unbatched response, the model is listed as evidence.
    pub(super) fn is_plain(&self, name: &str, value: Span) -> bool {
        let text = value.of(self.doc);
        match (kind(self.doc, value.start), name) {
            (JsonType::Null, _)
            | (JsonType::Bool, "meta/api_version/is_deprecated" | "meta/api_version/is_experimental") => true,
            (JsonType::String, "object") => OBJECTS.contains(&text),
            (JsonType::String, "model") => self.members.is_some_and(|members| self.is_model(value, members)),
            (JsonType::String, "response_type") => RESPONSE_TYPES.contains(&text),
            (JsonType::String, "meta/api_version/version") => API_VERSIONS.contains(&text),
            (JsonType::String, "model_name") => {
                self.members.is_some_and(|members| outputs::is_model_name(self.text(value), members))
            }
            (JsonType::String, "model_version") => {
                self.members.is_some_and(|members| outputs::is_version(self.text(value), members))
            }
            (JsonType::Object, "parameters") => Members::new(self.doc, value).all(|member| {
                unescape(member.key.inner_bytes(self.doc)) == outputs::CONTENT_TYPE
                    && self.is_content_type(member.value)
            }),
            (JsonType::Number, "created") => json::is_integer(text) && self.is_time(text),
            (JsonType::Number, "total_duration" | "load_duration") => {
                let quotes = self.members.is_some_and(|members| quote::quotes_measure(text, members));
                json::is_integer(text) && text.len() <= TIME_DIGITS && !quotes
            }
            _ => false,
        }
    }

    /// Returns `true` for a time close to the wall clock, or for another one that quotes no item.
    /// Servers also write a small constant in place of a time.
    fn is_time(&self, text: &[u8]) -> bool {
        let number: Option<u64> = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
        let Some(number) = number else { return false };
        let seconds = if text.len() == TIME_DIGITS { number / 1000 } else { number };
        if self.now.is_some_and(|now| now.abs_diff(seconds) <= TIME_RANGE) {
            return true;
        }
        let Some(members) = self.members else { return false };
        match text.len() {
            // A digit is in most inputs.
            ..=1 => true,
            2..=CONSTANT_DIGITS => !quote::quotes_whole_number(text, members),
            SECONDS_DIGITS..=TIME_DIGITS => !quote::quotes_digits(text, members),
            _ => false,
        }
    }

    /// Returns `true` for a list of names that quote no item.
    pub(super) fn are_names(&self, value: Span, members: &[&Call]) -> bool {
        let mut names = Elements::new(self.doc, value);
        kind(self.doc, value.start) == JsonType::Array
            && names.all(|name| {
                let text = unescape(name.inner_bytes(self.doc));
                kind(self.doc, name.start) == JsonType::String && is_unquoted_name(&text, members)
            })
    }

    /// Returns `true` if a text is the model that the calls name, or may be the name of another one:
    /// servers report the version of an alias, or a path.
    fn is_model(&self, value: Span, members: &[&Call]) -> bool {
        let text = unescape(value.inner_bytes(self.doc));
        let is_requested = |leader: &&&Call| {
            let (doc, pointer) = (&leader.body, self.shape.model.as_ref());
            let found = pointer.and_then(|pointer| json::find(doc, json::root(doc), pointer).ok().flatten());
            found.is_some_and(|found| {
                kind(doc, found.value.start) == JsonType::String && unescape(found.value.inner_bytes(doc)) == text
            })
        };
        members.first().is_some_and(|leader| is_requested(&leader)) || is_unquoted_name(&text, members)
    }
}
