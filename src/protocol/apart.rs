//! A merge key taken to pieces again: which part of it keeps two calls apart.
//!
//! A key is compared as a whole and never read on the way of a call. This reads it for people: part by part, each with the name by which a policy would
//! speak of it. It is done where a key is seen for the first time, and for calls in the access log; others pay nothing.
//!
//! What it leaves out: values. Who takes the parts keeps a digest of each, and tells their names only.

use std::borrow::Cow;

use crate::protocol::json::unescape;
use crate::protocol::route::Endpoint;

/// Characters of a name that are kept: names of headers and fields that people gave are shorter.
const NAME_MAX: usize = 64;

/// What a part of a key is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PartKind {
    /// The path.
    Path,
    /// What stands behind `?`.
    Query,
    /// The host that is called.
    Host,
    /// Who calls: every identity header together.
    Caller,
    /// What is asked for by `Accept`.
    Accept,
    /// A header that nobody knows to be harmless.
    Header,
    /// A field of the body beside the items.
    Field,
    /// A header that the policy's `mergeOn` names.
    OnHeader,
    /// A field that the policy's `mergeOn` names.
    OnField,
    /// The form of the items.
    ItemForm,
    /// The items themselves: what they cost can only be told apart if all are the same.
    Items,
}

/// A part of a key.
#[derive(Clone, PartialEq, Eq)]
pub struct KeyPart<'a> {
    /// What it is.
    pub kind: PartKind,
    /// The header's name, or the field as a pointer; empty for other kinds.
    pub name: Cow<'a, str>,
    /// What must be equal. Not to be shown.
    pub value: Cow<'a, [u8]>,
}

/// What a cost class is of: its path and its model, as far as one is named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassName {
    /// The path as it was called.
    pub path: String,
    /// The model that the body names; empty where it names none.
    pub model: String,
}

/// Reads what [`super::key::Key`] wrote.
struct Reader<'a>(&'a [u8]);

// === impl PartKind ===

impl PartKind {
    const ALL: [Self; 11] = [
        Self::Path,
        Self::Query,
        Self::Host,
        Self::Caller,
        Self::Accept,
        Self::Header,
        Self::Field,
        Self::OnHeader,
        Self::OnField,
        Self::ItemForm,
        Self::Items,
    ];

    /// The word in reports.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Path => "path",
            Self::Query => "query",
            Self::Host => "host",
            Self::Caller => "caller",
            Self::Accept => "accept",
            Self::Header => "header",
            Self::Field => "field",
            Self::OnHeader => "merge_on_header",
            Self::OnField => "merge_on_field",
            Self::ItemForm => "item_form",
            Self::Items => "items",
        }
    }

    /// The kind that this word stands for.
    #[must_use]
    pub fn of(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == word)
    }
}

impl std::fmt::Debug for KeyPart<'_> {
    /// Without the value, which may reach no log.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}: {} bytes", self.kind.as_str(), self.name, self.value.len())
    }
}

// === impl Endpoint ===

impl Endpoint {
    /// The parts of a key that this endpoint made; `None` for any other bytes.
    #[must_use]
    pub fn key_parts<'a>(&self, key: &'a [u8]) -> Option<Vec<KeyPart<'a>>> {
        let mut key = Reader(key);
        let mut parts = Vec::new();
        let part = |kind, value: &'a [u8]| KeyPart { kind, name: Cow::Borrowed(""), value: Cow::Borrowed(value) };
        // The rules' number, the route, the label and the method are those of the endpoint.
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
            let name = shown(String::from_utf8_lossy(key.field()?));
            parts.push(KeyPart { kind, name, value: Cow::Owned(key.values()?) });
        }
        for (name, value) in members(key.field()?) {
            let name = String::from_utf8_lossy(&unescape(name)).replace('~', "~0").replace('/', "~1");
            let name = shown(Cow::Owned(format!("/{name}")));
            parts.push(KeyPart { name, ..part(PartKind::Field, value) });
        }
        for pointer in &self.rules.merge_on_fields {
            let name = shown(Cow::Owned(pointer.to_string()));
            parts.push(KeyPart { name, ..part(PartKind::OnField, key.field()?) });
        }
        parts.push(part(PartKind::ItemForm, key.field()?));
        while !key.0.is_empty() {
            parts.push(part(PartKind::Items, key.field()?));
        }
        Some(parts)
    }
}

/// What a cost class is of, by its bytes; `None` for any others.
#[must_use]
pub fn class_name(class: &[u8]) -> Option<ClassName> {
    let mut class = Reader(class);
    // Method and route; `Endpoint::read` writes them.
    class.field()?;
    class.field()?;
    let path = shown(String::from_utf8_lossy(class.field()?)).into_owned();
    // A call that goes alone has neither model nor form.
    let model = class.field().unwrap_or_default();
    let bare = model.strip_prefix(b"\"").and_then(|model| model.strip_suffix(b"\"")).unwrap_or(model);
    Some(ClassName { path, model: shown(String::from_utf8_lossy(&unescape(bare))).into_owned() })
}

/// The members of the canonical text of an object, which has a comma behind each value.
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

/// A name as it may be printed.
fn shown(name: Cow<'_, str>) -> Cow<'_, str> {
    if name.len() <= NAME_MAX && !name.contains(char::is_control) {
        return name;
    }
    let mut short: String = name.chars().filter(|c| !c.is_control()).take(NAME_MAX).collect();
    if name.chars().count() > NAME_MAX {
        short.push('…');
    }
    Cow::Owned(short)
}

// === impl Reader ===

impl<'a> Reader<'a> {
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

    /// All values of a header in one, told apart.
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
    fn members_of_a_canonical_text_are_found_whatever_is_in_them() {
        let text = br#"{"a":1,"b\",:{":{"c":[1,2,],"d":"},",},"e":"x\\",}"#;
        let found: Vec<_> = members(text).into_iter().map(|(name, _)| name).collect();
        assert_eq!(found, [&b"a"[..], br#"b\",:{"#, b"e"]);
        assert_eq!(members(text)[2].1, br#""x\\""#);
        assert!(members(b"{}").is_empty() && members(b"").is_empty());
    }

    #[test]
    fn a_long_name_is_cut_and_no_control_gets_through() {
        let name = format!("a\u{1b}[31m{}", "b".repeat(200));
        let shown = shown(Cow::Owned(name));
        assert_eq!(shown.chars().count(), NAME_MAX + 1);
        assert!(!shown.contains(char::is_control));
    }
}
