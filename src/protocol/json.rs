//! JSON as bytes: validated once, then traversed by spans.
//!
//! A batch is spliced from raw bytes, so values are never converted: no number is parsed and
//! printed again, and a string is decoded only to compare a key or to count its characters.
//! [`validate`] validates a document in one pass, with a constant stack and no allocation.
//! Everything after it traverses validated bytes, and may skip whole values by searching for
//! brackets and quotes only. The iterators never panic and always terminate, even on bytes that
//! were not validated, but their results are then meaningless.
//!
//! No tree is built. A part of a document is located with [`find`] and then iterated over.

mod canon;
mod check;
mod class;
mod decimals;
mod scripts;
mod text;

use memchr::{memchr2, memchr3};

use crate::pointer::Pointer;

pub(crate) use canon::{CanonicalOptions, write_canonical};
#[cfg(test)]
pub(crate) use check::{JsonError, NESTING_MAX};
pub(crate) use check::{JsonRules, validate};
pub(crate) use class::{Base64Form, scalar_class, write_class, write_keys_class, write_layout};
pub(crate) use scripts::{ScriptCounts, count_scripts};
pub(crate) use text::{code_points, escape_latin1, is_case_variant, to_json_string, unescape, unescaped_len};

#[cfg(test)]
mod tests;

/// The byte range `start..end` of a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) start: usize,
    pub(crate) end: usize,
}

/// Type of a JSON value, as determined by its first byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum JsonType {
    Object,
    Array,
    String,
    Number,
    Bool,
    Null,
}

/// A member of an object. The span of the key includes the quotes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Member {
    pub(crate) key: Span,
    pub(crate) value: Span,
}

/// A value located by a pointer, with its position in the document.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LocatedValue {
    /// Key of the value if its parent is an object.
    pub(crate) key: Option<Span>,
    pub(crate) value: Span,
    /// The object or array that contains the value; `None` for the root.
    pub(crate) parent: Option<Span>,
}

/// The members of an object, traversed once for several look-ups.
#[derive(Debug)]
pub(crate) struct ObjectIndex<'a> {
    doc: &'a [u8],
    pub(crate) object: Span,
    /// `None` if there are too many members to keep, or if the value is no object.
    members: Option<Vec<Member>>,
}

/// Maximum number of members in an index. Responses of known servers have fewer than 20.
const INDEXED_MAX: usize = 64;

/// Error for an object with a duplicate key, or with a second key that some servers treat as the
/// same one. Servers disagree about the meaning of such a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DuplicateKey;

/// Iterator over the members of an object, in document order.
#[derive(Debug, Clone)]
pub(crate) struct Members<'a> {
    doc: &'a [u8],
    pos: usize,
}

/// Iterator over the elements of an array, in document order.
#[derive(Debug, Clone)]
pub(crate) struct Elements<'a> {
    doc: &'a [u8],
    pos: usize,
}

/// Returns the byte at `pos`, or NUL, which is not legal anywhere in JSON, past the end.
#[inline]
fn byte_at(doc: &[u8], pos: usize) -> u8 {
    doc.get(pos).copied().unwrap_or(0)
}

/// Returns the first position at or after `pos` that is not white space.
#[inline]
fn skip_whitespace(doc: &[u8], mut pos: usize) -> usize {
    while matches!(byte_at(doc, pos), b' ' | b'\n' | b'\r' | b'\t') {
        pos += 1;
    }
    pos
}

/// Returns the span of the document's only value, without the white space around it.
pub(crate) fn root(doc: &[u8]) -> Span {
    let start = skip_whitespace(doc, 0);
    Span { start, end: value_end(doc, start) }
}

/// Returns the same for a document that was validated as a whole, without a traversal.
pub(crate) fn root_of_validated(doc: &[u8]) -> Span {
    let is_whitespace = |byte: &u8| matches!(byte, b' ' | b'\n' | b'\r' | b'\t');
    let after = doc.iter().rev().take_while(|byte| is_whitespace(byte)).count();
    Span { start: skip_whitespace(doc, 0), end: doc.len() - after }
}

