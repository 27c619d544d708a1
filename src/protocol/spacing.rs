//! The bytes that a server writes between two values.

use crate::json::{self, Elements, JsonType, Members, Span, kind};

/// Returns the bytes that the server writes between two results if each response has a single one: a
/// comma, and the spacing before the result, or that between the values inside it or around it.
pub(crate) fn infer_separator(doc: &[u8], list: Span, result: Span) -> Vec<u8> {
    let before = Span { start: list.start + 1, end: result.start }.of(doc);
    if !before.is_empty() {
        return [b",", before].concat();
    }
    let gap = |value: Span| -> Option<Span> {
        let (first, second) = match kind(doc, value.start) {
            JsonType::Array => {
                let mut elements = Elements::new(doc, value);
                (elements.next()?.end, elements.next()?.start)
            }
            JsonType::Object => {
                let mut members = Members::new(doc, value);
                (members.next()?.value.end, members.next()?.key.start)
            }
            JsonType::String | JsonType::Number | JsonType::Bool | JsonType::Null => return None,
        };
        Some(Span { start: first, end: second })
    };
    gap(result).or_else(|| gap(json::root(doc))).map_or(b",".to_vec(), |gap| gap.of(doc).to_vec())
}
