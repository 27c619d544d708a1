//! Search for inputs that a part of a batch response quotes: as written, without JSON escapes, in
//! another case, or in part. An encoding of an input, such as base64, is not recognised.

use std::borrow::Cow;
use std::collections::HashSet;

use crate::call::Call;
use crate::json::{Elements, JsonType, Members, Span, kind, unescape};

/// Length in bytes from which a text that is common to a part and an item counts as quoted. Model
/// names and inputs share shorter ones by chance.
const TEXT_MIN: usize = 5;
/// Number of digits in a row that count as quoted if they occur in a text, and if they occur in an
/// array of numbers, which contains any short row by chance.
const TEXT_DIGITS_MIN: usize = 3;
const NUMBER_DIGITS_MIN: usize = 6;

/// An item of a member, without escapes.
struct SearchedItem<'a> {
    text: Cow<'a, [u8]>,
    /// The item is a text or contains texts.
    is_text: bool,
}

/// Returns `true` if `text`, a string without escapes, equals an item or shares a part with one. A
/// text of an item that is shorter than such a part counts as quoted if it is a word of the text.
pub(super) fn shares_text(text: &[u8], members: &[&Call]) -> bool {
    let text = text.to_ascii_lowercase();
    let parts: HashSet<&[u8]> = text.windows(TEXT_MIN).collect();
    let json = members.iter().filter(|call| call.tensors_may_hold_text().is_none());
    let mut values = json.flat_map(|call| spans(call).map(|item| (&call.body, *item)));
    values.any(|(doc, item)| has_short_word(doc, item, &text))
        || items(members).any(|item| {
            let is_text = item.is_text;
            let item = item.text.to_ascii_lowercase();
            // A string item is compared without its quotes.
            let inner = item.get(1..item.len().saturating_sub(1)).unwrap_or_default();
            item == text
                || inner == text
                || is_text && inner.len() < TEXT_MIN && has_word(&text, inner)
                || item.windows(TEXT_MIN).any(|part| parts.contains(part))
        })
}

/// Returns `true` if a value contains a short text that is a word of `text`.
fn has_short_word(doc: &[u8], value: Span, text: &[u8]) -> bool {
    match kind(doc, value.start) {
        JsonType::String => {
            let word = unescape(value.inner_bytes(doc)).to_ascii_lowercase();
            word.len() < TEXT_MIN && has_word(text, &word)
        }
        JsonType::Array => {
            holds_text(doc, value) && Elements::new(doc, value).any(|own| has_short_word(doc, own, text))
        }
        JsonType::Object => Members::new(doc, value).any(|member| has_short_word(doc, member.value, text)),
        JsonType::Number | JsonType::Bool | JsonType::Null => false,
    }
}

/// Returns `true` if a value contains a string. A search is faster than a walk for rows of numbers.
fn holds_text(doc: &[u8], value: Span) -> bool {
    memchr::memchr(b'"', value.of(doc)).is_some()
}

/// Returns `true` if a text contains a word with no letter or digit beside it.
fn has_word(text: &[u8], word: &[u8]) -> bool {
    let is_edge = |byte: Option<&u8>| byte.is_none_or(|byte| !byte.is_ascii_alphanumeric());
    !word.is_empty()
        && memchr::memmem::find_iter(text, word).any(|start| {
            is_edge(start.checked_sub(1).and_then(|before| text.get(before))) && is_edge(text.get(start + word.len()))
        })
}

/// Returns `true` if a value of numbers and units has digits that occur in an item.
pub(super) fn quotes_digits(value: &[u8], members: &[&Call]) -> bool {
    let rows = || value.split(|byte| !byte.is_ascii_digit()).filter(|row| row.len() >= TEXT_DIGITS_MIN);
    rows().next().is_some()
        && items(members).any(|item| {
            let least = if item.is_text { TEXT_DIGITS_MIN } else { NUMBER_DIGITS_MIN };
            rows().filter(|row| row.len() >= least).any(|row| memchr::memmem::find(&item.text, row).is_some())
        })
}

fn items<'a>(members: &'a [&'a Call]) -> impl Iterator<Item = SearchedItem<'a>> {
    members.iter().flat_map(|call| {
        spans(call).map(|item| SearchedItem {
            text: unescape(item.of(&call.body)),
            is_text: call.tensors_may_hold_text().unwrap_or_else(|| is_text(&call.body, *item)),
        })
    })
}

fn spans(call: &Call) -> impl Iterator<Item = &Span> {
    call.found.slots.iter().flat_map(|slot| &slot.items)
}

/// Returns `true` for a text, an object, and a list with texts or objects, such as a conversation.
fn is_text(doc: &[u8], item: Span) -> bool {
    match kind(doc, item.start) {
        JsonType::String | JsonType::Object => true,
        JsonType::Array => holds_text(doc, item),
        JsonType::Number | JsonType::Bool | JsonType::Null => false,
    }
}
