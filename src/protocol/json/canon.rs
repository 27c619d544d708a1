//! Canonical JSON: white space removed, keys sorted, and everything else as it is written.
//!
//! Two calls may share a batch only if everything except their items is equal, and equality is
//! defined on this text. While a document is written, every object is checked for duplicate keys
//! and for keys that differ from a field of the protocol only in case.

use std::ops::Range;

use super::{DuplicateKey, Elements, JsonType, Members, Span, is_case_variant, kind, unescape};
use crate::pointer::Pointer;

/// Fields and pointers of a request that receive special treatment.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct CanonicalOptions<'a> {
    /// Names of top-level fields that the protocol defines.
    pub(crate) known: &'a [&'a str],
    /// Pointers that the adapter resolves.
    pub(crate) pointers: &'a [&'a Pointer],
    /// Start offsets of the values that are left out together with their keys: items, and fields
    /// that need not be equal. Sorted in ascending order.
    pub(crate) without: &'a [usize],
}

/// Appends the canonical form of the value at `span` to `out`.
///
/// # Errors
/// A key occurs twice in an object, or a key differs from a field that the adapter reads only in
/// case.
pub(crate) fn write_canonical(
    doc: &[u8],
    span: Span,
    options: CanonicalOptions<'_>,
    out: &mut Vec<u8>,
) -> Result<(), DuplicateKey> {
    CanonicalWriter { doc, options, out }.value(span, 0, options.pointers)
}

struct CanonicalWriter<'a> {
    doc: &'a [u8],
    options: CanonicalOptions<'a>,
    out: &'a mut Vec<u8>,
}

impl CanonicalWriter<'_> {
    /// Recursion is bounded by the nesting depth that `check` accepts. `active` contains the
    /// pointers that lead through this value.
    fn value(&mut self, span: Span, depth: usize, active: &[&Pointer]) -> Result<(), DuplicateKey> {
        match kind(self.doc, span.start) {
            JsonType::Object => self.object(span, depth, active),
            JsonType::Array => self.array(span, depth, active),
            JsonType::String | JsonType::Number | JsonType::Bool | JsonType::Null => {
                self.out.extend_from_slice(span.of(self.doc));
                Ok(())
            }
        }
    }

    fn array(&mut self, span: Span, depth: usize, active: &[&Pointer]) -> Result<(), DuplicateKey> {
        self.out.push(b'[');
        for (index, element) in Elements::new(self.doc, span).enumerate() {
            if self.options.without.binary_search(&element.start).is_ok() {
                self.out.extend_from_slice(b"*,");
                continue;
            }
            if active.is_empty() {
                self.value(element, depth + 1, &[])?;
            } else {
                let token = index.to_string();
                self.value(element, depth + 1, &pointers_through(active, depth, token.as_bytes()))?;
            }
            self.out.push(b',');
        }
        self.out.push(b']');
        Ok(())
    }

    fn object(&mut self, span: Span, depth: usize, active: &[&Pointer]) -> Result<(), DuplicateKey> {
        let start = self.out.len();
        let mut members: Vec<(std::borrow::Cow<'_, [u8]>, Range<usize>)> = Vec::new();
        for member in Members::new(self.doc, span) {
            let key = unescape(member.key.inner_bytes(self.doc));
            let tokens = active.iter().filter_map(|pointer| pointer.tokens().get(depth)).map(String::as_str);
            // Fields of the protocol exist at the top level only; pointers apply at every level.
            let known = if depth == 0 { self.options.known } else { &[] };
            if known.iter().copied().chain(tokens).any(|name| is_case_variant(&key, name.as_bytes())) {
                return Err(DuplicateKey);
            }
            let from = self.out.len();
            if self.options.without.binary_search(&member.value.start).is_err() {
                self.out.extend_from_slice(member.key.of(self.doc));
                self.out.push(b':');
                self.value(member.value, depth + 1, &pointers_through(active, depth, &key))?;
                self.out.push(b',');
            }
            members.push((key, from..self.out.len()));
        }
        members.sort_by(|a, b| a.0.cmp(&b.0));
        if members.windows(2).any(|pair| pair[0].0 == pair[1].0) {
            return Err(DuplicateKey);
        }
        // The members were written in document order. They are copied in key order and replace it.
        let mut sorted = Vec::with_capacity(self.out.len() - start + 2);
        sorted.push(b'{');
        for (_, range) in members {
            sorted.extend_from_slice(self.out.get(range).unwrap_or_default());
        }
        sorted.push(b'}');
        self.out.truncate(start);
        self.out.append(&mut sorted);
        Ok(())
    }
}

/// Returns the pointers in `active` that continue through the child named `token`.
fn pointers_through<'p>(active: &[&'p Pointer], depth: usize, token: &[u8]) -> Vec<&'p Pointer> {
    let continues = |pointer: &&&Pointer| pointer.tokens().get(depth).is_some_and(|next| next.as_bytes() == token);
    active.iter().filter(continues).copied().collect()
}
