//! Decomposition of merge keys into named parts.
//!
//! A merge key is compared as a whole and never parsed while a call is processed. This parser
//! serves reports for operators: it returns each part with the name by which a policy refers to it.
//! It runs only for the first occurrence of a key and for calls in the access log.
//!
//! Values must not be shown. Users of the parts keep a digest of each value and report names only.

use std::borrow::Cow;

use strum::{EnumString, IntoStaticStr};

use crate::json::unescape;
use crate::route::Endpoint;

/// Maximum number of characters of a reported name. Common header and field names are shorter.
const NAME_MAX: usize = 64;

/// Kind of a part of a merge key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, EnumString, IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum PartKind {
    /// The path.
    Path,
    /// The query string.
    Query,
    /// The requested host.
    Host,
    /// The identity of the client: a digest over all identity headers.
    Caller,
    /// The `Accept` header.
    Accept,
    /// A header that is not known to be harmless.
    Header,
    /// A field of the body outside the items.
    Field,
    /// A header that the policy lists in `mergeOn`.
    #[strum(serialize = "merge_on_header")]
    OnHeader,
    /// A field that the policy lists in `mergeOn`.
    #[strum(serialize = "merge_on_field")]
    OnField,
    /// The class of the items.
    ItemForm,
    /// The items themselves, on routes where the cost of different items cannot be separated.
    Items,
}

/// A part of a merge key.
#[derive(Clone, PartialEq, Eq)]
pub struct KeyPart<'a> {
    /// Kind of the part.
    pub kind: PartKind,
    /// Name of the header, or the field as a JSON Pointer; empty for other kinds.
    pub name: Cow<'a, str>,
    /// Value that must be equal. It must not be shown.
    pub value: Cow<'a, [u8]>,
}

/// Human-readable name of a cost class: its path and, if known, its model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CostClassName {
    /// The path of the request.
    pub path: String,
    /// The model that the body names; empty if it names none.
    pub model: String,
}

/// Reader for the encoding of [`super::merge_key::MergeKeyBuilder`].
struct KeyReader<'a>(&'a [u8]);

// === impl PartKind ===

impl PartKind {
    /// Returns the name used in reports.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

impl std::fmt::Debug for KeyPart<'_> {
    /// Omits the value, which must not reach a log.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}: {} bytes", self.kind.as_str(), self.name, self.value.len())
    }
}

// === impl Endpoint ===

impl Endpoint {
    /// Returns the parts of a key that this endpoint produced, or `None` for any other bytes.
    #[must_use]
    pub fn key_parts<'a>(&self, key: &'a [u8]) -> Option<Vec<KeyPart<'a>>> {
        let mut key = KeyReader(key);
        let mut parts = Vec::new();
        let part = |kind, value: &'a [u8]| KeyPart { kind, name: Cow::Borrowed(""), value: Cow::Borrowed(value) };
        // Generation, route, label and method are properties of the endpoint and are skipped.
        key.field()?;
        key.count()?;
        key.field()?;
        key.field()?;
        let target = key.field()?;
        let end = target.iter().position(|byte| *byte == b'?').unwrap_or(target.len());
        let (path, query) = target.split_at_checked(end)?;
        parts.extend([part(PartKind::Path, path), part(PartKind::Query, query), part(PartKind::Host, key.field()?)]);
        parts.push(part(PartKind::Caller, key.field()?));
        let accept = if key.count()? == 1 { Cow::Borrowed(&b""[..]) } else { Cow::Owned(key.values()?) };
        parts.push(KeyPart { value: accept, ..part(PartKind::Accept, b"") });
        let headers = key.count()?;
        let on = u64::try_from(self.rules.merge_on_headers.len()).ok()?;
        for index in 0..headers.checked_add(on)? {
            let kind = if index < headers { PartKind::Header } else { PartKind::OnHeader };
            let name = printable_name(String::from_utf8_lossy(key.field()?));
            parts.push(KeyPart { kind, name, value: Cow::Owned(key.values()?) });
        }
        for (name, value) in members(key.field()?) {
            let name = String::from_utf8_lossy(&unescape(name)).replace('~', "~0").replace('/', "~1");
            let name = printable_name(Cow::Owned(format!("/{name}")));
            parts.push(KeyPart { name, ..part(PartKind::Field, value) });
        }
        for pointer in &self.rules.merge_on_fields {
            let name = printable_name(Cow::Owned(pointer.to_string()));
            parts.push(KeyPart { name, ..part(PartKind::OnField, key.field()?) });
        }
        parts.push(part(PartKind::ItemForm, key.field()?));
        while !key.0.is_empty() {
            parts.push(part(PartKind::Items, key.field()?));
        }
        Some(parts)
    }
}

