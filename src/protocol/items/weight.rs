//! Measures of items, by which batches are limited and counters are divided.

use super::ItemSpans;
use crate::batching::Weight;
use crate::json::{self, Elements, JsonType, Members, Span, kind};
use crate::pointer::Pointer;
use crate::shape::Measure;
use crate::tokens::{TextMeter, TextSize};

/// Sizes of the texts of a call: of all items, and of the heaviest one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ItemTexts {
    pub(crate) sum: TextSize,
    pub(crate) heaviest: TextSize,
}

/// Returns the sum and the maximum of the items' weights. The weight of an item of parallel arrays
/// is the sum over its parts, and includes a text that the server reads with each item.
pub(crate) fn weigh(doc: &[u8], items: &ItemSpans, measure: &Measure) -> Weight {
    let each = (0..items.count()).map(|index| {
        if *measure == Measure::Items {
            1
        } else {
            parts(items, index).map(|item| item_weight(doc, item, measure)).fold(0, u64::saturating_add)
        }
    });
    each.fold(Weight::default(), |weight, one| Weight { sum: weight.sum.saturating_add(one), max: weight.max.max(one) })
}

/// Returns the weight of texts in tokens, and their sizes, from which the weight can be computed at
/// other rates.
pub(crate) fn weigh_texts(doc: &[u8], items: &ItemSpans, meter: &mut TextMeter<'_>) -> (Weight, ItemTexts) {
    let (mut weight, mut texts) = (Weight::default(), ItemTexts::default());
    for index in 0..items.count() {
        let mut size = TextSize::default();
        parts(items, index).for_each(|part| size += text_size(doc, part, meter));
        let tokens = size.default_tokens().max(1);
        if tokens > weight.max {
            (weight.max, texts.heaviest) = (tokens, size);
        }
        weight.sum = weight.sum.saturating_add(tokens);
        texts.sum += size;
    }
    (weight, texts)
}

/// Iterates over the parts of an item: one of each array, and a text that is read with each item.
fn parts(items: &ItemSpans, index: usize) -> impl Iterator<Item = Span> {
    let beside = items.shared_text.filter(|(_, with_each)| *with_each).map(|(text, _)| text);
    items.slots.iter().filter_map(move |slot| slot.items.get(index)).copied().chain(beside)
}

/// Returns the size of one text: a string, a list of strings, the `text` of an object, or token ids.
fn text_size(doc: &[u8], item: Span, meter: &mut TextMeter<'_>) -> TextSize {
    match kind(doc, item.start) {
        JsonType::String => meter.measure(item.inner_bytes(doc)),
        JsonType::Array => match first_type(doc, item) {
            Some(JsonType::String) => {
                let mut size = TextSize::default();
                Elements::new(doc, item).for_each(|text| size += text_size(doc, text, meter));
                size
            }
            // A conversation.
            Some(JsonType::Object) => meter.measure(item.of(doc)),
            _ => TextSize::of_tokens(u64::try_from(Elements::new(doc, item).count()).unwrap_or(u64::MAX)),
        },
        JsonType::Object => {
            meter.measure(text_member(doc, item).map_or_else(|| item.of(doc), |text| text.inner_bytes(doc)))
        }
        JsonType::Number | JsonType::Bool | JsonType::Null => TextSize::of_tokens(1),
    }
}

/// Returns the weight of one item.
pub(crate) fn item_weight(doc: &[u8], item: Span, measure: &Measure) -> u64 {
    let count = |len: usize| u64::try_from(len).unwrap_or(u64::MAX);
    let here = kind(doc, item.start);
    match measure {
        Measure::Bytes => count(json::unescaped_len(item.of(doc))),
        Measure::Chars => chars(doc, item).unwrap_or(1),
        Measure::ListLen if here == JsonType::Array => count(Elements::new(doc, item).count()),
        Measure::Items | Measure::ListLen => 1,
        Measure::At(pointer) => number_at(doc, item, pointer).unwrap_or(1),
        Measure::Text => match here {
            JsonType::String => json::code_points(item.inner_bytes(doc)),
            JsonType::Array if first_type(doc, item) == Some(JsonType::String) => chars(doc, item).unwrap_or(1),
            JsonType::Array => count(Elements::new(doc, item).count()),
            JsonType::Object => text_member(doc, item).map_or(1, |text| json::code_points(text.inner_bytes(doc))),
            JsonType::Number | JsonType::Bool | JsonType::Null => 1,
        },
        Measure::Tokens => text_size(doc, item, &mut TextMeter::default()).default_tokens().max(1),
    }
}

/// Returns `true` for a list that may be one of token ids.
pub(crate) fn is_token_list(doc: &[u8], item: Span) -> bool {
    kind(doc, item.start) == JsonType::Array && first_type(doc, item) != Some(JsonType::String)
}

/// Returns the type of the first element of a list.
pub(super) fn first_type(doc: &[u8], list: Span) -> Option<JsonType> {
    Elements::new(doc, list).next().map(|first| kind(doc, first.start))
}

/// Returns the number at `pointer` inside a value if it is a non-negative integer.
pub(crate) fn number_at(doc: &[u8], value: Span, pointer: &Pointer) -> Option<u64> {
    let found = json::find(doc, value, pointer).ok()??;
    std::str::from_utf8(found.value.of(doc)).ok()?.parse().ok()
}

/// Returns the number of code points of all strings in a value, or `None` if it contains no string.
fn chars(doc: &[u8], value: Span) -> Option<u64> {
    match kind(doc, value.start) {
        JsonType::String => Some(json::code_points(value.inner_bytes(doc))),
        JsonType::Array => sum(Elements::new(doc, value).map(|element| chars(doc, element))),
        JsonType::Object => sum(Members::new(doc, value).map(|member| chars(doc, member.value))),
        JsonType::Number | JsonType::Bool | JsonType::Null => None,
    }
}

fn sum(parts: impl Iterator<Item = Option<u64>>) -> Option<u64> {
    parts.flatten().fold(None, |sum, part| Some(sum.unwrap_or(0).saturating_add(part)))
}

fn text_member(doc: &[u8], object: Span) -> Option<Span> {
    let found = json::find(doc, object, &Pointer::from_static("/text")).ok()??;
    (kind(doc, found.value.start) == JsonType::String).then_some(found.value)
}
