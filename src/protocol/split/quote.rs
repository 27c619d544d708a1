//! Search for inputs that a part of a batch response quotes: as written, without JSON escapes, in
//! another case, with other separators, or in part. An encoding of an input, such as base64, is not
//! recognised.

use std::borrow::Cow;
use std::collections::HashSet;

use memchr::memmem;

use crate::call::Call;
use crate::json::{JsonType, Span, kind, unescape};

/// Length in bytes from which a text that is common to a part and an item counts as quoted. Model
/// names and inputs share shorter ones by chance.
const TEXT_MIN: usize = 5;
/// Number of digits in a row that count as quoted if they occur in a text, and if they occur in an
/// array of numbers, which contains any short row by chance.
const TEXT_DIGITS_MIN: usize = 3;
const NUMBER_DIGITS_MIN: usize = 6;
/// Minimum length of a word that counts as quoted in the middle of a text. Shorter ones are frequent
/// words of many languages.
const WORD_MIN: usize = 3;
/// Number of digits in a row, without the separators of a value, that count as quoted if a text has
/// them with other separators, and if an array of numbers has.
const SPREAD_DIGITS_MIN: usize = 5;
const SPREAD_NUMBER_DIGITS_MIN: usize = 8;
/// Number of digits in a row of a measured number that count as quoted. It has any shorter row of an
/// input with hundreds of decimals by chance.
const MEASURE_DIGITS_MIN: usize = 7;
/// Number of bits of a hash in the filter of [`TextParts`].
const FILTER_BITS: u32 = 12;

/// An item of a member, without escapes.
struct SearchedItem<'a> {
    text: Cow<'a, [u8]>,
    /// The item is a text or contains texts.
    is_text: bool,
}

/// The parts of a text that an item is searched for. The filter has the hash of each, so that most
/// places of an item need no lookup in the set.
struct TextParts<'a> {
    parts: HashSet<&'a [u8]>,
    filter: [bool; 1 << FILTER_BITS],
}

/// Returns `true` if `text`, a string without escapes, equals an item or shares a part with one,
/// whatever the separators in both. A word of the text that is shorter than such a part counts as
/// quoted if it is a text or a word of an item, and a text that is shorter if it occurs in an item.
pub(super) fn shares_text(text: &[u8], members: &[&Call]) -> bool {
    let text = text.to_ascii_lowercase();
    let compact = without_separators(&text);
    let parts = TextParts::new([&text, &compact]);
    let words: Vec<&[u8]> = short_words(&text).collect();
    let is_short = (2..TEXT_MIN).contains(&compact.len());
    items(members).any(|item| {
        let is_text = item.is_text;
        let item = item.text.to_ascii_lowercase();
        let spread = without_separators(&item);
        // A string item is compared without its quotes.
        item == text
            || item.get(1..item.len().saturating_sub(1)) == Some(&text)
            || words.iter().any(|word| contains_text(&item, word) || is_text && contains_word(&item, word))
            || is_text && is_short && memmem::find(&spread, &compact).is_some()
            || parts.occur_in(&item)
            || parts.occur_in(&spread)
    })
}

/// Returns the letters and digits of a text, and its bytes beyond ASCII.
fn without_separators(text: &[u8]) -> Vec<u8> {
    text.iter().copied().filter(|byte| byte.is_ascii_alphanumeric() || !byte.is_ascii()).collect()
}

/// Returns the parts of a text below [`TEXT_MIN`] with no letter or digit beside them.
fn short_words(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let is_edge = |at: Option<usize>| at.and_then(|at| text.get(at)).is_none_or(|byte| !byte.is_ascii_alphanumeric());
    (0..text.len()).filter(move |start| is_edge(start.checked_sub(1))).flat_map(move |start| {
        let ends = (start + 1..start + TEXT_MIN).filter(move |end| is_edge(Some(*end)));
        ends.filter_map(move |end| text.get(start..end))
    })
}

/// Returns `true` if bytes of an item before `end`, a quote after them, are the name of a member.
fn is_name(item: &[u8], end: usize) -> bool {
    let rest = item.get(end..).and_then(|rest| rest.strip_prefix(b"\""));
    rest.is_some_and(|rest| rest.trim_ascii_start().starts_with(b":"))
}

