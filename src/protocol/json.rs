//! JSON as bytes: checked once, then walked by spans.
//!
//! A batch is spliced from raw bytes, so nothing here turns a value into anything else: no number is parsed and printed again, no string decoded
//! but to compare a key or to count its characters. [`check()`] reads a document once, with a constant stack and no allocation; everything after it
//! walks bytes known to be good and may skip whole values by looking for brackets and quotes only. The walkers never panic and always end, also on
//! bytes that were not checked, but then their answers mean nothing.
//!
//! What it leaves out: a tree. Whoever needs a part of a document finds it by [`find`] and iterates.

mod canon;
mod check;
mod class;
mod text;

use memchr::{memchr2, memchr3};

use crate::protocol::pointer::Pointer;

pub(crate) use canon::{Looked, canonical};
#[cfg(test)]
pub(crate) use check::Flaw;
pub(crate) use check::{NESTING_MAX, Rules, check};
pub(crate) use class::{Scalars, class, keys_class};
pub(crate) use text::{code_points, escape_latin1, folds_to, unescape, unescaped_len};

#[cfg(test)]
mod tests;

/// Bytes `start..end` of one document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) start: usize,
    pub(crate) end: usize,
}

/// What a value is, by its first byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Object,
    Array,
    String,
    Number,
    Bool,
    Null,
}

/// One member of an object; the key's span has its quotes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Member {
    pub(crate) key: Span,
    pub(crate) value: Span,
}

/// A value that a pointer leads to, and where it hangs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Found {
    /// Its key, when it is a member.
    pub(crate) key: Option<Span>,
    pub(crate) value: Span,
    /// The object or array that holds it; none for the root.
    pub(crate) parent: Option<Span>,
}

/// A key stands twice in an object, or beside a twin that some servers take for it: no two servers agree on what that means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ambiguous;

/// The members of an object, in order.
#[derive(Debug, Clone)]
pub(crate) struct Members<'a> {
    doc: &'a [u8],
    pos: usize,
}

/// The elements of an array, in order.
#[derive(Debug, Clone)]
pub(crate) struct Elements<'a> {
    doc: &'a [u8],
    pos: usize,
}

/// The byte at `pos`; NUL, which is legal nowhere in JSON, past the end.
#[inline]
fn at(doc: &[u8], pos: usize) -> u8 {
    doc.get(pos).copied().unwrap_or(0)
}

/// The first position from `pos` on that holds no white space.
#[inline]
fn blank(doc: &[u8], mut pos: usize) -> usize {
    while matches!(at(doc, pos), b' ' | b'\n' | b'\r' | b'\t') {
        pos += 1;
    }
    pos
}

/// The span of the document's one value, white space around it left out.
pub(crate) fn root(doc: &[u8]) -> Span {
    let start = blank(doc, 0);
    Span { start, end: skip(doc, start) }
}

/// What the value that starts at `pos` is.
pub(crate) fn kind(doc: &[u8], pos: usize) -> Kind {
    match at(doc, pos) {
        b'{' => Kind::Object,
        b'[' => Kind::Array,
        b'"' => Kind::String,
        b't' | b'f' => Kind::Bool,
        b'n' => Kind::Null,
        _ => Kind::Number,
    }
}

/// Whether the number at `span` is spelled as an integer.
pub(crate) fn is_integer(number: &[u8]) -> bool {
    let digits = number.strip_prefix(b"-").unwrap_or(number);
    !digits.is_empty() && digits.iter().all(u8::is_ascii_digit)
}

/// The end of the value that starts at `pos`.
pub(crate) fn skip(doc: &[u8], pos: usize) -> usize {
    match at(doc, pos) {
        b'"' => skip_string(doc, pos),
        b'[' => skip_nested(doc, pos, b'[', b']'),
        b'{' => skip_nested(doc, pos, b'{', b'}'),
        _ => {
            let mut end = pos;
            while !matches!(at(doc, end), b',' | b']' | b'}' | b' ' | b'\n' | b'\r' | b'\t' | 0) {
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
        if at(doc, from + hit) == b'"' {
            return from + hit + 1;
        }
        from += hit + 2;
    }
    doc.len()
}

/// Brackets of the other kind nest properly inside and need no look, so three bytes are enough to search for.
fn skip_nested(doc: &[u8], pos: usize, open: u8, close: u8) -> usize {
    let mut depth = 1_usize;
    let mut from = pos + 1;
    while let Some(rest) = doc.get(from..)
        && let Some(hit) = memchr3(b'"', open, close, rest)
    {
        let here = from + hit;
        let byte = at(doc, here);
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

/// Follows `pointer` from `within`.
///
/// # Errors
/// A key on the way stands twice in its object.
pub(crate) fn find(doc: &[u8], within: Span, pointer: &Pointer) -> Result<Option<Found>, Ambiguous> {
    let mut found = Found { key: None, value: within, parent: None };
    for token in pointer.tokens() {
        let Some(next) = step(doc, found.value, token)? else { return Ok(None) };
        found = next;
    }
    Ok(Some(found))
}

fn step(doc: &[u8], within: Span, token: &str) -> Result<Option<Found>, Ambiguous> {
    match kind(doc, within.start) {
        Kind::Object => {
            let mut found = None;
            for member in Members::new(doc, within) {
                if *unescape(member.key.inside(doc)) != *token.as_bytes() {
                    continue;
                }
                if found.is_some() {
                    return Err(Ambiguous);
                }
                found = Some(Found { key: Some(member.key), value: member.value, parent: Some(within) });
            }
            Ok(found)
        }
        Kind::Array => {
            let canonical = token == "0" || !token.starts_with('0');
            let Some(index) = token.parse::<usize>().ok().filter(|_| canonical) else { return Ok(None) };
            let value = Elements::new(doc, within).nth(index);
            Ok(value.map(|value| Found { key: None, value, parent: Some(within) }))
        }
        Kind::String | Kind::Number | Kind::Bool | Kind::Null => Ok(None),
    }
}

// === impl Span ===

impl Span {
    /// The bytes themselves.
    pub(crate) fn of(self, doc: &[u8]) -> &[u8] {
        doc.get(self.start..self.end).unwrap_or_default()
    }

    /// The bytes without the first and the last: a string without its quotes.
    pub(crate) fn inside(self, doc: &[u8]) -> &[u8] {
        doc.get(self.start + 1..self.end.saturating_sub(1)).unwrap_or_default()
    }

    pub(crate) const fn len(self) -> usize {
        self.end.saturating_sub(self.start)
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
        let start = blank(self.doc, self.pos);
        if at(self.doc, start) != b'"' {
            return None;
        }
        let key = Span { start, end: skip_string(self.doc, start) };
        let start = blank(self.doc, blank(self.doc, key.end) + 1);
        let value = Span { start, end: skip(self.doc, start) };
        let after = blank(self.doc, value.end);
        self.pos = after + usize::from(at(self.doc, after) == b',');
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
        let start = blank(self.doc, self.pos);
        let end = skip(self.doc, start);
        if end <= start {
            return None;
        }
        let after = blank(self.doc, end);
        self.pos = after + usize::from(at(self.doc, after) == b',');
        Some(Span { start, end })
    }
}