/// Decodes the bytes of a cost class, or returns `None` if they are malformed.
#[must_use]
pub fn decode_cost_class(class: &[u8]) -> Option<CostClassName> {
    let mut class = KeyReader(class);
    // `Endpoint::parse_call` writes the method and the route first.
    class.field()?;
    class.field()?;
    let path = printable_name(String::from_utf8_lossy(class.field()?)).into_owned();
    // The class of an unbatched call contains neither a model nor an item form.
    let model = class.field().unwrap_or_default();
    let bare = model.strip_prefix(b"\"").and_then(|model| model.strip_suffix(b"\"")).unwrap_or(model);
    Some(CostClassName { path, model: printable_name(String::from_utf8_lossy(&unescape(bare))).into_owned() })
}

/// Returns the members of an object in canonical form, which has a comma after each value.
fn members(text: &[u8]) -> Vec<(&[u8], &[u8])> {
    let mut found = Vec::new();
    let (mut depth, mut quoted, mut escaped) = (0_usize, false, false);
    let (mut start, mut colon) = (1, None);
    for (at, byte) in text.iter().enumerate() {
        if quoted {
            quoted = escaped || *byte != b'"';
            escaped = !escaped && *byte == b'\\';
            continue;
        }
        match byte {
            b'"' => quoted = true,
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            b':' if depth == 1 => colon = colon.or(Some(at)),
            b',' if depth == 1 => {
                if let Some(colon) = colon.take()
                    && let (Some(name), Some(value)) = (text.get(start..colon), text.get(colon + 1..at))
                {
                    let bare = name.strip_prefix(b"\"").and_then(|name| name.strip_suffix(b"\"")).unwrap_or(name);
                    found.push((bare, value));
                }
                start = at + 1;
            }
            _ => {}
        }
    }
    found
}

/// Shortens a name and removes its control characters, so that it can be printed.
fn printable_name(name: Cow<'_, str>) -> Cow<'_, str> {
    if name.len() <= NAME_MAX && !name.contains(char::is_control) {
        return name;
    }
    let mut short: String = name.chars().filter(|c| !c.is_control()).take(NAME_MAX).collect();
    if name.chars().count() > NAME_MAX {
        short.push('…');
    }
    Cow::Owned(short)
}

// === impl KeyReader ===

impl<'a> KeyReader<'a> {
    fn count(&mut self) -> Option<u64> {
        let (count, rest) = self.0.split_first_chunk::<8>()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*count))
    }

    fn field(&mut self) -> Option<&'a [u8]> {
        let length = usize::try_from(self.count()?).ok()?;
        let (field, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(field)
    }

    /// Reads all values of a header into one buffer, with their number and lengths.
    fn values(&mut self) -> Option<Vec<u8>> {
        let count = self.count()?;
        let mut all = count.to_le_bytes().to_vec();
        for _ in 0..count {
            let value = self.field()?;
            all.extend_from_slice(&u64::try_from(value.len()).ok()?.to_le_bytes());
            all.extend_from_slice(value);
        }
        Some(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_of_a_canonical_text_are_found_despite_special_characters() {
        let text = br#"{"a":1,"b\",:{":{"c":[1,2,],"d":"},",},"e":"x\\",}"#;
        let found: Vec<_> = members(text).into_iter().map(|(name, _)| name).collect();
        assert_eq!(found, [&b"a"[..], br#"b\",:{"#, b"e"]);
        assert_eq!(members(text)[2].1, br#""x\\""#);
        assert!(members(b"{}").is_empty() && members(b"").is_empty());
    }

    #[test]
    fn a_long_name_is_truncated_and_control_characters_are_removed() {
        let name = format!("a\u{1b}[31m{}", "b".repeat(200));
        let printed = printable_name(Cow::Owned(name));
        assert_eq!(printed.chars().count(), NAME_MAX + 1);
        assert!(!printed.contains(char::is_control));
    }
}