/// Returns `true` if a text of an item has a word, with no letter or digit beside it.
fn contains_word(item: &[u8], word: &[u8]) -> bool {
    let is_edge = |at: Option<usize>| {
        at.and_then(|at| item.get(at)).is_none_or(|byte| byte.is_ascii() && !byte.is_ascii_alphanumeric())
    };
    let is_word = |at: usize| {
        let end = at + word.len();
        is_edge(at.checked_sub(1)) && is_edge(Some(end)) && !is_name(item, end)
    };
    word.len() >= WORD_MIN && memmem::find_iter(item, word).any(is_word)
}

/// Returns `true` if one of the texts in an item is `word`: a string of JSON that is not the name of
/// a member, or an element of a tensor, which follows its length in 32 bits or in a varint.
fn contains_text(item: &[u8], word: &[u8]) -> bool {
    let length = u8::try_from(word.len()).unwrap_or(u8::MAX);
    let quoted = [b"\"", word, b"\""].concat();
    memmem::find_iter(item, &quoted).any(|at| !is_name(item, at + quoted.len() - 1))
        || memmem::find(item, &[&[length, 0, 0, 0], word].concat()).is_some()
        || memmem::find(item, &[&[length], word].concat()).is_some()
}

/// Returns `true` if a value of numbers and units has digits that occur in an item: in a row, as a
/// whole number, or enough of them with other separators.
pub(super) fn quotes_digits(value: &[u8], members: &[&Call]) -> bool {
    let rows = || value.split(|byte| !byte.is_ascii_digit()).filter(|row| row.len() >= TEXT_DIGITS_MIN);
    let digits = digits_of(value);
    if digits.len() < TEXT_DIGITS_MIN {
        return false;
    }
    items(members).any(|item| {
        let least = if item.is_text { TEXT_DIGITS_MIN } else { NUMBER_DIGITS_MIN };
        // Numbers of one or two digits are in most inputs of numbers.
        let number = if item.is_text { Some(&*digits) } else { rows().next().map(|_| value) };
        rows().filter(|row| row.len() >= least).any(|row| memmem::find(&item.text, row).is_some())
            || number.is_some_and(|number| has_number(&item.text, number))
    }) || !is_short_decimal(value) && shares_spread_digits(&digits, members)
}

/// Returns `true` if a name has a number that is one of an item: a decimal, or one with enough digits.
/// A smaller number, such as that of an output, is in most inputs of numbers.
pub(super) fn quotes_number(name: &[u8], members: &[&Call]) -> bool {
    let numbers = name.split(|byte| !byte.is_ascii_digit() && *byte != b'.').map(trim_points);
    let numbers: Vec<&[u8]> =
        numbers.filter(|number| number.contains(&b'.') || number.len() >= TEXT_DIGITS_MIN).collect();
    !numbers.is_empty() && items(members).any(|item| numbers.iter().any(|number| has_number(&item.text, number)))
}

/// Returns `true` if a number is one of an item, with no letter beside it.
pub(super) fn quotes_whole_number(number: &[u8], members: &[&Call]) -> bool {
    let is_edge = |item: &[u8], at: Option<usize>| {
        at.and_then(|at| item.get(at)).is_none_or(|byte| !byte.is_ascii_alphanumeric() && *byte != b'.')
    };
    items(members).any(|item| {
        let mut places = memmem::find_iter(&item.text, number);
        places.any(|at| is_edge(&item.text, at.checked_sub(1)) && is_edge(&item.text, Some(at + number.len())))
    })
}

/// Returns `true` if the digits of a measured number are in an item as a number, or too many of them
/// in a row for chance.
pub(super) fn quotes_measure(number: &[u8], members: &[&Call]) -> bool {
    number.len() >= TEXT_DIGITS_MIN && quotes_whole_number(number, members)
        || items(members).any(|item| {
            let spread = without_separators(&item.text);
            number.windows(MEASURE_DIGITS_MIN).any(|row| memmem::find(&spread, row).is_some())
        })
}

