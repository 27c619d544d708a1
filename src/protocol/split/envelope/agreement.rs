//! The number of unbatched responses that have to agree in a part before it counts as a constant.
//!
//! A flag, a number or a short word has few possible values. In a batch it may be that of any member,
//! such as a mark that one of the texts was cut off, and inputs often agree in it by chance.

use crate::evidence::{AGREEMENT_FLAG, AGREEMENT_MIN, AGREEMENT_WORD};
use crate::json::{Elements, JsonType, Members, Span, kind};
use crate::v2::grpc::wire::{WireField, WireFields, WireType};

/// Maximum length of a short word in bytes.
const WORD_MAX: usize = 8;
/// The value of an entry of a map, and the texts among the types of a parameter.
const ENTRY_VALUE: u32 = 2;
const STRING_PARAMETER: u32 = 3;

/// Returns the number for a value of JSON, or for a name or the beginning of an id without quotes.
/// That of an object or a list is the number for the least telling value in it.
pub(super) fn of_json(doc: &[u8], value: Span) -> u32 {
    let text = value.of(doc);
    match text {
        // Only the name of the part is compared.
        b"" => return AGREEMENT_MIN,
        b"true" | b"false" | b"null" => return AGREEMENT_FLAG,
        [b'{' | b'[' | b'"' | b'-' | b'0'..=b'9', ..] => {}
        _ => return of_text(text),
    }
    match kind(doc, value.start) {
        JsonType::String => of_text(value.inner_bytes(doc)),
        JsonType::Object => {
            let members = Members::new(doc, value).map(|member| of_json(doc, member.value));
            members.max().unwrap_or(AGREEMENT_FLAG)
        }
        JsonType::Array => {
            Elements::new(doc, value).map(|element| of_json(doc, element)).max().unwrap_or(AGREEMENT_FLAG)
        }
        JsonType::Number | JsonType::Bool | JsonType::Null => AGREEMENT_FLAG,
    }
}

/// Returns the number for a text.
pub(super) fn of_text(text: &[u8]) -> u32 {
    if text.len() <= WORD_MAX { AGREEMENT_WORD } else { AGREEMENT_MIN }
}

/// Returns the value of an entry of the parameters of a message of Protocol Buffers. `None` unless it
/// is a text and nothing else.
pub(super) fn parameter_text(doc: &[u8], entry: WireField) -> Option<&[u8]> {
    let mut types = fields(doc, entry).filter(|field| field.number == ENTRY_VALUE).flat_map(|value| fields(doc, value));
    let text = types.next().filter(|text| text.number == STRING_PARAMETER && text.wire == WireType::Bytes)?;
    types.next().is_none().then(|| text.value.of(doc))
}

fn fields(doc: &[u8], message: WireField) -> impl Iterator<Item = WireField> {
    let fields = (message.wire == WireType::Bytes).then(|| WireFields::new(doc, message.value));
    fields.into_iter().flatten().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::root;

    #[test]
    fn values_with_few_possibilities_need_much_agreement() {
        for (value, needed) in [
            ("true", AGREEMENT_FLAG),
            ("null", AGREEMENT_FLAG),
            ("-1.5e3", AGREEMENT_FLAG),
            ("[]", AGREEMENT_FLAG),
            ("{}", AGREEMENT_FLAG),
            (r#"{"version":"2026.11.1-release","truncated":true}"#, AGREEMENT_FLAG),
            (r#"["a long enough text",[0]]"#, AGREEMENT_FLAG),
            (r#""clean""#, AGREEMENT_WORD),
            (r#"{"name":"a long enough text","mark":"clean"}"#, AGREEMENT_WORD),
            (r#""2026.11.1""#, AGREEMENT_MIN),
            (r#"{"version":"2026.11.1"}"#, AGREEMENT_MIN),
        ] {
            assert_eq!(of_json(value.as_bytes(), root(value.as_bytes())), needed, "{value}");
        }
    }
}
