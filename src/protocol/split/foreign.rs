//! Search for items of other members in the results of a member: a debug field of a result may quote
//! the whole batch.
//!
//! Only whole items are found, in texts for texts and in values for others. A result is written by the
//! model from its own item, so a part of an item of another member is in it by chance.

use std::borrow::Cow;

use memchr::memmem;

use crate::call::Call;
use crate::json::{JsonType, Span, kind, unescape};

/// Minimum length in bytes of an item that is searched for: shorter texts are labels, and shorter
/// lists of numbers are results by chance.
const TEXT_MIN: usize = 8;
const VALUE_MIN: usize = 16;
/// Maximum length in bytes of a result that is searched for items that are no text. A list of numbers
/// that long is a vector.
const VALUE_MAX: usize = 4096;

/// An item of a member, as it may occur in a result.
struct MemberItem<'a> {
    member: usize,
    is_text: bool,
    bytes: Cow<'a, [u8]>,
}

/// Returns `true` if the results of a member contain an item of another one, which is not a part of
/// an item of its own. `results` has the spans of each member in `doc`.
pub(super) fn holds_foreign_item(doc: &[u8], results: &[Vec<Span>], members: &[&Call]) -> bool {
    let items = items_of(members);
    let Some(shortest) = items.iter().filter(|item| item.is_text).map(|item| item.bytes.len()).min() else {
        return holds_foreign_value(doc, results, &items);
    };
    let holds_text = |(member, own): (usize, &Vec<Span>)| {
        let texts = own.iter().flat_map(|result| strings(result.of(doc))).filter(|text| text.len() >= shortest);
        texts.map(unescape).any(|text| is_foreign(&text, true, member, &items))
    };
    results.iter().enumerate().any(holds_text) || holds_foreign_value(doc, results, &items)
}

fn holds_foreign_value(doc: &[u8], results: &[Vec<Span>], items: &[MemberItem<'_>]) -> bool {
    if items.iter().all(|item| item.is_text) {
        return false;
    }
    results.iter().enumerate().any(|(member, own)| {
        let mut short = own.iter().filter(|result| (VALUE_MIN..=VALUE_MAX).contains(&result.len()));
        short.any(|result| is_foreign(&without_spaces(result.of(doc)), false, member, items))
    })
}

fn is_foreign(value: &[u8], is_text: bool, member: usize, items: &[MemberItem<'_>]) -> bool {
    let contains = |own: &MemberItem<'_>, item: &MemberItem<'_>| memmem::find(&own.bytes, &item.bytes).is_some();
    let is_own = |item: &MemberItem<'_>| items.iter().any(|own| own.member == member && contains(own, item));
    items
        .iter()
        .filter(|item| item.member != member && item.is_text == is_text && item.bytes.len() <= value.len())
        .any(|item| memmem::find(value, &item.bytes).is_some() && !is_own(item))
}

fn items_of<'a>(members: &'a [&'a Call]) -> Vec<MemberItem<'a>> {
    let mut items = Vec::with_capacity(members.len());
    for (member, call) in members.iter().enumerate() {
        for item in call.found.slots.iter().flat_map(|slot| &slot.items) {
            let is_text = kind(&call.body, item.start) == JsonType::String;
            let bytes = if is_text {
                unescape(item.inner_bytes(&call.body))
            } else {
                Cow::Owned(without_spaces(item.of(&call.body)))
            };
            let least = if is_text { TEXT_MIN } else { VALUE_MIN };
            if bytes.len() >= least {
                items.push(MemberItem { member, is_text, bytes });
            }
        }
    }
    items
}

/// Returns the bytes without white space of JSON.
fn without_spaces(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().copied().filter(|byte| !byte.is_ascii_whitespace()).collect()
}

/// Returns the contents of all strings of a value of JSON, names included, as written.
fn strings(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = value;
    std::iter::from_fn(move || {
        let start = memchr::memchr(b'"', rest)? + 1;
        let mut end = start;
        loop {
            end += memchr::memchr2(b'"', b'\\', rest.get(end..)?)?;
            if rest.get(end) == Some(&b'"') {
                break;
            }
            // An escape has at least two bytes.
            end += 2;
        }
        let text = rest.get(start..end);
        rest = rest.get(end + 1..)?;
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_end_at_a_quote_without_an_escape() {
        let value = br#"{"a\\":["b \" c",1,"",null,{"d":"\u0022"}]}"#;
        let found: Vec<&[u8]> = strings(value).collect();
        assert_eq!(found, [&b"a\\\\"[..], b"b \\\" c", b"", b"d", b"\\u0022"]);
    }
}
