//! Search for items of other members in the results of a member: a debug field of a result may quote
//! the whole batch.
//!
//! Whole texts are found in the texts of a result, and other items as whole values. A model writes a
//! result from its own item, so a part of another item is in it by chance, and so is a label that is
//! also an item. Names of members and words of protocols are not searched.

use std::borrow::Cow;
use std::ops::Range;

use memchr::memmem;

use crate::call::Call;
use crate::json::{Elements, JsonType, Members, Span, kind, unescape};

/// Minimum length in bytes of an item that is searched for: shorter texts are labels, and shorter
/// lists of numbers are results by chance.
const TEXT_MIN: usize = 8;
const VALUE_MIN: usize = 16;
/// Maximum length in bytes of a result that is searched for items that are no text, and of such an
/// item. A list of numbers that is longer is a vector.
const VALUE_MAX: usize = 4096;
/// Maximum number of texts of the results of a member that are searched. A result has a few.
const TEXTS_MAX: usize = 64;
/// Words of known protocols in results.
const WORDS: [&[u8]; 4] = [b"embedding", b"rerank_result", b"text_completion", b"classify"];

/// Members in whose results an item of another member was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ForeignItems {
    /// No member.
    Absent,
    /// Some members, perhaps by chance.
    Some,
    /// Every member.
    Everywhere,
}

/// The texts and other values in the items of all members, without those that are too short.
struct MemberItems<'a> {
    texts: ItemList<'a>,
    values: ItemList<'a>,
}

/// Items in the order of the members.
#[derive(Default)]
struct ItemList<'a> {
    items: Vec<Cow<'a, [u8]>>,
    /// For each member, the places of its items.
    of_member: Vec<Range<usize>>,
    /// Length of the shortest item.
    shortest: usize,
}

/// Searches the results of all members. `results` has the spans of each member in `doc`.
pub(super) fn find_foreign_items(doc: &[u8], results: &[Vec<Span>], members: &[&Call]) -> ForeignItems {
    let items = MemberItems::new(members);
    let is_foreign = |(member, own): (usize, &Vec<Span>)| items.is_quoted(doc, own, member);
    let count = results.iter().enumerate().filter(|member| is_foreign(*member)).count();
    match count {
        0 => ForeignItems::Absent,
        _ if count == members.len() => ForeignItems::Everywhere,
        _ => ForeignItems::Some,
    }
}

/// Appends the texts in a value of JSON, without the names of members. The recursion is bounded by
/// the nesting of a validated document.
fn push_texts<'a>(doc: &'a [u8], value: Span, least: usize, texts: &mut Vec<Cow<'a, [u8]>>) {
    if texts.len() >= TEXTS_MAX || value.len() < least + 2 || memchr::memchr(b'"', value.of(doc)).is_none() {
        return;
    }
    match kind(doc, value.start) {
        JsonType::String if !WORDS.contains(&value.inner_bytes(doc)) => texts.push(unescape(value.inner_bytes(doc))),
        JsonType::Object => Members::new(doc, value).for_each(|member| push_texts(doc, member.value, least, texts)),
        JsonType::Array => Elements::new(doc, value).for_each(|element| push_texts(doc, element, least, texts)),
        JsonType::String | JsonType::Number | JsonType::Bool | JsonType::Null => {}
    }
}

/// Returns `true` if a value of JSON has a string of this length, other than the words of protocols.
fn has_text(value: &[u8], least: usize) -> bool {
    let mut rest = value;
    while let Some(start) = memchr::memchr(b'"', rest) {
        rest = rest.get(start + 1..).unwrap_or_default();
        let mut end = 0;
        while let Some(next) = rest.get(end..).and_then(|rest| memchr::memchr2(b'"', b'\\', rest)) {
            end += next;
            if rest.get(end) == Some(&b'"') {
                break;
            }
            // An escape has at least two bytes.
            end += 2;
        }
        let Some(text) = rest.get(..end) else { return false };
        if text.len() >= least && !WORDS.contains(&text) {
            return true;
        }
        rest = rest.get(end + 1..).unwrap_or_default();
    }
    false
}

/// Returns the bytes without white space of JSON.
fn without_spaces(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().copied().filter(|byte| !byte.is_ascii_whitespace()).collect()
}

// === impl MemberItems ===

impl<'a> MemberItems<'a> {
    fn new(members: &'a [&'a Call]) -> Self {
        let (mut texts, mut values) = (ItemList::default(), ItemList::default());
        for call in members {
            let (mut own_texts, mut own_values) = (Vec::new(), Vec::new());
            for item in call.found.slots.iter().flat_map(|slot| &slot.items) {
                push_texts(&call.body, *item, TEXT_MIN, &mut own_texts);
                let is_text = kind(&call.body, item.start) == JsonType::String;
                if !is_text && (VALUE_MIN..=VALUE_MAX).contains(&item.len()) {
                    own_values.push(Cow::Owned(without_spaces(item.of(&call.body))));
                }
            }
            texts.push(own_texts, TEXT_MIN);
            values.push(own_values, VALUE_MIN);
        }
        Self { texts, values }
    }

    /// Returns `true` if the results of a member have an item of another one.
    fn is_quoted(&self, doc: &[u8], results: &[Span], member: usize) -> bool {
        if !self.texts.items.is_empty() {
            let mut texts = Vec::new();
            // A vector has thousands of numbers, which are not visited one by one.
            let searched = results.iter().filter(|result| has_text(result.of(doc), self.texts.shortest));
            searched.for_each(|result| push_texts(doc, *result, self.texts.shortest, &mut texts));
            if texts.iter().any(|text| self.texts.is_foreign(text, member)) {
                return true;
            }
        }
        let is_searched = |result: &&Span| (VALUE_MIN..=VALUE_MAX).contains(&result.len());
        !self.values.items.is_empty()
            && results
                .iter()
                .filter(is_searched)
                .any(|result| self.values.is_foreign(&without_spaces(result.of(doc)), member))
    }
}

// === impl ItemList ===

impl<'a> ItemList<'a> {
    /// Adds the items of the next member.
    fn push(&mut self, items: Vec<Cow<'a, [u8]>>, least: usize) {
        let start = self.items.len();
        self.items.extend(items.into_iter().filter(|item| item.len() >= least));
        self.shortest = self.items.iter().map(|item| item.len()).min().unwrap_or(usize::MAX);
        self.of_member.push(start..self.items.len());
    }

    /// Returns `true` if a value has an item of another member that is not a part of an own item.
    fn is_foreign(&self, value: &[u8], member: usize) -> bool {
        let own = self.of_member.get(member).cloned().unwrap_or_default();
        let is_own = |item: &[u8]| {
            self.items.get(own.clone()).into_iter().flatten().any(|own| memmem::find(own, item).is_some())
        };
        let others = self.items.iter().enumerate().filter(|(place, _)| !own.contains(place));
        others
            .filter(|(_, item)| item.len() <= value.len())
            .any(|(_, item)| memmem::find(value, item).is_some() && !is_own(item))
    }
}