/// Returns the type of the value that starts at `pos`.
pub(crate) fn kind(doc: &[u8], pos: usize) -> JsonType {
    match byte_at(doc, pos) {
        b'{' => JsonType::Object,
        b'[' => JsonType::Array,
        b'"' => JsonType::String,
        b't' | b'f' => JsonType::Bool,
        b'n' => JsonType::Null,
        _ => JsonType::Number,
    }
}

/// Returns `true` if `number` is written as an integer.
pub(crate) fn is_integer(number: &[u8]) -> bool {
    let digits = number.strip_prefix(b"-").unwrap_or(number);
    !digits.is_empty() && digits.iter().all(u8::is_ascii_digit)
}

/// Returns the end of the value that starts at `pos`.
pub(crate) fn value_end(doc: &[u8], pos: usize) -> usize {
    match byte_at(doc, pos) {
        b'"' => skip_string(doc, pos),
        b'[' => skip_nested(doc, pos, b'[', b']'),
        b'{' => skip_nested(doc, pos, b'{', b'}'),
        _ => {
            let mut end = pos;
            while !matches!(byte_at(doc, end), b',' | b']' | b'}' | b' ' | b'\n' | b'\r' | b'\t' | 0) {
                end += 1;
            }
            end
        }
    }
}

fn skip_string(doc: &[u8], pos: usize) -> usize {
    let mut from = pos + 1;
    while let Some(rest) = doc.get(from..)
        && let Some(hit) = memchr2(b'"', b'\\', rest)
    {
        if byte_at(doc, from + hit) == b'"' {
            return from + hit + 1;
        }
        from += hit + 2;
    }
    doc.len()
}

/// Returns the end of the object or array that starts at `pos`. In a valid document, brackets of
/// the other type are balanced inside and can be skipped, so only three bytes are searched for.
fn skip_nested(doc: &[u8], pos: usize, open: u8, close: u8) -> usize {
    let mut depth = 1_usize;
    let mut from = pos + 1;
    while let Some(rest) = doc.get(from..)
        && let Some(hit) = memchr3(b'"', open, close, rest)
    {
        let here = from + hit;
        let byte = byte_at(doc, here);
        if byte == b'"' {
            from = skip_string(doc, here);
            continue;
        }
        from = here + 1;
        if byte == open {
            depth += 1;
        } else {
            depth -= 1;
            if depth == 0 {
                return from;
            }
        }
    }
    doc.len()
}

/// Resolves `pointer` starting at the value `within`.
///
/// # Errors
/// A key on the path occurs twice in its object.
pub(crate) fn find(doc: &[u8], within: Span, pointer: &Pointer) -> Result<Option<LocatedValue>, DuplicateKey> {
    follow(doc, LocatedValue { key: None, value: within, parent: None }, pointer.tokens())
}

/// Resolves the rest of a pointer starting at a value.
fn follow(doc: &[u8], from: LocatedValue, tokens: &[String]) -> Result<Option<LocatedValue>, DuplicateKey> {
    let mut found = from;
    for token in tokens {
        let Some(next) = step(doc, found.value, token)? else { return Ok(None) };
        found = next;
    }
    Ok(Some(found))
}

fn step(doc: &[u8], within: Span, token: &str) -> Result<Option<LocatedValue>, DuplicateKey> {
    match kind(doc, within.start) {
        JsonType::Object => find_member(doc, within, Members::new(doc, within), token),
        JsonType::Array => {
            let canonical = token == "0" || !token.starts_with('0');
            let Some(index) = token.parse::<usize>().ok().filter(|_| canonical) else { return Ok(None) };
            let value = Elements::new(doc, within).nth(index);
            Ok(value.map(|value| LocatedValue { key: None, value, parent: Some(within) }))
        }
        JsonType::String | JsonType::Number | JsonType::Bool | JsonType::Null => Ok(None),
    }
}

/// Finds the member of an object with this key.
fn find_member(
    doc: &[u8],
    object: Span,
    members: impl Iterator<Item = Member>,
    token: &str,
) -> Result<Option<LocatedValue>, DuplicateKey> {
    let mut found = None;
    for member in members {
        if *unescape(member.key.inner_bytes(doc)) != *token.as_bytes() {
            continue;
        }
        if found.is_some() {
            return Err(DuplicateKey);
        }
        found = Some(LocatedValue { key: Some(member.key), value: member.value, parent: Some(object) });
    }
    Ok(found)
}