/// Returns a text without points at its ends.
fn trim_points(text: &[u8]) -> &[u8] {
    let is_point = |byte: &u8| *byte == b'.';
    let start = text.iter().position(|byte| !is_point(byte)).unwrap_or(text.len());
    let end = text.iter().rposition(|byte| !is_point(byte)).map_or(start, |last| last + 1);
    text.get(start..end).unwrap_or_default()
}

/// Returns `true` for a short decimal number, of which the rows were compared: times in seconds are
/// frequent, and no item has to be searched for one again.
fn is_short_decimal(value: &[u8]) -> bool {
    let mut others = value.iter().filter(|byte| !byte.is_ascii_digit());
    value.len() <= SPREAD_NUMBER_DIGITS_MIN && others.next() == Some(&b'.') && others.next().is_none()
}

fn digits_of(value: &[u8]) -> Vec<u8> {
    value.iter().copied().filter(u8::is_ascii_digit).collect()
}

/// Returns `true` if enough digits in a row occur in an item, whatever the separators in it.
fn shares_spread_digits(digits: &[u8], members: &[&Call]) -> bool {
    let shares_digits = |item: &SearchedItem<'_>| {
        let least = if item.is_text { SPREAD_DIGITS_MIN } else { SPREAD_NUMBER_DIGITS_MIN };
        let spread = without_separators(&item.text);
        digits.windows(least).any(|row| memmem::find(&spread, row).is_some())
    };
    digits.len() >= SPREAD_DIGITS_MIN && items(members).any(|item| shares_digits(&item))
}

/// Returns `true` if all digits of a value occur in an item, whatever the separators in both.
pub(super) fn quotes_all_digits(value: &[u8], members: &[&Call]) -> bool {
    let digits = digits_of(value);
    digits.len() >= SPREAD_DIGITS_MIN
        && items(members).any(|item| memmem::find(&without_separators(&item.text), &digits).is_some())
}

/// Returns `true` if `number` is a number of an item, and not a part of one.
fn has_number(item: &[u8], number: &[u8]) -> bool {
    let is_edge =
        |at: Option<usize>| at.and_then(|at| item.get(at)).is_none_or(|byte| !byte.is_ascii_digit() && *byte != b'.');
    memmem::find_iter(item, number).any(|at| is_edge(at.checked_sub(1)) && is_edge(Some(at + number.len())))
}

fn items<'a>(members: &'a [&'a Call]) -> impl Iterator<Item = SearchedItem<'a>> {
    members.iter().flat_map(|call| {
        call.found.slots.iter().flat_map(|slot| &slot.items).map(|item| SearchedItem {
            text: unescape(item.of(&call.body)),
            is_text: call.tensors_may_hold_text().unwrap_or_else(|| is_text(&call.body, *item)),
        })
    })
}

/// Returns `true` for a text, an object, and a list with texts or objects, such as a conversation.
fn is_text(doc: &[u8], item: Span) -> bool {
    match kind(doc, item.start) {
        JsonType::String | JsonType::Object => true,
        JsonType::Array => memchr::memchr(b'"', item.of(doc)).is_some(),
        JsonType::Number | JsonType::Bool | JsonType::Null => false,
    }
}

// === impl TextParts ===

impl<'a> TextParts<'a> {
    fn new(texts: [&'a [u8]; 2]) -> Self {
        let parts: HashSet<&[u8]> = texts.into_iter().flat_map(|text| text.windows(TEXT_MIN)).collect();
        let mut filter = [false; 1 << FILTER_BITS];
        for part in &parts {
            if let Some(place) = filter.get_mut(Self::hash(part)) {
                *place = true;
            }
        }
        Self { parts, filter }
    }

    fn occur_in(&self, item: &[u8]) -> bool {
        let may_occur = |part: &[u8]| self.filter.get(Self::hash(part)).is_some_and(|place| *place);
        item.windows(TEXT_MIN).any(|part| may_occur(part) && self.parts.contains(part))
    }

    /// A multiplicative hash of the first four bytes of a part, by the golden ratio (Knuth, The Art
    /// of Computer Programming, 6.4).
    fn hash(part: &[u8]) -> usize {
        let start = part.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
        usize::try_from(start.wrapping_mul(0x9e37_79b1) >> (u32::BITS - FILTER_BITS)).unwrap_or(0)
    }
}
