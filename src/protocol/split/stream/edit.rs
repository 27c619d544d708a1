//! Replacements in the data of a chunk.

use super::chunk::ResultChunk;
use crate::json::{self, Span};

/// A replacement in the data of a chunk.
pub(super) type ChunkEdit<'a> = (Span, &'a [u8]);

/// Returns `true` if a span lies in another one.
pub(super) const fn contains(outer: Span, inner: Span) -> bool {
    outer.start <= inner.start && inner.end <= outer.end
}

/// Returns the bytes of a chunk outside its results, its id and its numbers.
pub(super) fn outside(doc: &[u8], chunk: &ResultChunk) -> Vec<u8> {
    let spans = [Some(chunk.results), chunk.id, chunk.usage];
    apply_edits(doc, spans.into_iter().flatten().map(|span| (span, &b""[..])).collect())
}

/// Returns the bytes of a chunk with replacements. One inside a removed part is left out.
pub(super) fn apply_edits(doc: &[u8], mut edits: Vec<ChunkEdit<'_>>) -> Vec<u8> {
    edits.sort_by_key(|(span, _)| span.start);
    let mut out = Vec::with_capacity(doc.len() + 32);
    json::splice(doc, Span::whole(doc), edits, &mut out, |_, text, out| out.extend_from_slice(text));
    out
}