/// Appends a part of a document, in which `write` replaces the spans of `edits`. They are in order,
/// and one that begins inside another before it is left out.
pub(crate) fn splice<E>(
    doc: &[u8],
    part: Span,
    edits: impl IntoIterator<Item = (Span, E)>,
    out: &mut Vec<u8>,
    mut write: impl FnMut(Span, E, &mut Vec<u8>),
) {
    let mut from = part.start;
    for (span, edit) in edits {
        if span.start >= from {
            out.extend_from_slice(Span { start: from, end: span.start }.of(doc));
            write(span, edit, out);
            from = span.end;
        }
    }
    out.extend_from_slice(Span { start: from, end: part.end }.of(doc));
}

// === impl Span ===

impl Span {
    /// Returns the span of a whole document.
    pub(crate) const fn whole(doc: &[u8]) -> Self {
        Self { start: 0, end: doc.len() }
    }

    /// Returns the bytes of the span.
    pub(crate) fn of(self, doc: &[u8]) -> &[u8] {
        doc.get(self.start..self.end).unwrap_or_default()
    }

    /// Returns the bytes without the first and the last one, for example a string without its
    /// quotes.
    pub(crate) fn inner_bytes(self, doc: &[u8]) -> &[u8] {
        doc.get(self.start + 1..self.end.saturating_sub(1)).unwrap_or_default()
    }

    pub(crate) const fn len(self) -> usize {
        self.end.saturating_sub(self.start)
    }
}

// === impl ObjectIndex ===

impl<'a> ObjectIndex<'a> {
    pub(crate) fn new(doc: &'a [u8], object: Span) -> Self {
        let members = (kind(doc, object.start) == JsonType::Object)
            .then(|| Members::new(doc, object).take(INDEXED_MAX + 1).collect::<Vec<_>>())
            .filter(|members| members.len() <= INDEXED_MAX);
        Self { doc, object, members }
    }

    /// Resolves `pointer` starting at the object.
    ///
    /// # Errors
    /// A key on the path occurs twice in its object.
    pub(crate) fn find(&self, pointer: &Pointer) -> Result<Option<LocatedValue>, DuplicateKey> {
        let (Some(members), Some((first, rest))) = (&self.members, pointer.tokens().split_first()) else {
            return find(self.doc, self.object, pointer);
        };
        match find_member(self.doc, self.object, members.iter().copied(), first)? {
            Some(found) => follow(self.doc, found, rest),
            None => Ok(None),
        }
    }
}

// === impl Members ===

impl<'a> Members<'a> {
    pub(crate) fn new(doc: &'a [u8], object: Span) -> Self {
        Self { doc, pos: object.start + 1 }
    }
}

impl Iterator for Members<'_> {
    type Item = Member;

    fn next(&mut self) -> Option<Member> {
        let start = skip_whitespace(self.doc, self.pos);
        if byte_at(self.doc, start) != b'"' {
            return None;
        }
        let key = Span { start, end: skip_string(self.doc, start) };
        let start = skip_whitespace(self.doc, skip_whitespace(self.doc, key.end) + 1);
        let value = Span { start, end: value_end(self.doc, start) };
        let after = skip_whitespace(self.doc, value.end);
        self.pos = after + usize::from(byte_at(self.doc, after) == b',');
        Some(Member { key, value })
    }
}

// === impl Elements ===

impl<'a> Elements<'a> {
    pub(crate) fn new(doc: &'a [u8], array: Span) -> Self {
        Self { doc, pos: array.start + 1 }
    }
}

impl Iterator for Elements<'_> {
    type Item = Span;

    fn next(&mut self) -> Option<Span> {
        let start = skip_whitespace(self.doc, self.pos);
        let end = value_end(self.doc, start);
        if end <= start {
            return None;
        }
        let after = skip_whitespace(self.doc, end);
        self.pos = after + usize::from(byte_at(self.doc, after) == b',');
        Some(Span { start, end })
    }
}
